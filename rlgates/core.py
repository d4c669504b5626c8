"""The Core contract: a `Cell` says what is new in a layer, `Core` does all the rest.

A cell gives its parameters, the part that can be computed for all steps at once
(`project`), and one step. `Core` stacks cells, runs the loop over time, begins a new state
where an episode starts, packs the state into one tensor, and lets gates be observed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rlgates import kernels
from rlgates.errors import check_choice, check_size

State = tuple[Tensor, ...]


class Cell(nn.Module, ABC):
    """One recurrent layer. Concrete cells are final: they compose, nobody inherits from them.

    Attributes:
        input_size, output_size: widths of what goes in and comes out.
        state_sizes: name and width of each part of the state, in packing order.
        options: names of the keyword options the constructor takes.
        torch_layout: whether the parameters are those of a torch.nn layer, so that its
            state dict can be loaded.
    """

    input_size: int
    output_size: int
    state_sizes: dict[str, int]
    options: ClassVar[tuple[str, ...]] = ()
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
        """The parts of the state at the start of an episode, each (B, width): zeros here."""
        like = next(self.parameters())
        dtype = torch.promote_types(like.dtype, torch.float32)
        return tuple(
            torch.zeros(batch_size, width, dtype=dtype, device=like.device)
            for width in self.state_sizes.values()
        )

    def forget_gate(self, projected: Tensor, state: State) -> Tensor | None:
        """The effective forget gate (B, d) of the step from `state`; None if there is none."""
        return None

    def recurrence(self) -> kernels.Recurrence | None:
        """What a fast path needs to stand in for `step`; None if only the loop will do."""
        return None

    def gate_weights(self) -> dict[str, Tensor]:
        """The parameters by gate name, as views: copying into them changes the cell."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}


class Observation(NamedTuple):
    """What `Core.observe` saw.

    Attributes:
        outputs: (T, B, output_size).
        state: (B, state_size).
        forget: the effective forget gates (T, B, d) of each gated layer.
    """

    outputs: Tensor
    state: Tensor
    forget: list[Tensor]


