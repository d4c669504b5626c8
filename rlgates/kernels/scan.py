"""Recurrences that are linear in their state, h_t = a_t h_{t-1} + b_t, for all steps at once.

A `ScanKernel` (`rlgates.kernels.cpu.scan`, `rlgates.kernels.triton.scan`) reads and writes every
number once; without one, log2(T) operations of PyTorch do the same on any device, in any dtype.
Both compute what a loop over `rlgates.cell.LinearCell.step` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlgates.kernels.memory import check, readable
from rlgates.kernels.spec import Channels, LinearScan


class ScanProblem(NamedTuple):
    """All of a scan but b; sizes as in `LinearStep`.

    Attributes:
        a: the coefficient of the state, (T, B, S) or (S,).
        h_0: the state before the first step, (B, S).
        initial: the state at the start of an episode, (B, S); None without episode starts.
        episode_starts: (T, B) bool, or None.
        is_complex: whether numbers are complex.
    """

    a: Tensor
    h_0: Tensor
    initial: Tensor | None
    episode_starts: Tensor | None
    is_complex: bool

    def shapes(self, shape: torch.Size) -> tuple[torch.Size, torch.Size]:
        """Of a, and of h_0 and initial, where b is (T, B, S)."""
        return shape if self.a.ndim > 1 else shape[2:], shape[1:]

    def readable(self, shape: torch.Size, device: torch.device) -> ScanProblem:
        """The same as kernels read it: stride 1 along the last axis, the others may be anything.

        Args:
            shape: (T, B, S).
            device: of the kernel.

        Raises:
            ValueError: shapes, dtypes or devices do not fit together, or memory was freed.
        """
        a, h_0, initial, starts, is_complex = self
        a_shape, state_shape = self.shapes(shape)
        if is_complex and shape[2] % 2:
            raise ValueError(f"complex numbers have two parts, got {shape[2]} numbers.")
        if starts is not None and initial is None:
            raise ValueError("episodes that start need an initial state.")
        read = partial(readable, device=device, rows=True)
        return ScanProblem(
            read("a", a, a_shape),
            read("h_0", h_0, state_shape),
            None if initial is None else read("initial", initial, state_shape),
            None if starts is None else readable("starts", starts, shape[:2], torch.bool, device),
            is_complex,
        )

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Strides of a between steps and batch entries, of h_0 and initial between the latter."""
        step, row = (0, 0) if self.a.ndim == 1 else self.a.stride()[:2]
        return (
            step,
            row,
            self.h_0.stride(0),
            0 if self.initial is None else self.initial.stride(0),
        )


class ScanGradients(NamedTuple):
    """The gradients that a backward pass reads and fills in; sizes as in `LinearStep`.

    Attributes:
        states: input: of the state after each step, (T, B, S); None for zeros.
        carry: input: of the last state, (B, S); output: that of h_0.
        a, b, initial: output, with the sizes in `LinearStep` and `ScanProblem`; None where
            no gradient is needed, or for `a` if it is the same at every step.
        a_sums: in that case its sums over the steps, (B, S), in float64.
    """

    states: Tensor | None
    carry: Tensor
    a: Tensor | None
    a_sums: Tensor | None
    b: Tensor | None
    initial: Tensor | None


RunChannels = Callable[
    [Channels, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]
]  # of channels, h_0, initial and episode_starts


class ScanKernel(Protocol):
    """A scan in float32. (T, B, S) tensors are contiguous, others have dense rows."""

    def forward(self, problem: ScanProblem, b: Tensor, states: Tensor) -> None:
        """Fill in the states after each step."""

    def backward(self, problem: ScanProblem, states: Tensor, d: ScanGradients) -> None:
        """Fill in the gradients."""


