"""Channels with a linear system each, whose states are read where they are computed.

A `ChannelKernel` (`rlgates.kernels.cpu.channels`, `rlgates.kernels.triton.channels`) keeps the
state after each chunk of steps alone, from which the backward pass computes the others again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlgates.kernels.layout import CHUNK
from rlgates.kernels.memory import readable, readable_steps, step_stride
from rlgates.kernels.scan import raise_second_derivative
from rlgates.kernels.spec import Channels

FIXED, SELECTIVE, SHARED = range(3)  # kinds of systems; those that share have one rate a channel

# The tensors of `Channels`, then the states before the first step and at episode starts.
Inputs = Sequence[Tensor | None]


class Kept(NamedTuple):
    """What the forward pass keeps for the backward pass.

    Attributes:
        states: after each chunk of steps but the last, (ceil(T / CHUNK) - 1, B, S).
        y: before the gate, (T, B, E); without elements if there is no gate.
    """

    states: Tensor
    y: Tensor


class ChannelProblem(NamedTuple):
    """Channels as kernels read them: tensors are contiguous but for their `strides`.

    Attributes:
        inputs: see `Inputs`.
        episode_starts: (T, B) bool, or None.
        sizes: T, B, E, N and the width S of the state.
        kind: FIXED, SELECTIVE or SHARED.
    """

    inputs: list[Tensor | None]
    episode_starts: Tensor | None
    sizes: tuple[int, int, int, int, int]
    kind: int

    @property
    def sums(self) -> tuple[int, ...]:
        """How many numbers of the inputs are the same at every step.

        Those of a, in fixed systems b and c, skip, and in selective systems step_bias.
        """
        _, _, channels, _, width = self.sizes
        if self.kind == FIXED:
            return width, width, width, channels
        return (channels if self.kind == SHARED else width), channels, channels

    @property
    def strides(self) -> list[int]:
        """Of u, step, gate, b and c between steps of a row, of h_0 and initial between rows."""
        u, step, _, gate, _, b, c, _, h_0, initial = self.inputs
        of_steps = u, step, gate, *((None, None) if self.kind == FIXED else (b, c))
        of_rows = [0 if t is None else t.stride(0) for t in (h_0, initial)]
        return [*map(step_stride, of_steps), *of_rows]


def check(inputs: Inputs, episode_starts: Tensor | None) -> ChannelProblem:
    """The same as kernels read it.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together, or memory was freed.
    """
    u, step, step_bias, gate, a, b, c, skip, h_0, initial = inputs
    assert u is not None
    assert a is not None
    assert h_0 is not None
    if episode_starts is not None and initial is None:
        raise ValueError("episodes that start need an initial state.")
    steps, batch_size, channels = shape = u.shape
    selective, width, device = step is not None, h_0.shape[-1], u.device
    size = width // channels if selective else width // 2 // channels
    kind = FIXED if not selective else SHARED if a.numel() < width else SELECTIVE
    state = batch_size, channels * size * (1 if selective else 2)
    of_step = (steps, batch_size, size) if selective else None

    def dense(name: str, tensor: Tensor | None, shape: Sequence[int]) -> Tensor | None:
        return None if tensor is None else readable(name, tensor, shape, device=device)

    def of_steps(name: str, tensor: Tensor | None, shape: Sequence[int]) -> Tensor | None:
        return None if tensor is None else readable_steps(name, tensor, shape, device)

    def coefficients(name: str, tensor: Tensor | None) -> Tensor | None:
        return of_steps(name, tensor, of_step) if of_step else dense(name, tensor, state[1:])

    def of_rows(name: str, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else readable(name, tensor, state, device=device, rows=True)

    return ChannelProblem(
        [
            of_steps("u", u, shape),
            of_steps("step", step, shape),
            dense("step_bias", step_bias, shape[2:]),
            of_steps("gate", gate, shape),
            dense("a", a, shape[2:] if kind == SHARED else state[1:]),
            coefficients("b", b),
            coefficients("c", c),
            dense("skip", skip, shape[2:]),
            of_rows("h_0", h_0),
            of_rows("initial", initial),
        ],
        None
        if episode_starts is None
        else readable("starts", episode_starts, shape[:2], torch.bool, device),
        (steps, batch_size, channels, size, state[1]),
        kind,
    )


class ChannelGradients(NamedTuple):
    """The gradients that a backward pass reads and fills in.

    Attributes:
        outputs: input: of the outputs, (T, B, E).
        carry: input: of the last state, (B, S); output: that of h_0.
        u: output, (T, B, E).
        step, gate: output, (T, B, E); None for fixed systems.
        b, c: output, (T, B, N); None for fixed systems.
        initial: output, (B, S), zeros before; None without an initial state.
    """

    outputs: Tensor
    carry: Tensor
    u: Tensor
    step: Tensor | None
    gate: Tensor | None
    b: Tensor | None
    c: Tensor | None
    initial: Tensor | None


class ChannelKernel(Protocol):
    """Channels in float32. All tensors but those of the problem are contiguous."""

    def forward(
        self, problem: ChannelProblem, outputs: Tensor, last: Tensor, kept: Kept | None
    ) -> None:
        """Fill in the outputs (T, B, E), the last state (B, S) and what is kept, if anything."""

    def backward(self, problem: ChannelProblem, kept: Kept, d: ChannelGradients) -> Tensor:
        """Fill in the gradients.

        Returns:
            those of what is the same at every step, as in `ChannelProblem.sums` side by side,
            summed over the steps and the rows of a group, (groups, ...) in float64.
        """


def new_kept(inputs: Inputs) -> Kept:
    """For what the forward pass keeps for the backward pass."""
    u, gate, h_0 = inputs[0], inputs[3], inputs[8]
    assert u is not None
    assert h_0 is not None
    states = u.new_empty(-(-len(u) // CHUNK) - 1, *h_0.shape)
    return Kept(states, u.new_empty(u.shape if gate is not None else 0))


def forward(
    kernel: ChannelKernel, inputs: Inputs, episode_starts: Tensor | None, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    """y (T, B, E) and the last state (B, S); fills in `kept`, if given."""
    problem = check(inputs, episode_starts)
    u, h_0 = problem.inputs[0], problem.inputs[8]
    assert u is not None
    assert h_0 is not None
    outputs, last = u.new_empty(u.shape), h_0.new_empty(h_0.shape)
    kernel.forward(problem, outputs, last, kept)
    return outputs, last


def backward(
    kernel: ChannelKernel,
    inputs: Inputs,
    episode_starts: Tensor | None,
    kept: Sequence[Tensor],
    d_outputs: Tensor | None,
    d_last: Tensor | None,
) -> list[Tensor | None]:
    """The gradients of the inputs; None for zeros of one that is absent."""
    problem = check(inputs, episode_starts)
    u, step, _, gate, _, b, c, _, h_0, initial = problem.inputs
    assert u is not None
    assert h_0 is not None
    read = partial(readable, device=u.device)
    d_outputs = torch.zeros_like(u) if d_outputs is None else d_outputs
    d_carry = h_0.new_zeros(h_0.shape)
    if d_last is not None:
        d_carry.copy_(read("the gradient of the last state", d_last, h_0.shape))
    shapes = (tensor.shape for tensor in new_kept(problem.inputs))
    checked = Kept(*(read("what was kept", *pair) for pair in zip(kept, shapes, strict=True)))
    selective = step is not None

    def like(tensor: Tensor | None) -> Tensor | None:
        return tensor.new_empty(tensor.shape) if selective and tensor is not None else None

    d = ChannelGradients(
        read("the gradient of the outputs", d_outputs, u.shape),
        d_carry,
        u.new_empty(u.shape),
        *(like(step), like(gate), like(b), like(c)),
        None if initial is None else initial.new_zeros(initial.shape),
    )
    of_all = kernel.backward(problem, checked, d).sum(0).float().split(problem.sums)
    if selective:
        d_a, d_skip, d_step_bias = of_all
        return [d.u, d.step, d_step_bias, d.gate, d_a, d.b, d.c, d_skip, d.carry, d.initial]
    d_a, d_b, d_c, d_skip = of_all
    return [d.u, None, None, None, d_a, d_b, d_c, d_skip, d.carry, d.initial]


def run(
    channels: Channels,
    h_0: Tensor,
    initial: Tensor | None,
    episode_starts: Tensor | None,
    kernel: ChannelKernel,
) -> tuple[Tensor, Tensor]:
    """y (T, B, E) of the channels, and their state (B, S) after the last step.

    Args:
        channels: their systems and what they read, float32.
        h_0: the state before the first step (B, S).
        initial: the state at episode starts; None without them.
        episode_starts: (T, B) bool, or None.
        kernel: runs them.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together.
    """
    inputs = *channels, h_0, initial
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return _Channels.apply(kernel, episode_starts, *inputs)  # type: ignore[no-any-return, no-untyped-call]
    return forward(kernel, inputs, episode_starts, None)


class _Channels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: ChannelKernel, episode_starts: Tensor | None, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        kept = new_kept(inputs)
        results = forward(kernel, inputs, episode_starts, kept)
        ctx.set_materialize_grads(False)
        ctx.kernel = kernel
        # Saving the episode starts too lets autograd detect a change in place.
        ctx.save_for_backward(episode_starts, *kept, *inputs)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        result = _ChannelsBackward.apply(ctx.kernel, *ctx.saved_tensors, *gradients)  # type: ignore[no-untyped-call]
        return None, None, *result


class _ChannelsBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, kernel: ChannelKernel, *tensors: Any) -> tuple[Tensor | None, ...]:
        episode_starts, states, y, *inputs, d_outputs, d_last = tensors
        kept = states, y
        return tuple(backward(kernel, inputs, episode_starts, kept, d_outputs, d_last))

    backward = staticmethod(raise_second_derivative)
