"""Files that are either as before or wholly new, whenever the process is killed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file in one step, once the new content is safe on the disk.

    Raises:
        OSError: it could not be written, because the disk is full for example; the file that
            was there is as it was, and nothing else is left behind.
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
        text = f"{path} could not be written ({error.strerror}); what was there is as it was"
        raise OSError(error.errno, text) from error


def write_json(path: Path, content: Any) -> None:
    """As `write_atomically`, indented for people."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is no such file."""
    return json.loads(path.read_text()) if path.exists() else None
