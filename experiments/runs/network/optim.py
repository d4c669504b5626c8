"""Optimizers by name, the learning rate over time, and mixed precision."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from rlgates.experiments.configs.task import TaskConfig

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
_FUSED = ("adam", "adamw", "sgd")
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_optimizer(config: TaskConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that a config names."""
    kind: Any = OPTIMIZERS[config.optimizer]
    options: dict[str, Any] = {"momentum": config.momentum} if config.momentum else {}
    if config.optimizer in _FUSED:
        options["fused"] = True  # one kernel for all parameters
    optimizer: torch.optim.Optimizer = kind(
        parameters, lr=config.learning_rate, weight_decay=config.weight_decay, **options
    )
    return optimizer


class Rate:
    """The learning rate: decays at set epochs, halves when the mean loss of a block grows.

    Args:
        config: when it changes; by default it is constant.
        optimizer: whose rate is set.
    """

    def __init__(self, config: TaskConfig, optimizer: torch.optim.Optimizer) -> None:
        self.config, self.optimizer = config, optimizer
        self.halvings = self.count = 0
        self.total, self.before = 0.0, float("inf")

    @property
    def value(self) -> float:
        """The current rate."""
        return float(self.optimizer.param_groups[0]["lr"])

    def follow(self, epoch: int, loss: float, sequences: int) -> None:
        """Set the rate after an update.

        Args:
            epoch: number of finished epochs.
            loss: of the batch.
            sequences: of the batch.
        """
        if self.config.halve_block is not None:
            self.total, self.count = self.total + loss * sequences, self.count + sequences
            if self.count >= self.config.halve_block:
                mean = self.total / self.count
                self.halvings += mean > self.before
                self.total, self.count, self.before = 0.0, 0, mean
        decays = sum(epoch >= at for at in self.config.decay_at)
        rate = self.config.learning_rate * self.config.decay_factor**decays * 0.5**self.halvings
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def get_state(self) -> list[float]:
        """The state besides that of the optimizer."""
        return [self.halvings, self.count, self.total, self.before]

    def set_state(self, state: list[float]) -> None:
        """Restore a state from `get_state`."""
        self.halvings, self.count = int(state[0]), int(state[1])
        self.total, self.before = state[2:]


class Precision:
    """Forward passes in half precision, with loss scaling for float16.

    Args:
        amp: "none", "bf16" or "fp16".
        device: of the network.
    """

    def __init__(self, amp: str, device: torch.device) -> None:
        self.amp, self.device = amp, device
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")

    def forward(self) -> AbstractContextManager[Any]:
        """The autocast context of forward passes."""
        if self.amp == "none":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_HALVES[self.amp])


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients; infinite if it overflows its dtype."""
    return nn.utils.get_total_norm(
        [parameter.grad for parameter in parameters if parameter.grad is not None]
    )


def clip_gradients(
    parameters: Iterable[nn.Parameter], limit: float, norm: torch.Tensor, value: float
) -> float:
    """Clip the gradients to the norm `limit`.

    If the norm overflows its dtype, the gradients are scaled down first, so finite gradients can
    always be clipped.

    Args:
        parameters: with the gradients.
        limit: the largest norm.
        norm, value: of the gradients, from `gradient_norm`, and the same as a number.

    Returns:
        the norm, or one that is finite in place of one that overflows; infinite or nan only if a
        gradient is, which are then left as they are.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    grads = [parameter.grad for parameter in trained if parameter.grad is not None]
    if not math.isfinite(value):
        top = torch.stack([grad.abs().max() for grad in grads]).max()
        if not top.isfinite():
            return float(top)
        for grad in grads:
            grad.div_(top)
        norm = nn.utils.get_total_norm(grads)
        for grad in grads:
            grad.mul_(limit / norm)
        return float(norm)
    nn.utils.clip_grads_with_norm_(trained, limit, norm)
    return value
