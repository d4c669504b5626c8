"""Channels with a linear system each on the CPU: their states are read where they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import readable, readable_steps, step_stride
from rlgates.kernels.scan import raise_second_derivative
from rlgates.kernels.spec import Channels

_ARGUMENTS = abi.integers(layout.CHANNELS_CALL, (("episode_starts", 1),), layout.CHANNELS_TENSORS)
_ADDRESSES = 1 + layout.length(layout.CHANNELS_TENSORS)
FIXED, SELECTIVE, SHARED = range(3)  # kinds of systems

# The tensors of `Channels`, then the states before the first step and at episode starts.
Inputs = Sequence[Tensor | None]


class Kept(NamedTuple):
    """States after each chunk of steps but the last, and y before the gate, if there is one."""

    states: Tensor
    y: Tensor


class Call(NamedTuple):
    """Tensors as native code reads them, and the distances between their rows."""

    inputs: list[Tensor | None]
    starts: Tensor | None
    sizes: tuple[int, ...]

    @property
    def groups(self) -> int:
        return abi.row_groups(self.sizes[1])

    @property
    def sums(self) -> tuple[int, ...]:
        """The widths in `d_sums`, as in `layout.CHANNELS_TENSORS`."""
        _, _, channels, _, width, kind = self.sizes
        if kind == FIXED:
            return width, width, width, channels
        return (channels if kind == SHARED else width), channels, channels

    def pack(self, *others: Tensor | None) -> bytes:
        """The bytes of a `ChannelArgs`, with the outputs and gradients."""
        u, step, _, gate, _, b, c, _, h_0, initial = self.inputs
        selective = self.sizes[5] != FIXED
        strides = [*map(step_stride, (u, step, gate, *((b, c) if selective else (None, None))))]
        strides += [0 if t is None else t.stride(0) for t in (h_0, initial)]
        tensors = self.starts, *self.inputs, *others
        return _ARGUMENTS.pack(
            abi.num_threads(),
            *self.sizes,
            self.groups,
            sum(self.sums),
            *strides,
            *abi.padded(map(abi.address, tensors), _ADDRESSES),
        )


def _call(inputs: Inputs, episode_starts: Tensor | None) -> Call:
    """The same as native code reads them.

    Raises:
        ValueError: shapes or dtypes do not fit together, or memory was freed.
    """
    u, step, step_bias, gate, a, b, c, skip, h_0, initial = inputs
    assert u is not None
    assert a is not None
    assert h_0 is not None
    steps, batch_size, channels = shape = u.shape
    selective, width = step is not None, h_0.shape[-1]
    size = width // channels if selective else width // 2 // channels
    kind = FIXED if not selective else SHARED if a.numel() < width else SELECTIVE
    state = batch_size, channels * size * (1 if selective else 2)
    of_step = (steps, batch_size, size) if selective else None

    def dense(name: str, tensor: Tensor | None, shape: Sequence[int]) -> Tensor | None:
        return None if tensor is None else readable(name, tensor, shape)

    def of_steps(name: str, tensor: Tensor | None, shape: Sequence[int]) -> Tensor | None:
        return None if tensor is None else readable_steps(name, tensor, shape)

    def coefficients(name: str, tensor: Tensor | None) -> Tensor | None:
        return of_steps(name, tensor, of_step) if of_step else dense(name, tensor, state[1:])

    return Call(
        [
            of_steps("u", u, shape),
            of_steps("step", step, shape),
            dense("step_bias", step_bias, shape[2:]),
            of_steps("gate", gate, shape),
            dense("a", a, shape[2:] if kind == SHARED else state[1:]),
            coefficients("b", b),
            coefficients("c", c),
            dense("skip", skip, shape[2:]),
            readable("h_0", h_0, state, rows=True),
            None if initial is None else readable("initial", initial, state, rows=True),
        ],
        None
        if episode_starts is None
        else readable("starts", episode_starts, shape[:2], torch.bool),
        (steps, batch_size, channels, size, state[1], kind),
    )


def new_kept(u: Tensor, h_0: Tensor, gate: Tensor | None) -> Kept:
    """For what the forward pass keeps for the backward pass."""
    states = u.new_empty(-(-len(u) // layout.CHUNK) - 1, *h_0.shape)
    return Kept(states, u.new_empty(u.shape if gate is not None else 0))


def forward(
    inputs: Inputs, episode_starts: Tensor | None, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    """y (T, B, E) and the last state (B, S); fills in `kept`, if given."""
    call = _call(inputs, episode_starts)
    u, h_0 = call.inputs[0], call.inputs[8]
    assert u is not None
    assert h_0 is not None
    outputs, last = u.new_empty(u.shape), h_0.new_empty(h_0.shape)
    abi._native.channels_forward(call.pack(outputs, last, *(kept or ())))
    return outputs, last


def backward(
    inputs: Inputs,
    episode_starts: Tensor | None,
    kept: Kept,
    d_outputs: Tensor | None,
    d_last: Tensor | None,
) -> list[Tensor | None]:
    """The gradients of the inputs; None for zeros of one that is absent."""
    call = _call(inputs, episode_starts)
    u, step, _, gate, _, b, c, _, h_0, initial = call.inputs
    assert u is not None
    assert h_0 is not None
    d_outputs = torch.zeros_like(u) if d_outputs is None else d_outputs
    d_outputs = readable("the gradient of the outputs", d_outputs, u.shape)
    d_carry = h_0.new_zeros(h_0.shape)
    if d_last is not None:
        d_carry.copy_(readable("the gradient of the last state", d_last, h_0.shape))
    shapes = (tensor.shape for tensor in new_kept(u, h_0, gate))
    kept = Kept(*(readable("what was kept", *pair) for pair in zip(kept, shapes, strict=True)))
    selective = step is not None
    d_u, d_step, d_gate = (None if t is None else t.new_empty(t.shape) for t in (u, step, gate))
    of_steps = (t if selective else None for t in (b, c))
    d_b, d_c = (None if t is None else t.new_empty(t.shape) for t in of_steps)
    d_initial = None if initial is None else initial.new_zeros(initial.shape)
    sums = torch.zeros(call.groups, sum(call.sums), dtype=torch.float64)
    results = d_outputs, d_carry, d_u, d_step, d_gate, d_b, d_c, d_initial, sums
    abi._native.channels_backward(call.pack(None, None, *kept, *results))
    of_all = sums.sum(0).float().split(call.sums)
    if selective:
        d_a, d_skip, d_step_bias = of_all
        return [d_u, d_step, d_step_bias, d_gate, d_a, d_b, d_c, d_skip, d_carry, d_initial]
    d_a, d_b, d_c, d_skip = of_all
    return [d_u, None, None, None, d_a, d_b, d_c, d_skip, d_carry, d_initial]


def run(
    channels: Channels, h_0: Tensor, initial: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """y (T, B, E) of the channels, and their state (B, S) after the last step.

    Args:
        channels: their systems and what they read, float32 on the CPU.
        h_0: the state before the first step (B, S).
        initial: the state at episode starts; None without them.
        episode_starts: (T, B) bool, or None.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    inputs = *channels, h_0, initial
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return _Channels.apply(episode_starts, *inputs)  # type: ignore[no-any-return, no-untyped-call]
    return forward(inputs, episode_starts, None)


class _Channels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, episode_starts: Tensor | None, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        u, h_0 = inputs[0], inputs[8]
        assert u is not None
        assert h_0 is not None
        kept = new_kept(u, h_0, inputs[3])
        results = forward(inputs, episode_starts, kept)
        ctx.set_materialize_grads(False)
        # Saving the episode starts too lets autograd detect a change in place.
        ctx.save_for_backward(episode_starts, *kept, *inputs)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *_ChannelsBackward.apply(*ctx.saved_tensors, *gradients)  # type: ignore[no-untyped-call]


class _ChannelsBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> tuple[Tensor | None, ...]:
        episode_starts, states, y, *inputs, d_outputs, d_last = tensors
        return tuple(backward(inputs, episode_starts, Kept(states, y), d_outputs, d_last))

    backward = staticmethod(raise_second_derivative)
