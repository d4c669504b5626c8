"""Scores over lengths: of tests longer than the training, and over the environments of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from rlgates.atomic import write_atomically
from rlgates.experiments.analysis.stats import iqm, iqm_interval
from rlgates.experiments.plots.curves import (
    LEGEND_COLUMNS,
    label_all,
    legend_note,
    mark_levels,
    new_figure,
)
from rlgates.experiments.plots.frames import short_name
from rlgates.experiments.plots.styles import NONE, in_core_order, style
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import (
    TITLE,
    iqm_text,
    markdown,
    numbers,
    provenance,
    read_frame,
    seeds_text,
)
from rlgates.experiments.report.studies.agents import chance_levels, env_settings

MEAN = "line: interquartile mean over seeds"
BAR = "bar: its 95 % interval"
NOTE = MEAN.replace("mean ", "mean\n") + f"\n{BAR}\ngrey: the other cores"
ASIDE = 0.02  # of the axis, between the bars of two cores
BACKGROUND = "#cfcfcf"  # the colour of other cores
MAX_TOGETHER = 12  # lines in one panel
ROW_CORES = 7  # of a row of panels
COLUMNS = 4  # of small panels


class LengthScores(NamedTuple):
    """The scores of all cores at several lengths.

    Attributes:
        title: the task.
        axis: what the lengths are of.
        lengths: in ascending order, with their labels.
        scores: of each core, over seeds, at each length where there are any.
        floor: the score without memory, where it is known.
    """

    title: str
    axis: str
    lengths: Mapping[float, str]
    scores: Mapping[str, Mapping[float, Sequence[float]]]
    floor: float | None


def _by_core(rows: pd.DataFrame, length: str, score: str) -> dict[str, dict[float, list[float]]]:
    """Collect scores by core, in the order of the cores, and by length."""
    groups = rows.assign(_score=numbers(rows, score)).groupby(["core", length], sort=False)
    scores: dict[str, dict[float, list[float]]] = {core: {} for core in in_core_order(rows["core"])}
    for (core, place), group in groups:
        scores[core][place] = group["_score"].tolist()
    return scores


def stretched_scores(tests: pd.DataFrame) -> list[LengthScores]:
    """Collect the tests at longer lengths of `<name>_horizon.csv`, task by task."""
    tests = tests.assign(_factor=tests["factor"].astype(int))
    panels = []
    for title, rows in tests.groupby(TITLE, sort=False):
        labels = {}
        for factor, setting in zip(rows["_factor"], rows["setting"], strict=True):
            name, value = setting.split()
            labels[factor] = f"×{factor}\n{value}"
        floor = rows["floor"].iloc[0]
        panels.append(
            LengthScores(
                title,
                f"{_words(name)}, ×1 as trained",
                dict(sorted(labels.items())),
                _by_core(rows, "_factor", "score"),
                float(floor) if floor else None,
            )
        )
    return panels


def stretched_note(tests: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Say how the tests at longer lengths were made, given the runs that were tested."""
    counts = sorted(set(tests["count"].astype(int)))
    floors = tests[tests["floor"] != ""].groupby(TITLE, sort=False)["floor"].last()
    without = ", ".join(
        f"{float(floor):.2f} on {title_words(title)}" for title, floor in floors.items()
    )
    return (
        f"Trained at ×1 and tested at the other lengths without any adaptation, on "
        f"{' or '.join(f'{count:,}' for count in counts)} fresh episodes or sequences per seed and "
        "length: share of episodes that succeed, or of answers that are right; an answer that is "
        f"not finite counts as wrong. {_over_seeds(tests)}. Without memory: {without}. "
        f"{provenance(rows)}."
    )


