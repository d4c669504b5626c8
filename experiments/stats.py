"""Summaries over seeds: the interquartile mean and its bootstrap interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap, trim_mean

RESAMPLES = 2_000
Floats = NDArray[np.float64]


def iqm(values: ArrayLike, axis: int = 0) -> Any:
    """Interquartile mean: of what is left without the lowest and the highest quarter.

    A quarter is rounded down to whole values, as in rliable: of 5 values, 3 are left.
    """
    return trim_mean(np.asarray(values, dtype=float), 0.25, axis=axis)


def iqm_interval(*groups: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Percentile bootstrap interval of the IQM over all values of all groups.

    Each group (a task) is resampled by itself, which is the stratified bootstrap of Agarwal et
    al. 2021. Random numbers are fixed: the same values give the same interval.

    Args:
        groups: each (seeds, ...); the interval is taken over the first axis.
        level: of confidence.

    Returns:
        low and high, each of the shape that is left.
    """

    def pooled(*resampled: Floats, axis: int) -> Any:
        return iqm(np.concatenate(resampled, axis=axis), axis=axis)

    return interval(pooled, *groups, level=level)


def interval(
    statistic: Callable[..., Any], *groups: ArrayLike, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Stratified percentile bootstrap interval of a statistic, as `iqm_interval` has it.

    Args:
        statistic: takes resampled groups and the `axis` along which their values lie.
        groups, level: see `iqm_interval`.
    """
    data = [np.asarray(group, dtype=float) for group in groups]
    several = [group for group in data if len(group) > 1]
    if not several:
        only = np.asarray(statistic(*data, axis=0))
        return only, only

    def with_single(*resampled: Floats, axis: int) -> Any:
        # Of a group of one value there is nothing to draw, which scipy refuses.
        drawn, parts = iter(resampled), []
        for group in data:
            if len(group) > 1:
                parts.append(next(drawn))
            else:
                value = np.moveaxis(group, 0, -1)[..., None, :]  # beside the resamples
                parts.append(np.broadcast_to(value, (*resampled[0].shape[:-1], 1)))
        return statistic(*parts, axis=axis)

    found = bootstrap(
        several,
        with_single,
        n_resamples=RESAMPLES,
        vectorized=True,
        axis=0,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return np.asarray(found.low), np.asarray(found.high)


def median_reached(steps: Sequence[float | None]) -> tuple[float | None, int]:
    """Median steps to a goal, and how many reached it; None where it lies beyond the budget.

    Runs that never reached it count as later than all that did.
    """
    reached = sorted(step for step in steps if step is not None)
    middle = (len(steps) - 1) / 2
    low, high = int(np.floor(middle)), int(np.ceil(middle))
    if high >= len(reached):
        return None, len(reached)
    return (reached[low] + reached[high]) / 2, len(reached)
