"""The random parameters of an episode: each can be overridden and reported by name.

A parameter has two forms. *Sampled*: an array over episodes, used by the game. *Reported*: plain
numbers and coordinates, in which users also override it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlgates.envs.engine.arrays import Array, look_up, namespace
from rlgates.envs.engine.settings import check_range, check_reward
from rlgates.errors import check_number, check_size, unknown_choice


class EpisodeParameter(ABC):
    """One random parameter of an episode."""

    @abstractmethod
    def parse(self, name: str, value: Any) -> Array:
        """The sampled form of a user's `value`, without the batch axis.

        Raises:
            ValueError: out of range. TypeError: of the wrong type.
        """

    def report(self, sampled: Array) -> Array:
        """The reported form of `sampled`, a new array, both with the batch axis."""
        reported: Array = namespace(sampled).asarray(sampled, copy=True)
        return reported


@dataclass(frozen=True)
class Integer(EpisodeParameter):
    """An integer in [0, bound)."""

    bound: int

    def parse(self, name: str, value: Any) -> Array:
        return np.asarray(check_range(name, value, 0, self.bound - 1))


@dataclass(frozen=True)
class Integers(EpisodeParameter):
    """`count` integers in [0, bound); all different if `distinct`."""

    bound: int
    count: int
    distinct: bool = False

    def parse(self, name: str, value: Any) -> Array:
        items = _items(name, value, self.count)
        numbers = [check_range(name, item, 0, self.bound - 1) for item in items]
        if self.distinct and len(set(numbers)) < len(numbers):
            raise ValueError(f"{name} must be {self.count} different numbers, got {value!r}.")
        return np.asarray(numbers)


@dataclass(frozen=True)
class Numbers(EpisodeParameter):
    """`count` numbers in [low, high], float64."""

    low: float
    high: float
    count: int

    def parse(self, name: str, value: Any) -> Array:
        numbers = [check_number(name, item) for item in _items(name, value, self.count)]
        for number in numbers:
            if not self.low <= number <= self.high:
                raise ValueError(f"{name} must be in [{self.low:g}, {self.high:g}], got {number}.")
        return np.asarray(numbers)


@dataclass(frozen=True)
class Reward(EpisodeParameter):
    """A reward.

    Args:
        unused_because: why it has no effect, if so; it must then be in `allowed`.
        allowed: the rewards that an episode samples from.
    """

    unused_because: str = ""
    allowed: tuple[float, ...] = ()

    def parse(self, name: str, value: Any) -> Array:
        reward = np.float32(check_reward(name, value))
        if self.unused_because and reward not in [np.float32(other) for other in self.allowed]:
            raise ValueError(f"{name}={value!r} would have no effect: {self.unused_because}.")
        return np.asarray(reward)


@dataclass(frozen=True)
class Cell(EpisodeParameter):
    """One of several cells, each (row, col); sampled as its position in `cells`."""

    cells: tuple[tuple[int, int], ...]

    def parse(self, name: str, value: Any) -> Array:
        cell = tuple(check_size(name, n, minimum=0) for n in _items(name, value, 2))
        if cell not in self.cells:
            listed = ", ".join(map(str, self.cells))
            raise ValueError(f"{name} must be one of the cells {listed}, got {value!r}.")
        return np.asarray(self.cells.index(cell))

    def report(self, sampled: Array) -> Array:
        return _coordinates(self.cells, sampled)


@dataclass(frozen=True)
class Cells(EpisodeParameter):
    """`count` different ones of several cells; sampled as their positions in `cells`."""

    cells: tuple[tuple[int, int], ...]
    count: int

    def parse(self, name: str, value: Any) -> Array:
        parameter = Cell(self.cells)
        positions = [int(parameter.parse(name, cell)) for cell in _items(name, value, self.count)]
        if len(set(positions)) < len(positions):
            raise ValueError(f"{name} must be different cells, got {value!r}.")
        return np.asarray(positions, dtype=np.int64)

    def report(self, sampled: Array) -> Array:
        return _coordinates(self.cells, sampled)


def override(
    parameters: Mapping[str, EpisodeParameter],
    sampled: dict[str, Array],
    overrides: Mapping[str, Any],
) -> dict[str, Array]:
    """`sampled` with the values of `overrides` in every row.

    Raises:
        ValueError: an unknown name, or a value out of range. TypeError: of the wrong type.
    """
    if not overrides:
        return sampled
    result = dict(sampled)
    for name, value in overrides.items():
        if name not in parameters:
            raise unknown_choice("reset option", name, (*parameters, "reveal"))
        like = sampled[name]
        xp, value = namespace(like), parameters[name].parse(name, value)
        row = xp.asarray(value, dtype=like.dtype, device=like.device)
        result[name] = xp.zeros_like(like) + row
    return result


def report(
    parameters: Mapping[str, EpisodeParameter], sampled: Mapping[str, Array]
) -> dict[str, Array]:
    """The reported form of all parameters, (B, ...) each."""
    return {name: parameter.report(sampled[name]) for name, parameter in parameters.items()}


def report_single(
    parameters: Mapping[str, EpisodeParameter], sampled: Mapping[str, Array]
) -> dict[str, Any]:
    """The reported form for a batch of one, as plain numbers and tuples."""
    return {name: _plain(v[0].tolist()) for name, v in report(parameters, sampled).items()}


def reset_info(reported: dict[str, Any]) -> dict[str, Any]:
    """The info of a reset with `reveal=True`; `choices` is the former name of its key."""
    return {"parameters": reported, "choices": reported}


def _plain(value: Any) -> Any:
    return tuple(_plain(item) for item in value) if isinstance(value, list) else value


def _items(name: str, value: Any, count: int) -> Sequence[Any]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{name} must be a sequence of {count}, got {value!r}.")
    if len(value) != count:
        raise ValueError(f"{name} must have {count} items, got {len(value)}: {value!r}.")
    return value


def _coordinates(cells: tuple[tuple[int, int], ...], positions: Array) -> Array:
    xp = namespace(positions)
    table = xp.asarray(np.array(cells).reshape(-1, 2), device=positions.device)
    return look_up(table, positions)
