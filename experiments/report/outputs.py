"""The redrawable outputs; those of a study are `rlgates.experiments.report.study.STUDY_OUTPUTS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rlgates.atomic import write_atomically
from rlgates.errors import check_choice
from rlgates.experiments.report.claims.ledger import LEDGER, write_ledger
from rlgates.experiments.report.environments import draw_environments
from rlgates.experiments.report.parity import write_game_parity, write_public_parity
from rlgates.experiments.report.readme import fill_in_pages
from rlgates.experiments.report.refine_gate import draw_refine_gate, refine_gate_table
from rlgates.experiments.report.rows import no_results_error
from rlgates.experiments.report.saturation import draw_saturation, saturation_table
from rlgates.experiments.report.settings import study_settings_path
from rlgates.experiments.report.studies.searches import SEARCHES, write_search_table
from rlgates.experiments.report.study import redraw_study
from rlgates.experiments.report.timings.core_growth import draw_core_growth
from rlgates.experiments.report.timings.core_speed import draw_core_speed
from rlgates.experiments.report.timings.gpu_bench import draw_gpu_bench
from rlgates.experiments.report.timings.ppo_speed import write_ppo_speed
from rlgates.experiments.report.timings.tables import (
    write_core_costs,
    write_env_speed,
    write_loop_speed,
    write_task_speed,
)
from rlgates.experiments.runs.folder import EXTRAS
from rlgates.experiments.runs.locks import locked

TIERS = ("_smoke", "_full")  # what the files of these tiers of a study end with
PARTS = ("_curves", *(f"_{extra}" for extra in EXTRAS), SEARCHES)  # of tables beside a study's
ENVIRONMENTS = "environments.png"


class Output(NamedTuple):
    """Something that is drawn from files of measurements.

    Attributes:
        draw: takes the paths of the sources, then those of the files.
        sources: the files it reads; nothing is drawn without the first.
        files: the files it may write.
    """

    draw: Callable[..., None]
    sources: tuple[str, ...]
    files: tuple[str, ...]

    def source_paths(self, results: Path) -> list[Path]:
        """Return the paths of the sources in a folder."""
        return [results / name for name in self.sources]


OUTPUTS: dict[str, Output] = {
    "core_costs": Output(write_core_costs, ("core_costs.csv", "parity.csv"), ("core_costs.md",)),
    "core_speed": Output(
        draw_core_speed,
        ("core_speed.json",),
        ("core_speed.md", "core_speed_short.md", "core_speed.png"),
    ),
    "loop_speed": Output(write_loop_speed, ("loop_speed.csv",), ("loop_speed.md",)),
    "core_growth": Output(draw_core_growth, ("core_growth.json",), ("core_growth.png",)),
    "ppo_speed": Output(write_ppo_speed, ("ppo_speed.json",), ("ppo_speed.md",)),
    "gpu_bench": Output(draw_gpu_bench, ("gpu_bench.json",), ("gpu_bench.md", "gpu_bench.png")),
    "env_speed": Output(write_env_speed, ("env_speed.csv",), ("env_speed.md",)),
    "game_parity": Output(write_game_parity, ("game_parity.csv",), ("game_parity.md",)),
    "public_parity": Output(write_public_parity, ("public_parity.csv",), ("public_parity.md",)),
    "task_speed": Output(write_task_speed, ("task_speed.csv",), ("task_speed.md",)),
    "saturation": Output(draw_saturation, ("saturation.csv",), ("saturation.md", "saturation.png")),
    "gate_analysis": Output(draw_refine_gate, ("gate_analysis.csv",), ("gate_analysis.png",)),
}

# The closed-form studies of gates, which take seconds, train nothing and depend on no seed: by the
# name on the command line the name among OUTPUTS, and what computes the table.
CLOSED_FORM = {
    "saturation": ("saturation", saturation_table),
    "gates": ("gate_analysis", refine_gate_table),
}


def redraw_output(name: str, results: Path) -> list[Path]:
    """Draw one of `OUTPUTS` again.

    Returns:
        the files that exist then; none without the first source.
    """
    output = OUTPUTS[name]
    sources = output.source_paths(results)
    if not sources[0].exists():
        return []
    files = [results / file for file in output.files]
    with locked(results):
        output.draw(*sources, *files)
    return [file for file in files if file.exists()]


def analyse(analysis: str, results: Path) -> list[Path]:
    """Compute an analysis of `CLOSED_FORM`, and write its table and figures.

    Returns:
        the files written.

    Raises:
        ValueError: an unknown analysis.
    """
    name, compute = CLOSED_FORM[check_choice("analysis", analysis, CLOSED_FORM)]
    (source,) = OUTPUTS[name].source_paths(results)
    write_atomically(source, compute().to_csv(index=False, lineterminator="\n").encode())
    return [source, *redraw_output(name, results)]


def is_reserved(name: str) -> bool:
    """Tell whether a study may not have this name: its files would be those of another output."""
    files = (file for output in OUTPUTS.values() for file in (*output.sources, *output.files))
    taken = {Path(file).stem for file in (*files, ENVIRONMENTS, LEDGER)}
    return name in taken or name.endswith((*PARTS, *TIERS))


def study_names(results: Path) -> list[str]:
    """List the studies in a folder: the tables with the settings of their runs beside them."""
    return [
        path.stem
        for path in sorted(results.glob("*.csv"))
        if path.stem not in OUTPUTS
        and not _is_part(results, path.stem)
        and study_settings_path(results, path.stem).exists()
    ]


def _is_part(results: Path, name: str) -> bool:
    """Whether a table lies beside that of a study; the study tied_gates is no part of a "tied"."""
    return any(
        name.endswith(part) and (results / f"{name.removesuffix(part)}.csv").exists()
        for part in PARTS
    )


def redraw_studies(results: Path) -> list[Path]:
    """Draw all studies and searches of a folder again, and return the files written.

    Raises:
        ValueError: there are none.
    """
    written = [path for name in study_names(results) for path in redraw_study(results, name)]
    written += [write_search_table(path) for path in sorted(results.glob(f"*{SEARCHES}.csv"))]
    if not written:
        raise no_results_error(results)
    return written


def redraw(results: Path, readme: Path) -> Iterator[Path]:
    """Draw everything in a folder again, and yield the files as they are written.

    Args:
        results: folder of the results.
        readme: text whose tables are replaced, if it exists; so are those of the pages in the
            folder `docs` beside it.

    Raises:
        ValueError: there are no results.
    """
    if not results.is_dir():  # which the lock would create
        raise no_results_error(results)
    with locked(results):
        yield from redraw_studies(results)
        for name in OUTPUTS:
            yield from redraw_output(name, results)
        yield write_ledger(results)
        draw_environments(results / ENVIRONMENTS)
        yield results / ENVIRONMENTS
        yield from fill_in_pages(readme, results)
