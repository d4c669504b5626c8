"""Sine, cosine and normal numbers that are bit-equal in NumPy and torch and on any device.

Libraries and processors round sines in different ways; sums and products of float64 they do not.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist
from typing import Any

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
_HALF_PI = (1.57079632673412561417e00, 6.07710050650619224932e-11)


def sin_cos(angle: Array) -> tuple[Array, Array]:
    """The sine and the cosine of angles in radians, float64, of any shape."""
    xp = namespace(angle)
    quarter = xp.round(angle * (2 / np.pi))
    rest = (angle - quarter * _HALF_PI[0]) - quarter * _HALF_PI[1]
    square = rest * rest
    sine = rest + rest * square * _polynomial(square, _SINE)
    cosine = 1.0 - (0.5 * square - square * square * _polynomial(square, _COSINE))
    turns = xp.astype(quarter, xp.int64) & 3
    odd = (turns & 1) == 1
    sine, cosine = xp.where(odd, cosine, sine), xp.where(odd, sine, cosine)
    return xp.where(turns >= 2, -sine, sine), xp.where((turns == 1) | (turns == 2), -cosine, cosine)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    total: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total  # type: ignore[no-any-return]


NORMAL_LEVELS = 2**16
"""How many equally likely values `normal` has; the largest is 4.17."""


def normal(levels: Array) -> Array:
    """Standard normal numbers, float32, from uniform integers in [0, NORMAL_LEVELS)."""
    numbers: Array = look_up(_quantiles().on_device_of(levels).quantiles, levels)
    return numbers


@lru_cache(maxsize=1)
def _quantiles() -> Tables:
    quantile = NormalDist().inv_cdf
    half = [quantile((k + 0.5) / NORMAL_LEVELS) for k in range(NORMAL_LEVELS // 2)]
    upper = -np.array(half[::-1], dtype=np.float32)
    return Tables(quantiles=np.concatenate([-upper[::-1], upper]))
