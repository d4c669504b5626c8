"""Time the batches of the supervised tasks, and the updates on them."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

from rlgates.errors import check_choice, check_number, check_size
from rlgates.experiments.bench.configs import TaskBenchConfig
from rlgates.experiments.bench.pairs import row_circumstances
from rlgates.experiments.configs.tiers import PARTS, task_config
from rlgates.experiments.report.outputs import OUTPUTS, redraw_output
from rlgates.experiments.runs.files import Row, read_table, write_table
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.tasks import TASKS, Batch
from rlgates.experiments.tasks.data.files import set_data_dir


def bench_tasks(config: TaskBenchConfig) -> Path:
    """Time the tasks, print a line for each, and write `task_speed.csv` and its table.

    Raises:
        ValueError, TypeError: an unknown task or core, a number out of range.
        FileNotFoundError: the data folder does not exist.
    """
    set_data_dir(config.data_dir)
    check_size("updates", config.updates)
    check_number("seconds", config.seconds, above=0)
    for name in config.tasks:
        check_choice("task", name, TASKS)
    (path,) = OUTPUTS["task_speed"].source_paths(Path(config.results))
    read_table(path)  # if it is damaged, nothing is timed
    for name in config.tasks:
        try:
            row = timed(name, config)
        except (FileNotFoundError, ImportError) as error:
            print(f"{name} is left out: {str(error).partition('. ')[0]}", flush=True)
            continue
        print(
            f"{row['title']:<48} batch {float(row['batch_ms']):8.2f} ms, update "
            f"{float(row['update_ms']):8.1f} ms, {float(row['ratio']):8.0f} times",
            flush=True,
        )
        with locked(path.parent):
            rows = {**{other["task"]: other for other in read_table(path)}, name: row}
            write_table(path, [rows[task] for task in TASKS if task in rows], list(row))
    redraw_output("task_speed", path.parent)
    return path


def timed(name: str, config: TaskBenchConfig) -> Row:
    """Median times of a batch of a task and of its update; large data sets are cut to a part."""
    base = task_config(name, core=config.core)
    settings = {**base.task_settings, **PARTS.get(name, {})}
    run = TaskRun(replace(base, task_settings=settings), 0)
    load = os.getloadavg()[0]
    batch_times: list[float] = []
    update_times: list[float] = []
    draw = run.feed.draw

    def timed_draw() -> Batch:
        start = time.perf_counter()
        batch = draw()
        batch_times.append(time.perf_counter() - start)
        return batch

    run.feed.draw = timed_draw  # type: ignore[method-assign]
    run.learn()  # reads the data
    first = batch_times.pop()
    end = time.perf_counter() + config.seconds
    while len(update_times) < config.updates and (
        len(update_times) < 3 or time.perf_counter() < end
    ):
        start = time.perf_counter()
        run.learn()
        update_times.append(time.perf_counter() - start - batch_times[-1])
    batch, update = statistics.median(batch_times), statistics.median(update_times)
    return {
        "task": name,
        "title": run.config.title,
        "core": config.core,
        "hidden_size": str(run.config.hidden_size),
        "batch_size": str(run.config.batch_size),
        "first_s": f"{first:.2f}",
        "batch_ms": f"{1e3 * batch:.3f}",
        "update_ms": f"{1e3 * update:.2f}",
        "ratio": f"{update / batch:.1f}",
        "slowest_batch_ms": f"{1e3 * max(batch_times):.3f}",
        "updates": str(len(update_times)),
        **row_circumstances(run.config.threads, load),
    }
