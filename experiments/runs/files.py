"""Atomic writes, and JSON and CSV files with digests.

The SHA-256 of the files that `write_json` and `write_table` write are in `SHA256SUMS` of their
folder, which `sha256sum -c` reads, too. Files that are not listed there, such as those of earlier
versions, are read without that check. The digests find damage, not forgery.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlgates.atomic import write_atomically


class Damaged(ValueError):
    """A file does not hold what was written to it."""


SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def _read_sums(folder: Path) -> dict[str, list[str]]:
    """The digests in `SHA256SUMS` by file name; a file that is being replaced has two.

    Raises:
        Damaged: `SHA256SUMS` is.
    """
    path = folder / SUMS
    if not path.exists():
        return {}
    sums: dict[str, list[str]] = {}
    text = path.read_text(errors="replace")
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise Damaged(f"{path} is damaged: {line!r} is not a digest and a name. Put it back.")
        sums.setdefault(match[2], []).append(match[1])
    if not text.endswith("\n"):
        raise Damaged(f"{path} is damaged: its end is missing. Put it back.")
    return sums


def _write_sums(folder: Path, sums: Mapping[str, list[str]]) -> None:
    lines = (f"{digest}  {name}\n" for name in sorted(sums) for digest in sums[name])
    write_atomically(folder / SUMS, "".join(lines).encode())


def record_digest(path: Path) -> None:
    """List a complete file in `SHA256SUMS`.

    Raises:
        Damaged: `SHA256SUMS` is.
    """
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    _write_sums(path.parent, {**_read_sums(path.parent), path.name: [digest]})


def forget_digests(folder: Path, names: Iterable[str]) -> None:
    """Take files that will be written to from `SHA256SUMS`.

    Raises:
        Damaged: `SHA256SUMS` is.
    """
    sums = _read_sums(folder)
    if kept := {name: digests for name, digests in sums.items() if name not in set(names)}:
        if kept != sums:
            _write_sums(folder, kept)
    else:
        (folder / SUMS).unlink(missing_ok=True)


def _write_with_digest(path: Path, content: bytes) -> None:
    """Replace a file and its digest; killed at any moment, the file has one that is listed."""
    new, sums = hashlib.sha256(content).hexdigest(), _read_sums(path.parent)
    old = sums.get(path.name, [])
    if not old and path.exists():
        old = [hashlib.sha256(path.read_bytes()).hexdigest()]
    _write_sums(path.parent, {**sums, path.name: [new, *old]})
    write_atomically(path, content)
    _write_sums(path.parent, {**sums, path.name: [new]})


def read_bytes(path: Path) -> bytes:
    """The content of a file, whose digest is checked if `SHA256SUMS` lists it.

    Raises:
        Damaged: it has another digest.
    """
    while True:
        content = path.read_bytes()
        listed = _read_sums(path.parent).get(path.name, [])
        if not listed or hashlib.sha256(content).hexdigest() in listed:
            return content
        if path.read_bytes() == content:  # else it was replaced between the two reads
            raise Damaged(
                f"{path} is damaged: its SHA-256 is not that in {SUMS}. Put it back; if you "
                "changed it on purpose, remove its line there."
            )


def read_text(path: Path) -> str:
    """The content of a text file, checked as by `read_bytes`.

    Raises:
        Damaged: it has another digest, or is no UTF-8.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} is damaged ({error}). Put it back.") from error


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically, and its digest."""
    _write_with_digest(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it does not exist.

    Raises:
        Damaged: it is not what was written, or not a JSON object.
    """
    if not path.exists():
        return None
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        text = f"{path} is damaged ({error}). Put it back, or remove it to start again."
        raise Damaged(text) from error
    if not isinstance(content, dict):
        raise Damaged(f"{path} is damaged: it holds no JSON object. Put it back.")
    return content


Row = dict[str, str]


def table_text(rows: Iterable[Row], columns: Iterable[str]) -> str:
    """Rows as CSV, with empty cells where they lack a column."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_table(path: Path, rows: Iterable[Row], columns: Iterable[str]) -> None:
    """Write a CSV file atomically, and its digest."""
    _write_with_digest(path, table_text(rows, columns).encode())


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV file; none if it does not exist.

    Raises:
        Damaged: it is not what was written, truncated, or a row has too few or too many cells.
    """
    if not path.exists():
        return []
    return parse_table(path, read_text(path))


def parse_table(path: Path, text: str) -> list[Row]:
    """The rows of a CSV file with this text.

    Raises:
        Damaged: it is no CSV, or truncated, or a row has too few or too many cells.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise Damaged(f"{path} is damaged ({error}). Put it back.") from error
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
