"""Checks of arguments, with errors that name the nearest allowed choice."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsFloat, SupportsIndex, TypeVar


class TrainingDiverged(ValueError):
    """Training diverged: a gradient, a loss or an output of the network is not finite."""


class UnknownCore(ValueError):
    """A name that no core has.

    Attributes:
        brief: the message without the names of all cores and gates.
    """

    def __init__(self, message: str, brief: str = "") -> None:
        super().__init__(message)
        self.brief = brief or message


def nearest(value: object, choices: Iterable[str], most: int = 1) -> list[str]:
    """Up to `most` of the choices that are nearest to a value, in either case of letters."""
    folded = {_folded(choice): choice for choice in choices}
    # Words of a similarity below 0.7 are unrelated ("test", "reset").
    near = difflib.get_close_matches(_folded(str(value)), folded, n=most, cutoff=0.7)
    return [folded[choice] for choice in near]


def _folded(name: str) -> str:
    """The name in lower case; what policies call core_kwargs are core options elsewhere."""
    return name.lower().replace("kwargs", "options")


def suggestion(value: object, choices: Iterable[str], most: int = 1) -> str:
    """` Did you mean ...?` with up to `most` of the nearest choices; empty if none is near."""
    named = " or ".join(map(repr, nearest(value, choices, most)))
    return f" Did you mean {named}?" if named else ""


def unknown_choice(
    kind: str, value: object, allowed: Iterable[str], owners: Sequence[str] = ()
) -> ValueError:
    """The ValueError for a name that is not in `allowed`.

    Its message names the `owners` that take this name, or else the nearest allowed name. Names
    that contain commas are separated by semicolons.
    """
    choices = list(allowed)
    belongs = f" It belongs to {', '.join(owners)}." if owners else suggestion(value, choices)
    mark = "; " if any(", " in choice for choice in choices) else ", "
    listed = mark.join(choice or "''" for choice in choices) if choices else "none"
    return ValueError(f"unknown {kind} {value!r}.{belongs} Allowed: {listed}.")


_Choice = TypeVar("_Choice", bound=str)


def check_choice(kind: str, value: _Choice, allowed: Iterable[str]) -> _Choice:
    """`value`, if it is in `allowed`; else raise a ValueError that names the nearest choice."""
    choices = list(allowed)
    if value not in choices:
        raise unknown_choice(kind, value, choices)
    return value


def check_size(
    name: str, value: SupportsIndex, minimum: int = 1, maximum: int | None = None
) -> int:
    """`value` as an int of at least `minimum`, and at most `maximum`, if there is one.

    Raises:
        TypeError: it is not an integer. ValueError: it is out of this range.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__}).")
    if operator.index(value) < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}.")
    if maximum is not None and operator.index(value) > maximum:
        raise ValueError(f"{name} must be at most {maximum:,}, got {value}.")
    return operator.index(value)


def check_normalized(name: str, value: SupportsIndex, effect: str) -> int:
    """`value` as the width of what a layer norm reads: an int of at least 2.

    Raises:
        TypeError: it is not an integer. ValueError: it is below 2, with what its `effect` would be.
    """
    size = check_size(name, value)
    if size == 1:
        raise ValueError(
            f"{name} must be at least 2, got 1: layer norm makes one number constant, so {effect}."
        )
    return size


MAX_DEPTH = 1_000
"""The most layers, or parts of a layer one after the other, that a core may have."""
MAX_WIDTH = 2**24
"""The most inputs or units of a layer; a weight matrix of that size fits into no memory."""
MAX_LENGTH = 2**24
"""The most steps of a sequence or rollout, and the most sequences of a batch."""


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise ValueError unless `seeds` are one or more different numbers from 0 to 2**32 - 1."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be one or more different numbers, got {tuple(seeds)}.")
    for seed in seeds:
        if check_size("seed", seed, minimum=0) >= 2**32:
            raise ValueError(f"seed must be below 2**32, got {seed}.")


def check_number(name: str, value: Any, above: float = -math.inf) -> float:
    """`value` as a finite float greater than `above`.

    Raises:
        TypeError: it is not a number. ValueError: it is infinite, NaN, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__}).")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > above):
        bound = "" if above == -math.inf else f" and above {above:g}"
        raise ValueError(f"{name} must be finite{bound}, got {value}.")
    return number


def check_nonnegative(name: str, value: Any) -> float:
    """`value` as a finite float of at least 0.

    Raises:
        TypeError: it is not a number. ValueError: it is infinite, NaN, or below 0.
    """
    number = check_number(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, got {value}.")
    return number


def check_positive(name: str, value: Any) -> float:
    """`value` as a float above 0, which may be infinite.

    Raises:
        TypeError: it is not a number. ValueError: it is NaN, 0 or negative.
    """
    if value == math.inf:
        return math.inf
    return check_number(name, value, above=0)


def check_text(name: str, value: Any) -> str:
    """`value`, if it is a string; else raise TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a name, got {value!r}.")
    return value


def check_flag(name: str, value: Any) -> bool:
    """`value` as a bool, if it is True or False, also of NumPy; else raise TypeError."""
    # NumPy is not imported here.
    if isinstance(value, bool) or (str(getattr(value, "dtype", "")) == "bool" and not value.shape):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {value!r}.")


def check_fraction(name: str, value: Any) -> float:
    """`value` as a float, if it is in [0, 1]; else raise ValueError."""
    number = check_number(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}.")
    return number


def check_probability(name: str, value: Any) -> float:
    """`value` as a float, if it is in [0, 1); else raise ValueError."""
    number = check_number(name, value)
    if not 0 <= number < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}.")
    return number


def nearest_divisor(total: int, near: int, minimum: int = 1) -> int:
    """The divisor of `total`, at least `minimum`, that is nearest to `near`."""
    divisors = [n for n in range(minimum, total + 1) if total % n == 0]
    return min(divisors, key=lambda n: abs(n - near), default=total)