def run(
    layer: LinearScan,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    initial: Tensor | None,
    scan: Callable[[ScanProblem, Tensor], tuple[Tensor, Tensor]],
    run_channels: RunChannels | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a linear layer over x (T, B, I): outputs (T, B, O) and the final state (B, S).

    Args:
        layer: its coefficients and its output.
        x: its inputs (T, B, I).
        state: its state before the first step, (B, S): h, or its real and imaginary parts, after
            the window of inputs, if it has one.
        episode_starts: (T, B) bool, or None; true where an episode starts.
        initial: the state there, (B, S); None for zeros.
        scan: gives the states after each step and the last one, as `scan` below.
        run_channels: runs a layer of channels without keeping the states, if it can; as
            `rlgates.kernels.channels.run`.

    Raises:
        ValueError: a and b do not fit the state.
    """
    window, state = state[:, : layer.window], state[:, layer.window :]
    if initial is not None:
        initial = initial[:, layer.window :]
    elif episode_starts is not None:
        initial = torch.zeros_like(state)
    if run_channels is not None and layer.channels is not None:
        channels, window = layer.channels(x, window, episode_starts)
        dtype = torch.promote_types(channels.u.dtype, state.dtype)
        h_initial = None if initial is None else initial.to(dtype)
        y, final = run_channels(channels, state.to(dtype), h_initial, episode_starts)
        outputs = layer.behind(y)
    else:
        if layer.before is not None:
            x, window = layer.before(x, window, episode_starts)
        a, b, extra = layer.linear(x)
        # Under autocast some are narrower than others.
        dtype = torch.promote_types(b.dtype, state.dtype)
        h_initial = None if initial is None else initial.to(dtype)
        h_0 = state.to(dtype)
        problem = ScanProblem(a.to(dtype), h_0, h_initial, episode_starts, layer.is_complex)
        states, final = scan(problem, b.to(dtype))
        outputs = layer.read(states, extra)
        if _shares(outputs, states) and states.requires_grad:
            outputs = outputs.clone()  # the backward pass needs the states unchanged
    return outputs, final if not layer.window else torch.cat([window, final], dim=-1)


def _shares(outputs: Tensor, states: Tensor) -> bool:
    """Whether a change of the outputs in place would change the states."""
    if outputs is states or torch.compiler.is_compiling():  # compiled code changes none in place
        return outputs is states
    return outputs._base is (states if states._base is None else states._base)


def scan(
    problem: ScanProblem, b: Tensor, kernel: ScanKernel | None = None
) -> tuple[Tensor, Tensor]:
    """The states (T, B, S) after each step of h_t = a_t h_{t-1} + b_t, and the last one (B, S).

    Args:
        problem: all but b.
        b: (T, B, S).
        kernel: runs it in float32; None for operations of PyTorch, in any one dtype.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together.
    """
    if kernel is None:
        a_shape, state_shape = problem.shapes(b.shape)
        check("a", problem.a, a_shape, b.dtype, b.device)
        check("h_0", problem.h_0, state_shape, b.dtype, b.device)
        if problem.initial is not None:
            check("initial", problem.initial, state_shape, b.dtype, b.device)
        return _last_too(_torch_scan(problem, b))
    b = readable("b", b, b.shape, device=b.device)
    problem = problem.readable(b.shape, b.device)
    tensors = b, problem.a, problem.h_0, problem.initial
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _KernelScan.apply(kernel, b, *problem)  # type: ignore[no-untyped-call, no-any-return]
    return _last_too(_kernel_states(kernel, problem, b))


def _last_too(states: Tensor) -> tuple[Tensor, Tensor]:
    return states, states[-1].clone()


# ---- a kernel in autograd ----------------------------------------------------------------------


def raise_second_derivative(ctx: Any, *_: Tensor) -> None:
    """The backward pass of a backward pass in a kernel."""
    raise RuntimeError(
        "kernels are not twice differentiable: give the core backend='plain' for a second "
        "derivative."
    )


class _KernelScan(torch.autograd.Function):
    """The states after each step, and the last one, from a `ScanKernel`."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: ScanKernel,
        b: Tensor,
        a: Tensor,
        h_0: Tensor,
        initial: Tensor | None,
        episode_starts: Tensor | None,
        is_complex: bool,
    ) -> tuple[Tensor, Tensor]:
        problem = ScanProblem(a, h_0, initial, episode_starts, is_complex)
        states, final = _last_too(_kernel_states(kernel, problem, b))
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.is_complex = kernel, is_complex
        # Saving the episode starts too lets autograd detect a change in place.
        ctx.save_for_backward(a, h_0, initial, episode_starts, states)
        return states, final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _, *needs_grad, _, _ = ctx.needs_input_grad
        *problem, states = ctx.saved_tensors
        result = _KernelScanBackward.apply(  # type: ignore[no-untyped-call]
            ctx.kernel, needs_grad, ctx.is_complex, *problem, states, *gradients
        )
        return (None, *result, None, None)


class _KernelScanBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable: a second derivative raises an error."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: ScanKernel,
        needs_grad: list[bool],
        is_complex: bool,
        a: Tensor,
        h_0: Tensor,
        initial: Tensor | None,
        episode_starts: Tensor | None,
        *others: Any,
    ) -> tuple[Tensor | None, ...]:
        problem = ScanProblem(a, h_0, initial, episode_starts, is_complex)
        return backward(kernel, needs_grad, problem, *others)

    backward = staticmethod(raise_second_derivative)


