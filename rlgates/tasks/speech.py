"""Speech Commands as raw sound: which of ten words is said."""

from __future__ import annotations

import csv
import io
import math
import re
import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlgates.errors import check_flag
from rlgates.tasks.data import File, Folder, arrays, find, members, read
from rlgates.tasks.stored import OHNO, Classes, fixed_order, quoted
from rlgates.tasks.task import SPLITS

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
SAMPLES = 16_000
LISTS = {"validation_list.txt": "valid", "testing_list.txt": "test"}


class Clips(NamedTuple):
    """Sound (N, 16000) int16, the numbers of the words (N,), and of the splits (N,), uint8."""

    sound: NDArray[np.int16]
    words: NDArray[np.uint8]
    splits: NDArray[np.uint8]


def _converted(archive: Path) -> bytes:
    """The .npz of the official archive: clips of the ten words that are not too short."""
    pattern = re.compile(rf"({'|'.join(WORDS)})/[^/]+\.wav")
    clips = []
    listed: dict[str, str] = {}
    for name, made in members(archive):
        if name in LISTS:
            listed |= dict.fromkeys(made.decode().split(), LISTS[name])
        elif found := pattern.fullmatch(name):
            sound = _sound(name, made)
            if len(sound) == SAMPLES:
                clips.append((WORDS.index(found[1]), name, sound))
    if not clips or not listed:
        raise ValueError(f"{archive} has no clips of the ten words, or no lists of the splits.")
    clips.sort(key=lambda clip: clip[:2])
    stream = io.BytesIO()
    np.savez(
        stream,
        sound=np.stack([sound for _, _, sound in clips]),
        words=np.array([word for word, _, _ in clips], dtype=np.uint8),
        splits=np.array(
            [SPLITS.index(listed.get(name, "train")) for _, name, _ in clips], dtype=np.uint8
        ),
    )
    return stream.getvalue()


def _sound(name: str, made: bytes) -> NDArray[np.int16]:
    with wave.open(io.BytesIO(made)) as clip:
        form = clip.getnchannels(), clip.getsampwidth(), clip.getframerate()
        if form != (1, 2, 16_000):
            raise ValueError(f"{name} must be one channel of 16 bits at 16 kHz, got {form}.")
        return np.frombuffer(clip.readframes(clip.getnframes()), dtype="<i2").astype(np.int16)


WHOLE = File(
    "speech_commands",
    "sc10.npz",
    urls=(
        "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
    ),
    convert=_converted,
    archive_digest="af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
    hint="For trials, 500 clips will do, if they are there: subset=True.",
)
SUBSET = (
    File(
        "speech_commands",
        "sc10_subset.npy",
        "e03e00559a9330f4c4515ff2a13dc309f3572897c06316bdea26088b35c89fc8",
    ),
    File(
        "speech_commands",
        "sc10_subset.csv",
        "0a65268af5899001922d3e5d97ecdcbee3aa6e34e9d3a0e6cb146cbe6efc78d1",
    ),
)


def clips(subset: bool = False, data_dir: Folder = None) -> Clips:
    """The ten words of Speech Commands 0.02 (Warden 2018), clips of one second at 16 kHz.

    Args:
        subset: only 500 clips, with a split that is made up: those that are there, or else some
            of all; without it all of full length.
        data_dir: the folder to look in.

    Raises:
        FileNotFoundError, ValueError: as `rlgates.tasks.data.read`.
    """
    if not subset or find(SUBSET[0], data_dir) is None:
        found = Clips(**arrays(WHOLE, Clips._fields, data_dir))
        return _some(found) if subset else found
    sound = np.load(io.BytesIO(read(SUBSET[0], data_dir)), allow_pickle=False)
    rows = list(csv.DictReader(io.StringIO(read(SUBSET[1], data_dir).decode())))
    return Clips(
        sound[[int(row["row"]) for row in rows]],
        np.array([WORDS.index(row["word"]) for row in rows], dtype=np.uint8),
        np.array([SPLITS.index(row["split"]) for row in rows], dtype=np.uint8),
    )


def _some(found: Clips) -> Clips:
    """The first 35, 5 and 10 clips of each word, by split."""
    splits = shuffled(found.words)
    rows = [
        np.flatnonzero((found.words == word) & (splits == split))[:count]
        for word in range(len(WORDS))
        for split, count in enumerate((35, 5, 10))
    ]
    taken = np.concatenate(rows)
    return Clips(found.sound[taken], found.words[taken], splits[taken])


class SpeechCommands(Classes):
    """Raw sound of 16,000 steps in -1 to 1; which of ten words was it? (SC10, Ohno et al. 2022)

    Shorter clips are left out. As in the programs that the published figures were taken with, of
    each word 70 per cent of the clips, in a fixed shuffle, are to learn from, 15 for validation
    and 15 for the test.

    Args:
        official: whether clips are split by the lists of the set instead, by speaker.
        subset: only 500 clips in their own split, for trials; its figures mean nothing.
        data_dir: as for all tasks on data.
    """

    settings = ("official", "subset", "data_dir")
    published = quoted(
        f"{OHNO}, table 6", "test", lstm=0.215, r_lstm=0.839, ur_lstm=0.776, f_lstm=0.923
    )

    def __init__(
        self,
        official: bool = False,
        subset: bool = False,
        data_dir: Folder = None,
    ) -> None:
        super().__init__(data_dir)
        self.official = check_flag("official", official)
        self.subset = check_flag("subset", subset)
        self.input_size, self.output_size = 1, len(WORDS)
        self.baseline = math.log(len(WORDS))
        self.scale = 2.0**-15

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        found = clips(self.subset, self.data_dir)
        splits = found.splits if self.official or self.subset else shuffled(found.words)
        sound, words = (torch.from_numpy(array) for array in found[:2])
        rows = {split: torch.from_numpy(splits == n) for n, split in enumerate(SPLITS)}
        return {split: (sound[taken, :, None], words[taken]) for split, taken in rows.items()}


def shuffled(words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Numbers of splits, (N,), of which every word has 70, 15 and 15 per cent of its clips."""
    splits = np.zeros(len(words), dtype=np.uint8)
    for word in np.unique(words):
        places = np.flatnonzero(words == word)
        order = places[fixed_order(len(places), f"speech {word}")]
        splits[order[len(order) * 70 // 100 :]] = 1
        splits[order[len(order) * 85 // 100 :]] = 2
    return splits
