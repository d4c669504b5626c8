"""The tables and figures of a study, from its CSV files."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import pandas as pd

from rlgates.atomic import write_atomically
from rlgates.experiments.report.rows import read_frame, with_best
from rlgates.experiments.report.settings import CHART, study_settings
from rlgates.experiments.report.studies.agents import agent_tables, draw_agents
from rlgates.experiments.report.studies.benchmark import benchmark_tables, draw_benchmark
from rlgates.experiments.report.studies.costs import draw_costs
from rlgates.experiments.report.studies.heat import draw_heat, heat_tables
from rlgates.experiments.report.studies.lengths import draw_env_lengths, draw_stretched
from rlgates.experiments.report.studies.paired import write_paired
from rlgates.experiments.report.studies.returns import draw_returns, return_table
from rlgates.experiments.report.studies.tasks import draw_tasks, task_tables
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.studies.study import Chart, Study

CHARTS: tuple[Chart, ...] = get_args(Chart)


class StudyOutput(NamedTuple):
    """Something that is drawn of every study that has the data for it.

    Attributes:
        draw: given the folder, the name of the study and its runs, returns the files written.
        runs: the runs it gets; it is not called without any. "agents" have success rates,
            "networks" losses, "returns" are agents judged by their return; "scores" are agents
            and networks together.
        charts: the charts with which it is drawn.
        costs: whether it is only for studies that ask for costs.
    """

    draw: Callable[[Path, str, pd.DataFrame], list[Path]]
    runs: Literal["agents", "networks", "returns", "scores"] = "scores"
    charts: tuple[Chart, ...] = CHARTS
    costs: bool = False


def _draw_lengths_or_agents(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw learning curves where the environments do not differ in one number."""
    return draw_env_lengths(results, name, rows) or draw_agents(results, name, rows)


STUDY_OUTPUTS: tuple[StudyOutput, ...] = (
    StudyOutput(draw_heat, "networks", ("heat",)),
    StudyOutput(draw_tasks, "networks", ("curves", "lengths")),
    StudyOutput(draw_agents, "agents", ("curves", "heat")),
    StudyOutput(_draw_lengths_or_agents, "agents", ("lengths",)),
    StudyOutput(draw_returns, "returns", ("curves", "heat", "lengths")),
    StudyOutput(draw_benchmark, "returns", ("benchmark",)),
    StudyOutput(draw_stretched),
    StudyOutput(draw_costs, costs=True),
    StudyOutput(write_paired),
)


def redraw_study(results: Path, name: str, study: Study | None = None) -> list[Path]:
    """Write the tables and figures of a study from its CSV files.

    A study may hold networks and agents.

    Args:
        results: folder of the CSV files.
        name: of the study's files.
        study: how the results are drawn; None: the study of `STUDIES` with that name, or the
            chart in the settings of the runs.

    Returns:
        the files written.
    """
    rows = read_frame(results / f"{name}.csv")
    if rows.empty:
        return []
    rows = with_best(rows, read_frame(results / f"{name}_curves.csv"))
    study = study or STUDIES.get(re.sub("_(full|smoke)$", "", name))
    chart = study.chart if study else study_settings(results, name).get(CHART, "curves")
    is_agent, has_return = rows["env"] != "", rows["mean_return"] != ""
    runs = {
        "agents": rows[is_agent & ~has_return],
        "networks": rows[~is_agent],
        "returns": rows[has_return],
        "scores": rows[~has_return],
    }
    tables: dict[str, Callable[[pd.DataFrame], str]] = {
        "networks": partial(heat_tables, results, name) if chart == "heat" else task_tables,
        "agents": agent_tables,
        "returns": partial(benchmark_tables, results, name)
        if chart == "benchmark"
        else return_table,
    }
    text = [tables[kind](runs[kind]) for kind in tables if len(runs[kind])]
    table = results / f"{name}.md"
    write_atomically(table, "\n".join(text).encode())
    written = [table]
    for output in STUDY_OUTPUTS:
        needs_costs = output.costs and not (study and study.costs)
        if len(runs[output.runs]) and chart in output.charts and not needs_costs:
            written += output.draw(results, name, runs[output.runs])
    return written
