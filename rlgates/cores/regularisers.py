"""Noise on the recurrence while training; in evaluation its expectation."""

from __future__ import annotations

import torch
from torch import Tensor


def zoneout(new: Tensor, old: Tensor, probability: float, training: bool) -> Tensor:
    """Each unit keeps its old value with a probability (Krueger et al. 2016).

    In evaluation it becomes the expectation, (1 - probability) new + probability old.
    """
    if not probability:
        return new
    if training:
        return torch.where(torch.rand_like(new) < probability, old, new)
    return torch.lerp(new, old, probability)
