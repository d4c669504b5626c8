"""The Core contract: cells stacked, run over time, their state in one tensor.

`Core` runs the loop over time, resets the state where an episode starts, packs the state into
one tensor, and traces the gates.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rlgates import kernels
from rlgates.cell import (
    DTYPES,
    Cell,
    LinearCell,
    State,
    check_dtype,
    check_tensor,
    has_hooks,
    is_bare,
    widened,
)
from rlgates.deprecation import renamed, warn_renamed
from rlgates.errors import MAX_LENGTH, check_choice, check_flag, check_size
from rlgates.gates import Decay, timescale

__all__ = ["Cell", "Core", "GateTrace", "State", "run_together"]

LARGE = 4096  # numbers of a state, from which on zeros are not copied

BackendName = Literal["auto", "plain", "native", "scan", "triton"]

__getattr__ = renamed(__name__, {"Observation": "rlgates.core.GateTrace"})


class GateTrace(NamedTuple):
    """What `Core.trace_gates` returns.

    Attributes:
        outputs: (T, B, output_size).
        state: (B, state_size).
        forget: the effective forget gates (T, B, d) of each gated layer.
    """

    outputs: Tensor
    state: Tensor
    forget: list[Tensor]

    def timescales(self, decay: Decay = "linear") -> list[Tensor]:
        """The timescales of the gates in steps, see `rlgates.timescale`."""
        return [timescale(forget, decay) for forget in self.forget]


_OF_A_CELL = ("input_size", "output_size", "state_shapes")  # what its constructor sets


class Core(nn.Module):
    """A stack of cells run over time, with episode starts inside the sequence.

    The whole recurrent state is one tensor (B, state_size), float32 or wider, layer by layer
    and part by part. `rlgates.make_core` builds one by name.

    Args:
        cells: the layers, from the input up; each reads the output of the one below.
        name: the name under which `make_core` knows the core.
        backend: what runs the core. "plain" is the loop over time in PyTorch. "native" is C++ for
            float32 on the CPU, for most cores. "triton" runs the gated LSTMs, GRUs and JANETs and
            the cores that are linear in an elementwise state (minGRU, LRU, S4D, Mamba and others)
            in float32 on a GPU. "scan" runs the linear cores in log2(T) PyTorch operations, those
            that look back a bounded number of steps in a few operations, and memories of keys and
            values in blocks of steps, for any dtype and device. "auto" tries native, triton and
            scan (for Mamba-2 triton last), takes the first that supports the call and pays off, and
            otherwise runs the loop.
        skip_connections: every layer above the first also reads the input, and the output is
            the outputs of all layers, concatenated (otherwise that of the last layer).
        learned_state: the initial state is a parameter, which starts at the cells' own initial
            state. Parts that only make sense at certain values stay fixed (`Cell.learnable`); a
            warning says so if these are all.
            Loading the state dict of a torch.nn layer, which has no learned state, resets it.
        debug: check that inputs, states and outputs are finite. This synchronizes with a GPU.

    Attributes:
        backend, debug: may be changed at any time.
        learned: the learned parts of the initial state; None if there are none.
        backend_used: the backend of the last call: "plain" if the loop ran all layers,
            otherwise the fast path that ran some of them.
    """

    cells: nn.ModuleList
    learned: nn.ParameterDict | None
    backend_used: str | None = None
    _backend: BackendName

    def __init__(
        self,
        cells: Sequence[Cell],
        name: str = "custom",
        backend: BackendName = "auto",
        *,
        skip_connections: bool = False,
        learned_state: bool = False,
        debug: bool = False,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.skip_connections = check_flag("skip_connections", skip_connections)
        self.debug = check_flag("debug", debug)
        check_size("num_layers", len(cells))
        for cell in cells:
            if missing := [name for name in _OF_A_CELL if not hasattr(cell, name)]:
                raise TypeError(
                    f"the constructor of {type(cell).__name__} must set {', '.join(missing)}."
                )
            _check_cell(cell)
        width = cells[0].input_size
        for layer, cell in enumerate(cells):
            if cell.input_size != width:
                raise ValueError(
                    f"layer {layer} must have input_size {width}, the width of what it reads, "
                    f"got {cell.input_size}."
                )
            width = cell.output_size + (cells[0].input_size if skip_connections else 0)
        self.cells = nn.ModuleList(cells)
        self.name = name
        self.input_size = cells[0].input_size
        self.output_size = (
            sum(cell.output_size for cell in cells) if skip_connections else cells[-1].output_size
        )
        self.num_layers = len(cells)
        self._shapes = [list(cell.state_shapes.values()) for cell in cells]
        self._widths = [[math.prod(shape) for shape in shapes] for shapes in self._shapes]
        self._layer_widths = [sum(widths) for widths in self._widths]
        self.state_size = sum(self._layer_widths)
        self.backend_used = None  # torch 2.8 exports no module whose call adds an attribute
        self.learned = None
        if check_flag("learned_state", learned_state):
            if parts := self._learnable_parts():
                self.learned = nn.ParameterDict(parts.items())
            else:
                warnings.warn(
                    f"learned_state does nothing: core {name!r} has no state, or one that can only "
                    "begin as it does.",
                    stacklevel=2,
                )
        self.register_load_state_dict_pre_hook(_rename_torch_keys)  # type: ignore[no-untyped-call]

    def _learnable_parts(self) -> dict[str, Tensor]:
        """Copies of the cells' initial values that can be learned, `<part>_<layer>`."""
        return {
            f"{name}_{layer}": part[0].detach().clone()
            for layer, cell in enumerate(self._layers())
            for name, part in zip(cell.state_shapes, cell.initial_state(1), strict=True)
            if cell.learnable is None or name in cell.learnable
        }

    @property
    def backend(self) -> BackendName:
        return self._backend

    @backend.setter
    def backend(self, backend: BackendName) -> None:
        self._backend = check_choice("backend", backend, kernels.BACKENDS)

    def _layers(self) -> list[Cell]:
        # Without the checks of `self.cells`, which take as long as a small step.
        return list(self._modules["cells"]._modules.values())  # type: ignore[union-attr, arg-type]

    def initial_state(self, batch_size: int) -> Tensor:
        """The state (B, state_size) at the start of an episode."""
        check_size("batch_size", batch_size, minimum=0, maximum=MAX_LENGTH)
        layers = [self._initial(layer, batch_size) for layer in range(self.num_layers)]
        return torch.cat(layers, dim=-1)

    def _begins_at_zero(self, layer: int) -> bool:
        return (
            type(self._layers()[layer]).initial_state is Cell.initial_state and self.learned is None
        )

    def _fresh(self, batch_size: int) -> list[Tensor]:
        """`initial_state` of each layer, to be read only: large rows of zeros are one in memory."""
        return [
            self._initial(layer, 1).expand(batch_size, -1)
            if self._begins_at_zero(layer) and width > LARGE
            else self._initial(layer, batch_size)
            for layer, width in enumerate(self._layer_widths)
        ]

    def _initial(self, layer: int, batch_size: int) -> Tensor:
        """One layer's state (B, S) at the start of an episode."""
        cell = self._layers()[layer]
        parts = cell.initial_state(batch_size)
        if self.learned is not None:
            keys = [f"{name}_{layer}" for name in cell.state_shapes]
            parts = tuple(
                self.learned[key].expand_as(part) if key in self.learned else part
                for key, part in zip(keys, parts, strict=True)
            )
        return self._pack(parts, batch_size)

    def _pack(self, parts: Sequence[Tensor], batch_size: int) -> Tensor:
        if not parts:  # a core without memory
            return next(self.parameters()).new_zeros(batch_size, 0)
        return torch.cat([part.flatten(1) for part in parts], dim=-1)

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        episode_starts: Tensor | None = None,
        *,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run over a sequence, time first.

        One call over T steps equals T calls over one step each.

        Args:
            x: inputs (T, B, input_size), T >= 1.
            state: (B, state_size); the initial state if None.
            episode_starts: (T, B) bool, true where an episode starts: the state that enters
                this step is the initial state.
            starts: deprecated name of `episode_starts`.

        Returns:
            outputs (T, B, output_size) and the state (B, state_size) after the last step.

        Raises:
            ValueError: a shape or dtype that does not fit, with what is expected.
            TypeError: an argument that is not a tensor, such as a pair of states, or
                `episode_starts` by both names.
        """
        if starts is not None:
            if episode_starts is not None:
                raise TypeError("give episode_starts or starts, its deprecated name, got both.")
            warn_renamed("starts", "episode_starts")
            episode_starts = starts
        outputs, final, _ = self._run(x, state, episode_starts, trace=False)
        return outputs, final

    @torch.no_grad()
    def trace_gates(
        self, x: Tensor, state: Tensor | None = None, episode_starts: Tensor | None = None
    ) -> GateTrace:
        """Run as `forward` does, without gradients, and also return the effective forget gates.

        In training mode dropout and zoneout apply here too: call `eval()` to turn them off.
        """
        return self._run(x, state, episode_starts, trace=True)

    def observe(
        self, x: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> GateTrace:
        """Deprecated name of `trace_gates`."""
        warn_renamed("Core.observe", "Core.trace_gates")
        return self.trace_gates(x, state, starts)

    def _run(
        self, x: Tensor, state: Tensor | None, episode_starts: Tensor | None, *, trace: bool
    ) -> GateTrace:
        self._check(x, state, episode_starts)
        forget: list[Tensor] = []
        outputs: list[Tensor] = []
        finals: list[Tensor] = []
        used, below = "plain", x

        def run(layer: int, before: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal used
            request = self._request(layer, below, before, episode_starts)
            result = None if trace else kernels.run(request)
            if result is None:
                above, final, gates = self._loop(layer, below, before, episode_starts, trace)
                forget.extend(gates)
            else:
                above, final, used = result
            return above, final

        befores = self._fresh(x.shape[1]) if state is None else self._split(widened(state))
        for layer, (cell, before) in enumerate(zip(self._layers(), befores, strict=True)):
            if layer and self.skip_connections:
                below = torch.cat([x, below], dim=-1)
            if has_hooks(cell):
                below, final = cell(below, run=partial(run, layer, before))
            else:
                below, final = run(layer, before, below)
            outputs.append(below)
            finals.append(final)
        together = torch.cat(outputs, dim=-1) if self.skip_connections else below
        final = finals[0] if len(finals) == 1 else torch.cat(finals, dim=-1)
        return GateTrace(*self._finish(together, final, used), forget)

    def _request(
        self, layer: int, x: Tensor, state: Tensor, episode_starts: Tensor | None
    ) -> kernels.LayerRequest:
        cell = self._layers()[layer]

        def initial() -> Tensor | None:
            return None if self._begins_at_zero(layer) else self._initial(layer, x.shape[1])

        return kernels.LayerRequest(
            cell, x, state, episode_starts, initial, self._backend, self.name
        )

    def _is_plain_layer(self) -> bool:
        """Whether a call runs one layer and nothing else: no hook, no compiled code, no check."""
        if _has_any_global_hook() or has_hooks(self._layers()[0]):
            return False
        is_own = type(self).forward is Core.forward and is_bare(self)
        return is_own and self.num_layers == 1 and not self.debug

    def _finish(self, outputs: Tensor, final: Tensor, used: str) -> tuple[Tensor, Tensor]:
        """The results of a call, noted and, for debugging, checked."""
        # Setting an attribute of a module is slow; torch.compile would guard on one that is read.
        if torch.compiler.is_compiling() or used != self.backend_used:
            self.backend_used = used
        if self.debug:
            _check_finite(outputs=outputs, state=final)
        return outputs, final

    def explain_backend(
        self, x: Tensor, episode_starts: Tensor | None = None
    ) -> list[kernels.Explanation]:
        """Which backend would run each layer, and why the others would not.

        Nothing is computed: only shapes, dtypes and devices count.

        Args:
            x, episode_starts: as in `forward`.

        Returns:
            an `Explanation` for each layer, to be printed.
        """
        self._check(x, None, episode_starts)
        steps, batch_size = x.shape[:2]
        explanations = []
        for layer, (cell, state) in enumerate(
            zip(self._layers(), self._split(self.initial_state(batch_size)), strict=True)
        ):
            below = widened(x).new_zeros(steps, batch_size, cell.input_size) if layer else x
            request = self._request(layer, below, state, episode_starts)
            explanations.append(kernels.explain(request))
        return explanations

    def _split(self, state: Tensor) -> Sequence[Tensor]:
        """The state (B, S) of each layer, as views of that of all."""
        return state.split(self._layer_widths, dim=-1) if self.num_layers > 1 else (state,)

    def _parts(self, layer: int, state: Tensor) -> State:
        """The parts of one layer's state (B, S), as views."""
        shapes, widths = self._shapes[layer], self._widths[layer]
        parts = state.split(widths, dim=-1) if widths else ()
        return tuple(
            part.unflatten(-1, shape) if len(shape) > 1 else part
            for part, shape in zip(parts, shapes, strict=True)
        )

    def _loop(
        self, layer: int, x: Tensor, state: Tensor, episode_starts: Tensor | None, trace: bool
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """One layer in plain PyTorch: outputs, final state, and the forget gates if traced."""
        cell, batch_size = self._layers()[layer], x.shape[1]
        parts = self._parts(layer, state)
        initial: State = ()
        masks: list[Tensor | None] = [None] * len(x)
        if episode_starts is not None:
            masks = _reset_masks(episode_starts)
            initial = self._parts(layer, self._initial(layer, batch_size))
        outputs: list[Tensor] = []
        forget: list[Tensor] = []
        inputs = cell.project(x)
        if len(inputs) != len(x):
            raise ValueError(
                f"{type(cell).__name__}.project must return {len(x)} steps as x has, "
                f"got {len(inputs)}."
            )
        for mask, projected in zip(masks, inputs.unbind(0), strict=True):
            if mask is not None:
                parts = tuple(_reset(mask, i, p) for i, p in zip(initial, parts, strict=True))
            gate = cell.forget_gate(projected, parts) if trace else None
            if gate is not None:
                forget.append(gate)
            output, parts = cell.step(projected, parts)
            if not outputs and not torch.compiler.is_compiling():
                _check_step(cell, output, parts, batch_size)
            outputs.append(output)
        final = self._pack(parts, batch_size)
        together = torch.stack(outputs) if len(outputs) > 1 else outputs[0].unsqueeze(0)
        return together, final, [torch.stack(forget)] if forget else []

    def unpack(self, state: Tensor) -> dict[str, Tensor]:
        """The named parts of a state (B, state_size), each (num_layers, B, *shape).

        Raises:
            ValueError: a state of another size, or layers whose states have different parts.
            TypeError: `state` is not a tensor.
        """
        check_tensor("state", state)
        self._check_state(state, state.shape[0] if state.ndim else 0)
        names, *others = (cell.state_shapes for cell in self._layers())
        if any(other != names for other in others):
            raise ValueError("the layers differ in the parts of their states: split it by hand.")
        layers = [self._parts(layer, part) for layer, part in enumerate(self._split(state))]
        return dict(zip(names, map(torch.stack, zip(*layers, strict=True)), strict=True))

    def pack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The state (B, state_size) of named parts, each (num_layers, B, *shape), as in `unpack`.

        Raises:
            ValueError: other names or shapes, or layers whose states have different parts.
            TypeError: a part that is not a tensor, or not named.
        """
        if not isinstance(parts, Mapping):
            raise TypeError(f"the parts must be tensors by name, got {type(parts).__name__}.")
        names, *others = (cell.state_shapes for cell in self._layers())
        if any(other != names for other in others):
            raise ValueError("the layers differ in the parts of their states: join it by hand.")
        if set(parts) != set(names):
            raise ValueError(f"the parts must be {', '.join(names)}, got {', '.join(parts)}.")
        for name, part in parts.items():
            check_tensor(name, part)
        batch_size = next((part.shape[1] for part in parts.values() if part.ndim > 1), 0)
        for name, shape in names.items():
            if parts[name].shape != (self.num_layers, batch_size, *shape):
                raise ValueError(
                    f"{name} must be (num_layers, B, *shape) = "
                    f"{(self.num_layers, batch_size, *shape)}, got {tuple(parts[name].shape)}."
                )
        layers = zip(*(parts[name].unbind(0) for name in names), strict=True)
        return self._pack([part for layer in layers for part in layer], batch_size)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Sample the initial parameters of all layers again, and reset a learned state."""
        for cell in self._layers():
            cell.reset_parameters(generator)
        if self.learned is not None:
            with torch.no_grad():
                for name, value in self._learnable_parts().items():
                    self.learned[name].copy_(value)

    def gate_weights(self, layer: int = 0) -> dict[str, Tensor]:
        """The weights of one layer by gate name, as views: copying into them changes it.

        Raises:
            ValueError: a layer that does not exist.
        """
        if not 0 <= check_size("layer", layer, -1) < self.num_layers:
            raise ValueError(f"layer must be 0 to {self.num_layers - 1}, got {layer}.")
        return self._layers()[layer].gate_weights()

    def gate_gradients(self, layer: int = 0) -> dict[str, Tensor | None]:
        """The gradients of `gate_weights`, by the same names; None where there is none.

        Raises:
            ValueError: a layer that does not exist; weights that are computed from others, as by
                torch's parametrizations.
        """
        weights = self.gate_weights(layer)
        parameters = [*self._layers()[layer].parameters()]
        return {name: _same_view(view, _owner(view, parameters)) for name, view in weights.items()}

    def _check(self, x: Tensor, state: Tensor | None, episode_starts: Tensor | None) -> None:
        check_tensor("x", x)
        if x.ndim != 3 or x.shape[0] < 1 or x.shape[2] != self.input_size:
            raise ValueError(
                f"x must be (T, B, {self.input_size}) with T >= 1, got {tuple(x.shape)}."
            )
        dtype = self._dtype()
        if dtype not in DTYPES:
            raise ValueError(
                f"the parameters must be float32 or float64, got {dtype}: gates and states lose "
                "what they remember in half precision. Use torch.autocast instead."
            )
        check_dtype("x", x, dtype)
        if state is not None:
            self._check_state(check_tensor("state", state), x.shape[1])
            check_dtype("state", state, dtype)
        if episode_starts is not None:
            if check_tensor("episode_starts", episode_starts).shape != x.shape[:2]:
                raise ValueError(
                    f"episode_starts must be (T, B) = {tuple(x.shape[:2])}, "
                    f"got {tuple(episode_starts.shape)}."
                )
            if episode_starts.dtype != torch.bool:
                raise ValueError(f"episode_starts must be bool, got {episode_starts.dtype}.")
        if self.debug:
            # A state that is never read may hold anything.
            unread = episode_starts is not None and bool(episode_starts[0].all())
            _check_finite(x=x, state=None if unread else state)

    def _dtype(self) -> torch.dtype:
        # `parameters()` first looks at every module, which takes as long as a small step.
        for parameter in self._layers()[0]._parameters.values():
            if parameter is not None:
                return parameter.dtype
        return next(self.parameters()).dtype

    def _check_state(self, state: Tensor, batch_size: int) -> None:
        if state.shape != (batch_size, self.state_size):
            raise ValueError(
                f"state must be (B, {self.state_size}) with B = {batch_size}, "
                f"got {tuple(state.shape)}."
            )

    def extra_repr(self) -> str:
        return (
            f"{self.name!r}, input_size={self.input_size}, output_size={self.output_size}, "
            f"num_layers={self.num_layers}, state_size={self.state_size}"
        )


def run_together(
    cores: Sequence[tuple[Core, Tensor, Tensor]], episode_starts: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Run independent cores over the same steps, in two threads where this is faster.

    Args:
        cores: one or two cores, such as those of actor and critic, with their inputs
            (T, B, input_size) and states (B, state_size).
        episode_starts: (T, B) bool, true where an episode starts.

    Returns:
        outputs and final state of each, as `core(x, state, episode_starts)` gives them.
    """
    requests = layer_requests(cores, episode_starts)
    results = None if requests is None else kernels.run_together(requests)
    if results is None:
        return [core(x, state, episode_starts) for core, x, state in cores]
    return [core._finish(*result) for (core, *_), result in zip(cores, results, strict=True)]


def layer_requests(
    cores: Sequence[tuple[Core, Tensor, Tensor]], episode_starts: Tensor
) -> list[kernels.LayerRequest] | None:
    """What the kernels run for these arguments of `run_together`; None if a call needs more.

    Raises:
        ValueError, TypeError: as a call of these cores.
    """
    if not all(core._is_plain_layer() for core, _, _ in cores):
        return None
    requests = []
    for core, x, state in cores:
        core._check(x, state, episode_starts)
        requests.append(core._request(0, x, widened(state), episode_starts))
    return requests


def _owner(view: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The parameter of which `view` is a part; several may share a storage."""
    storage, offset = view.untyped_storage().data_ptr(), view.storage_offset()
    candidates = [p for p in parameters if p.untyped_storage().data_ptr() == storage]
    if not candidates:
        raise ValueError("a weight that is computed from others has no gradient of its own.")
    return max((p for p in candidates if p.storage_offset() <= offset), key=Tensor.storage_offset)


def _same_view(view: Tensor, parameter: Tensor) -> Tensor | None:
    """The view of a parameter's gradient that `view` is of the parameter."""
    if parameter.grad is None:
        return None
    grad = parameter.grad
    if grad.stride() != parameter.stride():
        grad = torch.empty_strided(
            grad.shape, parameter.stride(), dtype=grad.dtype, device=grad.device
        ).copy_(grad)
    offset = view.storage_offset() - parameter.storage_offset()
    return grad.as_strided(view.shape, view.stride(), grad.storage_offset() + offset)


def _reset(mask: Tensor, initial: Tensor, part: Tensor) -> Tensor:
    """`initial` where the mask (B, 1) is true, else `part`; both (B, *shape)."""
    return torch.where(mask.view(-1, *[1] * (part.ndim - 1)), initial, part)


def _reset_masks(episode_starts: Tensor) -> list[Tensor | None]:
    """A mask (B, 1) per step; None where no episode starts, which costs nothing to ask on a CPU."""
    masks: list[Tensor | None] = list(episode_starts.unsqueeze(-1).unbind(0))
    if episode_starts.device.type == "cpu" and kernels.may_read(episode_starts):
        any_start = episode_starts.any(dim=1).tolist()
        return [mask if start else None for mask, start in zip(masks, any_start, strict=True)]
    return masks


def _check_cell(cell: Cell) -> None:
    """Raise ValueError unless the cell has parameters and a state that can be packed."""
    name = type(cell).__name__
    if next(cell.parameters(), None) is None:
        raise ValueError(f"{name} must have a parameter: its dtype and device are the state's.")
    is_linear = type(cell).step is LinearCell.step
    for part, shape in cell.state_shapes.items():
        if not shape or (is_linear and len(shape) != 1):
            sizes = "(size,)" if is_linear else "(size, ...)"
            raise ValueError(f"{name}: part {part!r} of the state must be {sizes}, got {shape}.")


def _check_step(cell: Cell, output: Any, parts: Any, batch_size: int) -> None:
    """Raise unless `step` of a cell returned what its sizes promise."""
    step, shapes = f"{type(cell).__name__}.step", cell.state_shapes
    if not isinstance(parts, tuple | list):
        raise TypeError(
            f"{step} must return the output and a tuple of the parts of the state, got "
            f"{type(parts).__name__} instead of the tuple."
        )
    if len(parts) != len(shapes):
        raise ValueError(
            f"{step} must return the parts {', '.join(shapes) or '(none)'} of the state, "
            f"got {len(parts)} parts."
        )
    expected = [("the output", (cell.output_size,)), *shapes.items()]
    for (name, shape), given in zip(expected, (output, *parts), strict=True):
        if check_tensor(f"{name} of {step}", given).shape != (batch_size, *shape):
            raise ValueError(
                f"{step} must return {name} of shape {(batch_size, *shape)}, "
                f"got {tuple(given.shape)}."
            )


def _check_finite(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.isfinite().all():
            count = int((~tensor.isfinite()).sum())
            raise ValueError(f"{name} must be finite, got {count} numbers that are not.")


def _rename_torch_keys(core: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let `load_state_dict` take the state dict of a torch.nn layer (`weight_ih_l0`, ...)."""
    if not isinstance(core, Core) or not all(cell.torch_layout for cell in core._layers()):
        return
    pattern = re.compile(re.escape(prefix) + r"(\w+)_l(\d+)")
    matches = [match for key in state_dict if (match := pattern.fullmatch(key))]
    for match in matches:
        state_dict[f"{prefix}cells.{match[2]}.{match[1]}"] = state_dict.pop(match[0])
    if matches and core.learned:  # which a layer of torch.nn does not have
        for name, value in core._learnable_parts().items():
            state_dict.setdefault(f"{prefix}learned.{name}", value)
