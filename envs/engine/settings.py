"""Checks of the settings of an environment, which are stored as plain Python numbers."""

from __future__ import annotations

from typing import Any

from rlgates.errors import check_number, check_size

_MAX_REWARD = 1e30  # rewards are float32, and a return is a sum of them


def check_range(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int, if it is a whole number in [low, high].

    Raises:
        TypeError: it is not an integer. ValueError: it is out of range.
    """
    if (number := check_size(name, value, low)) > high:
        raise ValueError(f"{name} must be at most {high}, got {value}.")
    return number


def check_odd(name: str, number: int) -> int:
    """`number`, if it is odd.

    Raises:
        ValueError: it is even.
    """
    if number % 2 == 0:
        raise ValueError(f"{name} must be odd, got {number}.")
    return number


def check_reward(name: str, value: Any) -> float:
    """`value` as a float, if it is a number that can be summed in float32.

    Raises:
        TypeError: it is not a number. ValueError: it is NaN, infinite or above 1e30 in magnitude.
    """
    if abs(number := check_number(name, value)) > _MAX_REWARD:
        raise ValueError(
            f"{name} must be between -{_MAX_REWARD:g} and {_MAX_REWARD:g}, got {value}."
        )
    return number


def set_fields(instance: object, **values: Any) -> None:
    """Set fields of a frozen dataclass; for its `__post_init__` only."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)
