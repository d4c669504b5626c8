"""Comparisons from a few seeds: worked examples of textbooks, and how often intervals hold."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from rlgates.experiments.analysis.stats import (
    iqm,
    iqm_interval,
    p_gained,
    p_greater,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    steps_to_goal,
)

# Remission in weeks of 21 patients given 6-MP; + is where the observation ended (Freireich et al.
# 1963; the usual example of the estimator of Kaplan and Meier).
WEEKS = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
RELAPSED = [True] * 9 + [False] * 12
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]


def test_waiting_times_of_the_textbook() -> None:
    drug = steps_to_goal(WEEKS, RELAPSED, horizon=35)
    steps = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    ends = [*list(steps)[1:], 35]
    area = 6 + sum((b - a) * s for (a, s), b in zip(steps.items(), ends, strict=True))
    assert drug.value == pytest.approx(area, abs=0.02)
    assert drug.low < drug.value < drug.high
    placebo = steps_to_goal(PLACEBO, [True] * 21, horizon=35)
    assert placebo.value == pytest.approx(np.mean(PLACEBO))
    assert placebo.high < drug.low


def test_waiting_beyond_the_budget() -> None:
    assert steps_to_goal([100.0] * 4, [False] * 4, horizon=100).value == 100
    half = steps_to_goal([40, 60, 100, 100], [True, True, False, False], horizon=50)
    assert half.value == pytest.approx(40 + 10 * 0.75)
    with pytest.raises(ValueError, match="as many ends as runs"):
        steps_to_goal([1, 2], [True], horizon=2)


def test_tortoises_and_hares() -> None:
    """The usual example of U: T H H H H H T T T T T H, where the first to arrive is the best."""
    order = "THHHHHTTTTTH"
    tortoises, hares = ([-k for k, who in enumerate(order) if who == kind] for kind in "TH")
    estimate = probability_of_improvement([(tortoises, hares)])
    assert estimate.value == pytest.approx(11 / 36)
    u = mannwhitneyu(tortoises, hares).statistic
    assert estimate.value == pytest.approx(u / 36)
    assert 0 <= estimate.low < estimate.value < estimate.high <= 1


def test_improvement_is_averaged_over_tasks() -> None:
    sure, tied = ([2, 3, 4], [0, 1]), ([1.0, 1.0], [1.0, 1.0, 1.0])
    assert probability_of_improvement([sure]) == (1, 1, 1)
    assert probability_of_improvement([tied]) == (0.5, 0.5, 0.5)
    assert probability_of_improvement([sure, tied]).value == 0.75
    with pytest.raises(ValueError, match="one run or more"):
        probability_of_improvement([([1.0], [])])


def test_performance_profile_by_hand() -> None:
    few, many = [0.2, 0.9], [0.1, 0.5, 0.5, 0.8]
    profile = performance_profile([few, many], [0.0, 0.3, 0.5, 1.0])
    expected = [1, (1 / 2 + 3 / 4) / 2, (1 / 2 + 1 / 4) / 2, 0]
    np.testing.assert_allclose(profile.value, expected)
    assert (profile.low <= profile.value).all()
    assert (profile.value <= profile.high).all()
    assert profile.low[0] == profile.high[0] == 1


def test_pairs_of_seeds_say_more_than_groups() -> None:
    rng = np.random.default_rng(0)
    seeds = rng.normal(scale=10, size=10)
    ours, theirs = seeds + 1 + 0.1 * rng.normal(size=10), seeds
    paired = paired_difference(ours, theirs)
    assert 0.8 < paired.low < paired.value < paired.high < 1.2
    assert probability_of_improvement([(ours, theirs)]).low < 0.5
    with pytest.raises(ValueError, match="as many runs of each"):
        paired_difference([1, 2], [1])


def test_permutations_of_the_textbook() -> None:
    order = "THHHHHTTTTTH"
    tortoises, hares = ([-k for k, who in enumerate(order) if who == kind] for kind in "TH")
    exact = mannwhitneyu(hares, tortoises, alternative="greater", method="exact").pvalue
    assert p_greater(hares, tortoises) == pytest.approx(exact)
    assert p_greater([4, 5, 6], [1, 2, 3]) == pytest.approx(1 / 20)
    assert p_greater([-np.inf] * 5, [-np.inf] * 5) == 1
    with pytest.raises(ValueError, match="nan"):
        p_greater([1, np.nan], [2, 3])
    # Heights of 15 pairs of plants, crossed and self-fertilised, in eighths of an inch (Darwin
    # 1876); Fisher 1935 counted 863 of the 2^15 signs with sums as large as theirs.
    darwin = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert p_gained(darwin[:10]) == pytest.approx(_signs(darwin[:10]))
    assert p_gained(darwin) == pytest.approx(863 / 2**15, abs=0.004)
    assert p_gained([1, 2, 3, 4, 5]) == pytest.approx(1 / 32)
    assert p_gained([-1, -2, -3]) == 1
    assert p_gained([1]) == p_greater([2, 3], [1]) == 1


def test_ties_are_permuted() -> None:
    """As by brute force over which 5 of the 9 runs are ours."""
    ours, theirs = [3, 1, 4, 1, np.inf], [1, 2, 3, -np.inf]
    runs = [*ours, *theirs]

    def better(chosen: tuple[int, ...]) -> float:
        others = set(range(9)).difference(chosen)
        pairs = [(runs[i], runs[j]) for i in chosen for j in others]
        return sum((a > b) + 0.5 * (a == b) for a, b in pairs)

    chances = [better(chosen) for chosen in combinations(range(9), 5)]
    as_good = np.mean([chance >= better((0, 1, 2, 3, 4)) for chance in chances])
    assert p_greater(ours, theirs) == pytest.approx(as_good)
    assert p_greater(ours, theirs, two_sided=True) == pytest.approx(2 * as_good)


def test_two_sided_p_counts_both_sides() -> None:
    """And so depends on no choice of a side after a look at the scores."""
    low, high = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10]
    for pair in ((low, high), (high, low)):
        assert p_greater(*pair, two_sided=True) == pytest.approx(2 / 252)
        gained = np.subtract(*pair)
        assert p_gained(gained, two_sided=True) == pytest.approx(2 / 2**5)
    assert p_gained(np.arange(1, 11), two_sided=True) == pytest.approx(2 / 2**10)
    ours, theirs = [1, 4, 6, 8, 9], [2, 3, 5, 7, 10]
    exact = mannwhitneyu(ours, theirs, alternative="two-sided", method="exact").pvalue
    assert p_greater(ours, theirs, two_sided=True) == pytest.approx(exact)
    assert p_greater(low, low, two_sided=True) == p_gained([1, -1], two_sided=True) == 1
    assert p_gained([1], two_sided=True) == 1


def test_few_values_have_all_their_resamples_counted() -> None:
    """As by brute force: 5^5 = 3,125 of one group, 3^3 x 4^4 = 6,912 of two."""
    rng = np.random.default_rng(0)
    for sizes in ((5,), (3, 4), (1, 5)):
        groups = [rng.normal(size=(size, 2)) for size in sizes]
        every = [list(product(range(size), repeat=size)) for size in sizes]
        resamples = [
            np.concatenate([group[list(one)] for group, one in zip(groups, chosen, strict=True)])
            for chosen in product(*every)
        ]
        values = iqm(resamples, axis=1)
        brute = np.quantile(values, [0.025, 0.975], axis=0, method="inverted_cdf")
        np.testing.assert_allclose(iqm_interval(*groups), brute)
    worst = paired_difference([1, 2, 3, 4, 5], [0, 0, 0, 0, 6])  # 1, 2, 3, 4, -1
    means = [np.mean(one) for one in product([1, 2, 3, 4, -1], repeat=5)]
    exact = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    np.testing.assert_allclose([worst.low, worst.high], exact)


def _signs(values: list[int]) -> float:
    """The share of all signs with a sum as large as that of the values."""
    sums = [np.dot(signs, np.abs(values)) for signs in product((1, -1), repeat=len(values))]
    return float(np.mean(np.array(sums) >= sum(values)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 10, 20])
def test_intervals_hold_about_as_often_as_they_say(count: int) -> None:
    """Percentile intervals of few values are somewhat narrow: of 5, 10 and 20 values they hold
    for some 80, 90 and 92 per cent of draws."""
    rng = np.random.default_rng(count)
    least = {5: 0.72, 10: 0.84, 20: 0.88}[count]
    inside = [low <= 0 <= high for low, high in map(iqm_interval, rng.normal(size=(400, count)))]
    assert least < np.mean(inside) < 0.98
    gains = rng.normal(size=(400, count))
    paired = [paired_difference(gain, np.zeros(count)) for gain in gains]
    assert least < np.mean([low <= 0 <= high for _, low, high in paired]) < 0.98
    waits = rng.exponential(size=(100, count))
    means = [steps_to_goal(np.minimum(w, 1.0), w < 1.0, horizon=1.0) for w in waits]
    true = 1 - np.exp(-1)
    assert least - 0.08 < np.mean([low <= true <= high for _, low, high in means]) < 1
