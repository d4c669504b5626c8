"""Checks of the settings of a task, which stores what they give: plain Python numbers."""

from __future__ import annotations

from typing import Any

from rlgates.errors import check_number, check_size

_LARGEST = 1e30  # rewards are float32, and a return is a sum of them


def check_range(name: str, value: Any, low: int, high: int) -> int:
    """`value` if it is a whole number in [low, high].

    Raises:
        TypeError: it is not an integer. ValueError: it is out of range.
    """
    if (number := check_size(name, value, low)) > high:
        raise ValueError(f"{name} must be at most {high}, got {value}.")
    return number


def check_payment(name: str, value: Any) -> float:
    """`value` as a float, if it is a number that can be added up.

    Raises:
        TypeError: it is not a number. ValueError: it is infinite, huge or no number.
    """
    if abs(number := check_number(name, value)) > _LARGEST:
        raise ValueError(f"{name} must be between -{_LARGEST:g} and {_LARGEST:g}, got {value}.")
    return number


def store(task: object, **settings: Any) -> None:
    """Write checked settings into a frozen dataclass, while it is made."""
    for name, value in settings.items():
        object.__setattr__(task, name, value)
