"""Reading the rows of a memory that are most like a key."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlgates.cell import full_precision

# A row or a key shorter than this counts as zero, so that no gradient is divided by nothing.
_SHORTEST = 1e-6


class Recall(NamedTuple):
    """What the heads read in one step.

    Attributes:
        reads: (B, num_heads, width).
        weights: (B, num_heads, top_k), which sum to 1, the largest first.
        rows: the rows of the memory that they belong to, of the same shape.
    """

    reads: Tensor
    weights: Tensor
    rows: Tensor


def recall(memory: Tensor, keys: Tensor, strengths: Tensor, top_k: int) -> Recall:
    """Sums of the `top_k` rows that are most like the keys, as `rlgates.cores.RMA` has them.

    In full precision under autocast too.

    Args:
        memory: (B, num_slots, width).
        keys: (B, num_heads, width).
        strengths: (B, num_heads), at least 0.
        top_k: how many rows a sum has, at most num_slots.
    """
    unit_keys = keys * _inverse_norm(keys).unsqueeze(-1)
    with full_precision(memory.device.type):
        inverse = _inverse_norm(memory)
        # The search needs no gradient, and a strength does not change the order. What is
        # differentiated reads the chosen rows alone.
        cosine = unit_keys.detach() @ memory.detach().mT * inverse.detach().unsqueeze(1)
        rows = cosine.topk(top_k).indices
        batch, slots, width = memory.shape
        begin = torch.arange(batch, device=memory.device) * slots
        index = (rows + begin.view(-1, 1, 1)).flatten()
        chosen = memory.flatten(0, 1).index_select(0, index).view(*rows.shape, width)
        inverse = inverse.flatten().index_select(0, index).view(rows.shape)
        cosine = (chosen @ unit_keys.unsqueeze(-1)).squeeze(-1) * inverse
        weights = torch.softmax(strengths.unsqueeze(-1) * cosine, dim=-1)
        return Recall((weights.unsqueeze(-2) @ chosen).squeeze(-2), weights, rows)


def _inverse_norm(x: Tensor) -> Tensor:
    """1 / |x| over the last dimension; 0, with gradient 0, where x is zero."""
    norm = torch.linalg.vector_norm(x, dim=-1)
    return torch.where(norm > _SHORTEST, norm, torch.inf).reciprocal()
