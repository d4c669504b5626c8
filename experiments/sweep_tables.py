"""The tables and pictures of all studies, out of their CSV files."""

from __future__ import annotations

from pathlib import Path

from rlgates.experiments.against import write_against
from rlgates.experiments.agent_tables import redraw_agents
from rlgates.experiments.supervised_tables import redraw_tasks
from rlgates.experiments.tables import read


def redraw_study(results: Path, name: str) -> list[Path]:
    """Draw the tables and pictures of a study again; the files that were written."""
    rows = read(results / f"{name}.csv")
    if not rows:
        return []
    redraw = redraw_agents if "env" in rows[0] else redraw_tasks
    return [*redraw(results, name), *write_against(results, name, rows)]


def redraw_studies(results: Path) -> list[Path]:
    """The same for all studies in a folder.

    Raises:
        ValueError: there are none.
    """
    names = sorted(path.name.removesuffix("_curves.csv") for path in results.glob("*_curves.csv"))
    written = [path for name in names for path in redraw_study(results, name)]
    if not written:
        raise ValueError(f"no results in {results}; `rlgates sweep` makes them.")
    return written
