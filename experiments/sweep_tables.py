"""The tables and pictures of all studies, out of their CSV files."""

from __future__ import annotations

from pathlib import Path

from rlgates.experiments.against import write_against
from rlgates.experiments.agent_tables import draw_agents, summary
from rlgates.experiments.files import write_atomically
from rlgates.experiments.supervised_tables import draw_tasks, tables
from rlgates.experiments.tables import read


def redraw_study(results: Path, name: str) -> list[Path]:
    """Draw the tables and pictures of a study again; the files that were written.

    A study may hold networks and agents.
    """
    rows = read(results / f"{name}.csv")
    agents = [row for row in rows if row.get("env")]
    networks = [row for row in rows if not row.get("env")]
    text, written = [], []
    if networks:
        text.append(tables(networks))
        written += draw_tasks(results, name, networks)
    if agents:
        text.append(summary(agents))
        written += draw_agents(results, name, agents)
    if text:
        written.append(results / f"{name}.md")
        write_atomically(written[-1], "\n".join(text).encode())
    return [*written, *write_against(results, name, rows)]


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
