"""Atomic writes, JSON and CSV files."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically, once the new content is on disk.

    Raises:
        OSError: it could not be written; an existing file is unchanged, and no temporary file
            remains.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        text = f"{path} could not be written ({error.strerror}); an existing file is unchanged"
        raise OSError(error.errno, text) from error


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


class Damaged(ValueError):
    """A file does not hold what was written to it."""


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it does not exist.

    Raises:
        Damaged: it is not JSON.
    """
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        text = f"{path} is damaged ({error}). Put it back, or remove it to start again."
        raise Damaged(text) from error


Row = dict[str, str]


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV file; none if it does not exist.

    Raises:
        Damaged: it is truncated, or a row has too few or too many cells.
    """
    if not path.exists():
        return []
    text = path.read_text()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    if any(None in row or None in row.values() for row in rows) or not text.endswith("\n"):
        raise Damaged(f"{path} is damaged: a row is not whole. Put it back, or remove that row.")
    return rows


def check_folder(name: str, path: Path) -> None:
    """Raise ValueError unless the folder can be created and written to; nothing is created."""
    existing = next((parent for parent in (path, *path.parents) if os.path.lexists(parent)), path)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = "it is not a folder" if existing.is_file() else error.strerror
        where = f": {existing}" if existing != path else ""
        raise ValueError(f"{name} {path} cannot be written to{where}: {reason}.") from error
