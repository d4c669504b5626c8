"""An affine decoder and its cross-entropy in one, without the predictions of a whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PREDICTIONS = 2**20
"""Numbers of a chunk of predictions: 4 MiB, which stay in a cache until they are used."""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The mean of `cross_entropy(linear(hidden, weight, bias), targets)`, and its gradients.

    Rows are predicted, compared and forgotten chunk by chunk. The gradients are computed in the
    same pass, so that two chunks of predictions are all that is ever held. (The function of this
    name in torch.nn.functional, from torch 2.12 on, is slower on a CPU than the two apart.)

    Args:
        hidden: (N, width), N at least 1.
        weight, bias: of the decoder, (classes, width) and (classes,).
        targets: classes (N,), int64.
    """
    tensors = hidden, weight, bias
    needs = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
    loss: Tensor = _LinearCrossEntropy.apply(*tensors, targets, needs)  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, needs: list[bool]
    ) -> Tensor:
        count, rows = len(hidden), max(1, PREDICTIONS // len(weight))
        total = hidden.new_zeros((), dtype=torch.float64)
        d_hidden = torch.empty_like(hidden) if needs[0] else None
        d_weight = torch.zeros_like(weight) if needs[1] else None
        d_bias = torch.zeros_like(bias) if needs[2] else None
        for x, classes, d_x in zip(
            hidden.split(rows),
            targets.unsqueeze(1).split(rows),
            hidden.split(rows) if d_hidden is None else d_hidden.split(rows),
            strict=True,
        ):
            log_probs = torch.log_softmax(torch.addmm(bias, x, weight.t()), dim=1)
            total -= log_probs.gather(1, classes).sum()
            # The gradient of the chunk's sum: probabilities, less 1 at the targets.
            d_logits = log_probs.exp_()
            d_logits.scatter_add_(1, classes, d_logits.new_full((1, 1), -1.0).expand_as(classes))
            if d_hidden is not None:
                torch.mm(d_logits, weight, out=d_x)
            if d_weight is not None:
                d_weight.addmm_(d_logits.t(), x)
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        ctx.gradients, ctx.count = (d_hidden, d_weight, d_bias), count
        return (total / count).to(hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        scale = d_loss / ctx.count
        return *(None if part is None else part * scale for part in ctx.gradients), None, None
