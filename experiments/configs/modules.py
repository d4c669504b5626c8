"""Modules of the user that register environments and cores, named in front of them with a colon."""

from __future__ import annotations

import importlib
import os
import sys


def import_here(module: str) -> None:
    """Import a module that is installed or in the current folder.

    Raises:
        ValueError: it cannot be imported.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{module} cannot be imported ({error}). Install it, or run the command in the folder "
            f"of {module.partition('.')[0]}.py."
        ) from error


def without_module(text: str) -> str:
    """Import the module of "my_module:name", if there is one, and return the name.

    Raises:
        ValueError: it cannot be imported.
    """
    module, colon, name = text.rpartition(":")
    if colon:
        import_here(module)
    return name
