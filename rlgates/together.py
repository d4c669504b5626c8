"""Two cores over the same steps that know nothing of each other: those of actor and critic."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rlgates import kernels
from rlgates.core import Cell, Core, State


def run_together(
    cores: Sequence[tuple[Core, Tensor, Tensor]], starts: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """What each core gives, side by side in two threads where this is faster.

    Args:
        cores: two cores, their inputs (T, B, input_size) and states (B, state_size).
        starts: (T, B) bool, true where an episode starts.

    Returns:
        outputs and final state of each, as `core(x, state, starts)` gives them.
    """
    layers: list[tuple[Cell, Tensor, State]] = []
    for core, x, state in cores if kernels.have_few_rows(*starts.shape) else ():
        if core.num_layers > 1 or core.learned or core.debug or core.backend not in _FAST:
            break
        core._check(x, state, starts)
        layers.append((core._layers()[0], x, core._split(state)[0]))
    made = kernels.run_together(layers, starts) if len(layers) == len(cores) else None
    if made is None:
        return [core(x, state, starts) for core, x, state in cores]
    found = []
    for (core, x, _), result in zip(cores, made, strict=True):
        core.backend_used = result.backend
        found.append((result.outputs, core._pack(list(result.state), x.shape[1])))
    return found


_FAST = ("auto", "native")
