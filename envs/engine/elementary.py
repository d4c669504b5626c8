"""Sine, cosine and normal numbers that are bit-equal in NumPy and torch and on any device.

Libraries and processors round sines in different ways; sums and products of float64 they do not.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rlgates.envs.engine.arrays import Array, Tables, look_up, namespace

# Coefficients and the split of pi / 2 are those of Sun's fdlibm: errors below one unit in the
# last place for |x| up to about 1e5.
_SINE = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COSINE = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
_POLYNOMIALS = Tables(coefficients=np.array([_SINE, _COSINE]).T[::-1, :, None].copy())
_QUARTERS = Tables(
    is_odd=np.array([False, True, False, True]),
    sine=np.array([1.0, 1.0, -1.0, -1.0]),
    cosine=np.array([1.0, -1.0, -1.0, 1.0]),
)
_HALF_PI = (1.57079632673412561417e00, 6.07710050650619224932e-11)


def sin_cos(angle: Array) -> tuple[Array, Array]:
    """The sine and the cosine of angles in radians, float64 (B,)."""
    xp = namespace(angle)
    quarter = xp.floor(angle * (2 / np.pi) + 0.5)
    rest = (angle - quarter * _HALF_PI[0]) - quarter * _HALF_PI[1]
    sine, cosine = sin_cos_of_small(rest)
    tables, turns = _QUARTERS.on_device_of(angle), xp.astype(quarter, xp.int64) & 3
    is_odd = look_up(tables.is_odd, turns)
    sine, cosine = xp.where(is_odd, cosine, sine), xp.where(is_odd, sine, cosine)
    return sine * look_up(tables.sine, turns), cosine * look_up(tables.cosine, turns)


def sin_cos_of_small(angle: Array) -> tuple[Array, Array]:
    """The same, bit for bit, for angles (B,) of at most pi / 4 in magnitude."""
    square = angle * angle
    # Both polynomials at once: (6, 2, 1) coefficients, the highest power first.
    highest, *others, lowest = _POLYNOMIALS.on_device_of(angle).coefficients
    total = highest * square
    for coefficient in others:
        total += coefficient
        total *= square
    total += lowest
    sine = angle + angle * square * total[0]
    cosine = 1.0 - (0.5 * square - square * square * total[1])
    return sine, cosine


NORMAL_BITS = 16
NORMAL_LEVELS = 2**NORMAL_BITS
"""How many equally likely values `normal` has; the largest is 4.17."""


def normal(levels: Array, quantiles: Tables) -> Array:
    """Standard normal numbers, float32, from uniform integers in [0, NORMAL_LEVELS).

    Args:
        levels: the integers.
        quantiles: `normal_quantiles()`, which torch.compile cannot follow.
    """
    numbers: Array = look_up(quantiles.on_device_of(levels).quantiles, levels)
    return numbers


@lru_cache(maxsize=1)
def normal_quantiles() -> Tables:
    """The table of `normal`."""
    quantile = NormalDist().inv_cdf
    half = [quantile((k + 0.5) / NORMAL_LEVELS) for k in range(NORMAL_LEVELS // 2)]
    upper = -np.array(half[::-1], dtype=np.float32)
    return Tables(quantiles=np.concatenate([-upper[::-1], upper]))
