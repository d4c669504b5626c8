"""The container: a zip with `header.json` first, then parts, none of them compressed.

Any tool for zips opens it, but only what `pack` writes is read, byte for byte: the entries are
walked from the first one on, and the directory at the end must be the one that they give. So a
file cannot grow when it is read, and nothing hides in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rlgates.atomic import write_atomically
from rlgates.errors import check_choice, suggestion

SUFFIX = ".rlgates"
FORMAT, VERSION = "rlgates-model", 1
HEADER = "header.json"
PARTS = (
    "policy.safetensors",
    "optimizer.safetensors",
    "state.safetensors",
    "vec_normalize.safetensors",
)
MAX_HEADER = 2**24  # bytes
_BEGIN = f'{{\n "format": "{FORMAT}"'.encode()

# The records of a zip (PKWARE's APPNOTE 4.3): version 2.0, no flags, stored, 1 January 1980.
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_FIXED = (20, 0, 0, 0, 33)


def is_safe_format(file: BinaryIO) -> bool:
    """Whether a file begins as those of the safe format do; its position stays."""
    position = file.tell()
    begin = file.read(_LOCAL.size + len(HEADER) + len(_BEGIN))
    file.seek(position)
    return begin.startswith(b"PK\x03\x04") and begin[_LOCAL.size :] == HEADER.encode() + _BEGIN


def pack(header: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """The content of a file; the same header and parts always give the same bytes.

    Args:
        header: JSON data; format, version and the digests of the parts are added.
        parts: by a name in `PARTS`.

    Raises:
        ValueError: the header has more than `MAX_HEADER` bytes, or the file 4 GiB.
    """
    full = {
        "format": FORMAT,
        "version": VERSION,
        **header,
        "parts": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in parts.items()
        },
    }
    text = json.dumps(full, indent=1, allow_nan=False).encode()
    if len(text) > MAX_HEADER:
        raise ValueError(f"the header would have {len(text):,} bytes, more than {MAX_HEADER:,}")
    if len(text) + sum(map(len, parts.values())) > 2**32 - 2**16:
        raise ValueError("it would have more than 4 GiB")
    return join({HEADER: text, **parts})


def join(entries: Mapping[str, bytes]) -> bytes:
    """Entries by name as a zip."""
    stream = io.BytesIO()
    described = []
    for name, content in entries.items():
        entry = name, zlib.crc32(content), len(content)
        described.append((*entry, stream.tell()))
        stream.write(_local(*entry))
        stream.write(content)
    stream.write(_directory(described, stream.tell()))
    return stream.getvalue()


def _local(name: str, crc: int, size: int) -> bytes:
    """The record before the content of an entry."""
    return _LOCAL.pack(b"PK\x03\x04", *_FIXED, crc, size, size, len(name), 0) + name.encode()


def _directory(entries: list[tuple[str, int, int, int]], begin: int) -> bytes:
    """The end of a zip: its entries (name, CRC, size, offset), once more."""
    records = b"".join(
        _CENTRAL.pack(
            *(b"PK\x01\x02", 20, *_FIXED, crc, size, size, len(name)), *(0, 0, 0, 0, 0, offset)
        )
        + name.encode()
        for name, crc, size, offset in entries
    )
    count = len(entries)
    return records + _END.pack(b"PK\x05\x06", 0, 0, count, count, len(records), begin, 0)


def unpack(file: BinaryIO) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Header and parts of a file, whose layout, sizes and digests are checked.

    Raises:
        ValueError: it is not what `pack` writes, or of a newer version.
    """
    entries = _split(file)
    header = _read_header(entries.pop(HEADER, b""))
    _check_digests(header.pop("parts", None), entries)
    return header, entries


def _split(file: BinaryIO) -> dict[str, bytes]:
    """The entries of a zip by name: what `join` takes."""
    begin = file.tell()
    total = file.seek(0, os.SEEK_END) - begin
    file.seek(begin)
    entries: dict[str, bytes] = {}
    described: list[tuple[str, int, int, int]] = []
    while True:
        offset = file.tell() - begin
        record = file.read(_LOCAL.size)
        if len(record) < _LOCAL.size:
            raise ValueError("it is truncated")
        signature, *_, crc, size, _, length, _ = _LOCAL.unpack(record)
        if signature != b"PK\x03\x04":
            break
        name = file.read(min(length, 100)).decode("ascii", "replace")
        if name not in (HEADER, *PARTS):
            raise ValueError(f"it holds the foreign entry {name!r}{suggestion(name, PARTS)}")
        if name in entries:
            raise ValueError(f"it holds {name} twice")
        if record + name.encode() != _local(name, crc, size):
            raise ValueError(f"{name} is stored in another way than the safe format's")
        if size > (MAX_HEADER if name == HEADER else total):
            raise ValueError(f"{name} is too large, {size:,} bytes")
        entries[name] = file.read(size)
        if zlib.crc32(entries[name]) != crc:
            raise ValueError(f"{name} is truncated or damaged")
        described.append((name, crc, size, offset))
    if record + file.read(total) != _directory(described, offset):
        raise ValueError("its end is damaged, or holds more than its entries")
    return entries


