"""Speech Commands as raw sound: which of ten words is spoken?"""

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
from rlgates.experiments.tasks.data.dataset import (
    OHNO,
    SequenceClassification,
    fixed_permutation,
    published_results,
)
from rlgates.experiments.tasks.data.files import DataDir, File, archive_members, read_arrays
from rlgates.experiments.tasks.task import SPLITS

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
SAMPLES = 16_000
LISTS = {"validation_list.txt": "valid", "testing_list.txt": "test"}
SUBSET = Path(__file__).with_name("speech_subset.csv")  # columns file, split


class Clips(NamedTuple):
    """Clips of one second.

    Attributes:
        sound: (N, 16000) int16.
        words: (N,) uint8, indices into `WORDS`.
        splits: (N,) uint8, indices into `SPLITS`, by the lists of the set.
        names: (N,) text, the file names in the archive, "word/name.wav".
    """

    sound: NDArray[np.int16]
    words: NDArray[np.uint8]
    splits: NDArray[np.uint8]
    names: NDArray[np.str_]


def _convert(archive: Path) -> bytes:
    """The .npz of the official archive: the clips of the ten words with full length."""
    pattern = re.compile(rf"({'|'.join(WORDS)})/[^/]+\.wav")
    clips = []
    listed: dict[str, str] = {}
    for name, content in archive_members(archive, max_size=2**33):  # its digest is checked
        if name in LISTS:
            listed |= dict.fromkeys(content.decode().split(), LISTS[name])
        elif match := pattern.fullmatch(name):
            sound = _decode_wav(name, content)
            if len(sound) == SAMPLES:
                clips.append((WORDS.index(match[1]), name, sound))
    if not clips or not listed:
        raise ValueError(f"{archive} has no clips of the ten words, or no lists of the splits.")
    clips.sort(key=lambda clip: clip[:2])
    splits = [SPLITS.index(listed.get(name, "train")) for _, name, _ in clips]
    stream = io.BytesIO()
    np.savez(
        stream,
        sound=np.stack([sound for _, _, sound in clips]),
        words=np.array([word for word, _, _ in clips], dtype=np.uint8),
        splits=np.array(splits, dtype=np.uint8),
        names=np.array([name for _, name, _ in clips]),
    )
    return stream.getvalue()


def _decode_wav(name: str, content: bytes) -> NDArray[np.int16]:
    with wave.open(io.BytesIO(content)) as clip:
        form = clip.getnchannels(), clip.getsampwidth(), clip.getframerate()
        if form != (1, 2, 16_000):
            raise ValueError(f"{name} must be one channel of 16 bits at 16 kHz, got {form}.")
        return np.frombuffer(clip.readframes(clip.getnframes()), dtype="<i2").astype(np.int16)


ARCHIVE = File(
    "speech_commands",
    "sc10.npz",
    urls=(
        "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
    ),
    convert=_convert,
    archive_digest="af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
)


def read_clips(data_dir: DataDir = None) -> Clips:
    """The ten words of Speech Commands 0.02 (Warden 2018), sampled at 16 kHz.

    Raises:
        FileNotFoundError, ValueError: as `data.files.read_file`.
    """
    return Clips(**read_arrays(ARCHIVE, Clips._fields, data_dir))


def select_subset(clips: Clips) -> Clips:
    """The 500 clips that `SUBSET` lists, in its order and with its splits."""
    with SUBSET.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    positions = {str(name): position for position, name in enumerate(clips.names)}
    indices = [positions[row["file"]] for row in rows]
    splits = np.array([SPLITS.index(row["split"]) for row in rows], dtype=np.uint8)
    return Clips(clips.sound[indices], clips.words[indices], splits, clips.names[indices])


class SpeechCommands(SequenceClassification):
    """Raw sound, 16,000 steps in -1 to 1: which of ten words? (SC10, Ohno et al. 2022)

    Shorter clips are left out. As in the code behind the published results, 70 % of the clips of
    each word, after a fixed shuffle, are "train", 15 % "valid" and 15 % "test".

    Args:
        official: split the clips by the lists of the set instead, which separate speakers.
        subset: use only the 500 clips of `speech_subset.csv`, for quick trials. They are all from
            the official test set, in a split of our own: the results are not comparable to
            published ones.
        data_dir: see `DatasetTask`.
    """

    settings = ("official", "subset", "data_dir")
    published = published_results(
        f"{OHNO}, table 6", "test", lstm=0.215, r_lstm=0.839, ur_lstm=0.776, f_lstm=0.923
    )

    def __init__(
        self,
        official: bool = False,
        subset: bool = False,
        data_dir: DataDir = None,
    ) -> None:
        super().__init__(data_dir)
        self.official = check_flag("official", official)
        self.subset = check_flag("subset", subset)
        if self.official or self.subset:
            self.published = ()
        self.input_size, self.output_size = 1, len(WORDS)
        self.baseline = math.log(len(WORDS))
        self.scale = 2.0**-15

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        clips = read_clips(self.data_dir)
        if self.subset:
            clips = select_subset(clips)
        splits = clips.splits if self.official or self.subset else random_splits(clips.words)
        sound, words = torch.from_numpy(clips.sound), torch.from_numpy(clips.words)
        masks = {split: torch.from_numpy(splits == n) for n, split in enumerate(SPLITS)}
        return {split: (sound[mask, :, None], words[mask]) for split, mask in masks.items()}


def random_splits(words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fixed random splits, (N,) indices into `SPLITS`: 70, 15 and 15 % of each word."""
    splits = np.zeros(len(words), dtype=np.uint8)
    for word in np.unique(words):
        positions = np.flatnonzero(words == word)
        order = positions[fixed_permutation(len(positions), f"speech {word}")]
        splits[order[len(order) * 70 // 100 :]] = 1
        splits[order[len(order) * 85 // 100 :]] = 2
    return splits
