"""`rlgates sweep`, `tune`, `ledger` and `figures`: studies and their results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from rlgates.experiments.cli.exits import FINISHED, exit_code, interrupted
from rlgates.experiments.sweep.config import SweepConfig
from rlgates.experiments.tasks.data.files import set_data_dir
from rlgates.experiments.tune.config import TuneConfig

SWEEP, TUNE = SweepConfig(), TuneConfig()
StudyName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STUDY")]


def sweep(
    study: StudyName = "",
    config: Annotated[SweepConfig, tyro.conf.arg(name="")] = SWEEP,
    data_dir: Path | None = None,
    list: bool = False,
) -> int:
    """Make the missing runs of a study, and write its tables and figures.

    You can interrupt it at any time: the same command resumes, and no finished run is repeated.

    Args:
        study: Name of a study, or a Python file that defines STUDY.
        data_dir: Folder of the data sets, with a folder for each; RLGATES_DATA by default.
        list: List the studies with their number of runs in the laptop tier, and their sources.
    """
    if list:
        from rlgates.experiments.studies import STUDIES

        for name, row in STUDIES.items():
            source = f" ({row.source})" if row.source else ""
            print(f"{name:<20}{row.num_runs('laptop'):>5} runs  {row.title}{source}")
        return FINISHED
    if not study:
        raise ValueError("the name of a study is needed; rlgates sweep --list shows all.")
    from rlgates.experiments.sweep.sweep import run_sweep  # with matplotlib and SciPy

    set_data_dir(data_dir)
    return exit_code(run_sweep(study, config))


def ledger(results: Path = Path("experiments/results")) -> int:
    """Test the claims of the papers on the tables of the studies, and write LEDGER.md.

    Args:
        results: Folder of the tables.
    """
    from rlgates.experiments.report.claims.ledger import write_ledger

    print(write_ledger(results))
    return FINISHED


def tune(
    study: StudyName,
    config: Annotated[TuneConfig, tyro.conf.arg(name="")] = TUNE,
    data_dir: Path | None = None,
) -> int:
    """Search hyperparameters of cores on one task of a study; the same command resumes.

    Args:
        study: Name of a study, or a Python file that defines STUDY.
        data_dir: Folder of the data sets, with a folder for each; RLGATES_DATA by default.
    """
    from rlgates.experiments.runs.stopping import InterruptedRun
    from rlgates.experiments.tune.tune import run_tune

    set_data_dir(data_dir)
    try:
        return exit_code(run_tune(study, config))
    except InterruptedRun:
        return interrupted()


def figures(results: Path = Path("experiments/results"), readme: Path = Path("README.md")) -> int:
    """Regenerate all tables and figures from the CSV files of the results.

    Args:
        results: Folder of the CSV files.
        readme: Markdown file whose marked tables are updated, as are those in docs/ next to it.
    """
    from rlgates.experiments.report.outputs import redraw

    for path in redraw(results, readme):
        print(path)
    return FINISHED
