"""Images read pixel by pixel: sequential and permuted MNIST, CIFAR-10, and small digits."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlgates.errors import check_choice, check_size
from rlgates.experiments.tasks.data.dataset import (
    GU,
    OHNO,
    SequenceClassification,
    fixed_permutation,
    published_results,
    rru_results,
)
from rlgates.experiments.tasks.data.files import DataDir
from rlgates.experiments.tasks.sets.images import LabelledImages, cifar10, digits, mnist
from rlgates.experiments.tasks.task import PublishedResult


def bit_reversal(length: int) -> NDArray[np.int64]:
    """The bit-reversal permutation of the numbers below `length`, (length,) (Gu et al. 2020).

    It is that of the next power of two, without the numbers from `length` on.
    """
    numbers = np.zeros(1, dtype=np.int64)
    while len(numbers) < length:
        numbers = np.concatenate([2 * numbers, 2 * numbers + 1])
    return numbers[numbers < length]


def row_order(height: int, width: int) -> NDArray[np.int64]:
    """Pixel indices, (height * width,), row by row, each row in the same fixed permutation."""
    columns = fixed_permutation(width, "row")
    return (np.arange(height)[:, None] * width + columns).reshape(-1)


class PixelSequences(SequenceClassification):
    """Images as sequences of pixels in 0 to 1, one per step, row by row from the top left.

    The class is predicted after the last pixel. No validation split is published: the last
    `held_out` training images are used.

    Args:
        pool: average the pixels of each square of this side, in whole 255ths, for sequences of
            1 / pool² of the steps.
        data_dir: see `DatasetTask`.

    Attributes:
        size: height, width and channels of the images before pooling.
        held_out: number of images in "valid".
    """

    settings: ClassVar[tuple[str, ...]] = ("pool", "data_dir")
    size: ClassVar[tuple[int, int, int]]
    held_out: ClassVar[int]

    def __init__(self, pool: int = 1, data_dir: DataDir = None) -> None:
        super().__init__(data_dir)
        height, width, self.input_size = self.size
        self.pool = check_size("pool", pool)
        if height % pool or width % pool:
            raise ValueError(f"pool must divide {height} and {width}, got {pool}.")
        if pool > 1:
            self.published = ()
        self.height, self.width = height // pool, width // pool
        self.steps = self.height * self.width
        self.output_size = 10
        self.baseline = math.log(10)
        self.scale = 1 / 255

    @abstractmethod
    def load_images(self) -> dict[str, LabelledImages]:
        """The images of "train" and "test"."""

    def order(self) -> NDArray[np.int64] | None:
        """Pixel indices, (height * width,), in reading order; None for row by row."""
        return None

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        order = self.order()
        splits = {}
        for split, (images, labels) in self.load_images().items():
            squares = images.reshape(
                -1, self.height, self.pool, self.width, self.pool, self.input_size
            )
            pooled = squares if self.pool == 1 else np.rint(squares.mean((2, 4))).astype(np.uint8)
            pixels = pooled.reshape(len(images), self.steps, self.input_size)
            pixels = pixels.copy() if order is None else pixels[:, order]
            splits[split] = torch.from_numpy(pixels), torch.from_numpy(labels.copy())
        pixels_tensor, classes = splits["train"]
        end = len(classes) - self.held_out
        splits["train"] = pixels_tensor[:end], classes[:end]
        splits["valid"] = pixels_tensor[end:], classes[end:]
        return splits


# Tables of papers: their title, the split, and the cores in the order of `_row`.
_NINE = "lstm c_lstm o_lstm u_lstm r_lstm om_lstm or_lstm um_lstm ur_lstm"
_GU_2_LSTM = f"{GU}, table 2", "valid", _NINE
_GU_2_GRU = f"{GU}, table 2", "valid", _NINE.replace("lstm", "gru")
_OHNO_2 = f"{OHNO}, table 2", "test", "s_lstm lstm r_lstm f_lstm c_lstm janet nru"
_OHNO_4 = f"{OHNO}, table 4", "test", "ur_lstm uf_lstm ff_lstm s_gru gru r_gru ur_gru f_gru uf_gru"
_OHNO_5 = (
    f"{OHNO}, table 5: 128 units",
    "test",
    "s_lstm lstm r_lstm ur_lstm f_lstm uf_lstm c_lstm janet nru",
)


def _row(table: tuple[str, str, str], *values: float) -> tuple[PublishedResult, ...]:
    """The results of a table on one task."""
    source, split, cores = table
    return published_results(source, split, **dict(zip(cores.split(), values, strict=True)))


class SequentialMNIST(PixelSequences):
    """sMNIST (Le et al. 2015): 784 steps of one pixel; the last 10,000 of "train" are "valid"."""

    size, held_out = (28, 28, 1), 10_000
    published = (
        *published_results(f"{GU}, table 3", "test", lstm=0.989, ur_lstm=0.9928),
        *published_results(f"{GU}, table 3, zoneout", "test", ur_lstm=0.9921, ur_gru=0.9927),
        *_row(_OHNO_2, 0.9750, 0.9888, 0.9894, 0.9905, 0.9883, 0.9859, 0.9873),
        *_row(_OHNO_5, 0.9720, 0.9884, 0.9888, 0.9869, 0.9881, 0.9881, 0.9796, 0.9807, 0.9819),
        *published_results(f"{OHNO}, table 4", "test", s_lstm=0.2163),  # in table 2 it learns
        *_row(_OHNO_4, 0.9880, 0.9901, 0.9902, 0.6971, 0.9899, 0.9895, 0.9886, 0.9895, 0.9879),
        *rru_results(rru=0.9874, gru=0.9836, lstm=0.9288, mogrifier=0.9814),
    )

    def load_images(self) -> dict[str, LabelledImages]:
        return mnist(self.data_dir)


class PermutedMNIST(SequentialMNIST):
    """pMNIST: sMNIST with permuted pixels; the last 10,000 of "train" are "valid".

    Args:
        permutation: "bit_reversal" of the pixel's index (Gu et al. 2020; Ohno et al. 2022), or
            "rows", the same permutation within each row (as Zakovskis et al. 2023 say; their code
            permutes all pixels at random).
        pool, data_dir: see `PixelSequences`.
    """

    settings = ("permutation", "pool", "data_dir")
    permutations = ("bit_reversal", "rows")
    published = (
        *_row(_GU_2_LSTM, 0.9477, 0.9469, 0.9617, 0.9605, 0.9584, 0.9598, 0.9640, 0.9550, 0.9643),
        *published_results(f"{GU}, table 3", "test", lstm=0.9511, ur_lstm=0.9696),
        *published_results(f"{GU}, table 3, zoneout", "test", ur_lstm=0.9758, ur_gru=0.9651),
        *_row(_OHNO_2, 0.9171, 0.9571, 0.9593, 0.9618, 0.9437, 0.9385, 0.9476),
        *_row(_OHNO_5, 0.8789, 0.9280, 0.9328, 0.9256, 0.9383, 0.9300, 0.9032, 0.8784, 0.9489),
        *_row(_OHNO_4, 0.9611, 0.9611, 0.9622, 0.9380, 0.9523, 0.9561, 0.9549, 0.9554, 0.9546),
    )

    def __init__(
        self,
        permutation: str = "bit_reversal",
        pool: int = 1,
        data_dir: DataDir = None,
    ) -> None:
        super().__init__(pool, data_dir)
        self.permutation = check_choice("permutation", permutation, self.permutations)
        if self.permutation == "rows" and pool == 1:
            self.published = rru_results(rru=0.9767, gru=0.9868, lstm=0.9739, mogrifier=0.9781)

    def order(self) -> NDArray[np.int64]:
        if self.permutation == "rows":
            return row_order(self.height, self.width)
        return bit_reversal(self.steps)


class SequentialCIFAR(PixelSequences):
    """sCIFAR: 1,024 steps of one RGB pixel; the last 5,000 of "train" are "valid"."""

    size, held_out = (32, 32, 3), 5_000
    published = (
        *_row(_GU_2_LSTM, 0.6324, 0.6560, 0.6778, 0.6763, 0.7185, 0.6773, 0.7041, 0.6729, 0.7105),
        *_row(_GU_2_GRU, 0.7130, 0.6461, 0.6981, 0.7010, 0.7074, 0.7020, 0.7140, 0.6917, 0.7104),
        *published_results(f"{GU}, table 3", "test", lstm=0.6301, ur_lstm=0.7100),
        *published_results(f"{GU}, table 3, zoneout", "test", ur_lstm=0.7434, ur_gru=0.744),
        *_row(_OHNO_2, 0.5921, 0.6914, 0.6955, 0.7006, 0.6036, 0.6099, 0.6232),
        *_row(_OHNO_5, 0.4791, 0.6273, 0.6210, 0.6254, 0.6298, 0.6300, 0.5471, 0.5582, 0.5334),
        *_row(_OHNO_4, 0.7029, 0.7004, 0.6966, 0.6190, 0.6892, 0.6954, 0.7029, 0.6965, 0.6959),
    )

    def load_images(self) -> dict[str, LabelledImages]:
        return cifar10(self.data_dir)


class SequentialDigits(PixelSequences):
    """Small digits for quick trials: 64 steps of one pixel; 180 of 1,437 are "valid".

    They come with scikit-learn, which must be installed; the data folder is not used.
    """

    settings = ()
    size, held_out = (8, 8, 1), 180

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1 / 16

    def load_images(self) -> dict[str, LabelledImages]:
        return digits()
