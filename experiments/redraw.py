"""All pictures and tables again, from the small CSV files beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rlgates.experiments.analysis import redraw_gates, redraw_saturation
from rlgates.experiments.bench import redraw_speed
from rlgates.experiments.costs import redraw_costs
from rlgates.experiments.env_bench import redraw_env_speed
from rlgates.experiments.files import write_atomically
from rlgates.experiments.growth_bench import redraw_growth
from rlgates.experiments.learning import redraw_learning
from rlgates.experiments.ledger import write_ledger
from rlgates.experiments.pictures import draw_environments
from rlgates.experiments.ppo_bench import redraw_ppo
from rlgates.experiments.readme import filled_in
from rlgates.experiments.sweep_tables import redraw_studies
from rlgates.experiments.task_bench import redraw_tasks

MEASURED = (
    redraw_learning,
    redraw_costs,
    redraw_speed,
    redraw_growth,
    redraw_ppo,
    redraw_env_speed,
    redraw_tasks,
    redraw_saturation,
    redraw_gates,
)


def redraw(results: Path, readme: Path) -> Iterator[Path]:
    """Draw them, and give the files as they are written.

    Args:
        results: folder of the CSV files.
        readme: text whose tables of cores and results are put in again, if it is there.

    Raises:
        ValueError: there are no results.
    """
    yield from redraw_studies(results)
    for write in MEASURED:
        yield from write(results)
    yield write_ledger(results)
    sheet = results / "environments.png"
    try:
        draw_environments(sheet)
        yield sheet
    except ImportError as error:
        print(f"{sheet} stays as it is: {error}", file=sys.stderr)
    if readme.exists():
        write_atomically(readme, filled_in(readme.read_text(), results).encode())
        yield readme
