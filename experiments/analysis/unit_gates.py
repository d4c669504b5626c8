"""The forget gates of the units of a core, and their timescales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlgates.core import GateTrace

if TYPE_CHECKING:  # it loads SciPy
    from rlgates.experiments.analysis.stats import Floats

ROUNDING = 1e-6  # beyond 0 and 1

Gates = Any
"""Effective forget gates (..., d) of d units, as an array or a tensor; or a `GateTrace`,
whose layers are concatenated."""


class Growth(NamedTuple):
    """Timescales over training, 1 / (1 - f), as `GateCallback` records them by default.

    Attributes:
        steps: of training, (K,).
        low, middle, high: 10, 50 and 90 per cent quantiles of the timescales in steps, (K,).
    """

    steps: Floats
    low: Floats
    middle: Floats
    high: Floats


def unit_means(gates: Gates) -> Floats:
    """The mean gate of each unit over all axes but the last: (d,)."""
    return np.asarray(_by_unit(gates).mean(axis=0, dtype=np.float64))


def unit_timescales(gates: Gates) -> Floats:
    """The time constant of each unit in steps, -1 / log f (Ohno et al. 2022): (d,).

    f is the geometric mean of the unit's gates, because gates multiply over steps. A gate of
    exactly 0 or 1 is replaced by the nearest number of its dtype, so the result is finite and
    above 0.
    """
    values = _by_unit(gates)
    nearest = np.finfo(values.dtype).eps / 2
    logs = np.log(np.clip(values.astype(np.float64), np.finfo(values.dtype).tiny, 1 - nearest))
    return np.asarray(-1 / logs.mean(axis=0))


def _by_unit(gates: Gates) -> np.ndarray[Any, Any]:
    """Gates as floats (n, d).

    Raises:
        ValueError: no gates, or numbers outside [0, 1].
    """
    if isinstance(gates, GateTrace):
        parts = [layer.detach().cpu().numpy() for layer in gates.forget]
        layers = [part.reshape(-1, part.shape[-1]) for part in parts]
    else:
        array = np.asarray(gates.detach().cpu() if hasattr(gates, "detach") else gates)
        if array.dtype.kind != "f":
            array = array.astype(np.float64)
        layers = [array.reshape(-1, array.shape[-1])] if array.ndim else []
    values = np.concatenate(layers, axis=1) if layers else np.empty((0, 0))
    if not values.size:
        raise ValueError("there are no forget gates to draw: does the core have any?")
    if not ((values >= -ROUNDING) & (values <= 1 + ROUNDING)).all():
        raise ValueError(f"gates must be in [0, 1], got {values.min():.3g} to {values.max():.3g}.")
    return values.clip(0, 1)
