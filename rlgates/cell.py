"""A `Cell` says what is new in a layer; `rlgates.core.Core` does all the rest."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlgates import kernels
from rlgates.gates import Gate

State = tuple[Tensor, ...]


class Cell(nn.Module, ABC):
    """One recurrent layer. Concrete cells are final: they compose, nobody inherits from them.

    A cell gives its parameters, the part that can be computed for all steps at once
    (`project`), and one step. Its state has parts, each of a shape of its own.

    Attributes:
        input_size, output_size: widths of what goes in and comes out.
        state_shapes: name and shape of each part of the state, in packing order.
        options: names of the keyword options the constructor takes; each is kept as an
            attribute of that name.
        first_layer_options: those of them that act on the lowest layer of a stack alone.
        learnable: the parts whose initial values can be learned; all by default.
        torch_layout: whether the parameters are those of a torch.nn layer, so that its
            state dict can be loaded.
    """

    input_size: int
    output_size: int
    state_shapes: dict[str, tuple[int, ...]]
    options: ClassVar[tuple[str, ...]] = ()
    first_layer_options: ClassVar[tuple[str, ...]] = ()
    learnable: ClassVar[tuple[str, ...] | None] = None
    torch_layout: bool = False

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the starting parameters from `generator` (the global one by default)."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """What the input alone decides, for all steps at once: (T, B, I) -> (T, B, P)."""

    @abstractmethod
    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from (B, P) and the parts of the state: output (B, O) and new parts."""

    def initial_state(self, batch_size: int) -> State:
        """The parts of the state at the start of an episode, (B, *shape) each: zeros here."""
        like = next(self.parameters())
        dtype = torch.promote_types(like.dtype, torch.float32)
        return tuple(
            torch.zeros(batch_size, *shape, dtype=dtype, device=like.device)
            for shape in self.state_shapes.values()
        )

    def forget_gate(self, projected: Tensor, state: State) -> Tensor | None:
        """The effective forget gates (B, d) of the step from `state`; None if there are none."""
        return None

    def recurrence(self) -> kernels.Recurrence | kernels.Loop | kernels.Scan | None:
        """What a fast path needs to stand in for the loop; None if there is none."""
        return None

    def gate_weights(self) -> dict[str, Tensor]:
        """The parameters by gate name, as views: copying into them changes the cell."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def extra_repr(self) -> str:
        """As in the call that makes it: sizes, gate, and the options that are not the default."""
        shown: list[str] = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            if name not in self.options:
                shown += [repr(value)] if isinstance(value, int | Gate) else []
            elif value != parameter.default:
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)


class LinearCell(Cell):
    """A cell that is linear in its state: h' = a * h + b, unit by unit, a and b of x alone.

    `linear` says what a and b are, and `read` what the output is: that is the whole cell. The
    state is h, or, where numbers are complex, its real and its imaginary part.
    """

    @abstractmethod
    def linear(self, x: Tensor) -> kernels.Linear:
        """a, b and what else the output reads, for all steps at once, from x (T, B, I)."""

    def read(self, h: Tensor, beside: Tensor | None) -> Tensor:
        """The output from h (..., S) and what stands beside it (..., R): h itself here."""
        return h

    def project(self, x: Tensor) -> Tensor:
        """a, b and what the output reads, side by side: (T, B, S + S + R)."""
        factor, into, beside = self.linear(x)
        parts = [factor.expand_as(into), into]
        return torch.cat(parts if beside is None else [*parts, beside], dim=-1)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        width = sum(part.shape[-1] for part in state)
        factor, into = projected[:, :width], projected[:, width : 2 * width]
        beside = projected[:, 2 * width :] if projected.shape[-1] > 2 * width else None
        if len(state) == 1:
            h = torch.addcmul(into, factor, state[0])
            return self.read(h, beside), (h,)
        (re, im), (into_re, into_im) = state, into.chunk(2, dim=-1)
        factor_re, factor_im = factor.chunk(2, dim=-1)
        h_re = into_re + factor_re * re - factor_im * im
        h_im = into_im + factor_re * im + factor_im * re
        return self.read(torch.cat([h_re, h_im], dim=-1), beside), (h_re, h_im)

    def recurrence(self) -> kernels.Scan:
        return kernels.Scan(self.linear, self.read)


def full_precision(device: str) -> AbstractContextManager[object]:
    """Autocast switched off, on types of devices that have it."""
    available = torch.amp.autocast_mode.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def widened(z: Tensor) -> Tensor:
    """`z` in float32 if autocast left it in half precision.

    Gates and states need it: the spacing of bfloat16 just below 1 is 0.0039.
    """
    return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z


def check_tensor(name: str, value: Any) -> Tensor:
    """`value` if it is one tensor, else a TypeError."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be one tensor, got {type(value).__name__}.")
    return value


def check_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """A ValueError if the tensor is not of `dtype` and autocast will not see to it."""
    if tensor.dtype == dtype:
        return
    if not (tensor.is_floating_point() and torch.is_autocast_enabled(tensor.device.type)):
        raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}.")
