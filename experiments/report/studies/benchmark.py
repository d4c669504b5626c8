"""The memory benchmark: which memory scores what over all games, and what it costs.

Each level of the games has rankings of its own, and the figure is of the first level. Not every
memory has run in every game. A ranking is of the memories that have all of its games on some seed,
and of the seeds that have all: the first is that with the most runs, the second that with the most
games of those that `FEWEST` memories have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from rlgates.experiments.analysis.stats import (
    Estimate,
    Floats,
    interval,
    p_gained,
    paired_difference,
    performance_profile,
)
from rlgates.experiments.plots.curves import (
    LEGEND_COLUMNS,
    POINTS,
    Curve,
    legend_note,
    new_figure,
    steps_label,
)
from rlgates.experiments.plots.styles import Style, in_core_order, split_label, style
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import (
    LABEL,
    markdown,
    numbers,
    provenance,
    read_frame,
    returns_of,
    seed_numbers,
    seeds_text,
)
from rlgates.experiments.report.studies.costs import time_ticks
from rlgates.experiments.report.studies.over_games import over_games_table, shared_games_table
from rlgates.experiments.report.studies.paired import BASE, THRESHOLDS, label_profile, plot_profile
from rlgates.experiments.report.studies.returns import read_return_curves, return_share
from rlgates.experiments.runs.text import steps_text, time_text
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.studies.popgym import LEVELS, PUBLISHED

SHARE = "return, as a share of the game's range"
FEWEST = 3  # memories of a ranking beside the first
SEEDS = 5  # of both memories, below which no p can be small
_GAINED = (
    "Share gained: mean over games of the score (0 for a game's worst return, 1 for its best), "
    f"minus that of the `{BASE}` run with the same seed; p: how often chance alone would give a "
    "difference this large (two-sided, exact over all sign flips, not corrected for the number of "
    "memories); at least 0.062 with five seeds, 0.002 with ten. "
)
ALWAYS_SHOWN = (BASE, "gru", "none")
MOST_SHOWN = 13  # memories in colour; more lines in one panel cannot be told apart
BACKGROUND = "#BBBBBB"  # of the memories that have no colour


class Memory(NamedTuple):
    """What one memory reached over all games, and what it cost.

    Attributes:
        core: its name.
        scores: by game, the return at the end of each run, 0 for the game's worst and 1 for its
            best.
        returns: the return at the end: mean over games, with its interval.
        share: the same of the scores.
        by_seed: the mean score over games of each seed.
        mmer: the best mean return of an evaluation: mean over seeds and games.
        parameters, state_size: of the core.
        seconds: CPU time of a million steps.
    """

    core: str
    scores: Mapping[str, Floats]
    returns: Estimate
    share: Estimate
    by_seed: Mapping[str, float]
    mmer: float
    parameters: int
    state_size: int
    seconds: float


class Ranking(NamedTuple):
    """The memories that have runs in all of some games, the highest return first."""

    titles: list[str]
    memories: list[Memory]


def mean_over_games(*groups: Floats, axis: int = 0) -> Floats:
    """The mean over seeds, and then over games, which count equally."""
    means: Floats = np.mean([np.mean(group, axis=axis) for group in groups], axis=0)
    return means


def rankings(rows: pd.DataFrame, costs: pd.DataFrame) -> list[Ranking]:
    """One or two rankings: over the games with the most runs, and over the most games.

    Args:
        rows: the runs.
        costs: runs that were made to be timed. A variant takes the time of its core; where that
            has none, the time is that of the runs in `rows`.
    """
    games = {
        core: {seed: set(runs["title"]) for seed, runs in group.groupby("seed")}
        for core, group in rows.groupby("core")
    }
    timed = {core: _seconds(group) for core, group in costs.groupby("core")}
    seconds = {
        core: timed.get(split_label(core)[0]) or _seconds(group)
        for core, group in rows.groupby("core")
    }

    def members(titles: set[str]) -> list[str]:
        return [
            core for core in in_core_order(games) if any(map(titles.issubset, games[core].values()))
        ]

    def runs(titles: set[str]) -> int:
        return len(titles) * sum(
            titles <= seed for seeds in games.values() for seed in seeds.values()
        )

    every = [titles for seeds in games.values() for titles in seeds.values()]
    sets = sorted(every, key=lambda titles: (-len(titles), sorted(titles)))
    first = max(sets, key=runs)
    wider = [titles for titles in sets if len(titles) > len(first)]
    chosen = [first, next((one for one in wider if len(members(one)) >= FEWEST), first)]
    result = []
    for titles in chosen[: 1 + (chosen[0] != chosen[1])]:
        order = [title for title in rows["title"].unique() if title in titles]
        memories = [
            _memory(core, order, rows[rows["core"] == core], seconds[core])
            for core in members(titles)
        ]
        result.append(Ranking(order, sorted(memories, key=lambda memory: -memory.returns.value)))
    return result


def levels(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each level of the games, in this order; games without levels are one."""
    level = rows["title"].str.rpartition(", ")[2]
    return [part for _, part in rows.groupby(level.where(level.isin(LEVELS), ""), sort=False)]


