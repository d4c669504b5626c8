"""Optimizers by name, the learning rate over time, and mixed precision."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from rlgates.experiments.supervised_configs import SupervisedConfig

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_optimizer(
    config: SupervisedConfig, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer that a config names."""
    kind: Any = OPTIMIZERS[config.optimizer]
    options = {"momentum": config.momentum} if config.momentum else {}
    made: torch.optim.Optimizer = kind(
        parameters, lr=config.learning_rate, weight_decay=config.weight_decay, **options
    )
    return made


class Rate:
    """The learning rate: lower after given epochs, halved when the loss of a block has grown.

    Args:
        config: says when; without a word of it the rate is constant.
        optimizer: whose rate it is.
    """

    def __init__(self, config: SupervisedConfig, optimizer: torch.optim.Optimizer) -> None:
        self.config, self.optimizer = config, optimizer
        self.halvings = self.seen = 0
        self.total, self.before = 0.0, float("inf")

    @property
    def value(self) -> float:
        """The present rate."""
        return float(self.optimizer.param_groups[0]["lr"])

    def follow(self, epoch: int, loss: float, sequences: int) -> None:
        """Take note of an update.

        Args:
            epoch: how many are finished.
            loss: of the batch.
            sequences: of the batch.
        """
        if self.config.halve_block is not None:
            self.total, self.seen = self.total + loss * sequences, self.seen + sequences
            if self.seen >= self.config.halve_block:
                mean = self.total / self.seen
                self.halvings += mean > self.before
                self.total, self.seen, self.before = 0.0, 0, mean
        decays = sum(epoch >= at for at in self.config.decay_at)
        rate = self.config.learning_rate * self.config.decay_factor**decays * 0.5**self.halvings
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def get_state(self) -> list[float]:
        """What the next rates depend on, beside the optimizer."""
        return [self.halvings, self.seen, self.total, self.before]

    def set_state(self, state: list[float]) -> None:
        """Put `get_state` back."""
        self.halvings, self.seen = int(state[0]), int(state[1])
        self.total, self.before = state[2:]


class Precision:
    """Forward passes in half precision, and the scaling of losses that float16 needs.

    Args:
        amp: "none", "bf16" or "fp16".
        device: what is computed on.
    """

    def __init__(self, amp: str, device: torch.device) -> None:
        self.amp, self.device = amp, device
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")

    def forward(self) -> AbstractContextManager[Any]:
        """The context of forward passes."""
        if self.amp == "none":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_HALVES[self.amp])


def total_norm(parameters: Iterable[nn.Parameter], limit: float | None) -> torch.Tensor:
    """The norm of the gradients, which are clipped to `limit` if there is one.

    Where it is too large for its dtype, the gradients are scaled down first: what is finite can be
    clipped. It is infinite or nan only if a gradient is.
    """
    given = [parameter for parameter in parameters if parameter.grad is not None]
    grads = [parameter.grad for parameter in given if parameter.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    if not norm.isfinite() and limit is not None:
        top = torch.stack([grad.abs().max() for grad in grads]).max()
        if not top.isfinite():
            return top
        for grad in grads:
            grad.div_(top)
        norm = nn.utils.get_total_norm(grads)
    if limit is not None:
        nn.utils.clip_grads_with_norm_(given, limit, norm)
    return norm
