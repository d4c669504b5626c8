"""The tables and pictures of studies on supervised tasks, out of their CSV files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rlgates.experiments import logs
from rlgates.experiments.supervised_figures import draw_losses
from rlgates.experiments.supervised_gates import draw_unit_gates
from rlgates.experiments.tables import Row, made_by, markdown, read, slug, spent, who
from rlgates.experiments.text import time_text

PANELS = 24  # the most curves that one picture has


def tables(rows: Sequence[Row]) -> str:
    """A table for each task of a study, or one of all tasks if each has a single core."""
    titles = list(dict.fromkeys(row["title"] for row in rows))
    if _nothing_to_compare(rows):
        return overview(rows)
    return "\n".join(table([row for row in rows if row["title"] == t]) for t in titles)


def _nothing_to_compare(rows: Sequence[Row]) -> bool:
    """Whether many tasks have a single core each."""
    titles = {row["title"] for row in rows}
    return len({(row["title"], who(row)) for row in rows}) == len(titles) > 1


def draw_tasks(results: Path, name: str, rows: Sequence[Row]) -> list[Path]:
    """Draw losses and gates of a study of tasks; the files that were written."""
    if _nothing_to_compare(rows):
        return []
    written = []
    titles = list(dict.fromkeys(row["title"] for row in rows))
    points, gates = (read(results / f"{name}_{kind}.csv") for kind in ("curves", "gates"))
    for title in titles:
        path = results / f"{name}_{slug(title, titles)}.png"
        mine = [row for row in points if row["title"] == title]
        first = next(row for row in rows if row["title"] == title)
        if _draw_curves(title, mine, first["baseline"], path):
            written.append(path)
        path = path.with_stem(f"{path.stem}_gates")
        if draw_unit_gates(title, gates, path, mine):
            written.append(path)
    return written


def _draw_curves(title: str, points: Sequence[Row], baseline: str, path: Path) -> bool:
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in points:
        runs.setdefault((who(row), row["seed"]), []).append(row)
    if max(map(len, runs.values()), default=0) < 3:
        return False  # before and after, which the table has
    if len({label for label, _ in runs}) > PANELS:
        return False
    curves: dict[str, list[tuple[list[float], list[float]]]] = {}
    for (label, _), some in runs.items():
        line = [float(row["update"]) for row in some], [float(row["loss"]) for row in some]
        curves.setdefault(label, []).append(line)
    draw_losses(title, curves, float(baseline) if baseline else None, path)
    return True


def table(rows: Sequence[Row]) -> str:
    """What each core came to on one task, the best first."""
    labels = list(dict.fromkeys(map(who, rows)))
    groups = {label: [row for row in rows if who(row) == label] for label in labels}
    columns = _columns(rows)
    lines = []
    for label in sorted(labels, key=lambda label: _rank(groups[label])):
        core, comma, variant = label.partition(",")
        cells = [f"`{core}`{comma}{variant}"]
        lines.append([*cells, *(_cell(column, groups[label]) for column in columns)])
    return markdown([rows[0]["title"], *columns], lines) + f"\n{_note(rows)}\n"


def overview(rows: Sequence[Row]) -> str:
    """What many tasks came to, each with one core."""
    usual = statistics.mode(map(who, rows))
    heads = ("task", "budget", "loss before", "loss", "on test", "published", "time a run")
    lines = []
    for title in dict.fromkeys(row["title"] for row in rows):
        mine = [row for row in rows if row["title"] == title]
        metric = mine[0]["metric"]
        core = "" if who(mine[0]) == usual else f" (`{who(mine[0])}`)"
        cells = (
            *(title + core, _budget(mine[0]), _cell("loss before", mine), _cell("loss", mine)),
            f"{metric} {_cell(f'{metric} on test', mine)}",
            *(_cell("published", mine), _cell("time a run", mine)),
        )
        lines.append(cells)
    seeds = ", ".join(dict.fromkeys(row["seed"] for row in rows))
    return markdown(heads, lines) + (
        f"\n`{usual}` where no other core is named, seed {seeds}: loss on sequences that were not "
        "trained on, before and after, and the task's metric on the test set. Published: with the "
        f"papers' own sizes and budgets. {spent(rows)}. {made_by(rows)}.\n"
    )


def _budget(row: Row) -> str:
    words = [f"{int(row['updates']):,} updates"] if row["updates"] else []
    if epochs := row.get("epochs"):
        words.append(f"{epochs} epoch{'s' * (epochs != '1')}")
    return " or ".join(words)


def _columns(rows: Sequence[Row]) -> list[str]:
    """Those that say something about these runs."""
    columns = ["solved"] if _stop_loss(rows) else []
    if rows[0].get("epochs"):
        columns.append("loss before")
    columns += ["loss", "worst seed"] if len({row["seed"] for row in rows}) > 1 else ["loss"]
    metric = rows[0].get("metric") or "loss"
    if metric != "loss" and rows[0].get("epochs"):
        columns.append(f"{metric} on test")
        columns += ["published"] * any(row.get("published") for row in rows)
    return [*columns, "diverged", "parameters", "time a run"]


def _cell(column: str, rows: Sequence[Row]) -> str:
    """Of all seeds of a core."""
    if column.endswith(" on test"):
        figures = logs.column(list(rows), "test")
        middle = float(np.median(figures))
        spread = f" [{figures.min():.4g}, {figures.max():.4g}]" if len(figures) > 1 else ""
        return f"{middle:.4g}{spread}"
    match column:
        case "solved":
            if not _stop_loss(rows):  # it went on in any case
                return ""
            updates = _solved(rows)
            when = f", after {np.median(updates):,.0f}" if updates else ""
            return f"{len(updates)} of {len(rows)}{when}"
        case "loss before":
            return _loss(float(np.median(logs.column(list(rows), "first_loss"))))
        case "loss":
            return _loss(_middle(rows))
        case "worst seed":
            return _loss(float(logs.column(list(rows), "loss").max()))
        case "published":
            return rows[0]["published"].replace(" ", ", ")
        case "diverged":
            return f"{sum(row['diverged_at'] != '' for row in rows)} of {len(rows)}"
        case "parameters":
            return f"{int(rows[0]['parameters']):,}"
    return time_text(float(np.median(logs.column(list(rows), "seconds"))))


def _stop_loss(rows: Sequence[Row]) -> str:
    """That of the first run that has one."""
    return next((stop for row in rows if (stop := row.get("stop_loss"))), "")


def _rank(rows: Sequence[Row]) -> tuple[float, float, float]:
    """By seeds that solved it and when, then by loss."""
    updates, middle = _solved(rows), _middle(rows)
    when = float(np.median(updates)) if updates else math.inf
    return -len(updates), when, float(np.nan_to_num(middle, nan=math.inf))


def _solved(rows: Sequence[Row]) -> list[float]:
    return [float(row["made"]) for row in rows if row.get("ended") == "solved"]


def _middle(rows: Sequence[Row]) -> float:
    return float(np.median(logs.column(list(rows), "loss")))


def _note(rows: Sequence[Row]) -> str:
    """How the runs were made."""
    first, seeds = rows[0], sorted({int(row["seed"]) for row in rows})
    many = f"median over seeds {seeds[0]} to {seeds[-1]}, or as many as there are"
    sooner = sum(row.get("ended") == "patience" for row in rows)
    words = [
        f"Loss on sequences that were not trained on, after {'at most ' * bool(sooner)}"
        f"{_each(map(_budget, rows))}, {_each(row['batch_size'] for row in rows)} sequences at a "
        "time" + (f" ({many})" if len(seeds) > 1 else f" (seed {seeds[0]})")
    ]
    if first["baseline"]:
        words[0] += f"; without memory {float(first['baseline']):.4f} at best"
    if sooner:
        words.append(f"{sooner} of {len(rows)} runs ended sooner, with nothing gained for a while")
    if stop := _stop_loss(rows):
        words.append(
            f"Solved: a loss below {float(stop):.4g}, which ends a run; the median "
            "number of updates of those that got there"
        )
    if len(seeds) > 1 and any(column.endswith(" on test") for column in _columns(rows)):
        words.append("In brackets: from the lowest to the highest of the seeds")
    if first.get("epochs") and any(row.get("published") for row in rows):
        words.append("Published: with the papers' own sizes and budgets")
    names = {"": "Adam", "adam": "Adam", "radam": "RAdam", "rmsprop": "RMSprop"}
    used = [row.get("optimizer") or "" for row in rows]
    optimizers = _each(names.get(name, name) for name in used)
    sizes, rates = (_each(row[name] for row in rows) for name in ("hidden_size", "learning_rate"))
    words.append(f"d = {sizes}, {optimizers}, rate {rates}")
    return ". ".join([*words, spent(rows), made_by(rows)]) + "."


def _each(words: Iterable[str]) -> str:
    """Each of them once: "16 or 32"."""
    return " or ".join(dict.fromkeys(words))


def _loss(value: float) -> str:
    return f"{value:.4f}" if value < 100 else f"{value:.1e}"
