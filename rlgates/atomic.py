"""Files that are written as a whole or not at all, and are on disk then."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically, once the new content is on disk.

    Raises:
        OSError: it could not be written; an existing file is unchanged, and no temporary file
            remains.
    """
    # A name of its own: another process may be writing the same file. Opened as any new file, and
    # not by tempfile, so that others may read it.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        text = f"{path} could not be written ({error.strerror}); an existing file is unchanged"
        raise OSError(error.errno, text) from error


def sync(path: Path) -> None:
    """Wait until what was written to a file is on disk.

    Raises:
        OSError: it is not, and may be lost.
    """
    try:
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, f"{path} could not be written ({error.strerror})") from error
