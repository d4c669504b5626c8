"""Search spaces as plain data; `rlgates tune` takes that of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlgates.errors import check_number

Value = bool | int | float | str | None
DIGITS = 4


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; integers if both are.

    Attributes:
        low, high: the bounds.
        log: sample the logarithm uniformly.

    Raises:
        TypeError: a bound is not a number.
        ValueError: `low` is not below `high`, or not above 0 with `log`.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            check_number(name, getattr(self, name))
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}.")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be above 0 where log is set, got {self.low}.")

    @property
    def whole(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Value, ...]:
        """What is tried before a search begins."""
        return self.low, self.high

    def plain(self, value: Value) -> Value:
        """The number as it is used: an integer, or four significant digits."""
        assert isinstance(value, int | float)
        return int(value) if self.whole else float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True)
class Choice:
    """One of a few values.

    Raises:
        ValueError: fewer than two different values.
    """

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(set(self.values)) < 2:
            raise ValueError(f"a choice needs two or more different values, got {self.values}.")

    @property
    def ends(self) -> tuple[Value, ...]:
        """What is tried before a search begins."""
        return self.values

    def plain(self, value: Value) -> Value:
        """The value as it is used."""
        return value


Space = Mapping[str, Range | Choice]
"""Ranges of config settings by name, and of options of one core as "rru.dropout"."""

# The options as in Zakovskis et al. 2023, appendix D.2; the sizes are ours.
SPACE: dict[str, Range | Choice] = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "hidden_size": Choice((32, 64, 128, 256)),
    "rru.dropout": Range(0.0, 0.8),
    "rru.expansion": Range(0.1, 8.0),
    "lstm.forget_bias": Range(-3.0, 3.0),
    "mogrifier.rounds": Range(5, 6),
    "mogrifier.rank": Range(40, 90),
}
