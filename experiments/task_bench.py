"""How long batches of the supervised tasks take, beside the updates that are made of them."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

from rlgates.errors import check_number, check_size, unknown
from rlgates.experiments.bench_configs import TaskBenchConfig
from rlgates.experiments.logs import write_rows
from rlgates.experiments.manifest import git_state
from rlgates.experiments.supervise import Run
from rlgates.experiments.supervised_check import task_title
from rlgates.experiments.supervised_tiers import PARTS, task_config
from rlgates.experiments.tables import Row, markdown, read, redraw_table
from rlgates.tasks import TASKS, Batch
from rlgates.tasks.data import use_data

NAME = "task_speed"


def bench_tasks(config: TaskBenchConfig) -> Path:
    """Time the tasks, print a line for each, and write `task_speed.csv` and its table.

    Raises:
        ValueError, TypeError: an unknown task or core, a number that makes no sense.
        FileNotFoundError: there is no folder of that name for the data.
    """
    use_data(config.data_dir)
    check_size("updates", config.updates)
    check_number("seconds", config.seconds, above=0)
    for name in config.tasks:
        if name not in TASKS:
            raise unknown("task", name, TASKS)
    path = Path(config.results) / f"{NAME}.csv"
    rows = {row["task"]: row for row in read(path)}
    for name in config.tasks:
        try:
            rows[name] = row = timed(name, config)
        except (FileNotFoundError, ImportError) as error:
            print(f"{name} is left out: {str(error).partition('. ')[0]}", flush=True)
            continue
        print(
            f"{row['title']:<48} batch {float(row['batch_ms']):8.2f} ms, update "
            f"{float(row['update_ms']):8.1f} ms, {float(row['ratio']):8.0f} times",
            flush=True,
        )
        in_order = [rows[task] for task in TASKS if task in rows]
        write_rows(path, in_order, list(row))
    redraw_tasks(path.parent)
    return path


def timed(name: str, config: TaskBenchConfig) -> Row:
    """The medians of a task, of large sets a part: what a batch takes, and its update."""
    base = task_config(name, core=config.core)
    settings = {**base.task_settings, **PARTS.get(name, {})}
    run = Run(replace(base, task_settings=settings), 0)
    draws: list[float] = []
    updates: list[float] = []
    draw = run.feed.draw

    def drawn() -> Batch:
        start = time.perf_counter()
        batch = draw()
        draws.append(time.perf_counter() - start)
        return batch

    run.feed.draw = drawn  # type: ignore[method-assign]
    run.learn()  # reads the data
    first = draws.pop()
    end = time.perf_counter() + config.seconds
    while len(updates) < config.updates and (len(updates) < 3 or time.perf_counter() < end):
        start = time.perf_counter()
        run.learn()
        updates.append(time.perf_counter() - start - draws[-1])
    batch, update = statistics.median(draws), statistics.median(updates)
    git = git_state() or {"commit": ""}
    return {
        "task": name,
        "title": task_title(run.config),
        "core": config.core,
        "hidden_size": str(run.config.hidden_size),
        "batch_size": str(run.config.batch_size),
        "first_s": f"{first:.2f}",
        "batch_ms": f"{1e3 * batch:.3f}",
        "update_ms": f"{1e3 * update:.2f}",
        "ratio": f"{update / batch:.1f}",
        "slowest_batch_ms": f"{1e3 * max(draws):.3f}",
        "updates": str(len(updates)),
        "commit": git["commit"],
    }


def redraw_tasks(results: Path) -> list[Path]:
    """Write the table again from its CSV file; what was written."""
    return redraw_table(results, NAME, table)


def table(rows: list[Row]) -> str:
    """A line for each task."""
    heads = (
        *("task", "units", "rows", "to the first batch", "a batch", "the slowest", "an update"),
        "update / batch",
    )
    lines = [
        (
            *(row["title"], row["hidden_size"], row["batch_size"], f"{row['first_s']} s"),
            f"{float(row['batch_ms']):.2f} ms",
            f"{float(row['slowest_batch_ms']):.2f} ms",
            f"{float(row['update_ms']):,.0f} ms",
            f"{float(row['ratio']):,.0f}",
        )
        for row in rows
    ]
    cores = ", ".join(f"`{core}`" for core in dict.fromkeys(row["core"] for row in rows))
    commits = ", ".join(dict.fromkeys(row["commit"][:7] for row in rows))
    most = max(int(row["updates"]) for row in rows)
    return markdown(heads, lines) + (
        f"\nMedians of at most {most} updates of {cores} in one thread, settings of the laptop "
        "tier. An update is all but the batch: forward, backward, optimizer. The first batch "
        f"has the files read and unpacked. `rlgates bench tasks`, commit {commits}.\n"
    )
