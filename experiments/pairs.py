"""Two things timed against each other in one process, and the file that keeps the results."""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import binom

from rlgates.errors import check_size
from rlgates.experiments.files import write_atomically
from rlgates.experiments.manifest import git_state, now, versions

LEAST_SAMPLE = 0.005  # seconds: what is shorter is repeated within a sample
DEPTH = 3  # the levels of a result file that have their entries on lines of their own

Run = Callable[[], object]


class Comparison(NamedTuple):
    """What `compare` found. Times are milliseconds of one run.

    Attributes:
        pairs: how many were made.
        ratio: median over the pairs of the rival's time over one's own: above 1 is faster.
        low, high: its interval, see `median_interval`.
        ms, least: one's own time, median and minimum.
        rival_ms, rival_least: the rival's.
    """

    pairs: int
    ratio: float
    low: float
    high: float
    ms: float
    least: float
    rival_ms: float
    rival_least: float


def compare(own: Run, rival: Run, pairs: int, seconds: float) -> Comparison:
    """Time two things in neighbouring runs, each of them first in every other pair.

    Args:
        own, rival: make one run each, and wait for its end.
        pairs: how many are to be made.
        seconds: no pair is begun that would end later; one is made in any case.
    """
    repeats = [math.ceil(LEAST_SAMPLE / _warm(run)) for run in (own, rival)]
    times: list[tuple[float, float]] = []
    with _without_gc():
        begin = last = time.perf_counter()
        while len(times) < pairs:
            if len(times) % 2:
                second = timed(rival, repeats[1])
                times.append((timed(own, repeats[0]), second))
            else:
                times.append((timed(own, repeats[0]), timed(rival, repeats[1])))
            end = time.perf_counter()
            if 2 * end - last - begin > seconds:
                break
            last = end
    return summary(times)


def summary(times: Sequence[tuple[float, float]]) -> Comparison:
    """Pairs of seconds, one's own and the rival's, summed up."""
    own, rival = 1e3 * np.array(times).T
    low, high = median_interval(rival / own)
    numbers = (np.median(rival / own), low, high, np.median(own), own.min())
    return Comparison(len(times), *map(short, (*numbers, np.median(rival), rival.min())))


def medians(
    runs: Mapping[str, Run], rounds: int, order: random.Random
) -> dict[str, tuple[float, float]]:
    """Median and minimum of the milliseconds of some runs.

    A round has each of them once, in an order that is drawn, so that none is always the one
    that finds the caches filled by the same other one.
    """
    repeats = {name: math.ceil(LEAST_SAMPLE / _warm(run)) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    with _without_gc():
        for _ in range(rounds):
            for name in order.sample(list(runs), len(runs)):
                times[name].append(1e3 * timed(runs[name], repeats[name]))
    return {name: (short(float(np.median(t))), short(min(t))) for name, t in times.items()}


def median_interval(values: Any, level: float = 0.95) -> tuple[float, float]:
    """An interval for the median, from one order statistic to its mirror image.

    It is the narrowest one with that confidence, whatever the distribution. Fewer than 6 values
    have none at 0.95: then it is their whole range, and less sure.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    # The median lies below the k-th smallest of n with P(Binomial(n, 1/2) < k).
    below = binom.cdf(np.arange(len(ordered)), len(ordered), 0.5)
    k = max(1, int(np.sum(below <= (1 - level) / 2)))
    return float(ordered[k - 1]), float(ordered[-k])


def short(number: float) -> float:
    """Four digits of it, which is more than a timing is good for."""
    return float(f"{number:.4g}")


def _warm(run: Run) -> float:
    """Seconds of a run after a first one, which meets caches and lazy initialisation."""
    run()
    return timed(run, 1)


def timed(run: Run, repeats: int) -> float:
    """Seconds of a run: the mean of `repeats` in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


@contextmanager
def _without_gc() -> Iterator[None]:
    """Keep the garbage collector from coming in between."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Let torch use so many threads, and as many as before at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_threads(threads: Sequence[int]) -> None:
    """A ValueError if there is none, or one above the number of CPUs."""
    if not threads:
        raise ValueError("threads must not be empty.")
    cpus = os.cpu_count() or 1
    for number in threads:
        if check_size("threads", number) > cpus:
            raise ValueError(f"threads must be at most {cpus}, the CPUs of this machine: {number}.")


def cpu_model() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def circumstances(**facts: Any) -> dict[str, Any]:
    """When, where and with what a benchmark is made; the load is that before it began."""
    return {
        "start": now(),
        **(git_state() or {"commit": ""}),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        **versions(),
        **facts,
    }


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Write a result file: JSON, with an entry of the third level on each line."""
    write_atomically(path, (_lines(content, DEPTH) + "\n").encode())


def _lines(value: Any, depth: int) -> str:
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, separators=(",", ":"))
    entries = (f"{json.dumps(key)}: {_lines(item, depth - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"
