"""Archives and sound files, made in memory."""

from __future__ import annotations

import io
import tarfile
import wave
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np


def zip_of(name: str, content: bytes) -> bytes:
    """A .zip with one member."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return stream.getvalue()


def tar_gz_of(contents: Mapping[str, bytes]) -> bytes:
    """A .tar.gz with these members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def wav_of(samples: Any) -> bytes:
    """A .wav of 16-bit samples, one channel, 16 kHz."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(np.asarray(samples, dtype="<i2").tobytes())
    return stream.getvalue()
