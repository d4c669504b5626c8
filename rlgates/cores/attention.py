"""Attention between the rows of a memory, as in the relational memory core."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import factory_kwargs, full_precision


class Block(nn.Module):
    """Self-attention over the rows, then an MLP, each with a residual connection and LayerNorm.

    The block has the layers `qkv`, `norm_qkv`, `norm_att` and `norm_mlp`; `forward` takes the MLP,
    which blocks share.

    Args:
        num_heads: attention heads.
        key_size, value_size: lengths of a head's keys (and queries) and of its values.
        device, dtype: of the parameters, float32 or float64.
    """

    def __init__(
        self,
        num_heads: int,
        key_size: int,
        value_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory = factory_kwargs(device, dtype)
        size = num_heads * value_size
        self.num_heads = num_heads
        self.sizes = [key_size, key_size, value_size]
        self.qkv = nn.Linear(size, num_heads * sum(self.sizes), **factory)
        self.norm_qkv = nn.LayerNorm(num_heads * sum(self.sizes), **factory)
        self.norm_att = nn.LayerNorm(size, **factory)
        self.norm_mlp = nn.LayerNorm(size, **factory)

    def forward(self, rows: Tensor, mlp: nn.Module) -> Tensor:
        """The new rows from `rows` (B, R, D), in the precision of `rows` under autocast too."""
        with full_precision(rows.device.type):
            rows = self.norm_att(rows + self._attention(rows))
            rows = self.norm_mlp(rows + mlp(rows))
        return rows

    def _attention(self, rows: Tensor) -> Tensor:
        projected = self.norm_qkv(self.qkv(rows))
        heads = projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        q, k, v = heads.split(self.sizes, dim=-1)
        scores = (q * self.sizes[0] ** -0.5) @ k.transpose(-1, -2)
        read: Tensor = torch.softmax(scores, dim=-1) @ v
        return read.transpose(1, 2).flatten(2)
