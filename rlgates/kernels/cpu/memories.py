"""Memories of keys and values on the CPU, in float32.

Their tensors are checked, and native code is called and made differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.kernels import layout, memory
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import readable
from rlgates.kernels.scan import raise_second_derivative
from rlgates.kernels.spec import MemorySteps

_ARGUMENTS = abi.integers(layout.MEMORIES_CALL, (("episode_starts", 1),), layout.MEMORIES_TENSORS)
_ADDRESSES = 1 + layout.length(layout.MEMORIES_TENSORS)

# The tensors of `MemorySteps`, then the memories before the first step and at episode starts.
Inputs = Sequence[Tensor | None]


class MemoryProblem(NamedTuple):
    """Memories as native code reads them.

    Attributes:
        inputs: see `Inputs`; contiguous, but for the distance between the memories of two rows.
        episode_starts: (T, B) bool, or None.
        sizes: T, B, heads, key_size and value_size.
    """

    inputs: list[Tensor | None]
    episode_starts: Tensor | None
    sizes: tuple[int, int, int, int, int]

    def pack(self, *others: Tensor | None) -> bytes:
        """The bytes of a `MemoryArgs`, with the outputs and gradients."""
        decay, strides = self.inputs[3], (0 if t is None else t.stride(0) for t in self.inputs[6:])
        _, _, heads, key_size, value_size = self.sizes
        tensors = self.episode_starts, *self.inputs, *others
        return _ARGUMENTS.pack(
            *(abi.num_threads(), *self.sizes, heads * value_size * key_size),
            *(decay is not None and decay.ndim == 3, *strides),
            *abi.padded(map(abi.address, tensors), _ADDRESSES),
        )


def check(inputs: Inputs, episode_starts: Tensor | None) -> MemoryProblem:
    """The same as native code reads it.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together, or memory was freed.
    """
    q, _, v, decay, removal, rate, before, initial = inputs
    assert q is not None
    assert v is not None
    if q.ndim != 4:
        raise ValueError(f"q must be (T, B, heads, key_size), got {tuple(q.shape)}.")
    if (removal is None) != (rate is None):
        raise ValueError("removal and rate must be given together.")
    steps, batch_size, heads, key_size = q.shape
    value_size = v.shape[-1]
    of_values = *q.shape[:3], value_size
    of_decay = q.shape[:3] if decay is not None and decay.ndim == 3 else q.shape
    shapes = q.shape, q.shape, of_values, of_decay, q.shape, q.shape
    state = batch_size, heads, value_size, key_size
    width = heads * value_size * key_size

    def rows(name: str, tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        memory.check(name, tensor, state, torch.float32, memory.CPU)
        return readable(name, tensor.flatten(1), (batch_size, width), rows=True)

    return MemoryProblem(
        [
            *(
                None if tensor is None else readable(name, tensor, shape)
                for name, tensor, shape in zip(MemorySteps._fields, inputs, shapes, strict=False)
            ),
            rows("the memory", before),
            rows("the initial memory", initial),
        ],
        None
        if episode_starts is None
        else readable("episode_starts", episode_starts, q.shape[:2], torch.bool),
        (steps, batch_size, heads, key_size, value_size),
    )


def new_kept(inputs: Inputs) -> tuple[Tensor]:
    """For the memories that the forward pass keeps for the backward pass."""
    q, before = inputs[0], inputs[6]
    assert q is not None
    assert before is not None
    return (q.new_empty(-(-len(q) // layout.CHUNK) - 1, *before.shape),)


def forward(
    inputs: Inputs, episode_starts: Tensor | None, kept: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """y and the memories after the last step; fills in `kept`, if given."""
    problem = check(inputs, episode_starts)
    v, before = inputs[2], inputs[6]
    assert v is not None
    assert before is not None
    y, last = v.new_empty(v.shape), before.new_empty(before.shape)
    abi._native.memories_forward(problem.pack(y, last, *(kept or ())))
    return y, last


def backward(
    inputs: Inputs,
    episode_starts: Tensor | None,
    kept: Sequence[Tensor],
    d_y: Tensor | None,
    d_last: Tensor | None,
) -> list[Tensor | None]:
    """The gradients of the inputs; None of one that is absent."""
    problem = check(inputs, episode_starts)
    v, before, initial = inputs[2], inputs[6], inputs[7]
    assert v is not None
    assert before is not None
    d_y = readable("the gradient of y", v.new_zeros(v.shape) if d_y is None else d_y, v.shape)
    d_carry = before.new_zeros(before.shape)
    if d_last is not None:
        d_carry.copy_(readable("the gradient of the last memory", d_last, before.shape))
    states = readable("what was kept", kept[0], new_kept(inputs)[0].shape)
    d_steps = [None if tensor is None else tensor.new_empty(tensor.shape) for tensor in inputs[:6]]
    d_initial = None if initial is None else initial.new_zeros(initial.shape)
    packed = problem.pack(None, None, states, d_y, *d_steps, d_carry, d_initial)
    abi._native.memories_backward(packed)
    return [*d_steps, d_carry, d_initial]


def run(
    steps: MemorySteps, before: Tensor, initial: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.spec.RunMemories`.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together.
    """
    inputs = *steps, before, initial
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return _Memories.apply(episode_starts, *inputs)  # type: ignore[no-any-return, no-untyped-call]
    return forward(inputs, episode_starts, None)


class _Memories(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, episode_starts: Tensor | None, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        kept = new_kept(inputs)
        results = forward(inputs, episode_starts, kept)
        ctx.set_materialize_grads(False)
        # Saving the episode starts too lets autograd detect a change in place.
        ctx.save_for_backward(episode_starts, *kept, *inputs)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        result = _MemoriesBackward.apply(*ctx.saved_tensors, *gradients)  # type: ignore[no-untyped-call]
        return None, *result


class _MemoriesBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> tuple[Tensor | None, ...]:
        episode_starts, kept, *inputs, d_y, d_last = tensors
        return tuple(backward(inputs, episode_starts, [kept], d_y, d_last))

    backward = staticmethod(raise_second_derivative)
