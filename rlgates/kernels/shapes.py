"""What the cells of `rlgates.kernels.loop` measure: addresses know no bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlgates.kernels import calls, native


class Shapes(NamedTuple):
    """What the tensors of a cell measure.

    Attributes:
        inputs, outputs: widths of what comes in and goes out.
        parts: widths of the parts of the state.
        weights: their shapes.
        kept: widths of what the forward pass leaves for the way back, see the cell's header.
        projects: whether the first two weights are a matrix and a bias for the input, whose
            product with it the steps read.
        noise: how many numbers may be dropped at random.
    """

    inputs: int
    outputs: int
    parts: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...] = ()
    projects: bool = True
    noise: int = 0

    @property
    def projected(self) -> int:
        """How wide the product with the input is; 0 if there is none."""
        return self.weights[0][0] if self.projects else 0


def _gato(inputs: int, units: int, inner: int, *flags: int) -> Shapes:
    maps = 2 + (inner or 1)
    out = (inner, units), (units if inner else 0,)
    weights = (maps * units, inputs), (maps * units,), (maps, units), *out
    return Shapes(inputs, 2 * units, (units, units), weights)


def _rru(inputs: int, units: int, inner: int, upper: int, outputs: int, *flags: int) -> Shapes:
    layers = (inner, units), (upper, inner, inner), (upper, inner)
    out = (units + outputs, inner), (units + outputs,), (units,), (units,)
    weights = (inner, inputs), (inner,), *layers, *out
    kept = inner, 1, (upper + 1) * inner, units + outputs
    return Shapes(inputs, outputs, (units,), weights, kept, noise=inner)


def _mogrifier(
    inputs: int, units: int, columns: int, rounds: int, capped: int, *gate: int
) -> Shapes:
    activation, auxiliary, chunk_size = gate
    kinds = calls.ACTIVATIONS[activation], calls.AUXILIARIES[auxiliary]
    _, rows, _ = native.layout("lstm", *kinds, units, chunk_size)
    x, h = (rounds + 1) // 2, rounds // 2
    maps = (columns, inputs), (rows, units), (columns,)
    weights = *maps, (x, inputs, units), (x, inputs), (h, units, inputs), (h, units)
    kept = columns, x * inputs, x * inputs, h * units, h * units, units
    return Shapes(inputs, units, (units, units), weights, kept, projects=False)


def _nru(
    inputs: int, units: int, memory: int, heads: int, side: int, rectified: int, normalized: int
) -> Shapes:
    if side**2 != heads * memory:
        raise ValueError(f"{heads} rows of {memory} are no products of {side} by {side}.")
    wide, columns, norm = units + memory, 2 * heads + 4 * side, units if normalized else 0
    maps = (units, inputs), (units,), (units, wide), (columns, wide), (columns,)
    weights = *maps, (norm,), (norm,)
    return Shapes(inputs, units, (units, memory), weights, (wide, wide, units, 1, columns))


# In the order of `LoopKind` of call.h: the shapes, from the width of the input and the sizes.
CELLS: dict[str, Callable[..., Shapes]] = {
    "gato": _gato,
    "rru": _rru,
    "mogrifier": _mogrifier,
    "nru": _nru,
}
