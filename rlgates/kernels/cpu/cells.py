"""The cells of native code: the shapes of their tensors, from the input size and their sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rlgates.gates import AUXILIARIES
from rlgates.kernels.layout import STACKED_CELLS
from rlgates.kernels.spec import CellSpec

GateKey = tuple[str, str, int]  # as in `CellSpec`
NO_GATE: GateKey = "", "", 1


class Shapes(NamedTuple):
    """The shapes of a cell's tensors.

    Attributes:
        output_size: width of the outputs.
        parts: widths of the parts of the state.
        weights: shapes of the weights.
        saved: widths of the tensors saved for the backward pass, see the cell's header in csrc.
        projects_input: whether the first two weights project the input, as matrix and bias, and
            the steps read that projection.
        noise: width of the uniform noise for dropout.
    """

    output_size: int
    parts: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    saved: tuple[int, ...] = ()
    projects_input: bool = True
    noise: int = 0

    @property
    def projected(self) -> int:
        """Width of the projected input; 0 if it is not projected."""
        return self.weights[0][0] if self.projects_input else 0

    @property
    def state_size(self) -> int:
        """Width of the whole state."""
        return sum(self.parts)

    def noise_widths(self, spec: CellSpec) -> tuple[int, int]:
        """How many random numbers a step takes for dropout, and in all."""
        for_dropout = self.noise if spec.dropout else 0
        zones_out = spec.training and any(spec.zoneout)
        return for_dropout, for_dropout + (self.state_size if zones_out else 0)

    def saved_size(self, steps: int, batch_size: int) -> int:
        """How many numbers the forward pass saves: see `rlgates.kernels.layout.TENSORS`."""
        rows = steps * batch_size
        return (rows + batch_size) * self.state_size + rows * sum(self.saved)


def columns(cell: str, gate: GateKey, units: int) -> int:
    """The columns of all maps of a stacked cell."""
    _, auxiliary, chunk_size = gate
    maps = AUXILIARIES[auxiliary].maps
    masters = sum(name.startswith("m") for name in maps)
    return (len(STACKED_CELLS[cell]) + len(maps) - masters) * units + masters * units // chunk_size


def _stacked(cell: str, inputs: int, gate: GateKey, units: int) -> Shapes:
    width = columns(cell, gate, units)
    extra = (units,) if "reset" in STACKED_CELLS[cell] else ()
    parts = (units, units) if cell == "lstm" else (units,)
    weights = (width, inputs), (width,), (width, units), (width,)
    return Shapes(units, parts, weights, (width, *extra), noise=units)


def _gato(inputs: int, gate: GateKey, units: int, inner: int, *flags: int) -> Shapes:
    maps = 2 + (inner or 1)
    out = (inner, units), (units if inner else 0,)
    weights = (maps * units, inputs), (maps * units,), (maps, units), *out
    return Shapes(2 * units, (units, units), weights)


def _rru(
    inputs: int, gate: GateKey, units: int, inner: int, upper: int, outputs: int, *flags: int
) -> Shapes:
    layers = (inner, units), (upper, inner, inner), (upper, inner)
    out = (units + outputs, inner), (units + outputs,), (units,), (units,)
    weights = (inner, inputs), (inner,), *layers, *out
    saved = inner, 1, (upper + 1) * inner, units + outputs
    return Shapes(outputs, (units,), weights, saved, noise=inner)


def _mogrifier(inputs: int, gate: GateKey, units: int, rounds: int, capped: int) -> Shapes:
    width, x, h = columns("lstm", gate, units), (rounds + 1) // 2, rounds // 2
    maps = (width, inputs), (width, units), (width,)
    weights = *maps, (x, inputs, units), (x, inputs), (h, units, inputs), (h, units)
    saved = width, x * inputs, x * inputs, h * units, h * units
    return Shapes(units, (units, units), weights, saved, projects_input=False, noise=units)


def _nru(
    inputs: int,
    gate: GateKey,
    units: int,
    memory: int,
    heads: int,
    side: int,
    rectified: int,
    normalized: int,
) -> Shapes:
    if side**2 != heads * memory:
        raise ValueError(
            f"heads * memory must be side * side, got {heads} heads of {memory} and side {side}."
        )
    both, width, norm = units + memory, 2 * heads + 4 * side, units if normalized else 0
    maps = (units, inputs), (units,), (units, both), (width, both), (width,)
    weights = *maps, (norm,), (norm,)
    saved = both, both, units, int(bool(normalized)), width
    return Shapes(units, (units, memory), weights, saved)


# The keys are `rlgates.kernels.layout.CELLS`.
SHAPES: dict[str, Callable[..., Shapes]] = {
    **{cell: partial(_stacked, cell) for cell in STACKED_CELLS},
    "gato": _gato,
    "rru": _rru,
    "mogrifier": _mogrifier,
    "nru": _nru,
}


def shapes_of(spec: CellSpec, input_size: int) -> Shapes:
    """The shapes of a cell's tensors; its weights do not matter.

    Raises:
        ValueError: sizes that no such cell has.
    """
    return SHAPES[spec.cell](input_size, spec.gate or NO_GATE, *spec.sizes)
