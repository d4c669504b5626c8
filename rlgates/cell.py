"""The contract of one recurrent layer. `rlgates.core.Core` stacks cells and runs them over time."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rlgates import kernels
from rlgates.gates import Gate

State = tuple[Tensor, ...]

DTYPES = (torch.float32, torch.float64)  # of parameters

# Parameters of a cell's constructor that are no options of the core.
_COMMON = ("input_size", "hidden_size", "gate", "device", "dtype")


def option_names(make: Callable[..., object]) -> tuple[str, ...]:
    """The names of the options of a cell's constructor or factory, in its order."""
    return tuple(name for name in inspect.signature(make).parameters if name not in _COMMON)


class _Options:
    """The `option_names` of the constructor."""

    def __get__(self, _: object, cell: type[Cell]) -> tuple[str, ...]:
        return option_names(cell)


class Cell(nn.Module, ABC):
    """One recurrent layer. Concrete cells are final: compose them, do not subclass them.

    A cell defines its parameters, the part that can be computed for all steps at once
    (`project`), and one step. Its state is a tuple of named parts.

    Attributes:
        input_size, output_size: widths of the input and the output.
        state_shapes: name and shape of each part of the state, in packing order.
        options: names of the keyword options of the constructor, from its signature; each is
            stored as an attribute of the same name.
        first_layer_options: the options that apply only to the lowest layer of a stack.
        learnable: the parts whose initial values can be learned; all by default.
        torch_layout: whether the parameters have the names and shapes of a torch.nn layer, so
            that its state dict can be loaded.
    """

    input_size: int
    output_size: int
    state_shapes: dict[str, tuple[int, ...]]
    options: ClassVar[tuple[str, ...]] = _Options()  # type: ignore[assignment]
    first_layer_options: ClassVar[tuple[str, ...]] = ()
    learnable: ClassVar[tuple[str, ...] | None] = None
    torch_layout: bool = False

    def forward(
        self, x: Tensor, run: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """All steps, if hooks are registered: they see x (T, B, I), outputs and final state.

        `run` runs the layer; `Core` calls the cell itself only if it has hooks.
        """
        return run(x)

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Sample the initial parameters from `generator` (the global one by default)."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """The part that depends on the input alone, for all steps: (T, B, I) -> (T, B, P)."""

    @abstractmethod
    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        """One step, from (B, P) and the parts of the state to the output (B, O) and new parts."""

    def initial_state(self, batch_size: int) -> State:
        """The parts of the state at the start of an episode, each (B, *shape); zeros by default."""
        like = next(self.parameters())
        dtype = torch.promote_types(like.dtype, torch.float32)
        return tuple(
            torch.zeros(batch_size, *shape, dtype=dtype, device=like.device)
            for shape in self.state_shapes.values()
        )

    def forget_gate(self, projected: Tensor, state: State) -> Tensor | None:
        """The effective forget gates (B, d) of the step from `state`; None if the cell has none."""
        return None

    def recurrence(self) -> kernels.LayerSpec | None:
        """What a fast path needs to replace the loop, or why none can; None if there is none."""
        return None

    def gate_weights(self) -> dict[str, Tensor]:
        """The parameters by gate name, as views: copying into them changes the cell.

        Not of a weight that is computed from others, as by torch's parametrizations.
        """
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def extra_repr(self) -> str:
        """The constructor's arguments: sizes, gate, and options that differ from the default."""
        arguments: list[str] = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            if name in ("device", "dtype"):
                continue
            if name not in self.options:
                arguments += [repr(value)] if isinstance(value, int | Gate) else []
            elif value != parameter.default:
                arguments.append(f"{name}={value!r}")
        return ", ".join(arguments)


class LinearCell(Cell):
    """A cell that is linear in its state: h' = a * h + b, elementwise, a and b from x alone.

    A subclass defines `linear`, which computes a and b, and `read`, which computes the output.
    The state is h, or its real and imaginary parts if it is complex; each has one axis.
    """

    @abstractmethod
    def linear(self, x: Tensor) -> kernels.LinearStep:
        """For all steps, a, b and whatever else the output reads, from x (T, B, I)."""

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        """The output from h (..., S) and whatever else it reads (..., R); h itself by default."""
        return h

    def project(self, x: Tensor) -> Tensor:
        """a, b and whatever else the output reads, concatenated: (T, B, S + S + R)."""
        a, b, extra = self.linear(x)
        parts = [a.expand_as(b), b]
        return torch.cat(parts if extra is None else [*parts, extra], dim=-1)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        width = sum(part.shape[-1] for part in state)
        a, b = projected[:, :width], projected[:, width : 2 * width]
        extra = projected[:, 2 * width :] if projected.shape[-1] > 2 * width else None
        if len(state) == 1:
            h = torch.addcmul(b, a, state[0])
            return self.read(h, extra), (h,)
        (re, im), (b_re, b_im) = state, b.chunk(2, dim=-1)
        a_re, a_im = a.chunk(2, dim=-1)
        h_re = b_re + a_re * re - a_im * im
        h_im = b_im + a_re * im + a_im * re
        return self.read(torch.cat([h_re, h_im], dim=-1), extra), (h_re, h_im)

    def recurrence(self) -> kernels.LayerSpec:
        return kernels.LinearScan(self.linear, self.read, len(self.state_shapes) == 2)


def factory_kwargs(device: torch.device | str | None, dtype: torch.dtype | None) -> dict[str, Any]:
    """The arguments of `torch.empty` and of modules that make parameters.

    Raises:
        ValueError: a dtype other than float32 and float64.
    """
    if dtype not in (None, *DTYPES):
        raise ValueError(
            f"dtype must be torch.float32 or torch.float64, got {dtype}: gates and states lose "
            "what they remember in half precision. Use torch.autocast instead."
        )
    return {"device": device, "dtype": dtype}


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of a module runs hooks of its own."""
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
    )


def is_bare(module: nn.Module) -> bool:
    """Whether a call of a module runs its class's `forward` and nothing else."""
    own = vars(module)
    changed = module._compiled_call_impl or "forward" in own or "__call__" in own
    return not (changed or has_hooks(module))


def computes_as(kind: type[nn.Module], *modules: nn.Module) -> bool:
    """Whether calls of modules run the `forward` of this class with its defaults, and nothing else.

    Only then may native code compute with the weights of such modules instead of calling them.
    """
    if _has_any_global_hook():
        return False
    return all(
        type(module).forward is kind.forward and is_bare(module) and _has_defaults(module)
        for module in modules
    )


def _has_defaults(module: nn.Module) -> bool:
    """Whether a linear layer or layer norm has all that native code assumes."""
    if isinstance(module, nn.LayerNorm):
        if module.eps != 1e-5 or len(module.normalized_shape) != 1:
            return False
    elif not isinstance(module, nn.Linear):
        return True
    return all(getattr(module, name) is not None for name in ("weight", "bias"))


NOT_AS_BUILT = kernels.NoKernel(
    "it computes with the weights of modules that were replaced, or whose calls hooks have to see"
)
"""What `recurrence` returns where `computes_as` is false."""


def check_no_hooks(**modules: nn.Module) -> None:
    """Raise TypeError if one of these, whose calls are left out, has hooks: they would not run."""
    for name, module in modules.items():
        if has_hooks(module):
            raise TypeError(
                f"hooks on {name} would not run, since only its weights are used: register them on "
                "the core or its cells."
            )


@torch.no_grad()
def fill_buffers(cell: Cell, **values: Tensor) -> None:
    """Copy computed values into buffers of these names, on the device of the parameters.

    For buffers that no state dict holds: `to_empty` leaves no values in them, and
    `load_state_dict(assign=True)` leaves them on the meta device.
    """
    device = next(cell.parameters()).device
    for name, value in values.items():
        buffer = getattr(cell, name)
        if buffer.device != device:
            setattr(cell, name, value.to(device, buffer.dtype))
        else:
            buffer.copy_(value)


def full_precision(device: str) -> AbstractContextManager[object]:
    """A context without autocast, if the device type has autocast."""
    available = torch.amp.autocast_mode.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def widened(z: Tensor) -> Tensor:
    """`z` in float32 if autocast computed it in half precision.

    Gates and states need it: the spacing of bfloat16 just below 1 is 0.0039.
    """
    return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z


def named_rows(maps: Mapping[str, int], **stacked: Tensor) -> dict[str, Tensor]:
    """Views of the rows of stacked parameters: `<kind>_<name>` for each kind and map.

    Args:
        maps: name and number of rows of each map, in stacking order.
        stacked: the parameters by kind, such as W and b.
    """
    return {
        f"{kind}_{name}": part
        for kind, parameter in stacked.items()
        for name, part in zip(maps, parameter.detach().split([*maps.values()]), strict=True)
    }


def truncated_normal_(
    tensor: Tensor, fan_in: int, generator: torch.Generator | None = None
) -> Tensor:
    """Fill with a normal of standard deviation 1/sqrt(fan_in), truncated at twice that."""
    std = fan_in**-0.5
    return nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std, generator=generator)


def check_tensor(name: str, value: Any) -> Tensor:
    """`value`, if it is one tensor; else raise TypeError."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be one tensor, got {type(value).__name__}.")
    return value


def check_device(device: torch.device | str) -> torch.device:
    """The device of this name, which must exist here.

    Raises:
        TypeError: it is not a name. ValueError: torch has no such device, or finds no such GPU.
    """
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device must be a name such as 'cpu' or 'cuda:0', got {device!r}.")
    try:
        made = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device must be one of torch's, such as 'cpu' or 'cuda:0', got {device!r}."
        ) from error
    if made.type == "cuda" and (made.index or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(f"device is {str(made)!r}, but torch finds {count} GPUs here.")
    return made


def check_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError if the tensor has another dtype and autocast will not convert it."""
    if tensor.dtype == dtype:
        return
    converted = {tensor.dtype, dtype} <= {torch.float32, torch.bfloat16, torch.float16}
    if not (converted and torch.is_autocast_enabled(tensor.device.type)):
        raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}.")
