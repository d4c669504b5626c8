"""Starting weights that several cores share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def truncated_normal_(
    tensor: Tensor, fan_in: int, generator: torch.Generator | None = None
) -> Tensor:
    """Fill with a normal of standard deviation 1/sqrt(fan_in), cut off at two of them."""
    std = fan_in**-0.5
    return nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std, generator=generator)
