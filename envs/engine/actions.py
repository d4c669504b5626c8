"""The actions of a batch as arrays, for each kind of action space."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, namespace

ActionSpace: TypeAlias = "spaces.Discrete | spaces.MultiDiscrete | spaces.Box"
"""`Discrete` and `MultiDiscrete` count from 0; a `Box` is float32 with one axis.

In a batch: int64 (B,), int64 (B, n) and float32 (B, n).
"""

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float32", "float64")


def check_actions(
    space: ActionSpace, actions: Any, xp: Any, device: Any, batch: tuple[int, ...], values: bool
) -> Array:
    """`actions` as a new array (*batch, ...) of `space`.

    Numbers outside the bounds of a `Box` are kept: the game clips them.

    Args:
        space: of the game.
        actions: from the user.
        xp, device: array namespace and device of the result.
        batch: (B,), or () for the action of a single environment.
        values: whether to look at the values, which on a GPU synchronizes.

    Raises:
        TypeError: no numbers of the right kind. ValueError: a wrong shape, or a number that is not
            in the space.
    """
    box = isinstance(space, spaces.Box)
    shape = (*batch, *(space.shape or ()))
    noun, kind = ("actions" if batch else "action"), ("number" if box else "integer")
    try:
        array: Array = xp.asarray(actions, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        many = f"{shape[0]} {kind}s" if batch == shape else f"{kind}s of shape {shape}"
        raise TypeError(
            f"{noun} must be {many}, got {str(actions)[:100]} ({type(actions).__name__})."
        ) from error
    if not batch and not shape and array.ndim:
        raise ValueError(f"action must be one integer, got shape {tuple(array.shape)}.")
    if array.dtype not in _dtypes(xp, box):
        expected = f"{kind}s" if batch else f"{'a' if box else 'an'} {kind}"
        raise TypeError(f"{noun} must be {expected}, got dtype {array.dtype}.")
    if tuple(array.shape) != shape:
        raise ValueError(f"{noun} must have shape {shape}, got {tuple(array.shape)}.")
    if values:
        _check_values(space, array, xp, noun)
    checked: Array = xp.astype(array, _dtype(space, xp))  # a copy, which becomes part of states
    return checked


@lru_cache(maxsize=8)
def _dtypes(xp: Any, box: bool) -> frozenset[Any]:
    """The types of the numbers that are taken."""
    kinds = (*_INTEGERS, *_FLOATS) if box else _INTEGERS
    return frozenset(xp.empty(0, dtype=getattr(xp, name)).dtype for name in kinds)


def _check_values(space: ActionSpace, array: Array, xp: Any, noun: str) -> None:
    if isinstance(space, spaces.Box):
        if not bool(xp.all(xp.isfinite(array))):
            raise ValueError(f"{noun} must be finite, got {float(array[~xp.isfinite(array)][0])}.")
        return
    if xp is not np:  # torch does not compare unsigned integers of 16 bits and more
        array = xp.astype(array, xp.int64, copy=False)
    counts = action_counts(space)
    multiple = isinstance(space, spaces.MultiDiscrete)
    bound = xp.asarray(counts, device=array.device) if multiple else counts[0]
    if bool(((array >= 0) & (array < bound)).all()):
        return
    columns = array.reshape((-1, len(counts)))
    for column, count in enumerate(counts):
        numbers = columns[:, column]
        wrong_ones = (numbers < 0) | (numbers >= count)
        if xp.any(wrong_ones):
            wrong = int(numbers[wrong_ones][0])
            which = f"{noun}[{'..., ' if noun == 'actions' else ''}{column}]"
            where = which if len(counts) > 1 else noun
            raise ValueError(f"{where} must be in [0, {count}), got {wrong}.")


def _dtype(space: ActionSpace, xp: Any) -> Any:
    return xp.float32 if isinstance(space, spaces.Box) else xp.int64


def random_actions(space: ActionSpace, rng: np.random.Generator, *batch: int) -> Array:
    """Uniform actions (*batch, ...) of `space`."""
    if isinstance(space, spaces.Box):
        sampled = rng.uniform(space.low, space.high, size=(*batch, *space.shape))
        return sampled.astype(np.float32)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(space.nvec, size=(*batch, len(space.nvec)))
    return rng.integers(int(space.n), size=batch)


def no_actions(space: ActionSpace, like: Array) -> Array:
    """What stands for the previous action before the first: -1, or zeros of a `Box`.

    Args:
        space: of the game.
        like: an array (B,), for the batch size, the kind of array and the device.
    """
    xp = namespace(like)
    empty: Array = xp.zeros(
        (like.shape[0], *(space.shape or ())), dtype=_dtype(space, xp), device=like.device
    )
    return empty if isinstance(space, spaces.Box) else empty - 1


def encoded_size(space: ActionSpace) -> int:
    """The width of `encode_actions`."""
    return int(spaces.flatdim(space))


def action_counts(space: ActionSpace) -> tuple[int, ...]:
    """How many actions there are, in each part of a `MultiDiscrete`; none of a `Box`."""
    if isinstance(space, spaces.Box):
        return ()
    counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else [space.n]
    return tuple(map(int, counts))


def encode_actions(actions: Array, counts: tuple[int, ...]) -> Array:
    """Float32 (B, n): one-hot, all zeros for -1, one part after the other; a `Box` as it is.

    Always a new array.

    Args:
        actions: (B, ...) of a space.
        counts: `action_counts` of the space, which torch.compile cannot follow.
    """
    xp = namespace(actions)
    encoded: Array
    if not counts:
        encoded = xp.asarray(actions, copy=True)
        return encoded
    if actions.ndim == 1:
        return one_hot(actions, counts[0])
    parts = [one_hot(actions[:, k], count) for k, count in enumerate(counts)]
    encoded = xp.concat(parts, axis=1)
    return encoded


def one_hot(numbers: Array, count: int) -> Array:
    """One-hot rows, float32 (B, count); all zeros where the number is -1."""
    xp = namespace(numbers)
    ones = xp.arange(count, device=numbers.device) == numbers[:, None]
    encoded: Array = xp.astype(ones, xp.float32)
    return encoded
