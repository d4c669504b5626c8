"""Normal noise on observations, the same on every device."""

from __future__ import annotations

from typing import Any, NamedTuple

from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, look_up, namespace, row_starts
from rlgates.envs.engine.elementary import normal
from rlgates.errors import check_number


class NoiseSettings(NamedTuple):
    """The standard deviation of the noise, and the bounds that it is clipped to."""

    sigma: float
    space: spaces.Box


def check_sigma(sigma: Any) -> float:
    """`noise_sigma` as a float of at least 0."""
    if (number := check_number("noise_sigma", sigma)) < 0:
        raise ValueError(f"noise_sigma must be at least 0, got {sigma}.")
    return number


def add_noise(observations: Array, t: Array, levels: Array, settings: NoiseSettings) -> Array:
    """`observations` (B, n) at times `t` (B,) with noise.

    Args:
        observations: float32.
        t: the number of the observation.
        levels: what `normal` takes, (B, n * observations of an episode).
        settings: of the game.
    """
    xp, width = namespace(observations), observations.shape[1]
    first = row_starts(levels.shape[0], levels.shape[1], t) + width * t
    columns = xp.arange(width, device=t.device)
    noise = normal(look_up(levels.reshape(-1), first[:, None] + columns))
    low = xp.asarray(settings.space.low, device=t.device)
    high = xp.asarray(settings.space.high, device=t.device)
    noisy = observations + settings.sigma * noise
    clipped: Array = xp.minimum(xp.maximum(noisy, low), high)
    return clipped
