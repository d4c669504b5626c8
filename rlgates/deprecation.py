"""Old names of public things, which keep working for one release."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str) -> None:
    """Warn that `old` is now called `new`, where the user's code named it.

    By default Python shows it only if that is in `__main__`. No `stacklevel` says so: torch calls a
    module through two frames or three, and an import adds some.
    """
    text = f"{old} is deprecated and will be removed in the next release; use {new}."
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame) in _INTERNAL:
        frame = frame.f_back
    warnings.warn_explicit(
        text,
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


# What may stand between this module and the user's code.
_INTERNAL = ("rlgates", "torch", "importlib", "_frozen_importlib")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


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
