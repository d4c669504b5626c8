"""Files that are either as before or wholly new, whenever the process is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file in one step, once the new content is safe on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, content: Any) -> None:
    """As `write_atomically`, indented for people."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is no such file."""
    return json.loads(path.read_text()) if path.exists() else None
