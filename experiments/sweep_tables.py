"""The tables and pictures of all studies, out of their CSV files."""

from __future__ import annotations

import re
from pathlib import Path

from rlgates.experiments.against import write_against
from rlgates.experiments.agent_tables import draw_agents, summary
from rlgates.experiments.cost_tables import draw_costs
from rlgates.experiments.files import write_atomically
from rlgates.experiments.heat_figures import draw_heat, heat_table
from rlgates.experiments.length_tables import draw_horizon, draw_lengths
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.studies.study import Chart
from rlgates.experiments.supervised_tables import draw_tasks, tables
from rlgates.experiments.sweep_book import CHART, settings_of
from rlgates.experiments.tables import nothing_in, read
from rlgates.experiments.tune_tables import TUNED, redraw_trials

WITH_COSTS = ("all_cores", "horizon")  # studies that hold every kind of core


def redraw_study(results: Path, name: str, chart: Chart | None = None) -> list[Path]:
    """Draw the tables and pictures of a study again.

    A study may hold networks and agents.

    Args:
        results: folder of its CSV files, from which alone all is drawn.
        name: of its files.
        chart: how the results are drawn; by default, as the study has it that made them.

    Returns:
        the files that were written.
    """
    rows = read(results / f"{name}.csv")
    if not rows:
        return []
    known = re.sub("_(full|smoke)$", "", name)
    study = STUDIES.get(known)
    chart = chart or (study.chart if study else settings_of(results, name).get(CHART, "curves"))
    agents = [row for row in rows if row.get("env")]
    networks = [row for row in rows if not row.get("env")]
    text, written = [], []
    if networks and chart == "heat":
        text.append(heat_table(results, name, networks))
        written += draw_heat(results, name, networks)
    elif networks:
        text.append(tables(networks))
        written += draw_tasks(results, name, networks)
    if agents:
        text.append(summary(agents))
        against = draw_lengths(results, name, agents) if chart == "lengths" else []
        written += against or draw_agents(results, name, agents)
    written += draw_horizon(results, name, rows)
    if known in WITH_COSTS:
        written += draw_costs(results, name, rows)
    table = results / f"{name}.md"
    write_atomically(table, "\n".join(text).encode())
    return [*written, table, *write_against(results, name, rows)]


def redraw_studies(results: Path) -> list[Path]:
    """The same for all studies in a folder.

    Raises:
        ValueError: there are none.
    """
    names = sorted(path.name.removesuffix("_curves.csv") for path in results.glob("*_curves.csv"))
    written = [path for name in names for path in redraw_study(results, name)]
    written += [redraw_trials(path) for path in sorted(results.glob(f"*{TUNED}.csv"))]
    if not written:
        raise nothing_in(results)
    return written
