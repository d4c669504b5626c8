"""A stack of GRUs, each of which skips more steps than the one below."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, check_no_hooks, factory_kwargs
from rlgates.core import Core
from rlgates.cores.gru import GRU
from rlgates.cores.window import episode_begins
from rlgates.errors import MAX_DEPTH, MAX_LENGTH, check_number, check_size
from rlgates.gates import GateLike, as_gate
from rlgates.kernels import AllSteps


class DilatedGRU(Cell):
    """The dilated GRU (Chang et al. 2017): higher levels read their own state further back.

    With x_1 the input and x_n the output of level n - 1 at the same step:

        h_n,t = GRU_n(x_n,t, h_n,(t - s))    s = dilation ** (n - 1), see `rlgates.cores.gru.GRU`

    for the levels n = 1, 2, ...; the last gives the output. Gradients therefore go back s steps at
    once, and if a gate of level n keeps its state k times, it keeps it for k s steps. States from
    before the episode are zero.

    The levels belong together: `num_layers` stacks several such stacks. The dilation of the first
    level is 1, as in most of the paper; above 1 it would need the paper's convolution of the
    outputs, which is left out.

    Weights: those of a GRU for level n, `W_x_f_n` and so on; initialized as there. The state is
    (h1, h2, ...): the last s states of each level, (s, d), the oldest first. The traced forget gate
    is that of all levels, side by side.

    Args:
        input_size: width of the input.
        hidden_size: number of units d of a level.
        gate: a key of `rlgates.GATES`, a row (both tied, if there is no auxiliary gate), or a
            `Gate` of hidden_size units, for all levels.
        levels: number of levels; the paper has up to 9.
        dilation: factor by which a level skips more steps than the level below; 2 in the paper.
        input_scale: factor on the initial input weights of the first level of the lowest layer.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, levels that skip too many steps, a
            scale that is not positive, a gate of the wrong size.
    """

    first_layer_options = ("input_scale",)
    learnable = ()  # states from before the episode are zero

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        levels: int = 4,
        dilation: int = 2,
        input_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.gate = as_gate(gate, d, tied=True)
        self.levels = check_size("levels", levels, maximum=MAX_DEPTH)
        self.dilation = check_size("dilation", dilation, maximum=MAX_LENGTH)
        self.input_scale = check_number("input_scale", input_scale, above=0)
        if (levels - 1) * math.log2(dilation) > math.log2(MAX_LENGTH):
            raise ValueError(
                f"dilation ** (levels - 1), the steps that the last level skips, must be at most "
                f"{MAX_LENGTH:,}, got {dilation} ** {levels - 1}."
            )
        self.state_shapes = {f"h{n + 1}": (dilation**n, d) for n in range(levels)}
        factory = factory_kwargs(device, dtype)
        lowest = GRU(input_size, d, self.gate, self.input_scale, **factory)
        others = [GRU(d, d, self.gate, **factory) for _ in range(levels - 1)]
        self.grus = nn.ModuleList(Core([cell]) for cell in (lowest, *others))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for core in self._cores():
            core.reset_parameters(generator)

    def _cores(self) -> Iterator[Core]:
        return iter(self.grus)  # type: ignore[arg-type]

    def _cells(self) -> list[GRU]:
        return [core.cells[0] for core in self._cores()]  # type: ignore[misc]

    def gate_weights(self) -> dict[str, Tensor]:
        """The views of each level's GRU, with its number."""
        return {
            f"{name}_{number}": view
            for number, cell in enumerate(self._cells(), start=1)
            for name, view in cell.gate_weights().items()
        }

    def project(self, x: Tensor) -> Tensor:
        self._check_hooks()
        return self._cells()[0].project(x)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = [h for *_, h in self._levels(projected, state)]
        after = (
            torch.cat([before[:, 1:], h.unsqueeze(1)], dim=1)
            for before, h in zip(state, outputs, strict=True)
        )
        return outputs[-1], tuple(after)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        levels = self._levels(projected, state)
        return torch.cat([cell.forget_gate(x, before) for cell, x, before, _ in levels], dim=-1)

    def _levels(
        self, projected: Tensor, state: State
    ) -> Iterator[tuple[GRU, Tensor, State, Tensor]]:
        """Of each level in a step: its cell, projected input, state from before, and output."""
        h = projected
        for number, (cell, kept) in enumerate(zip(self._cells(), state, strict=True)):
            x, before = cell.project(h) if number else h, (kept[:, 0],)
            h, _ = cell.step(x, before)
            yield cell, x, before, h

    def _check_hooks(self) -> None:
        # All steps at once call them, the loop over steps does not.
        for level, (core, cell) in enumerate(zip(self._cores(), self._cells(), strict=True)):
            check_no_hooks(**{f"grus.{level}": core, f"grus.{level}.cells.0": cell})

    def recurrence(self) -> AllSteps:
        self._check_hooks()
        return AllSteps(self._all_steps)

    def _all_steps(
        self, x: Tensor, state: Tensor, episode_starts: Tensor | None, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Level by level: every s-th step is a sequence of its own, as a row of a batch."""
        begins = None if episode_starts is None else episode_begins(episode_starts)
        shapes = self.state_shapes.values()
        parts = state.split([math.prod(shape) for shape in shapes], dim=-1)
        last = []
        for core, part, shape in zip(self._cores(), parts, shapes, strict=True):
            before = part.unflatten(-1, shape).transpose(0, 1)
            x = _skipping(core, x, before, begins)
            after = torch.cat([before, x])[-len(before) :]
            if begins is not None:
                times = torch.arange(len(x) - len(before), len(x), device=x.device).unsqueeze(-1)
                is_old = (times < begins[-1]).unsqueeze(-1)
                after = torch.where(is_old, after.new_zeros(()), after)
            last.append(after.transpose(0, 1).flatten(1))
        return x, torch.cat(last, dim=-1)


def _skipping(core: Core, x: Tensor, before: Tensor, begins: Tensor | None) -> Tensor:
    """The outputs (T, B, O) of a core that reads its state of s steps ago.

    Args:
        core: a core whose state is its output.
        x: (T, B, I).
        before: the last s states, (s, B, O), the oldest first.
        begins: in which step the episode of each step began, (T, B); negative for an earlier one.
    """
    steps, batch_size = x.shape[:2]
    apart = min(len(before), steps)  # sequences of every s-th step
    rounds = -(-steps // apart)

    def side_by_side(rows: Tensor) -> Tensor:
        short = rounds * apart - steps
        filled = torch.cat([rows, rows.new_zeros(short, *rows.shape[1:])]) if short else rows
        return filled.reshape(rounds, apart * batch_size, *rows.shape[2:])

    starts = None
    if begins is not None:  # within the last s steps: the state is of another episode
        times = torch.arange(steps, device=x.device).unsqueeze(-1)
        starts = side_by_side(begins > times - len(before))
    outputs, _ = core(side_by_side(x), before[:apart].flatten(0, 1), starts)
    in_order: Tensor = outputs.unflatten(1, (apart, batch_size)).flatten(0, 1)[:steps]
    return in_order
