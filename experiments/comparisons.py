"""What can be said of two cores, or of many, from a few seeds (Agarwal et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import CensoredData, ecdf, permutation_test, rankdata

from rlgates.experiments.stats import Floats, interval


class Estimate(NamedTuple):
    """A number or an array of them, and its 95 % bootstrap interval."""

    value: Any
    low: Any
    high: Any


def performance_profile(groups: Sequence[ArrayLike], thresholds: ArrayLike) -> Estimate:
    """The share of runs above each threshold, each task with the same weight.

    Args:
        groups: for each task the scores of its runs, (seeds,).
        thresholds: (K,).

    Returns:
        shares (K,), falling from 1 to 0.

    Raises:
        ValueError: a task without runs.
    """
    marks = np.asarray(thresholds, dtype=float)
    above = [(group[:, None] > marks).astype(float) for group in _checked(groups)]

    def shares(*parts: Floats, axis: int) -> Any:
        return np.mean([part.mean(axis=axis) for part in parts], axis=0)

    return Estimate(shares(*above, axis=0), *interval(shares, *above))


def probability_of_improvement(pairs: Sequence[tuple[ArrayLike, ArrayLike]]) -> Estimate:
    """How often a run of one core is better than one of another, ties counted as a half.

    It is the U of Mann and Whitney over the number of pairs, averaged over tasks.

    Args:
        pairs: for each task the scores of both cores, (seeds,) each, larger ones better.

    Raises:
        ValueError: a task without runs of one of them.
    """

    def share(*scores: Floats, axis: int) -> Any:
        found = []
        for ours, theirs in zip(scores[::2], scores[1::2], strict=True):
            one = np.moveaxis(ours, axis, -1)[..., :, None]
            other = np.moveaxis(theirs, axis, -1)[..., None, :]
            found.append(((one > other) + 0.5 * (one == other)).mean(axis=(-2, -1)))
        return np.mean(found, axis=0)

    data = _checked([group for pair in pairs for group in pair])
    return Estimate(float(share(*data, axis=0)), *map(float, interval(share, *data)))


def paired_difference(ours: ArrayLike, theirs: ArrayLike) -> Estimate:
    """The mean difference of runs with the same seeds, which had the same data or episodes.

    Args:
        ours, theirs: (seeds,), in the same order.

    Raises:
        ValueError: other numbers of seeds, or none.
    """
    one, other = _checked([ours, theirs])
    if len(one) != len(other):
        raise ValueError(f"as many runs of each are needed, got {len(one)} and {len(other)}.")
    gained = one - other
    low, high = interval(lambda values, axis: values.mean(axis=axis), gained)
    return Estimate(float(gained.mean()), float(low), float(high))


def p_greater(ours: ArrayLike, theirs: ArrayLike) -> float:
    """One-sided p of the permutation test of `probability_of_improvement`: ours are greater.

    Without ties it is the exact p of Mann and Whitney; from some 10 runs of each on, it is that
    of 9,999 permutations, always the same ones. Few runs can say little: of 3 and 3 the least p
    is 0.05, of 5 and 5 it is 0.004.

    Raises:
        ValueError: no runs of one of them.
    """
    one, other = _checked([ours, theirs])
    ranks = rankdata(np.concatenate([one, other]))  # whose sum is that share, but for constants
    groups = ranks[: len(one)], ranks[len(one) :]

    def statistic(x: Floats, y: Floats, axis: int) -> Any:
        return x.mean(axis=axis) - y.mean(axis=axis)

    return _p(groups, statistic, "independent")


def p_gained(gained: ArrayLike) -> float:
    """One-sided p of the sign-flip test of `paired_difference`: the mean is above 0.

    Of n pairs the least p is 2^-n: 0.03 of 5.

    Raises:
        ValueError: no pairs.
    """
    (data,) = _checked([gained])
    return _p((data,), lambda values, axis: values.mean(axis=axis), "samples")


def _p(groups: tuple[Floats, ...], statistic: Any, kind: Any) -> float:
    if any(len(group) < 2 for group in groups):
        return 1.0
    found = permutation_test(
        groups,
        statistic,
        permutation_type=kind,
        alternative="greater",
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


class Waiting(NamedTuple):
    """Steps until a goal is reached, over runs of which some never got there.

    Attributes:
        median: the steps after which half of all have; None where the budget is too short.
        mean: steps spent before the goal, at most `horizon` each, with its interval.
        horizon: up to which the mean counts.
        reached: how many runs got there.
    """

    median: float | None
    mean: Estimate
    horizon: float
    reached: int


def steps_to_goal(
    steps: ArrayLike, reached: Sequence[bool], horizon: float | None = None
) -> Waiting:
    """How long runs need; those that ended before the goal are censored (Kaplan and Meier 1958).

    Args:
        steps: (seeds,), at which a run got there, or ended without.
        reached: whether it got there.
        horizon: of the restricted mean; None: the last of all steps.

    Raises:
        ValueError: no runs, or not as many of both.
    """
    (times,) = _checked([steps])
    there = np.asarray(reached, dtype=bool)
    if len(there) != len(times):
        raise ValueError(f"as many ends as runs are needed, got {len(there)} and {len(times)}.")
    end = float(times.max()) if horizon is None else float(horizon)

    def mean(rows: Floats, axis: int) -> Any:
        # Rows are numbers of runs; each resample has a curve of its own.
        flat = np.moveaxis(rows, axis, -1)
        means = [
            _area(times[chosen], there[chosen], end)
            for chosen in flat.reshape(-1, flat.shape[-1]).astype(int)
        ]
        return np.reshape(means, flat.shape[:-1])

    low, high = interval(mean, np.arange(len(times)))
    curve = _survival(times, there)
    below = curve.quantiles[curve.probabilities <= 0.5]
    return Waiting(
        float(below[0]) if len(below) else None,
        Estimate(_area(times, there, end), float(low), float(high)),
        end,
        int(there.sum()),
    )


def _survival(times: Floats, there: Any) -> Any:
    data = CensoredData(uncensored=times[there], right=times[~there])
    return ecdf(data).sf


def _area(times: Floats, there: Any, end: float) -> float:
    """Below the share of runs that are still waiting, from 0 to `end`."""
    curve = _survival(times, there)
    inside = curve.quantiles < end
    marks = np.concatenate([[0.0], curve.quantiles[inside], [end]])
    waiting = np.concatenate([[1.0], curve.probabilities[inside]])
    return float((np.diff(marks) * waiting).sum())


def _checked(groups: Sequence[ArrayLike]) -> list[Floats]:
    data = [np.asarray(group, dtype=float) for group in groups]
    for group in data:
        if group.ndim != 1 or not len(group):
            raise ValueError(f"scores must be (seeds,) with one run or more, got {group.shape}.")
        if np.isnan(group).any():
            raise ValueError(f"scores must be numbers, got {group.tolist()}.")
    return data
