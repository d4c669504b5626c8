"""Statistics over a few seeds: interquartile means, bootstrap intervals, comparisons of two cores.

After Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from math import comb, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import factorial
from scipy.stats import CensoredData, bootstrap, ecdf, permutation_test, rankdata, trim_mean

RESAMPLES = 2_000  # that are drawn where there are too many
EXACT = 20_000  # that are all counted, such as the 126 x 126 of five and five values
Floats = NDArray[np.float64]


def iqm(values: ArrayLike, axis: int = 0) -> Any:
    """Interquartile mean: the mean without the lowest and the highest quarter.

    A quarter is rounded down to whole values, as in rliable: 3 of 5 values remain.
    """
    return trim_mean(np.asarray(values, dtype=float), 0.25, axis=axis)


def iqm_interval(*groups: ArrayLike) -> tuple[Floats, Floats]:
    """95 % percentile bootstrap interval of the IQM over all values of all groups.

    Each group (a task) is resampled separately: the stratified bootstrap of Agarwal et al. 2021.
    The seed is fixed, so the same values give the same interval.

    Args:
        groups: each (seeds, ...); the interval is taken over the first axis.

    Returns:
        low and high, each of the remaining shape.
    """

    def pooled(*resampled: Floats, axis: int) -> Any:
        return iqm(np.concatenate(resampled, axis=axis), axis=axis)

    return interval(pooled, *groups)


def interval(statistic: Callable[..., Any], *groups: ArrayLike) -> tuple[Floats, Floats]:
    """Stratified 95 % percentile bootstrap interval of a statistic; see `iqm_interval`.

    Of few values all resamples are counted (`EXACT`); of more, `RESAMPLES` are drawn.

    Args:
        statistic: a function of the resampled groups and the `axis` of their values.
        groups: see `iqm_interval`.
    """
    data = [np.asarray(group, dtype=float) for group in groups]
    several = [group for group in data if len(group) > 1]
    if not several:
        value = np.asarray(statistic(*data, axis=0))
        return value, value

    def with_single(*resampled: Floats, axis: int) -> Any:
        # scipy cannot resample a group of one value.
        remaining, parts = iter(resampled), []
        for group in data:
            if len(group) > 1:
                parts.append(next(remaining))
            else:
                value = np.moveaxis(group, 0, -1)[..., None, :]  # beside the resamples
                parts.append(np.broadcast_to(value, (*resampled[0].shape[:-1], 1)))
        return statistic(*parts, axis=axis)

    if prod(comb(2 * len(group) - 1, len(group)) for group in several) > EXACT:
        result = bootstrap(
            several,
            with_single,
            n_resamples=RESAMPLES,
            vectorized=True,
            axis=0,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
        return np.asarray(result.low), np.asarray(result.high)
    parts, weights = _every_resample(several)
    values = np.asarray(with_single(*parts, axis=-1))
    low, high = np.quantile(values, [0.025, 0.975], axis=-1, weights=weights, method="inverted_cdf")
    return low, high


def _every_resample(groups: Sequence[Floats]) -> tuple[list[Floats], Floats]:
    """All resamples of several groups, with the probability of each.

    Resamples that differ only in their order are one: 126 for five values in place of 3,125.

    Returns:
        (..., resamples, n) of each group of (n, ...), and (resamples,).
    """
    choices = [
        np.array(list(combinations_with_replacement(range(len(group)), len(group))))
        for group in groups
    ]
    shares = []
    for chosen in choices:
        size = chosen.shape[1]
        counts = (chosen[:, :, None] == np.arange(size)).sum(axis=1)
        shares.append(factorial(size) / factorial(counts).prod(axis=1) / size**size)
    grid = np.meshgrid(*(np.arange(len(chosen)) for chosen in choices), indexing="ij")
    rows = [axis.ravel() for axis in grid]
    resamples = [
        np.moveaxis(group, 0, -1)[..., chosen[row]]
        for group, chosen, row in zip(groups, choices, rows, strict=True)
    ]
    weights = np.prod([share[row] for share, row in zip(shares, rows, strict=True)], axis=0)
    return resamples, weights


def median_reached(steps: Sequence[float | None]) -> tuple[float | None, int]:
    """Median steps to a goal, None if beyond the budget, and the number of runs that reached it.

    Runs that did not reach it count as later than all that did.
    """
    median = float(np.median([np.inf if step is None else step for step in steps]))
    return None if np.isinf(median) else median, len(steps) - steps.count(None)


class Estimate(NamedTuple):
    """A number or an array, with its 95 % bootstrap interval."""

    value: Any
    low: Any
    high: Any


def performance_profile(groups: Sequence[ArrayLike], thresholds: ArrayLike) -> Estimate:
    """The share of runs above each threshold, with equal weights of tasks.

    Args:
        groups: scores (seeds,) of the runs of each task.
        thresholds: (K,).

    Returns:
        shares (K,), non-increasing.

    Raises:
        ValueError: a task without runs.
    """
    marks = np.asarray(thresholds, dtype=float)
    above = [(group[:, None] > marks).astype(float) for group in _checked(groups)]

    def shares(*parts: Floats, axis: int) -> Any:
        return np.mean([part.mean(axis=axis) for part in parts], axis=0)

    return Estimate(shares(*above, axis=0), *interval(shares, *above))


def probability_of_improvement(pairs: Sequence[tuple[ArrayLike, ArrayLike]]) -> Estimate:
    """The probability that a run of one core is better than a run of another; a tie counts half.

    This is the Mann-Whitney U over the number of pairs, averaged over tasks.

    Args:
        pairs: for each task the scores of both cores, (seeds,) each; higher is better.

    Raises:
        ValueError: a task without runs of a core.
    """

    def share(*scores: Floats, axis: int) -> Any:
        shares = []
        for first, second in zip(scores[::2], scores[1::2], strict=True):
            a = np.moveaxis(first, axis, -1)[..., :, None]
            b = np.moveaxis(second, axis, -1)[..., None, :]
            shares.append(((a > b) + 0.5 * (a == b)).mean(axis=(-2, -1)))
        return np.mean(shares, axis=0)

    data = _checked([group for pair in pairs for group in pair])
    return Estimate(float(share(*data, axis=0)), *map(float, interval(share, *data)))


def paired_difference(scores: ArrayLike, reference: ArrayLike) -> Estimate:
    """The mean difference of runs with the same seeds, and so the same data or episodes.

    Args:
        scores, reference: (seeds,), in the same order.

    Raises:
        ValueError: different numbers of seeds, or none.
    """
    a, b = _checked([scores, reference])
    if len(a) != len(b):
        raise ValueError(f"as many runs of each are needed, got {len(a)} and {len(b)}.")
    gained = a - b
    low, high = interval(lambda values, axis: values.mean(axis=axis), gained)
    return Estimate(float(gained.mean()), float(low), float(high))


def p_greater(scores: ArrayLike, reference: ArrayLike, *, two_sided: bool = False) -> float:
    """One-sided p that scores exceed the reference: `probability_of_improvement`, permuted.

    It is exact, also with ties; without them it is the Mann-Whitney p. The smallest p is 0.05 for
    3 and 3 runs, 0.004 for 5 and 5. One run says nothing of the spread of its kind: p is then 1.

    Args:
        scores, reference: of the runs of both, (seeds,) each.
        two_sided: p that they differ, which is twice that of the better side, and at most 1.

    Raises:
        ValueError: no runs of one of them, or a score that is NaN.
    """
    a, b = _checked([scores, reference])
    if min(len(a), len(b)) < 2:
        return 1.0
    # The sum of the ranks is that probability, up to constants; ties have halves of ranks.
    ranks = np.rint(2 * rankdata(np.concatenate([a, b]), nan_policy="raise")).astype(int)
    shares = _shares_of_sums(ranks, len(a))
    observed = ranks[: len(a)].sum()
    greater, less = float(shares[observed:].sum()), float(shares[: observed + 1].sum())
    return min(1.0, 2 * min(greater, less)) if two_sided else min(1.0, greater)


def _shares_of_sums(numbers: NDArray[np.int_], size: int) -> Floats:
    """The share of the subsets of `size` of the numbers that have each sum, from 0 on.

    By the shift algorithm of Streitberg and Roehmel 1986, which makes no list of them.
    """
    counts = np.zeros((size + 1, numbers.sum() + 1))  # of subsets of each size, with each sum
    counts[0, 0] = 1
    for number in numbers:
        counts[1:, number:] += counts[:-1, : counts.shape[1] - number]
    shares: Floats = counts[size] / comb(len(numbers), size)
    return shares


def p_gained(gained: ArrayLike, *, two_sided: bool = False) -> float:
    """One-sided p of the sign-flip test of `paired_difference`: the mean is above 0.

    It is exact for up to 18 pairs; of more it draws signs with a fixed seed. The smallest p of n
    pairs is 2^-n: 0.03 for 5. Of one pair p is 1.

    Args:
        gained: the difference of each pair, (seeds,).
        two_sided: p that the mean is not 0, which is twice that of the better side, and at most 1.

    Raises:
        ValueError: no pairs.
    """
    (data,) = _checked([gained])
    if len(data) < 2:
        return 1.0
    result = permutation_test(
        (data,),
        lambda values, axis: values.mean(axis=axis),
        permutation_type="samples",
        alternative="two-sided" if two_sided else "greater",
        vectorized=True,
        n_resamples=2**18,
        batch=20_000,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def steps_to_goal(steps: ArrayLike, reached: Sequence[bool], horizon: float) -> Estimate:
    """The restricted mean of the steps to the goal, with other runs as censored.

    After Kaplan and Meier 1958.

    Args:
        steps: (seeds,), at which a run reached the goal or ended.
        reached: whether it reached the goal.
        horizon: steps beyond which all count alike.

    Raises:
        ValueError: no runs, or different lengths.
    """
    (times,) = _checked([steps])
    is_event = np.asarray(reached, dtype=bool)
    if len(is_event) != len(times):
        raise ValueError(f"as many ends as runs are needed, got {len(is_event)} and {len(times)}.")

    def mean(indices: Floats, axis: int) -> Any:
        # Resampled indices of runs; each resample has its own survival curve.
        flat = np.moveaxis(indices, axis, -1)
        means = [
            _area(times[sample], is_event[sample], horizon)
            for sample in flat.reshape(-1, flat.shape[-1]).astype(int)
        ]
        return np.reshape(means, flat.shape[:-1])

    low, high = interval(mean, np.arange(len(times)))
    return Estimate(_area(times, is_event, horizon), float(low), float(high))


def _area(times: Floats, is_event: Any, end: float) -> float:
    """The area below the survival curve from 0 to `end`."""
    curve = ecdf(CensoredData(uncensored=times[is_event], right=times[~is_event])).sf
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
