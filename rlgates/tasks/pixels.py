"""Pictures read pixel by pixel: sequential MNIST, its permuted kin, CIFAR-10, and small digits."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlgates.errors import check_choice
from rlgates.tasks.data import Folder
from rlgates.tasks.images import Pictures, cifar10, digits, mnist
from rlgates.tasks.stored import GU, OHNO, RRU, Classes, fixed_order, quoted


def bit_reversal(length: int) -> NDArray[np.int64]:
    """The numbers below `length`, (length,), in the order of their reversed binary digits.

    The digits are those of the numbers below the next power of two; numbers of `length` and above
    are left out. Source: Gu et al. 2020.
    """
    digits_of = max(length - 1, 0).bit_length()
    numbers = np.arange(1 << digits_of)
    reversed_numbers = np.zeros_like(numbers)
    for digit in range(digits_of):
        reversed_numbers = reversed_numbers << 1 | (numbers >> digit & 1)
    return reversed_numbers[reversed_numbers < length]


def row_order(height: int, width: int) -> NDArray[np.int64]:
    """The pixels, (height * width,), row by row, each row in one and the same fixed shuffle."""
    inside = fixed_order(width, "row")
    return (np.arange(height)[:, None] * width + inside).reshape(-1)


class Pixels(Classes):
    """Pictures as sequences of pixels in 0 to 1, one step a pixel, from left to right and down.

    The class is to be said after the last pixel. There is no published validation split: it is
    the end of the training pictures.
    """

    size: ClassVar[tuple[int, int, int]]
    held_out: ClassVar[int]

    def __init__(self, data_dir: Folder = None) -> None:
        super().__init__(data_dir)
        self.steps = self.size[0] * self.size[1]
        self.input_size, self.output_size = self.size[2], 10
        self.baseline = math.log(10)
        self.scale = 1 / 255

    @abstractmethod
    def pictures(self) -> dict[str, Pictures]:
        """The pictures of "train" and "test"."""

    def order(self) -> NDArray[np.int64] | None:
        """The pixels, (height * width,), as they are read; None for the usual order."""
        return None

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        sets, parts = self.pictures(), {}
        order = self.order()
        for split, (images, labels) in sets.items():
            pixels = images.reshape(len(images), self.steps, self.input_size)
            pixels = pixels.copy() if order is None else pixels[:, order]
            parts[split] = torch.from_numpy(pixels), torch.from_numpy(labels.copy())
        train, kept = parts["train"], len(parts["train"][1]) - self.held_out
        parts["train"] = train[0][:kept], train[1][:kept]
        parts["valid"] = train[0][kept:], train[1][kept:]
        return parts


class SequentialMNIST(Pixels):
    """sMNIST (Le et al. 2015): 784 steps of one pixel; the last 10,000 of train for validation."""

    size, held_out = (28, 28, 1), 10_000
    published = (
        *quoted(f"{GU}, table 3", "test", lstm=0.989, ur_lstm=0.9928),
        *quoted(f"{GU}, table 3, zoneout", "test", ur_lstm=0.9921, ur_gru=0.9927),
        *quoted(
            f"{OHNO}, table 2",
            "test",
            s_lstm=0.9750,
            lstm=0.9888,
            r_lstm=0.9894,
            f_lstm=0.9905,
            c_lstm=0.9883,
            janet=0.9859,
            nru=0.9873,
        ),
        *quoted(
            f"{OHNO}, table 5: 128 units",
            "test",
            lstm=0.9884,
            r_lstm=0.9888,
            f_lstm=0.9881,
            janet=0.9807,
            nru=0.9819,
        ),
        *quoted(
            f"{OHNO}, table 4",
            "test",
            uf_lstm=0.9901,
            ff_lstm=0.9902,
            gru=0.9899,
            r_gru=0.9895,
            ur_gru=0.9886,
            f_gru=0.9895,
        ),
        *quoted(f"{RRU}, table 1", "test", rru=0.9874, gru=0.9836, lstm=0.9288, mogrifier=0.9814),
    )

    def pictures(self) -> dict[str, Pictures]:
        return mnist(self.data_dir)


class PermutedMNIST(SequentialMNIST):
    """pMNIST: sMNIST with the pixels in another order; the last 10,000 of train for validation.

    Args:
        permutation: "bit_reversal" of the pixel's number (Gu et al. 2020; Ohno et al. 2022), or
            "rows", each row in one fixed shuffle (Zakovskis et al. 2023, whose shuffle is not
            known).
        data_dir: as for all tasks on data.
    """

    settings = ("permutation", "data_dir")
    permutations = ("bit_reversal", "rows")
    published = (
        *quoted(
            f"{GU}, table 2",
            "valid",
            lstm=0.9477,
            c_lstm=0.9469,
            o_lstm=0.9617,
            u_lstm=0.9605,
            r_lstm=0.9584,
            om_lstm=0.9598,
            or_lstm=0.9640,
            um_lstm=0.9550,
            ur_lstm=0.9643,
        ),
        *quoted(f"{GU}, table 3", "test", lstm=0.9511, ur_lstm=0.9696),
        *quoted(f"{GU}, table 3, zoneout", "test", ur_lstm=0.9758, ur_gru=0.9651),
        *quoted(
            f"{OHNO}, table 2",
            "test",
            s_lstm=0.9171,
            lstm=0.9571,
            r_lstm=0.9593,
            f_lstm=0.9618,
            c_lstm=0.9437,
            janet=0.9385,
            nru=0.9476,
        ),
        *quoted(
            f"{OHNO}, table 5: 128 units",
            "test",
            lstm=0.9280,
            r_lstm=0.9328,
            f_lstm=0.9383,
            janet=0.8784,
            nru=0.9489,
        ),
        *quoted(
            f"{OHNO}, table 4",
            "test",
            uf_lstm=0.9611,
            ff_lstm=0.9622,
            gru=0.9523,
            r_gru=0.9561,
            ur_gru=0.9549,
            f_gru=0.9554,
        ),
    )

    def __init__(
        self,
        permutation: str = "bit_reversal",
        data_dir: Folder = None,
    ) -> None:
        super().__init__(data_dir)
        self.permutation = check_choice("permutation", permutation, self.permutations)
        if self.permutation == "rows":
            self.published = quoted(
                f"{RRU}, table 1", "test", rru=0.9767, gru=0.9868, lstm=0.9739, mogrifier=0.9781
            )

    def order(self) -> NDArray[np.int64]:
        return row_order(28, 28) if self.permutation == "rows" else bit_reversal(self.steps)


class SequentialCIFAR(Pixels):
    """sCIFAR: 1,024 steps of red, green and blue; the last 5,000 of train for validation."""

    size, held_out = (32, 32, 3), 5_000
    published = (
        *quoted(
            f"{GU}, table 2",
            "valid",
            lstm=0.6324,
            c_lstm=0.6560,
            o_lstm=0.6778,
            u_lstm=0.6763,
            r_lstm=0.7185,
            om_lstm=0.6773,
            or_lstm=0.7041,
            um_lstm=0.6729,
            ur_lstm=0.7105,
            gru=0.7130,
            c_gru=0.6461,
            o_gru=0.6981,
            u_gru=0.7010,
            r_gru=0.7074,
            om_gru=0.7020,
            or_gru=0.7140,
            um_gru=0.6917,
            ur_gru=0.7104,
        ),
        *quoted(f"{GU}, table 3", "test", lstm=0.6301, ur_lstm=0.7100),
        *quoted(f"{GU}, table 3, zoneout", "test", ur_lstm=0.7434, ur_gru=0.744),
        *quoted(
            f"{OHNO}, table 2",
            "test",
            s_lstm=0.5921,
            lstm=0.6914,
            r_lstm=0.6955,
            f_lstm=0.7006,
            c_lstm=0.6036,
            janet=0.6099,
            nru=0.6232,
        ),
        *quoted(
            f"{OHNO}, table 5: 128 units",
            "test",
            lstm=0.6273,
            r_lstm=0.6210,
            f_lstm=0.6298,
            janet=0.5582,
            nru=0.5334,
        ),
        *quoted(
            f"{OHNO}, table 4",
            "test",
            uf_lstm=0.7004,
            ff_lstm=0.6966,
            gru=0.6892,
            r_gru=0.6954,
            ur_gru=0.7029,
            f_gru=0.6965,
        ),
    )

    def pictures(self) -> dict[str, Pictures]:
        return cifar10(self.data_dir)


class SequentialDigits(Pixels):
    """Small digits for quick trials: 64 steps of one pixel; 180 of 1,437 for validation.

    They come with scikit-learn, which must be installed; nothing is read from the data folder.
    """

    settings = ()
    size, held_out = (8, 8, 1), 180

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1 / 16

    def pictures(self) -> dict[str, Pictures]:
        return digits()
