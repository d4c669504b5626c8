"""Memories of keys and values on the CPU, step by step, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import readable, readable_steps, step_stride
from rlgates.kernels.scan import raise_second_derivative
from rlgates.kernels.spec import MemorySteps

_ARGUMENTS = abi.integers(layout.MEMORIES_CALL, (("episode_starts", 1),), layout.MEMORIES_TENSORS)
_ADDRESSES = 1 + layout.length(layout.MEMORIES_TENSORS)

# Those of `MemorySteps`, then the memories before the first step and at episode starts.
_Inputs = Sequence[Tensor | None]


def run(
    steps: MemorySteps, memory: Tensor, initial: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.spec.RunMemories`.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together.
    """
    inputs = *steps, memory, initial
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return _Memories.apply(episode_starts, *inputs)  # type: ignore[no-any-return, no-untyped-call]
    return _forward(_Problem(episode_starts, inputs), None)


class _Problem:
    """Tensors as native code reads them: those of steps (T, B, width), of memories (B, width)."""

    def __init__(self, episode_starts: Tensor | None, inputs: _Inputs) -> None:
        q, k, v, decay, removal, rate, memory, initial = inputs
        assert q is not None
        assert v is not None
        assert memory is not None
        (steps, batch_size, heads, keys), values = q.shape, v.shape[-1]
        rows = steps, batch_size
        of_keys = *rows, heads * keys
        self.sizes = *rows, heads, keys, values, heads * keys * values
        self.shape = *rows, heads, values  # of y
        self.decays_alike = decay is not None and decay.ndim == 3
        of_decay = (*rows, heads) if self.decays_alike else of_keys
        shapes = of_keys, of_keys, (*rows, heads * values), of_decay, of_keys, of_keys
        self.of_steps = [
            None if t is None else readable_steps(name, t if t.ndim == 3 else t.flatten(2), shape)
            for name, t, shape in zip(
                MemorySteps._fields, (q, k, v, decay, removal, rate), shapes, strict=True
            )
        ]
        state = batch_size, self.sizes[-1]
        self.memory = readable("the memory", memory.flatten(1), state, rows=True)
        self.initial = None
        if initial is not None:
            self.initial = readable("the initial memory", initial.flatten(1), state, rows=True)
        self.starts = None
        if episode_starts is not None:
            self.starts = readable("starts", episode_starts, rows, torch.bool)

    def pack(self, *others: Tensor | None) -> bytes:
        """The bytes of a `MemoryArgs`, with the outputs and gradients."""
        strides = (0 if t is None else t.stride(0) for t in (self.memory, self.initial))
        tensors = self.starts, *self.of_steps, self.memory, self.initial, *others
        return _ARGUMENTS.pack(
            *(abi.num_threads(), *self.sizes, self.decays_alike),
            *(*map(step_stride, self.of_steps), *strides),
            *abi.padded(map(abi.address, tensors), _ADDRESSES),
        )

    def new_kept(self) -> Tensor:
        steps, batch_size, *_, width = self.sizes
        return self.memory.new_empty(-(-steps // layout.CHUNK) - 1, batch_size, width)


def _forward(problem: _Problem, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    _, batch_size, heads, keys, values, _ = problem.sizes
    y = problem.memory.new_empty(problem.shape)
    last = problem.memory.new_empty(batch_size, heads, values, keys)
    abi._native.memories_forward(problem.pack(y, last, kept))
    return y, last


class _Memories(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, episode_starts: Tensor | None, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        problem = _Problem(episode_starts, inputs)
        kept = problem.new_kept()
        results = _forward(problem, kept)
        ctx.set_materialize_grads(False)
        # Saving the episode starts too lets autograd detect a change in place.
        ctx.save_for_backward(episode_starts, kept, *inputs)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        result = _MemoriesBackward.apply(*ctx.saved_tensors, *gradients)  # type: ignore[no-untyped-call]
        return None, *result


class _MemoriesBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable."""

    @staticmethod
    def forward(
        ctx: Any, episode_starts: Tensor | None, kept: Tensor, *others: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *inputs, d_y, d_last = others
        problem = _Problem(episode_starts, inputs)
        memory, initial = inputs[-2:]
        assert memory is not None
        d_carry = torch.zeros(memory.shape)
        if d_last is not None:
            d_carry.copy_(readable("the gradient of the last memory", d_last, memory.shape))
        d_y = torch.zeros(problem.shape) if d_y is None else d_y
        d_y = readable("the gradient of y", d_y, problem.shape)
        kept = readable("what was kept", kept, problem.new_kept().shape)
        d_steps = [None if t is None else torch.empty(t.shape) for t in inputs[:-2]]
        d_initial = None if initial is None else torch.zeros(initial.shape)
        packed = problem.pack(None, None, kept, d_y, *d_steps, d_carry, d_initial)
        abi._native.memories_backward(packed)
        return *d_steps, d_carry, d_initial

    backward = staticmethod(raise_second_derivative)
