"""What an episode draws at its start: each kind of choice, to be fixed or told by name.

A choice has three forms. *Drawn*: an array, one row an episode, which the task works with.
*Told*: the same as numbers and coordinates for people. *Given*: what a user fixes it to, of the
form that is told, for one episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlgates.envs.arrays import Array, look_up, namespace
from rlgates.envs.settings import check_payment, check_range
from rlgates.errors import unknown


class Choice(Protocol):
    """One random choice of an episode."""

    def parse(self, name: str, given: Any) -> Array:
        """What is drawn, without the batch axis; ValueError or TypeError if that cannot be."""

    def tell(self, drawn: Array) -> Array:
        """What people are told, with the batch axis."""


@dataclass(frozen=True)
class Number:
    """An integer in [0, bound)."""

    bound: int

    def parse(self, name: str, given: Any) -> Array:
        return np.asarray(check_range(name, given, 0, self.bound - 1))

    def tell(self, drawn: Array) -> Array:
        return drawn


@dataclass(frozen=True)
class Numbers:
    """`count` integers in [0, bound); all different if they are an order."""

    bound: int
    count: int
    different: bool = False

    def parse(self, name: str, given: Any) -> Array:
        numbers = [check_range(name, n, 0, self.bound - 1) for n in _items(name, given, self.count)]
        if self.different and len(set(numbers)) < len(numbers):
            raise ValueError(f"{name} must be {self.count} different numbers, got {given!r}.")
        return np.asarray(numbers)

    def tell(self, drawn: Array) -> Array:
        return drawn


@dataclass(frozen=True)
class Payment:
    """A reward.

    Args:
        idle: why it pays for nothing, if it does: only the rewards `drawn` can be given then.
        drawn: what an episode draws.
    """

    idle: str = ""
    drawn: tuple[float, ...] = ()

    def parse(self, name: str, given: Any) -> Array:
        payment = np.float32(check_payment(name, given))
        if self.idle and payment not in [np.float32(value) for value in self.drawn]:
            raise ValueError(f"{name}={given!r} would pay for nothing: {self.idle}.")
        return np.asarray(payment)

    def tell(self, drawn: Array) -> Array:
        return drawn


@dataclass(frozen=True)
class Cell:
    """One of several cells, each (row, col); drawn as its position in `cells`."""

    cells: tuple[tuple[int, int], ...]

    def parse(self, name: str, given: Any) -> Array:
        cell = tuple(int(n) if isinstance(n, np.integer) else n for n in _items(name, given, 2))
        if cell not in self.cells:
            listed = ", ".join(map(str, self.cells))
            raise ValueError(f"{name} must be one of the cells {listed}, got {given!r}.")
        return np.asarray(self.cells.index(cell))

    def tell(self, drawn: Array) -> Array:
        return _coordinates(self.cells, drawn)


@dataclass(frozen=True)
class Cells:
    """`count` different ones of several cells; drawn as their positions in `cells`."""

    cells: tuple[tuple[int, int], ...]
    count: int

    def parse(self, name: str, given: Any) -> Array:
        one = Cell(self.cells)
        drawn = [int(one.parse(name, cell)) for cell in _items(name, given, self.count)]
        if len(set(drawn)) < len(drawn):
            raise ValueError(f"{name} must be different cells, got {given!r}.")
        return np.asarray(drawn, dtype=np.int64)

    def tell(self, drawn: Array) -> Array:
        return _coordinates(self.cells, drawn)


def fix(choices: Mapping[str, Choice], drawn: dict[str, Array], given: Any) -> dict[str, Array]:
    """`drawn` with the choices that `given` names in every row.

    Raises:
        ValueError: an unknown name, or a value out of range. TypeError: of the wrong type.
    """
    if not given:
        return drawn
    fixed = dict(drawn)
    for name, value in given.items():
        if name not in choices:
            raise unknown("reset option", name, (*choices, "reveal"))
        like = drawn[name]
        one = namespace(like).asarray(choices[name].parse(name, value), device=like.device)
        fixed[name] = namespace(like).zeros_like(like) + one
    return fixed


def tell(choices: Mapping[str, Choice], drawn: Mapping[str, Array]) -> dict[str, Array]:
    """The choices as people read them, (B, ...) each."""
    return {name: choice.tell(drawn[name]) for name, choice in choices.items()}


def tell_one(choices: Mapping[str, Choice], drawn: Mapping[str, Array]) -> dict[str, Any]:
    """The choices of a batch of one, as plain numbers, lists and tuples."""
    return {name: _plain(told[0].tolist()) for name, told in tell(choices, drawn).items()}


def _plain(told: Any) -> Any:
    return tuple(_plain(item) for item in told) if isinstance(told, list) else told


def _items(name: str, given: Any, count: int) -> Sequence[Any]:
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(f"{name} must be a sequence of {count}, got {given!r}.")
    if len(given) != count:
        raise ValueError(f"{name} must have {count} items, got {len(given)}: {given!r}.")
    return given


def _coordinates(cells: tuple[tuple[int, int], ...], drawn: Array) -> Array:
    xp = namespace(drawn)
    return look_up(xp.asarray(np.array(cells).reshape(-1, 2), device=drawn.device), drawn)
