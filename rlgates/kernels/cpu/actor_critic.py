"""Cores, heads and PPO's loss on the CPU: one node of autograd, which has all gradients at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from rlgates.kernels.cpu import heads as cpu_heads
from rlgates.kernels.cpu import layer as cpu_layer
from rlgates.kernels.cpu.heads import Heads, LossSettings, Taken
from rlgates.kernels.cpu.layer import Backward, Inputs, Problem


def ppo_losses(
    layers: Sequence[tuple[Problem, Inputs]],
    heads: Heads,
    detached: bool,
    taken: Taken,
    settings: LossSettings,
) -> tuple[Tensor, ...]:
    """`rlgates.kernels.cpu.heads.ppo_losses` of what cores make of a sequence.

    Args:
        layers: prepared, the one whose outputs actor and critic read, or one for each.
        heads: the networks.
        detached: whether the critic does not train the layer that it shares with the actor.
        taken, settings: as there; the N = T * B actions are in order of time.

    Returns:
        the scalars of that function.

    Raises:
        ValueError: as that function.
    """
    problems = [problem for problem, _ in layers]
    tensors = [tensor for _, inputs in layers for tensor in inputs.flat]
    options = problems, heads, detached, taken, settings
    loss, terms = _Losses.apply(*options, *tensors, *heads.actor, *heads.critic)  # type: ignore[no-untyped-call]
    return loss, *terms.unbind()


class _Losses(torch.autograd.Function):
    """The loss and, without gradients, its terms."""

    @staticmethod
    def forward(
        ctx: Any,
        problems: Sequence[Problem],
        heads: Heads,
        detached: bool,
        taken: Taken,
        settings: LossSettings,
        *tensors: Any,
    ) -> tuple[Tensor, Tensor]:
        needs = ctx.needs_input_grad[5:]
        inputs, layer_needs = cpu_layer.split(problems, tensors), cpu_layer.split(problems, needs)
        saved = [
            cpu_layer.new_saved(problem, x)
            for problem, (x, *_) in zip(problems, inputs, strict=True)
        ]
        results = cpu_layer.forward(list(zip(problems, inputs, strict=True)), saved)
        x, *critic = (outputs.flatten(0, 1) for outputs, _ in results)
        critic_x = critic[0] if critic else x if detached else None
        losses, (d_x, d_critic_x, *d_heads) = cpu_heads.ppo_gradients(
            heads, x, critic_x, taken, settings, (True, not detached)
        )
        calls = [
            Backward(problem, of_layer, save, d.view(outputs.shape), None, need)
            for problem, of_layer, save, d, (outputs, _), need in zip(
                problems, inputs, saved, (d_x, d_critic_x), results, layer_needs, strict=False
            )
        ]
        d_layers = chain(*cpu_layer.gradients(calls))
        of_heads = zip(d_heads, needs[-len(d_heads) :], strict=True)
        needed = [*d_layers, *(d if need else None for d, need in of_heads)]
        return cpu_heads.keep(ctx, losses, needed)

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        return *[None] * 5, *cpu_heads.hand_out(ctx, d_loss)