def backward(
    kernel: ScanKernel,
    needs_grad: Sequence[bool],
    problem: ScanProblem,
    states: Tensor,
    d_states: Tensor | None,
    d_final: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The gradients of b, a, h_0 and initial, None where none is needed.

    Args:
        kernel: runs it.
        needs_grad: of each of the four.
        problem, states: arguments and result of `scan`.
        d_states, d_final: the gradients of its results; None for zeros.
    """
    needs_b, needs_a, needs_h_0, needs_initial = needs_grad
    constant, shape, device = problem.a.ndim == 1, states.shape, states.device
    # Hooks on saved tensors may have changed anything.
    states = readable("the states", states, shape, device=device)
    problem = problem.readable(shape, device)
    if d_states is not None:
        d_states = readable("the gradient of the states", d_states, shape, device=device)
    last = states[-1]
    d_carry = torch.zeros_like(last)
    if d_final is not None:
        d_carry.copy_(readable("the gradient of the last state", d_final, shape[1:], device=device))
    d = ScanGradients(
        d_states,
        d_carry,
        torch.empty_like(states) if needs_a and not constant else None,
        torch.zeros_like(last, dtype=torch.float64) if needs_a and constant else None,
        torch.empty_like(states) if needs_b else None,
        torch.zeros_like(last) if needs_initial else None,
    )
    kernel.backward(problem, states, d)
    d_a = d.a if d.a_sums is None else d.a_sums.sum(0).to(problem.a.dtype)
    return d.b, d_a, d.carry if needs_h_0 else None, d.initial


def _kernel_states(kernel: ScanKernel, problem: ScanProblem, b: Tensor) -> Tensor:
    states = torch.empty_like(b)
    kernel.forward(problem, b, states)
    return states


# ---- operations of PyTorch ---------------------------------------------------------------------


class _Doubling(torch.autograd.Function):
    """h_t = a_t h_{t-1} + b_t from h = 0, and h_t = b_t where an episode starts.

    Recursive doubling: after n rounds a state holds the contributions of the last 2^n inputs.
    Coefficients are only multiplied, never divided by and never in a logarithm, so they may be 0;
    a product of n of them carries at most n rounding errors. One of many above 1 may overflow where
    no state of the loop does: it is infinite then, and NaN times a state of 0. The gradient is the
    same recurrence in reversed time, and is differentiable to any order.

    a is (T, B, S), or (1, 1, S) if it is the same at every step. It may be complex.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, episode_starts: Tensor | None) -> Tensor:
        ctx.constant = a.shape[:2] != b.shape[:2]
        h, reach = b.clone(), 1
        # For the steps from `reach` on: the product of the last `reach` coefficients, and whether
        # an episode started at one of them.
        product = _widened(a) if ctx.constant else a[1:]
        cut = None if episode_starts is None else episode_starts[1:].unsqueeze(-1)
        while reach < len(h):
            older = product.to(h.dtype) * h[:-reach]
            if cut is not None:
                older.masked_fill_(cut, 0)
                cut = cut[reach:] | cut[:-reach]
            h[reach:] += older
            product = product * product if ctx.constant else product[reach:] * product[:-reach]
            reach *= 2
        ctx.save_for_backward(a, h, episode_starts)
        return h

    @staticmethod
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor | None, Tensor, None]:
        a, h, episode_starts = ctx.saved_tensors
        a_next = a if ctx.constant else _reversed_transitions(a)
        ends = None if episode_starts is None else _reversed_transitions(episode_starts)
        d_b = _Doubling.apply(a_next.conj(), d_h.flip(0), ends).flip(0)  # type: ignore[no-untyped-call]
        if not ctx.needs_input_grad[0]:
            return None, d_b, None
        d_a = d_b[1:] * h[:-1].conj()
        if episode_starts is not None:
            d_a = d_a.masked_fill(episode_starts[1:].unsqueeze(-1), 0)
        if ctx.constant:
            return d_a.sum((0, 1), keepdim=True), d_b, None
        return torch.cat([torch.zeros_like(h[:1]), d_a]), d_b, None


def _widened(a: Tensor) -> Tensor:
    """In float64, since squaring doubles the relative error; Metal has no float64."""
    return a if a.device.type == "mps" else a.to(torch.promote_types(a.dtype, torch.float64))


def _reversed_transitions(x: Tensor) -> Tensor:
    """x_0, then x_{T-1}, ..., x_1: what acts between two steps, in reversed time."""
    return x.roll(-1, 0).flip(0)


def _torch_scan(problem: ScanProblem, b: Tensor) -> Tensor:
    """The states (T, B, S) after each step."""
    a, h_0, initial, episode_starts, is_complex = problem
    if is_complex:
        a, b, h_0 = map(_complex, (a, b, h_0))
        initial = None if initial is None else _complex(initial)
    if a.ndim == 1:
        a = a.expand(1, 1, -1)
    # Where the state before a step is known, its contribution becomes part of b.
    if episode_starts is None or initial is None:
        b = torch.cat([torch.addcmul(b[:1], a[:1], h_0), b[1:]])
    else:
        starts = episode_starts.unsqueeze(-1)
        known = torch.where(starts[:1], initial, h_0), torch.where(starts[1:], initial, 0)
        b = torch.addcmul(b, a, torch.cat(known))
    h: Tensor = _Doubling.apply(a, b, episode_starts)  # type: ignore[no-untyped-call]
    return torch.cat([h.real, h.imag], dim=-1) if is_complex else h


def _complex(x: Tensor) -> Tensor:
    re, im = x.chunk(2, dim=-1)
    return torch.complex(re, im)