def read_costs(results: Path, name: str) -> pd.DataFrame:
    """The runs of a study that were made to be timed, one after another."""
    rows = read_frame(results / f"{name}_costs.csv")
    return rows if len(rows) else pd.DataFrame(columns=["core", "seconds", "steps"])


def _in_order(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the games in the order of the study, if it is one of ours.

    Where a game has several variants of a core, each is a memory of its own.
    """
    if rows.duplicated(["title", "core", "seed"]).any():
        rows = rows.assign(core=rows[LABEL])
    study = STUDIES.get(name)
    configs = [getattr(row, "config", None) for row in study.laptop] if study else []
    order = {config.title: place for place, config in enumerate(configs) if config}
    return rows.sort_values(
        "title", key=lambda titles: titles.map(order).fillna(len(order)), kind="stable"
    )


def _curves_of(rows: pd.DataFrame, path: Path) -> dict[str, list[Curve]]:
    """The curves of each game, with the names of the memories."""
    names = dict(zip(rows[LABEL], rows["core"], strict=True))
    return {
        title: [curve._replace(core=names[curve.core]) for curve in curves if curve.core in names]
        for title, curves in read_return_curves(rows, path).items()
    }


def _seconds(rows: pd.DataFrame) -> float:
    return float((numbers(rows, "seconds") / numbers(rows, "steps")).mean() * 1e6)


def _memory(core: str, titles: Sequence[str], rows: pd.DataFrame, seconds: float) -> Memory:
    by_seed = rows[rows["title"].isin(titles)].groupby("seed")["title"].nunique()
    seeds = frozenset(by_seed.index[by_seed == len(titles)])
    runs = {title: rows[(rows["title"] == title) & rows["seed"].isin(seeds)] for title in titles}
    ends = {title: returns_of(run) for title, run in runs.items()}
    scores = {title: return_share(run.iloc[0], ends[title]) for title, run in runs.items()}
    return Memory(
        core=core,
        scores=scores,
        returns=_estimate(ends.values()),
        share=_estimate(scores.values()),
        by_seed=pd.DataFrame(
            {title: dict(zip(runs[title]["seed"], scores[title], strict=True)) for title in titles}
        )
        .mean(axis=1)
        .to_dict(),
        mmer=float(np.mean([_best(run) for run in runs.values()])),
        parameters=int(rows.iloc[0]["parameters"]),
        state_size=int(rows.iloc[0]["state_size"]),
        seconds=seconds,
    )


def _estimate(games: Iterable[Floats]) -> Estimate:
    """The mean over games, with its interval."""
    groups = list(games)
    low, high = interval(mean_over_games, *groups)
    return Estimate(float(mean_over_games(*groups)), float(low), float(high))


def benchmark_tables(results: Path, name: str, rows: pd.DataFrame) -> str:
    """Format the memories over all games, those that lack some over what they share with `BASE`,
    all over the games of each level, and in each game alone, and published figures beside ours.

    Args:
        results: the folder, which may have `<name>_costs.csv`.
        name: of the study.
        rows: its runs, `with_best`.
    """
    rows, costs = _in_order(name, rows), read_costs(results, name)
    parts = levels(rows)
    ranked = [_overall(one, part, costs) for part in parts for one in rankings(part, costs)]
    pooled = filter(None, [over_games_table(rows), shared_games_table(rows)])
    return "\n".join((*pooled, *ranked, *map(_by_game, parts), *_published(rows)))


def _overall(ranking: Ranking, rows: pd.DataFrame, costs: pd.DataFrame) -> str:
    titles, memories = ranking
    gains = _gains(memories)
    heads = ["memory", "return at the end", *[f"share gained over `{BASE}`"] * bool(gains)]
    heads += ["MMER", "first in", "parameters", "state", "CPU time per 1 M steps"]
    seeds_of = {one.core: one.by_seed.keys() for one in memories}
    runs = rows[rows["title"].isin(titles)]
    pairs = zip(runs["core"], runs["seed"], strict=True)
    of_ranking = runs[[seed in seeds_of.get(core, ()) for core, seed in pairs]]
    ends = _ends(of_ranking)
    highest = _highest(ends)
    lines = [
        [
            f"`{one.core}`",
            f"{one.returns.value:.2f} "
            + (
                f"[{one.returns.low:.2f}, {one.returns.high:.2f}]"
                if len(one.by_seed) > 1
                else "(1 seed)"
            ),
            *([gains.get(one.core, "")] if gains else []),
            f"{one.mmer:.2f}",
            str(sum(ends[title, one.core] == highest[title] for title in titles)),
            f"{one.parameters:,}",
            f"{one.state_size:,}",
            time_text(one.seconds),
        ]
        for one in memories
    ]
    seeds, budgets = seeds_text(of_ranking), _budgets(of_ranking).values()
    steps = " to ".join(map(steps_text, sorted({min(budgets), max(budgets)})))
    games = "; ".join(map(title_words, titles))
    timed = f"of {provenance(costs)}" if len(costs) else "of these runs"
    note = (
        f"\nMean over {len(titles)} game{'s' * (len(titles) > 1)} ({games}), "
        + (f"{seeds} (or those available)" if of_ranking["seed"].nunique() > 1 else "one seed")
        + f", {steps} steps per run. Return at the end: of "
        f"{rows.iloc[0]['episodes']} fresh episodes with sampled actions, with a 95 % bootstrap "
        "interval over seeds (too narrow with few seeds). "
        f"{_GAINED if gains else ''}MMER: the best mean return of an evaluation, in training or at "
        "the end (POPGym's: of the training episodes of 65,536 steps); it flatters runs that get "
        "worse again, and games where few episodes are rewarded. First in: number of games in "
        "which no memory has a higher return at the end, to two decimals. State: size of the "
        f"recurrent state.{_diverged(of_ranking)} "
        f"CPU time: one thread, evaluations included, {timed}. {provenance(of_ranking)}.\n"
    )
    return markdown(heads, lines) + note


def _budgets(rows: pd.DataFrame) -> dict[str, float]:
    """The steps of a run, by game."""
    budgets: dict[str, float] = rows.groupby("title", sort=False)["budget"].first().astype(float)
    return dict(budgets)


def _gains(memories: Sequence[Memory]) -> dict[str, str]:
    """What each memory gains over `BASE`, seed for seed, where both have enough seeds."""
    base = next((one.by_seed for one in memories if one.core == BASE), {})
    cells = {}
    for one in memories:
        seeds = sorted(one.by_seed.keys() & base.keys())
        if one.core != BASE and len(seeds) >= SEEDS:
            ours, theirs = (np.array([by[seed] for seed in seeds]) for by in (one.by_seed, base))
            gain = paired_difference(ours, theirs)
            p = p_gained(ours - theirs, two_sided=True)
            cells[one.core] = f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}], p = {p:.2g}"
    return cells


def _ends(rows: pd.DataFrame) -> dict[tuple[str, str], float]:
    """The mean return at the end by game and core, to the decimals of the tables."""
    groups = rows.groupby(["title", "core"], sort=False)
    return {key: round(float(returns_of(group).mean()), 2) for key, group in groups}


def _highest(ends: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """The highest of them in each game."""
    best: dict[str, float] = {}
    for (title, _), end in ends.items():
        best[title] = max(end, best.get(title, end))
    return best


def _diverged(rows: pd.DataFrame) -> str:
    """Name the runs that ended because they diverged, and what they count with."""
    groups = rows[rows["ended"] == "diverged"].groupby(["core", "title"], sort=False)
    words = [
        f"`{core}` on {title_words(title)} (seed{'s' * (len(group) > 1)} "
        f"{', '.join(map(str, seed_numbers(group)))})"
        for (core, title), group in groups
    ]
    if not words:
        return ""
    return (
        " Diverged, and counted with their return at that point or, if the agent could no longer "
        f"act, with the worst return: {'; '.join(words)}."
    )


def _by_game(rows: pd.DataFrame) -> str:
    titles, cores = list(rows["title"].unique()), in_core_order(rows["core"])
    groups = dict(list(rows.groupby(["title", "core"], sort=False)))
    ends = _ends(rows)
    highest = _highest(ends)

    def cell(title: str, core: str) -> str:
        key = title, core
        if key not in ends:
            return ""
        text = f"{ends[key]:.2f} / {_best(groups[key]):.2f}"
        return f"**{text}**" if ends[key] == highest[title] else text

    lines = [[f"`{core}`", *(cell(title, core) for title in titles)] for core in cores]
    heads = ["memory", *map(title_words, titles)]
    note = "\nReturn at the end / MMER, means over seeds; bold: highest return at the end.\n"
    return markdown(heads, lines) + note


def _best(rows: pd.DataFrame) -> float:
    """The mean over runs of the best that an evaluation gave, in training or at the end."""
    return float(np.fmax(numbers(rows, "best"), returns_of(rows)).mean())


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
            "\nPublished: Morad et al. 2023, table 3, with 15 M steps and 256 units. Ours have "
            "fewer of both; see the budget above.\n"
        )


def draw_benchmark(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw the ranking, sample efficiency, the performance profile, and the return against costs.

    Args:
        results: the folder, where `<name>.png` is written, and which has `<name>_curves.csv`.
        name: of the study.
        rows: its runs.

    Returns:
        the files written; none with fewer than two memories to compare, or without curves.
    """
    rows, *_ = levels(_in_order(name, rows))
    titles, memories = rankings(rows, read_costs(results, name))[0]
    curves = _curves_of(rows, results / f"{name}_curves.csv")
    if len(memories) < 2 or not curves:
        return []
    path = results / f"{name}.png"
    shown = _shown(memories)
    with new_figure(path, (16, max(9.2, 3 + 0.24 * len(memories)))) as figure:
        panels = figure.subplot_mosaic(
            [["all", "efficiency", "profile"], ["all", "times", "sizes"]], width_ratios=(3, 5, 5)
        )
        _draw_ranking(panels["all"], memories)
        budgets = {title: budget for title, budget in _budgets(rows).items() if title in titles}
        _draw_efficiency(panels["efficiency"], budgets, memories, shown, curves)
        _draw_profile(panels["profile"], memories, shown)
        times = panels["times"]
        seconds = [one.seconds for one in memories]
        _draw_costs(times, memories, shown, seconds, "CPU time of a million steps")
        times.xaxis.set_minor_locator(NullLocator())
        ticks = time_ticks(*times.get_xlim())
        times.set_xticks(list(ticks.values()), list(ticks))
        numbers_carried = [max(1, one.state_size) for one in memories]
        _draw_costs(
            panels["sizes"], memories, shown, numbers_carried, "numbers in the state (none: 1)"
        )
        handles, labels = panels["profile"].get_legend_handles_labels()
        order = [labels.index(core) for core in in_core_order(labels)]
        others = "grey, or a number: the others, as numbered on the left"
        largest = max(one.parameters for one in memories)
        figure.legend(
            [handles[index] for index in order],
            [labels[index] for index in order],
            loc="outside lower center",
            ncols=-(-len(order) // -(-len(order) // LEGEND_COLUMNS)),
            title=legend_note(
                figure,
                f"means over {len(titles)} games, which count equally",
                "bands and lines through markers: 95 % intervals over seeds",
                others if len(shown) < len(memories) else "",
                f"cores of at most {largest:,} parameters",
            ),
            title_fontsize=9,
        )
    return [path]


def _shown(memories: Sequence[Memory]) -> set[str]:
    """The memories that have a colour: the best, and those that everybody asks about."""
    best = [one.core for one in memories if one.core not in ALWAYS_SHOWN]
    known = [one.core for one in memories if one.core in ALWAYS_SHOWN]
    return {*known, *best[: MOST_SHOWN - len(known)]}


def _ranked(memories: Sequence[Memory]) -> list[Memory]:
    """As in the panel of all memories: the highest share first."""
    return sorted(memories, key=lambda one: -one.share.value)


def _look(one: Memory, shown: set[str]) -> Style:
    look = style(one.core)
    return look if one.core in shown else Style(BACKGROUND, "-", look.marker)


def _draw_ranking(axes: Axes, memories: Sequence[Memory]) -> None:
    """The mean return at the end of every memory, the highest on top."""
    memories = _ranked(memories)
    for place, one in enumerate(memories):
        color, _, marker = style(one.core)
        axes.plot([one.share.low, one.share.high], [place, place], color=color, lw=2)
        axes.plot(one.share.value, place, color=color, marker=marker, ms=7, mec="white", mew=0.5)
    names = [f"{one.core}  {place}" for place, one in enumerate(memories, 1)]
    axes.set_yticks(range(len(memories)), names, fontsize=9)
    axes.set_ylim(len(memories) - 0.5, -0.5)
    axes.grid(axis="x", lw=0.4)
    axes.set_title("At the end", loc="left")
    axes.set_xlabel(SHARE)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def _draw_efficiency(
    axes: Axes,
    budgets: Mapping[str, float],
    memories: Sequence[Memory],
    shown: set[str],
    curves: Mapping[str, Sequence[Curve]],
) -> None:
    """The mean over games of the evaluations in training; where runs take `budgets` of steps that
    differ from game to game, after equal shares of them."""
    differ = len({*budgets.values()}) > 1
    for one in memories:
        (color, dash, _), is_shown = _look(one, shown), one.core in shown
        games = [
            [
                (run.steps / (budget if differ else 1), run.success)
                for run in curves[title]
                if run.core == one.core and str(run.seed) in one.by_seed
            ]
            for title, budget in budgets.items()
        ]
        runs = [steps for game in games for steps, _ in game]
        begin, end = max(steps[0] for steps in runs), max(steps[-1] for steps in runs)
        grid = np.linspace(begin, min(end, 1) if differ else end, POINTS)
        groups = [np.stack([np.interp(grid, *run) for run in game]) for game in games]
        if is_shown:
            low, high = interval(mean_over_games, *groups)
            axes.fill_between(grid, low, high, color=color, alpha=0.1, lw=0)
        axes.plot(
            grid,
            mean_over_games(*groups),
            color=color,
            ls=dash,
            lw=2 if is_shown else 0.8,
            zorder=2 if is_shown else 1,
        )
    axes.set_title("Sample efficiency", loc="left")
    if differ:
        axes.set_xlabel("environment steps, as a share of the game's budget")
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    else:
        axes.set_xlabel("environment steps")
        axes.xaxis.set_major_formatter(FuncFormatter(steps_label))
    _set_share(axes)


def _draw_profile(axes: Axes, memories: Sequence[Memory], shown: set[str]) -> None:
    """The share of runs above each score."""
    for one in memories:
        groups = list(one.scores.values())
        if one.core in shown:
            plot_profile(axes, one.core, groups, width=2)
        else:
            profile = performance_profile(groups, THRESHOLDS).value
            axes.plot(THRESHOLDS, profile, color=BACKGROUND, lw=0.6, zorder=1)
    axes.set_title("Performance profile", loc="left")
    label_profile(axes, f"{SHARE} τ")


def _draw_costs(
    axes: Axes, memories: Sequence[Memory], shown: set[str], costs: Sequence[float], words: str
) -> None:
    """The mean return at the end against a cost, with names, or the places in the ranking."""
    places = {one.core: str(place) for place, one in enumerate(_ranked(memories), 1)}
    values = [one.share.value for one in memories]
    gap = 0.05 * ((max(values) - min(values)) or 1.0)  # 1.0 where all end alike
    named = [(one, cost) for one, cost in zip(memories, costs, strict=True) if one.core in shown]
    for one, cost in zip(memories, costs, strict=True):
        (color, _, marker), front = _look(one, shown), 2 if one.core in shown else 1
        axes.plot([cost, cost], [one.share.low, one.share.high], color=color, lw=1, zorder=front)
        axes.plot(
            *(cost, one.share.value),
            color=color,
            marker=marker,
            ms=8,
            mec="white",
            mew=0.5,
            zorder=front,
        )
        if one.core not in shown:
            axes.annotate(
                places[one.core],
                (cost, one.share.value),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
            )
    heights = _apart([one.share.value for one, _ in named], gap)
    for (one, cost), height in zip(named, heights, strict=True):
        axes.annotate(
            one.core,
            (cost, one.share.value),
            xytext=(1.25 * cost, height),
            textcoords="data",
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": style(one.core).color, "lw": 0.6, "alpha": 0.6},
        )
    axes.set_xscale("log")
    axes.set_xlim(min(costs) / 2.5, max(costs) * 3)
    axes.set_ylim(min(values) - 2 * gap, max(*values, *heights) + gap)
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
