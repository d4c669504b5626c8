"""Noise on the recurrence while training; in evaluation its expectation."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class Noisy(Protocol):
    """A cell with the noise of an LSTM: probabilities, as its options name them."""

    zoneout_cell: float
    zoneout_hidden: float
    recurrent_dropout: float
    training: bool


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
    cell: Noisy,
    state: tuple[Tensor, ...],
    gates: tuple[Tensor, Tensor],
    u: Tensor,
    o: Tensor,
) -> tuple[Tensor, Tensor]:
    """The new h and c of an LSTM from the old ones, its gates, L_u and L_o, with its noise.

    Recurrent dropout drops units of the candidate alone (Semeniuta et al. 2016); the new h is
    made from the cell before it is zoned.
    """
    h, c = state
    f, i = gates
    candidate = nn.functional.dropout(torch.tanh(u), cell.recurrent_dropout, cell.training)
    new_c = f * c + i * candidate
    new_h = torch.sigmoid(o) * torch.tanh(new_c)
    return (
        zoneout(new_h, h, cell.zoneout_hidden, cell.training),
        zoneout(new_c, c, cell.zoneout_cell, cell.training),
    )