def env_length_scores(rows: pd.DataFrame) -> LengthScores | None:
    """Collect the success of agents over the one number in which their environments differ.

    Returns:
        None if they do not differ in just one number.
    """
    settings = [env_settings(row) for row in rows.to_dict("records")]
    columns = {
        name: [one.get(name) for one in settings]
        for name in dict.fromkeys(name for one in settings for name in one)
    }
    different = [name for name, column in columns.items() if any(x != column[0] for x in column)]
    if len(different) != 1:
        return None
    setting = different[0]
    lengths: list[Any] = columns.pop(setting)
    if not all(isinstance(length, int | float) for length in lengths):
        return None
    if rows[TITLE].nunique() != len(set(lengths)):
        return None
    env = short_name(rows["env"].iloc[0])
    title = ", ".join([env, *(f"{_words(name)} {column[0]}" for name, column in columns.items())])
    return LengthScores(
        title,
        _words(setting),
        {length: f"{length:g}" for length in sorted(set(lengths))},
        _by_core(rows.assign(_length=lengths), "_length", "success"),
        next(iter(chance_levels(rows).values())),
    )


def env_length_note(floor: float | None, rows: pd.DataFrame) -> str:
    """Say how the success over lengths of environments was measured."""
    without = "" if floor is None else f" Without memory: {floor:.2f}."
    return (
        f"Success on {int(rows['episodes'].iloc[0]):,} fresh episodes per seed. "
        f"{_over_seeds(rows)}.{without} {provenance(rows)}."
    )


def _words(setting: str) -> str:
    return setting.replace("_", " ")


def _over_seeds(rows: pd.DataFrame) -> str:
    seeds = seeds_text(rows)
    if rows["seed"].nunique() == 1:
        return seeds.capitalize()
    return f"Interquartile mean over {seeds} (or those available), with its 95 % bootstrap interval"


def length_tables(panels: Sequence[LengthScores]) -> str:
    """Format a table per task: IQM and interval of each core at each length."""
    return "\n".join(map(_table, panels))


def _table(panel: LengthScores) -> str:
    labels = [label.replace("\n", ", ") for label in panel.lengths.values()]
    lines = [
        [
            f"`{core}`",
            *(iqm_text(scores[length]) if length in scores else "" for length in panel.lengths),
        ]
        for core, scores in panel.scores.items()
    ]
    return markdown([f"{title_words(panel.title)}: {panel.axis}", *labels], lines)