class Core(nn.Module):
    """A stack of cells run over time, with episode starts inside the sequence.

    The whole recurrent state is one tensor (B, state_size), float32 or wider; layer by
    layer, part by part. Build one with `rlgates.make_core`.

    Args:
        cells: the layers, from the input up; each takes what the one below gives out.
        name: the name under which `make_core` knows it.
        backend: what runs the loop: "plain" PyTorch, "native" code (which some gates, dtypes
            and devices do not have), or "auto": native where it can run.

    Attributes:
        backend: as given; it may be changed at any time.
        backend_used: "plain" or "native", what ran the last call; "native" if it ran a layer.
    """

    cells: nn.ModuleList
    backend_used: str | None = None
    _backend: str

    def __init__(self, cells: Sequence[Cell], name: str = "custom", backend: str = "auto") -> None:
        super().__init__()
        self.backend = backend
        check_size("num_layers", len(cells))
        for below, above in pairwise(cells):
            if below.output_size != above.input_size:
                raise ValueError(
                    f"a layer that takes {above.input_size} numbers cannot stand on one that "
                    f"gives {below.output_size}."
                )
        self.cells = nn.ModuleList(cells)
        self.name = name
        self.input_size = cells[0].input_size
        self.output_size = cells[-1].output_size
        self.num_layers = len(cells)
        self._widths = [list(cell.state_sizes.values()) for cell in cells]
        self.state_size = sum(map(sum, self._widths))
        self.register_load_state_dict_pre_hook(_rename_torch_keys)  # type: ignore[no-untyped-call]

    @property
    def backend(self) -> str:
        return self._backend

    @backend.setter
    def backend(self, backend: str) -> None:
        self._backend = check_choice("backend", backend, kernels.BACKENDS)

    def _layers(self) -> list[Cell]:
        return [cell for cell in self.cells if isinstance(cell, Cell)]

    def initial_state(self, batch_size: int) -> Tensor:
        """The state (B, state_size) at the start of an episode."""
        check_size("batch_size", batch_size, minimum=0)
        parts = [part for cell in self._layers() for part in cell.initial_state(batch_size)]
        return self._pack(parts, batch_size)

    def _pack(self, parts: list[Tensor], batch_size: int) -> Tensor:
        if not parts:  # a core without memory
            return next(self.parameters()).new_zeros(batch_size, 0)
        return torch.cat(parts, dim=-1)

    def forward(
        self, x: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run over a sequence, time first.

        One call over T steps equals T calls over one step each.

        Args:
            x: inputs (T, B, input_size), T >= 1.
            state: (B, state_size); the initial state if None.
            starts: (T, B) bool, true where an episode starts: the state entering that step
                is that row's initial state.

        Returns:
            outputs (T, B, output_size) and the state (B, state_size) after the last step.

        Raises:
            ValueError: a shape or dtype that does not fit, with what is expected.
        """
        outputs, final, _ = self._run(x, state, starts, observe=False)
        return outputs, final

    @torch.no_grad()
    def observe(
        self, x: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> Observation:
        """As `forward`, without gradients, and with the effective forget gates."""
        return self._run(x, state, starts, observe=True)

    def _run(
        self, x: Tensor, state: Tensor | None, starts: Tensor | None, *, observe: bool
    ) -> Observation:
        self._check(x, state, starts)
        batch_size = x.shape[1]
        if state is None:
            state = self.initial_state(batch_size)
        finals: list[Tensor] = []
        forget: list[Tensor] = []
        used = "plain"
        for cell, parts in zip(self._layers(), self._split(state), strict=True):
            fast = None if observe else kernels.run(cell, x, parts, starts, self.backend)
            if fast is not None:
                x, parts = fast
                used = "native"
            else:
                x, parts, gates = _loop(cell, x, parts, starts, observe)
                forget.extend(gates)
            finals.extend(parts)
        if used != self.backend_used:  # setting an attribute of a module is slow
            self.backend_used = used
        return Observation(x, self._pack(finals, batch_size), forget)

    def _split(self, state: Tensor) -> list[State]:
        """The parts of each layer's state, as views of the packed tensor."""
        if not self.state_size:
            return [() for _ in self._widths]
        parts = iter(state.split([w for widths in self._widths for w in widths], dim=-1))
        return [tuple(next(parts) for _ in widths) for widths in self._widths]

    def unpack(self, state: Tensor) -> dict[str, Tensor]:
        """The named parts of a state (B, state_size), each (num_layers, B, width)."""
        self._check_state(state, state.shape[0])
        names = self._layers()[0].state_sizes
        return dict(
            zip(names, map(torch.stack, zip(*self._split(state), strict=True)), strict=True)
        )

    def gate_weights(self, layer: int = 0) -> dict[str, Tensor]:
        """The weights of one layer by gate name, as views: copying into them changes it."""
        return self._layers()[layer].gate_weights()

    def _check(self, x: Tensor, state: Tensor | None, starts: Tensor | None) -> None:
        if x.ndim != 3 or x.shape[0] < 1 or x.shape[2] != self.input_size:
            raise ValueError(
                f"x must be (T, B, {self.input_size}) with T >= 1, got {tuple(x.shape)}."
            )
        if state is not None:
            self._check_state(state, x.shape[1])
        if starts is not None:
            if starts.shape != x.shape[:2]:
                raise ValueError(
                    f"starts must be (T, B) = {tuple(x.shape[:2])}, got {tuple(starts.shape)}."
                )
            if starts.dtype != torch.bool:
                raise ValueError(f"starts must be bool, got {starts.dtype}.")
        dtype = next(self.parameters()).dtype
        for name, given in (("x", x), ("state", state)):
            if given is not None and given.dtype != dtype and not _autocast(given):
                raise ValueError(f"{name} must be {dtype}, got {given.dtype}.")

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


def _loop(
    cell: Cell, x: Tensor, parts: State, starts: Tensor | None, observe: bool
) -> tuple[Tensor, State, list[Tensor]]:
    """One layer in plain PyTorch: outputs, final state, and the forget gates if observed."""
    masks = None if starts is None else _start_masks(starts)
    initial = None if starts is None else cell.initial_state(x.shape[1])
    outputs: list[Tensor] = []
    seen: list[Tensor] = []
    for t, projected in enumerate(cell.project(x).unbind(0)):
        if masks is not None and initial is not None:
            mask = masks[t]
            if mask is not None:
                parts = tuple(map(torch.where, (mask,) * len(parts), initial, parts))
        gate = cell.forget_gate(projected, parts) if observe else None
        if gate is not None:
            seen.append(gate)
        output, parts = cell.step(projected, parts)
        outputs.append(output)
    return torch.stack(outputs), parts, [torch.stack(seen)] if seen else []


def _autocast(x: Tensor) -> bool:
    """Whether torch itself will turn `x` into what it needs."""
    return x.is_floating_point() and torch.is_autocast_enabled(x.device.type)


def _start_masks(starts: Tensor) -> list[Tensor | None]:
    """A mask (B, 1) a step, None where no row starts (on the CPU, where asking is free)."""
    masks: list[Tensor | None] = list(starts.unsqueeze(-1).unbind(0))
    if starts.device.type == "cpu" and not torch.compiler.is_compiling():
        some = starts.any(dim=1).tolist()
        return [mask if start else None for mask, start in zip(masks, some, strict=True)]
    return masks


def _rename_torch_keys(core: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let `load_state_dict` take the state dict of a torch.nn layer (`weight_ih_l0`, ...)."""
    if not isinstance(core, Core) or not all(cell.torch_layout for cell in core._layers()):
        return
    pattern = re.compile(re.escape(prefix) + r"(\w+)_l(\d+)")
    for key in list(state_dict):
        if match := pattern.fullmatch(key):
            state_dict[f"{prefix}cells.{match[2]}.{match[1]}"] = state_dict.pop(key)
