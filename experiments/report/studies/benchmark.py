"""The memory benchmark: which memory scores what over all games, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from rlgates.experiments.analysis.stats import Estimate, Floats, interval
from rlgates.experiments.plots.curves import (
    BAND,
    LEGEND_COLUMNS,
    POINTS,
    Curve,
    legend_note,
    new_figure,
    steps_label,
)
from rlgates.experiments.plots.styles import in_core_order, split_label, style
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import markdown, numbers, provenance, seed_numbers
from rlgates.experiments.report.studies.costs import time_ticks
from rlgates.experiments.report.studies.paired import label_profile, plot_profile
from rlgates.experiments.report.studies.returns import read_return_curves, return_share
from rlgates.experiments.runs.text import steps_text, time_text
from rlgates.experiments.studies.popgym import PUBLISHED

SHARE = "return, as a share of the game's range"


class Memory(NamedTuple):
    """What one memory reached over all games, and what it cost.

    Attributes:
        core: its name.
        scores: by game, the return at the end of each run, 0 for the game's worst and 1 for its
            best.
        returns: the return at the end: mean over games, with its interval.
        share: the same of the scores.
        seeds: runs of a game, the fewest.
        mmer: the best mean return in training: mean over seeds and games.
        parameters, state_size: of the core.
        seconds: CPU time of a run, mean over games.
    """

    core: str
    scores: Mapping[str, Floats]
    returns: Estimate
    share: Estimate
    seeds: int
    mmer: float
    parameters: int
    state_size: int
    seconds: float


def mean_over_games(*groups: Floats, axis: int = 0) -> Floats:
    """The mean over seeds, and then over games, which count equally."""
    means: Floats = np.mean([np.mean(group, axis=axis) for group in groups], axis=0)
    return means


def complete_memories(rows: pd.DataFrame) -> tuple[list[str], list[Memory]]:
    """The games, and the memories with runs in all of them, the highest return first.

    The games are those of the core with most of them; a core that lacks some has no mean.
    """
    games = {core: list(group["title"].unique()) for core, group in rows.groupby("core")}
    titles = [title for title in rows["title"].unique() if title in max(games.values(), key=len)]
    memories = [
        _memory(core, titles, rows[rows["core"] == core])
        for core in in_core_order(games)
        if set(titles) <= set(games[core])
    ]
    return titles, sorted(memories, key=lambda memory: -memory.returns.value)


def _memory(core: str, titles: Sequence[str], rows: pd.DataFrame) -> Memory:
    runs = {title: rows[rows["title"] == title] for title in titles}
    ends = {title: numbers(run, "mean_return") for title, run in runs.items()}
    scores = {title: return_share(run.iloc[0], ends[title]) for title, run in runs.items()}
    return Memory(
        core=core,
        scores=scores,
        returns=_estimate(ends.values()),
        share=_estimate(scores.values()),
        seeds=min(map(len, runs.values())),
        mmer=float(np.mean([_best(run) for run in runs.values()])),
        parameters=int(rows.iloc[0]["parameters"]),
        state_size=int(rows.iloc[0]["state_size"]),
        seconds=float(np.mean([numbers(run, "seconds").mean() for run in runs.values()])),
    )


def _estimate(games: Iterable[Floats]) -> Estimate:
    """The mean over games, with its interval."""
    groups = list(games)
    low, high = interval(mean_over_games, *groups)
    return Estimate(float(mean_over_games(*groups)), float(low), float(high))


def benchmark_tables(rows: pd.DataFrame) -> str:
    """Format the memories over all games, each game alone, and published figures beside ours."""
    titles, memories = complete_memories(rows)
    return "\n".join((_overall(titles, memories, rows), _by_game(rows), *_published(rows)))


def _overall(titles: Sequence[str], memories: Sequence[Memory], rows: pd.DataFrame) -> str:
    heads = ["memory", "return at the end", "MMER", "first in", "parameters", "state"]
    heads += ["CPU time a run"]
    first = {
        title: max(memories, key=lambda one: float(one.scores[title].mean())).core
        for title in titles
    }
    lines = [
        [
            f"`{one.core}`",
            f"{one.returns.value:.2f} "
            + (f"[{one.returns.low:.2f}, {one.returns.high:.2f}]" if one.seeds > 1 else "(1 seed)"),
            f"{one.mmer:.2f}",
            str(sum(core == one.core for core in first.values())),
            f"{one.parameters:,}",
            f"{one.state_size:,}",
            time_text(one.seconds),
        ]
        for one in memories
    ]
    seeds, steps = seed_numbers(rows), int(numbers(rows, "budget").max())
    games = "; ".join(map(title_words, titles))
    note = (
        f"\nMean over {len(titles)} games ({games}), seeds {seeds[0]} to {seeds[-1]} or as many as "
        f"there are, {steps_text(steps)} steps a run. Return at the end: of "
        f"{rows.iloc[0]['episodes']} fresh episodes with sampled actions, with a 95 % bootstrap "
        "interval over seeds (few seeds: the interval is narrow). MMER: the best mean return of "
        "the last 100 training episodes, as POPGym reports it; it flatters runs that fall again. "
        "First in: games in which the return at the end is the highest. State: numbers that an "
        f"agent carries. CPU time: one thread a run, evaluations included. {provenance(rows)}.\n"
    )
    return markdown(heads, lines) + note


def _by_game(rows: pd.DataFrame) -> str:
    titles, cores = list(rows["title"].unique()), in_core_order(rows["core"])
    ends = {
        key: (float(numbers(group, "mean_return").mean()), _best(group))
        for key, group in rows.groupby(["title", "core"], sort=False)
    }
    top = {
        title: max(end for (game, _), (end, _) in ends.items() if game == title) for title in titles
    }

    def cell(title: str, core: str) -> str:
        if (title, core) not in ends:
            return ""
        end, best = ends[title, core]
        text = f"{end:.2f} / {best:.2f}"
        return f"**{text}**" if end == top[title] else text

    lines = [[title_words(title), *(cell(title, core) for core in cores)] for title in titles]
    heads = ["game", *(f"`{core}`" for core in cores)]
    note = "\nReturn at the end / MMER, means over seeds; bold: the highest return at the end.\n"
    return markdown(heads, lines) + note


def _best(rows: pd.DataFrame) -> float:
    return float(numbers(rows, "max_mean_return").mean())


def _published(rows: pd.DataFrame) -> Iterator[str]:
    groups = dict(list(rows.groupby(["title", "core"], sort=False)))
    known = [key for key in PUBLISHED if key in groups]
    if known:
        heads = ["game", "memory", "published MMER", "our MMER"]
        lines = [
            [
                title_words(title),
                f"`{core}`",
                f"{PUBLISHED[title, core]:.3f}",
                f"{_best(groups[title, core]):.3f}",
            ]
            for title, core in known
        ]
        yield markdown(heads, lines) + (
            "\nPublished: Morad et al. 2023, table 3: 15 M steps, 256 units. Ours have fewer of "
            "both; see the budget above.\n"
        )


def draw_benchmark(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw sample efficiency, the performance profile, and the return against costs.

    Args:
        results: the folder, where `<name>.png` is written, and which has `<name>_curves.csv`.
        name: of the study.
        rows: its runs.

    Returns:
        the files written; none with fewer than two memories to compare.
    """
    titles, memories = complete_memories(rows)
    if len(memories) < 2:
        return []
    path = results / f"{name}.png"
    curves = read_return_curves(rows, results / f"{name}_curves.csv")
    lines = -(-len(memories) // LEGEND_COLUMNS)
    with new_figure(path, (12.5, 9.2 + 0.3 * lines)) as figure:
        efficiency, profile, times, sizes = figure.subplots(2, 2).ravel()
        _draw_efficiency(efficiency, titles, memories, curves)
        _draw_profile(profile, memories)
        _draw_costs(times, memories, [one.seconds for one in memories], "CPU time of a run")
        times.xaxis.set_minor_locator(NullLocator())
        ticks = time_ticks(*times.get_xlim())
        times.set_xticks(list(ticks.values()), list(ticks))
        numbers_carried = [max(1, one.state_size) for one in memories]
        _draw_costs(sizes, memories, numbers_carried, "numbers in the state (none: 1)")
        handles, labels = profile.get_legend_handles_labels()
        order = [labels.index(core) for core in in_core_order(labels)]
        figure.legend(
            [handles[index] for index in order],
            [labels[index] for index in order],
            loc="outside lower center",
            ncols=-(-len(order) // lines),
            title=legend_note(
                figure,
                f"means over {len(titles)} games, which count equally",
                f"{BAND} over seeds, and so is an upright line",
            ),
            title_fontsize=9,
        )
    return [path]


def _draw_efficiency(
    axes: Axes,
    titles: Sequence[str],
    memories: Sequence[Memory],
    curves: Mapping[str, Sequence[Curve]],
) -> None:
    """The mean over games of the evaluations in training."""
    for one in memories:
        color, dash, _ = style(one.core)
        games = [
            [run for run in curves[title] if split_label(run.core)[0] == one.core]
            for title in titles
        ]
        runs = [run for game in games for run in game]
        begin, end = max(run.steps[0] for run in runs), max(run.steps[-1] for run in runs)
        grid = np.linspace(begin, end, POINTS)
        groups = [
            np.stack([np.interp(grid, run.steps, run.success) for run in game]) for game in games
        ]
        low, high = interval(mean_over_games, *groups)
        axes.fill_between(grid, low, high, color=color, alpha=0.1, lw=0)
        axes.plot(grid, mean_over_games(*groups), color=color, ls=dash, lw=2)
    axes.set_title("Sample efficiency", loc="left")
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(FuncFormatter(steps_label))
    _set_share(axes)


def _draw_profile(axes: Axes, memories: Sequence[Memory]) -> None:
    """The share of runs above each score."""
    for one in memories:
        plot_profile(axes, one.core, list(one.scores.values()), width=2)
    axes.set_title("Performance profile", loc="left")
    label_profile(axes, f"{SHARE} τ")


def _draw_costs(axes: Axes, memories: Sequence[Memory], costs: Sequence[float], words: str) -> None:
    """The mean return at the end against a cost, each memory with its name."""
    values = [one.share.value for one in memories]
    gap = 0.05 * (max(values) - min(values))
    heights = _apart(values, gap)
    for one, cost, value, height in zip(memories, costs, values, heights, strict=True):
        color, _, marker = style(one.core)
        axes.plot([cost, cost], [one.share.low, one.share.high], color=color, lw=1)
        axes.plot(cost, value, color=color, marker=marker, ms=8, mec="white", mew=0.5)
        axes.annotate(
            one.core,
            (cost, value),
            xytext=(1.25 * cost, height),
            textcoords="data",
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6, "alpha": 0.6},
        )
    axes.set_xscale("log")
    axes.set_xlim(min(costs) / 2.5, max(costs) * 3)
    axes.set_ylim(min(values) - 2 * gap, max(heights) + gap)
    axes.set_title(f"At the end, against {words.partition(' (')[0]}", loc="left")
    axes.set_xlabel(words)
    _set_share(axes)


def _apart(values: Sequence[float], gap: float) -> list[float]:
    """Heights of names, at least a gap apart: each as high as its value, or above the one below."""
    heights = list(values)
    lowest = -np.inf
    for index in np.argsort(values):
        heights[index] = lowest = max(values[index], lowest + gap)
    return heights


def _set_share(axes: Axes) -> None:
    axes.set_ylabel(SHARE)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