def draw_stretched(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw the scores of runs tested at greater lengths than they were trained at.

    Args:
        results: folder of the CSV files.
        name: of the study.
        rows: its runs.

    Returns:
        `<name>_horizon.png` and `<name>_horizon.md`; nothing without `<name>_horizon.csv`.
    """
    tests = read_frame(results / f"{name}_horizon.csv")
    if tests.empty:
        return []
    panels = stretched_scores(tests)
    figure, table = (results / f"{name}_horizon.{suffix}" for suffix in ("png", "md"))
    plot_grid(panels, figure, "success rate or accuracy")
    key = [TITLE, "core", "seed"]
    tested = rows.merge(tests[key].drop_duplicates(), on=key)
    note = stretched_note(tests, tested)
    write_atomically(table, f"{length_tables(panels)}\n{note}\n".encode())
    return [figure, table]


def draw_env_lengths(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw success over the one setting of the environment in which the runs differ.

    Args:
        results: the folder, where `<name>_lengths.png` and `<name>_lengths.md` are written.
        name: of the study.
        rows: its runs, of agents.

    Returns:
        the files written; none if the runs do not differ in just one number.
    """
    panel = env_length_scores(rows)
    if panel is None:
        return []
    figure, table = (results / f"{name}_lengths.{suffix}" for suffix in ("png", "md"))
    plot_one(panel, figure, "success rate")
    note = env_length_note(panel.floor, rows)
    write_atomically(table, f"{length_tables([panel])}\n{note}\n".encode())
    return [figure, table]


def plot_grid(panels: Sequence[LengthScores], path: Path, score: str) -> None:
    """Draw a column for each task, and a row of panels for every few cores, the others in grey.

    Args:
        panels: the tasks.
        path: the PNG to write.
        score: the name of the scores.
    """
    cores = list(dict.fromkeys(core for panel in panels for core in panel.scores if core != NONE))
    groups = [cores[k : k + ROW_CORES] for k in range(0, len(cores), ROW_CORES)] or [[]]
    size = 1 + 4.3 * len(panels), 0.5 + 3.1 * len(groups)
    with new_figure(path, size) as figure:
        grid = figure.subplots(len(groups), len(panels), sharex="col", sharey=True, squeeze=False)
        for row, group in zip(grid, groups, strict=True):
            for axes, panel in zip(row, panels, strict=True):
                _plot(axes, panel, [*group, NONE])
                mark_levels(axes, panel.floor)
                axes.set_title(title_words(panel.title), loc="left")
                axes.set_xlabel(panel.axis)
                axes.set_ylabel(score)
            lines = {line.get_label(): line for axes in row for line in axes.lines}
            labels = [core for core in (*group, NONE) if core in lines]
            row[-1].legend(
                [lines[core] for core in labels],
                labels,
                loc="center left",
                bbox_to_anchor=(1, 0.5),
                title=NOTE,
                title_fontsize=9,
                alignment="left",
            )
        label_all(grid.ravel())


def plot_one(panel: LengthScores, path: Path, score: str) -> None:
    """Draw all cores in one panel, or each of many cores in a small one, the others in grey."""
    if len(panel.scores) <= MAX_TOGETHER:
        _plot_together(panel, path, score)
        return
    rows = -(-len(panel.scores) // COLUMNS)
    size = 2.7 * COLUMNS, 2 * rows + 0.7
    with new_figure(path, size, font_size=9, title_size=10) as figure:
        grid = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
        for axes, core in zip(grid.ravel(), panel.scores, strict=False):
            _plot(axes, panel, [core])
            mark_levels(axes, panel.floor, named=False)
            axes.set_title(core, loc="left")
            axes.set_xlabel(panel.axis)
            axes.set_ylabel(score)
        for axes in grid.ravel()[len(panel.scores) :]:
            axes.remove()
        label_all(grid.ravel()[: len(panel.scores)])
        last = "" if panel.floor is None else f", at {panel.floor:.2f} chance"
        note = f"{MEAN}; {BAR}; grey: the other cores; dashed: at 1 perfect memory{last}"
        figure.suptitle(f"{title_words(panel.title)}\n{note}", x=0.01, ha="left")


def _plot_together(panel: LengthScores, path: Path, score: str) -> None:
    with new_figure(path, (7, 5)) as figure:
        axes = figure.add_subplot()
        _plot(axes, panel, list(panel.scores))
        mark_levels(axes, panel.floor)
        axes.set_title(title_words(panel.title), loc="left")
        axes.set_xlabel(panel.axis)
        axes.set_ylabel(score)
        figure.legend(
            loc="outside lower center",
            ncols=min(len(panel.scores), LEGEND_COLUMNS),
            title=legend_note(figure, MEAN, BAR),
            title_fontsize=9,
        )


def _plot(axes: Axes, panel: LengthScores, coloured: Sequence[str]) -> None:
    """Plot the IQM over seeds of all cores; some are coloured and have their interval.

    Each of these is a little aside of the last, so that their bars do not hide each other.
    """
    shortest, longest = min(panel.lengths), max(panel.lengths)
    for core, scores in panel.scores.items():
        lengths = np.array([length for length in panel.lengths if scores.get(length)])
        means = [iqm(scores[length]) for length in lengths]
        if core not in coloured:
            axes.plot(lengths, means, color=BACKGROUND, lw=1, zorder=1)
            continue
        aside = ASIDE * (coloured.index(core) - (len(coloured) - 1) / 2)
        if shortest > 0:
            places = lengths * (longest / shortest) ** aside
        else:
            places = lengths + (longest - shortest) * aside
        color, dash, marker = style(core)
        lows, highs = zip(*(iqm_interval(scores[length]) for length in lengths), strict=True)
        axes.vlines(places, lows, highs, color=color, lw=1.5, clip_on=False, zorder=2)
        line: Any = {"color": color, "ls": dash, "lw": 1.5, "label": core}
        axes.plot(places, means, marker=marker, ms=5, clip_on=False, zorder=3, **line)
    if shortest > 0:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(panel.lengths), list(panel.lengths.values()))
