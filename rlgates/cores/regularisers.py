"""Noise on the recurrence while training; in evaluation its expectation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlgates.errors import check_probability


class Noise(NamedTuple):
    """The probabilities of an LSTM's noise, as its options name them."""

    zoneout_cell: float = 0.0
    zoneout_hidden: float = 0.0
    recurrent_dropout: float = 0.0

    def checked(self) -> Noise:
        """The same, if these are probabilities below 1; else a ValueError or TypeError."""
        return Noise(*map(check_probability, self._fields, self))

    def active(self, training: bool) -> bool:
        """Whether a step is another one than without it."""
        return bool(
            self.zoneout_cell or self.zoneout_hidden or (training and self.recurrent_dropout)
        )


def zoneout(new: Tensor, old: Tensor, probability: float, training: bool) -> Tensor:
    """Each unit keeps its old value with a probability (Krueger et al. 2016).

    In evaluation it becomes the expectation, (1 - probability) new + probability old.
    """
    if not probability:
        return new
    if training:
        return torch.where(torch.rand_like(new) < probability, old, new)
    return torch.lerp(new, old, probability)


def lstm_update(
    state: tuple[Tensor, ...],
    gates: tuple[Tensor, Tensor],
    u: Tensor,
    o: Tensor,
    noise: Noise,
    training: bool,
) -> tuple[Tensor, Tensor]:
    """The new h and c of an LSTM from the old ones, its gates, and L_u and L_o.

    Recurrent dropout drops units of the candidate alone (Semeniuta et al. 2016); the new h is
    made from the cell before it is zoned.
    """
    h, c = state
    f, i = gates
    candidate = nn.functional.dropout(torch.tanh(u), noise.recurrent_dropout, training)
    new_c = f * c + i * candidate
    new_h = torch.sigmoid(o) * torch.tanh(new_c)
    return (
        zoneout(new_h, h, noise.zoneout_hidden, training),
        zoneout(new_c, c, noise.zoneout_cell, training),
    )
