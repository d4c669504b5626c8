"""Old names of public things, which keep working for one release."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str) -> None:
    """Warn that `old` is now called `new`, where the caller's caller named it."""
    text = f"{old} is deprecated and will be removed in the next release; use {new}."
    warnings.warn(text, DeprecationWarning, stacklevel=3)


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module some of whose names have changed.

    Args:
        module: its `__name__`.
        names: new names by the old ones; with a dot, of another module ("rlgates.core.GateTrace").
    """

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, attribute = names[name].rpartition(".")
        warn_renamed(f"{module}.{name}", f"{home or module}.{attribute}")
        return getattr(importlib.import_module(home or module), attribute)

    return __getattr__


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take keyword arguments by their old names too: `old="new"`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = cast("dict[str, Any]", kwargs)
            for old, new in names.items():
                if old in arguments:
                    warn_renamed(f"the argument {old!r}", repr(new))
                    arguments[new] = arguments.pop(old)
            return function(*args, **kwargs)

        return wrapper

    return decorate
