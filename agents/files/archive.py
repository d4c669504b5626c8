"""The container: a zip with `header.json` first, then parts, none of them compressed.

The reader takes what the writer writes and nothing else: known names, each once, one right after
the other. So a file cannot grow when it is read, and nothing hides between its entries.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from rlgates.errors import suggestion

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
_LOCAL_HEADER, _ZIP64_EXTRA = 30, 20  # bytes before the name of an entry, and after it


def is_safe_format(file: BinaryIO) -> bool:
    """Whether a file begins as those of the safe format do; its position stays."""
    position = file.tell()
    begin = file.read(_LOCAL_HEADER + len(HEADER) + len(_BEGIN))
    file.seek(position)
    return begin.startswith(b"PK\x03\x04") and begin[_LOCAL_HEADER:] == HEADER.encode() + _BEGIN


def pack(header: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """The content of a file; the same header and parts always give the same bytes.

    Args:
        header: JSON data; format, version and the digests of the parts are added.
        parts: by a name in `PARTS`.
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
        raise ValueError(f"the header would have {len(text):,} bytes, more than {MAX_HEADER:,}.")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {HEADER: text, **parts}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def unpack(file: BinaryIO) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Header and parts of a file, whose layout, sizes and digests are checked first.

    Raises:
        ValueError: it is not what `pack` writes, or of a newer version.
    """
    if not is_safe_format(file):
        raise ValueError("it does not begin with the header of the safe format")
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_layout(archive, entries)
            header = _read_header(archive.read(entries[0]))
            parts = {entry.filename: archive.read(entry) for entry in entries[1:]}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError, RuntimeError) as error:
        raise ValueError(f"it is no whole zip ({error})") from error
    _check_digests(header.pop("parts", None), parts)
    return header, parts


def _check_layout(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> None:
    names = [entry.filename for entry in entries]
    for name in names:
        if name not in (HEADER, *PARTS):
            raise ValueError(f"it holds the foreign entry {name!r}{suggestion(name, PARTS)}")
        if names.count(name) > 1:
            raise ValueError(f"it holds {name} twice")
    if names[:1] != [HEADER]:
        raise ValueError(f"its first entry is not {HEADER}")
    end = 0
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename} is compressed")
        if entry.flag_bits:
            raise ValueError(f"{entry.filename} has flags of a zip that are not used")
        if entry.header_offset not in (end, end + _ZIP64_EXTRA * (end > 0)):
            raise ValueError(f"{entry.filename} does not follow the entry before it")
        end = entry.header_offset + _LOCAL_HEADER + len(entry.filename) + entry.file_size
    if archive.start_dir not in (end, end + _ZIP64_EXTRA) or archive.comment:
        raise ValueError("it holds more than its entries")
    if entries[0].file_size > MAX_HEADER:
        raise ValueError(f"{HEADER} has more than {MAX_HEADER:,} bytes")


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
    raise ValueError(f"{HEADER} holds {name}, which is no JSON")


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
        safe: refuse any other format. The suffix `.rlgates` promises the same.

    Raises:
        ValueError: it is of another format and must not be; or both suffixes exist.
        FileNotFoundError: it must be of the safe format and does not exist.
    """
    if not isinstance(path, str | Path):
        found = is_safe_format(path)
        if safe and not found:
            raise ValueError(_REFUSED.format("the file"))
        yield path, path if found else None
        return
    given = _find(Path(path), safe)
    must = safe or given.suffix == SUFFIX
    if not must and not given.is_file():
        yield given, None
        return
    with given.open("rb") as file:
        found = is_safe_format(file)
        if must and not found:
            raise ValueError(_REFUSED.format(given))
        yield given, file if found else None


_REFUSED = (
    "{} is not of the safe format, and is not loaded. If it is a zip of Stable-Baselines3, which "
    "runs code when it is loaded, and you trust it: rlgates.agents.convert, or rlgates convert."
)


def _find(given: Path, safe: bool) -> Path:
    if given.is_file():
        return given
    suffixes = (SUFFIX,) if safe else (SUFFIX, ".zip")
    found = [
        file for suffix in suffixes if (file := given.with_name(given.name + suffix)).is_file()
    ]
    if len(found) > 1:
        raise ValueError(f"{given} may be {found[0].name} or {found[1].name}: give the suffix.")
    return found[0] if found else given


def write(path: Any, content: bytes) -> None:
    """Write a file atomically, with the suffix `.rlgates` if it has none; or into a stream."""
    if not isinstance(path, str | Path):
        path.write(content)
        return
    target = Path(path)
    target = target if target.suffix else target.with_name(target.name + SUFFIX)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
