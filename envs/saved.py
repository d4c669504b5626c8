"""Checks of the saved state of a batch, so that a wrong one is refused before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlgates.envs.arrays import Array
from rlgates.errors import unknown

_END = 2**32  # of indices


class Bounded(Protocol):
    """What a task tells of its states."""

    @property
    def max_episode_length(self) -> int: ...
    @property
    def fixed_length(self) -> bool: ...
    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]: ...


def check_saved(
    saved: Mapping[str, Any], like: Mapping[str, Array], task: Bounded
) -> dict[str, Array]:
    """The entries of `saved`, with the shapes and dtypes of those of `like`.

    Args:
        saved: what a user gives.
        like: what `BatchedEnv.get_state` gives in another batch of this size.
        task: of which the batch is.

    Raises:
        ValueError: a missing or unknown entry, or one whose shape or values are not those of a
            running batch. TypeError: an entry holds numbers of the wrong kind.
    """
    for name in saved:
        if name not in like:
            raise unknown("entry of a saved state", name, like)
    arrays = {}
    for name, example in like.items():
        if name not in saved:
            raise ValueError(f"the saved state has no entry {name!r}.")
        values = np.asarray(saved[name])
        if values.shape != example.shape:
            raise ValueError(f"{name!r} must have shape {example.shape}, got {values.shape}.")
        _check_values(name, values, task)
        arrays[name] = values.astype(example.dtype, casting="same_kind")
    index, t = arrays["index"], arrays["task/t"]
    if (np.diff(index) != 1).any():
        raise ValueError(f"'index' must count up by 1, got {index.tolist()}.")
    if task.fixed_length and (t != t[0]).any():
        raise ValueError(f"'task/t' must be the same in all rows, got {t.tolist()}.")
    return arrays


def _check_values(name: str, values: Array, task: Bounded) -> None:
    # Before they are cast, which could fold a wrong number into the range.
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError(f"{name!r} must be finite, got {values[~np.isfinite(values)][0]}.")
        return
    bounds = {
        "index": (0, _END - 1),
        "episode": (0, 2**63 - 1),
        "task/t": (0, task.max_episode_length - 1),
        **{f"task/{part}": ends for part, ends in task.state_bounds.items()},
    }
    if name not in bounds:
        return
    low, high = bounds[name]
    wrong = (values < low) | (values > high)
    if wrong.any():
        raise ValueError(f"{name!r} must be in [{low}, {high}], got {values[wrong].flat[0]}.")
