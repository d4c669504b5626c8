"""Paired timings in one process, and their result file."""

from __future__ import annotations

import json
import math
import os
import random
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binom

from rlgates.atomic import write_atomically
from rlgates.errors import check_size
from rlgates.experiments.report.timings.core_speed import Comparison
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.provenance import git_state, machine, now, versions

MIN_SAMPLE = 0.005  # seconds; shorter runs are repeated within a sample
DEPTH = 3  # levels of a result file with one entry per line

Run = Callable[[], object]


def compare(run: Run, rival: Run, pairs: int, seconds: float) -> Comparison:
    """Time two functions in alternating pairs, each one first in every other pair.

    Args:
        run, rival: the functions; each waits until its work is done.
        pairs: number of pairs.
        seconds: no pair begins that would end later, except the first.
    """
    repeats = [math.ceil(MIN_SAMPLE / _warm(function)) for function in (run, rival)]
    times: list[tuple[float, float]] = []
    begin = last = time.perf_counter()
    while len(times) < pairs:
        if len(times) % 2:
            second = timed(rival, repeats[1])
            times.append((timed(run, repeats[0]), second))
        else:
            times.append((timed(run, repeats[0]), timed(rival, repeats[1])))
        end = time.perf_counter()
        if 2 * end - last - begin > seconds:
            break
        last = end
    return summary(times)


def summary(times: Sequence[tuple[float, float]]) -> Comparison:
    """Summarise pairs of seconds, of a run and of its rival."""
    run, rival = 1e3 * np.array(times).T
    low, high = median_interval(rival / run)
    numbers = (np.median(rival / run), low, high, np.median(run), run.min())
    return Comparison(len(times), *map(short, (*numbers, np.median(rival), rival.min())))


def medians(
    runs: Mapping[str, Run], rounds: int, order: random.Random
) -> dict[str, tuple[float, float]]:
    """Median and minimum of the milliseconds of each run.

    A round makes each run once, in random order, so that none always follows the same other one.
    """
    repeats = {name: math.ceil(MIN_SAMPLE / _warm(run)) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in order.sample(list(runs), len(runs)):
            times[name].append(1e3 * timed(runs[name], repeats[name]))
    return {name: (short(float(np.median(t))), short(min(t))) for name, t in times.items()}


def median_interval(values: Any) -> tuple[float, float]:
    """A distribution-free 95 % confidence interval of the median, between two order statistics.

    It is the narrowest symmetric one; with fewer than 6 values, which have none, it is their range.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    # The median lies below the k-th smallest of n with P(Binomial(n, 1/2) < k).
    below = binom.cdf(np.arange(len(ordered)), len(ordered), 0.5)
    k = max(1, int(np.sum(below <= 0.025)))
    return float(ordered[k - 1]), float(ordered[-k])


def short(number: float) -> float:
    """Round to four significant digits."""
    return float(f"{number:.4g}")


def _warm(run: Run) -> float:
    """Seconds of a run after a first one of warm-up."""
    run()
    return timed(run, 1)


def timed(run: Run, repeats: int) -> float:
    """Mean seconds of `repeats` consecutive runs, with the garbage collector off."""
    return timeit.timeit(run, timer=time.perf_counter, number=repeats) / repeats


def check_threads(threads: Sequence[int]) -> None:
    """Raise ValueError if it is empty or a number exceeds the CPUs."""
    if not threads:
        raise ValueError("threads must not be empty.")
    cpus = os.cpu_count() or 1
    for number in threads:
        if check_size("threads", number) > cpus:
            raise ValueError(f"threads must be at most {cpus}, the CPUs of this machine: {number}.")


def circumstances(**facts: Any) -> dict[str, Any]:
    """Time, machine and versions of a benchmark, with the load before it."""
    return {
        "start": now(),
        **(git_state() or {"commit": ""}),
        **machine(),
        "load": [round(load, 2) for load in os.getloadavg()],
        **versions(),
        **facts,
    }


def row_circumstances(threads: int, load: float) -> Row:
    """Commit, machine, load before, threads and torch, as columns of a table."""
    git = git_state() or {"commit": ""}
    facts = {
        "commit": git["commit"],
        **machine(),
        "load": round(load, 2),
        "threads": threads,
        "torch": torch.__version__,
    }
    return {name: str(value) for name, value in facts.items()}


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Write a result file: JSON, with an entry of the third level on each line."""
    write_atomically(path, (_lines(content, DEPTH) + "\n").encode())


def _lines(value: Any, depth: int) -> str:
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, separators=(",", ":"))
    entries = (f"{json.dumps(key)}: {_lines(item, depth - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"
