"""Modules of the user that register environments and cores, named in front of them with a colon."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlgates.registry import core_modules


def import_here(module: str) -> None:
    """Import a module that is installed or in the current folder.

    Raises:
        ValueError: it cannot be imported, or fails while it is.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and module.endswith(".py"):
            raise ValueError(
                f"{module} cannot be imported: name the module, {module.removesuffix('.py')}, "
                "without .py."
            ) from error
        if absent and f"{module}.".startswith(f"{absent}."):
            raise ValueError(
                f"{module} cannot be imported ({error}). Install it, or run the command in the "
                f"folder of {module.partition('.')[0]}.py."
            ) from error
        raise ValueError(f"{module} cannot be imported: {_with_place(error, module)}") from error


@contextmanager
def naming_module(core: str) -> Iterator[None]:
    """While a core is made: what fails in one of the user's is a ValueError that names its module.

    Raises:
        ValueError: an unknown core, an invalid option, or whatever the code of the user raises.
    """
    modules = core_modules(core)
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        if not modules:
            raise
        reason = _with_place(error, modules[0])
        raise ValueError(f"core {core!r} of {modules[0]} cannot be made: {reason}") from error


def _with_place(error: Exception, module: str) -> str:
    """The error in a line, after the last line of the module, or of its package, that it passed."""
    package = module.partition(".")[0]
    lines = [
        (Path(frame.f_code.co_filename), number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] == package
    ]
    text = f"{type(error).__name__}: {error}"
    if not lines:
        return text
    path, number = lines[-1]
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{here}, line {number}: {text}"


def without_module(text: str) -> str:
    """Import the module of "my_module:name", if there is one, and return the name.

    Raises:
        ValueError: as `import_here`.
    """
    module, colon, name = text.rpartition(":")
    if colon:
        import_here(module)
    return name