def _read_header(content: bytes) -> dict[str, Any]:
    """The header as JSON data.

    Raises:
        ValueError: it is not JSON, holds a key twice or a number that is not finite, is nested
            too deeply, or is of a newer version.
    """
    try:
        header = json.loads(
            content,
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise ValueError(f"{HEADER} is nested too deeply") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{HEADER} is not that of a model")
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"the version of the format must be a whole number, got {version!r}")
    if version > VERSION:
        raise ValueError(
            f"it has version {version} of the format, and this version of rlgates reads up to "
            f"{VERSION}: upgrade rlgates"
        )
    return header


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError(f"{HEADER} holds a key twice")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"{HEADER} holds {name}, which is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise ValueError(f"{HEADER} holds the number {text[:20]}, which is too large")
    return value


def _check_digests(expected: Any, parts: Mapping[str, bytes]) -> None:
    if not isinstance(expected, dict) or set(expected) != set(parts):
        raise ValueError(f"its parts are not those that {HEADER} names")
    for name, content in parts.items():
        digest = hashlib.sha256(content).hexdigest()
        if expected[name] != {"bytes": len(content), "sha256": digest}:
            raise ValueError(f"{name} has another size or SHA-256 than {HEADER} names")


@contextmanager
def opened(path: Any, safe: bool = False) -> Iterator[tuple[Any, BinaryIO | None]]:
    """The file that `path` stands for, and it opened, or None if it is not of the safe format.

    Args:
        path: a path, with `.rlgates` or `.zip` added if there is no such file; or a stream.
        safe: refuse any other format, and take `.rlgates` if there are both. The suffix `.rlgates`
            promises the same.

    Raises:
        ValueError: it is of another format and must not be; or both suffixes exist.
        FileNotFoundError: it must be of the safe format and does not exist.
    """
    if not isinstance(path, str | Path):
        found = isinstance(path, io.BufferedIOBase) and is_safe_format(path)  # type: ignore[arg-type]
        if safe and not found:
            raise ValueError(_refused("the file"))
        yield path, path if found else None
        return
    given = find(Path(path), safe)
    must = safe or given.suffix == SUFFIX
    if not must and not given.is_file():
        yield given, None
        return
    with given.open("rb") as file:
        found = is_safe_format(file)
        if must and not found:
            raise ValueError(_refused(given))
        yield given, file if found else None


def _refused(file: Any) -> str:
    rename = "rename it to .zip, or " if isinstance(file, Path) and file.suffix == SUFFIX else ""
    return (
        f"{file} is not of the safe format, and is not loaded. If it is a zip of "
        "Stable-Baselines3, which runs code when it is loaded, and you trust it: "
        f"{rename}use rlgates.agents.convert, or rlgates convert."
    )


def chosen_format(path: Any, format: str | None) -> str:
    """The format in which to save: "sb3" or "safe"; None for the one of the suffix of `path`.

    Raises:
        ValueError: an unknown format, or that of Stable-Baselines3 under the suffix `.rlgates`.
    """
    promised = isinstance(path, str | Path) and Path(path).suffix == SUFFIX
    if format is None:
        return "safe" if promised else "sb3"
    if check_choice("format", format, ("sb3", "safe")) == "sb3" and promised:
        raise ValueError(
            f"the suffix {SUFFIX} is that of format='safe': save format='sb3' as .zip, got {path}."
        )
    return format


def find(given: Path, safe: bool = False) -> Path:
    """The file that a path stands for, as in `opened`; the path itself if there is none."""
    if given.is_file():
        return given
    suffixed = (given.with_name(given.name + suffix) for suffix in (SUFFIX, ".zip"))
    found = [file for file in suffixed if file.is_file()]
    if len(found) > 1 and not safe:
        raise ValueError(f"{given} may be {found[0].name} or {found[1].name}: give the suffix.")
    return found[0] if found else given


def write(path: str | Path, content: bytes) -> Path:
    """Write a file atomically, with the suffix `.rlgates` if it has none; returns its path."""
    target = Path(path)
    target = target if target.suffix else target.with_name(target.name + SUFFIX)
    write_atomically(target, content)
    return target
