"""Modules of the user that register environments and cores, named in front of them with a colon."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlgates.gates import GATES
from rlgates.registry import CORES, core_modules


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


def run_file(path: Path) -> dict[str, Any]:
    """What a Python file defines, under the name of its module, which other processes can import.

    It may import modules of the current folder, and of its own.

    Raises:
        ValueError: it registers cores, but another module has its name. Whatever it raises.
    """
    folders = dict.fromkeys((os.getcwd(), str(path.resolve().parent)))
    added = [folder for folder in folders if folder not in sys.path]
    sys.path += added
    name, known = path.stem, sys.modules.get(path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        # As `spec.loader` does, but no bytecode is written beside the file.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except Exception:
        for folder in added:
            sys.path.remove(folder)
        raise
    finally:
        sys.modules.pop(name)
        if known is not None:
            sys.modules[name] = known
    if name in {row.module for row in CORES.values()} | {row.module for row in GATES.values()}:
        found = importlib.util.find_spec(name)
        if found is None or Path(found.origin or "").resolve() != path.resolve():
            raise ValueError(f"{path} registers cores, but {name} is another module: rename it.")
    return vars(module)


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
