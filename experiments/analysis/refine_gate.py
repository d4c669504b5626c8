"""The range and the gradient of a refine gate (Gu et al. 2020, figure 2).

A forget gate f = sigmoid(x) and a refine gate r = sigmoid(y) make the effective gate
g = r (1 - (1 - f)^2) + (1 - r) f^2, which therefore lies within f +- f (1 - f).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlgates.errors import check_size
from rlgates.gates import refine


def band(f: Tensor) -> Tensor:
    """f (1 - f): the largest distance of the effective gate from f, of the shape of f."""
    return f * (1 - f)


def bounds(f: Tensor) -> tuple[Tensor, Tensor]:
    """The minimum and maximum effective gate of a forget gate f: f^2 and 1 - (1 - f)^2."""
    return refine(f, torch.zeros_like(f)), refine(f, torch.ones_like(f))


def refine_for(f: Tensor, g: Tensor) -> Tensor:
    """The refine gate that maps f in (0, 1) to g: (g - f^2) / (2 f (1 - f)).

    It lies in [0, 1] if g is within the `bounds` of f.
    """
    return (g - f * f) / (2 * band(f))


def contours(size: int = 201) -> tuple[Tensor, Tensor]:
    """The effective gate on a grid.

    Args:
        size: points per axis, at least 2.

    Returns:
        the axis (size,), from 0 to 1, and g (size, size) with r by rows and f by columns; float64.
    """
    axis = torch.linspace(0, 1, check_size("size", size, minimum=2), dtype=torch.float64)
    return axis, refine(axis.expand(size, size), axis[:, None].expand(size, size))


def gradient(f: Tensor, r: Tensor) -> Tensor:
    """The norm of the gradient of g by (x, y), the pre-activations (appendix C)."""
    along_f = 2 * band(f) * (r + f - 2 * f * r)
    along_r = 2 * band(f) * band(r)
    return torch.hypot(along_f, along_r)


def plain_gradient(g: Tensor) -> Tensor:
    """The gradient of a plain gate of the same value, g (1 - g)."""
    return band(g)


def gradient_ratio(g: Tensor, points: int = 4001) -> tuple[Tensor, Tensor]:
    """Bounds on `gradient` over `plain_gradient`, over all f and r with effective gate g.

    The upper bound is 2 / (1 + sqrt(min(g, 1 - g))), reached at r = 1 for g above 1/2 and at r = 0
    below; it tends to 2 at both ends. The lower bound is searched among `points` values of f, as
    in the paper; it tends to 1 at both ends.

    Args:
        g: effective gates (...), in (0, 1).
        points: at least 2.

    Returns:
        the minimum and maximum ratio, of the shape of g.
    """
    upper = 2 / (1 + torch.minimum(g, 1 - g).sqrt())
    inner = torch.linspace(0, 1, check_size("points", points, minimum=2), dtype=g.dtype)
    least, most = (g / (1 + (1 - g).sqrt())).unsqueeze(-1), g.sqrt().unsqueeze(-1)
    f = least + (most - least) * inner
    r = refine_for(f, g.unsqueeze(-1)).clamp(0, 1)
    lower = (gradient(f, r) / plain_gradient(g).unsqueeze(-1)).amin(dim=-1)
    return lower, upper
