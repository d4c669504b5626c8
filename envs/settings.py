"""Checks of the settings of a task."""

from __future__ import annotations

from typing import Any

from rlgates.errors import check_number, check_size

_LARGEST = 1e30  # rewards are float32, and a return is a sum of them


def check_range(name: str, value: Any, low: int, high: int) -> int:
    """`value` if it is a whole number in [low, high].

    Raises:
        TypeError: it is not an integer. ValueError: it is out of range.
    """
    if check_size(name, value, low) > high:
        raise ValueError(f"{name} must be at most {high}, got {value}.")
    return int(value)


def check_payment(name: str, value: Any) -> float:
    """`value` as a float, if it is a number that can be added up.

    Raises:
        TypeError: it is not a number. ValueError: it is infinite, huge or no number.
    """
    if abs(number := check_number(name, value)) > _LARGEST:
        raise ValueError(f"{name} must be between -{_LARGEST:g} and {_LARGEST:g}, got {value}.")
    return number


def check_flag(name: str, value: Any) -> bool:
    """`value` if it is True or False; a TypeError if not."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return value
