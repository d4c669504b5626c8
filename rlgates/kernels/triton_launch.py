"""Launches of `triton_kernels`: sizes of tiles, buffers, one launch for all steps or some a step.

Nothing here waits for the device, so that all of it can be recorded in a CUDA graph. What is
fastest, and where, is an estimate: none of it has been measured on a GPU yet (`rlgates bench gpu`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.kernels import triton_kernels

# The weights that a walk reads again each step, in bytes: about the fast memory of a processor.
# With more, a step is a launch, so that a product is spread over the device.
NEAR = 2**18

INTERPRETED = bool(triton_kernels.INTERPRETED.value)
FUSION = {"enable_fp_fusion": True}  # the default up to Triton 3.9, which warns of it

# The maps of a gate, and of a cell beside them.
GATE_MAPS = {"untied": 2, "tied": 1, "refine": 2, "master": 4}
CELL_MAPS = {"lstm": 2, "gru_after": 2, "gru_before": 2, "janet": 1}


class Problem(NamedTuple):
    """What the kernels are told beside the tensors.

    Attributes:
        cell, activation, auxiliary, chunk_size, beta: as in `Recurrence`.
        precision: of the factors of a product: "ieee" (float32), "tf32" or "bf16"; sums, gates
            and states are float32.
        steps, rows, units: T, B and H.
    """

    cell: str
    activation: str
    auxiliary: str
    chunk_size: int
    beta: float
    precision: str
    steps: int
    rows: int
    units: int

    @property
    def width(self) -> int:
        """Columns of all maps."""
        return (GATE_MAPS[self.auxiliary] + CELL_MAPS[self.cell]) * self.units

    @property
    def first(self) -> int:
        """Columns whose product comes first in a step; those of a reset state come second."""
        return self.width - self.units if self.cell == "gru_before" else self.width

    @property
    def factors(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def walks(self) -> bool:
        """Whether one launch walks through all steps."""
        return self.width * self.units * self.factors.itemsize <= NEAR


class Inputs(NamedTuple):
    """What goes into a layer, or the gradients of that.

    Attributes:
        projected: (T, B, G H), float32 or what autocast made of it.
        h, c: the first state (B, H) float32; c of an LSTM alone.
        weight: recurrent weights (G H, H), every map H wide.
        bias: (G H), of "gru_after" alone, which adds it to the recurrent products.
    """

    projected: Tensor
    h: Tensor
    c: Tensor | None
    weight: Tensor
    bias: Tensor | None


class Results(NamedTuple):
    """What a pass leaves: the outputs (T, B, H), the rest as `triton_kernels.forward` has it.

    Without a way back `gates` and `aside` are None, and `cells` has the last state alone.
    """

    outputs: Tensor
    cells: Tensor
    entering: Tensor
    gates: Tensor | None
    aside: Tensor | None


def multiply(left: Tensor, right: Tensor, result: Tensor | None = None) -> Tensor:
    """left @ right in float32, whatever the factors are."""
    if left.dtype is torch.float32:
        return torch.mm(left, right, out=result)
    if left.is_cuda:
        if result is None:
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left, right, out_dtype=torch.float32, out=result)
    return torch.mm(left.float(), right.float(), out=result)


def power(n: int) -> int:
    """The smallest power of 2 that is not below n."""
    return 1 << (n - 1).bit_length()


def _blocks(problem: Problem) -> dict[str, Any]:
    """The tile of a step, and the warps that share it."""
    units = max(16, power(problem.units))
    if problem.activation != "cumax" and not problem.walks:
        units = min(units, 256)
    rows = max(1, 1024 // units)
    blocks = {"BLOCK_ROWS": min(rows, 16), "BLOCK_UNITS": units}
    return {**blocks, "num_warps": min(16, max(4, units // 256)), **FUSION}


def _walk_blocks(problem: Problem) -> dict[str, Any]:
    outer = min(64, max(16, power(problem.units)))
    stages = 2 if problem.precision == "ieee" else 3
    return {"BLOCK_WALK": 16, "BLOCK_OUTER": outer, "BLOCK_INNER": 32, "num_stages": stages}


def _settings(problem: Problem, starts: Tensor | None) -> dict[str, Any]:
    return {
        "UNITS": problem.units,
        "CELL": problem.cell,
        "ACTIVATION": problem.activation,
        "AUXILIARY": problem.auxiliary,
        "CHUNK": problem.chunk_size,
        "STARTS": starts is not None,
    }


def _walk_settings(problem: Problem) -> dict[str, Any]:
    precision = "ieee" if problem.precision == "ieee" else "tf32"  # of float32 alone
    return {"WIDTH": problem.width, "PRECISION": precision}


def _grid(problem: Problem, blocks: dict[str, Any]) -> tuple[int, int]:
    across = -(-problem.rows // blocks["BLOCK_ROWS"])
    return across, -(-problem.units // blocks["BLOCK_UNITS"])


def _walks(problem: Problem, blocks: dict[str, Any]) -> tuple[int]:
    return (-(-problem.rows // blocks["BLOCK_WALK"]),)


def forward(problem: Problem, inputs: Inputs, starts: Tensor | None, keep: bool) -> Results:
    """A layer over a sequence.

    Args:
        problem: what to run.
        inputs: all contiguous; they stay as they are.
        starts: (T, B) uint8, not 0 where an episode starts; None where none does.
        keep: whether there will be a way back.
    """
    steps, rows, units = problem.steps, problem.rows, problem.units
    new = inputs.h.new_empty
    weight = inputs.weight.to(problem.factors)
    outputs = new(steps, rows, units)
    cells = new(steps + 1 if keep else 1, rows, units)
    cells[0].copy_(inputs.h if inputs.c is None else inputs.c)
    entering = weight.new_empty(steps if keep else 1, rows, units)
    entering[0].copy_(inputs.h)
    if starts is not None:
        entering[0].masked_fill_(starts[0].bool().unsqueeze(-1), 0)
    gates = new(steps, rows, problem.width) if keep else None
    kept = new(steps, rows, units) if keep and problem.cell == "gru_after" else None
    reset = weight.new_empty(rows, units) if problem.cell == "gru_before" else None
    recurrent = new(rows, problem.width)
    unused = outputs  # for what is not there, and neither read nor written
    tensors = [
        inputs.projected,
        recurrent,
        unused if inputs.bias is None else inputs.bias,
        cells,
        entering,
        outputs,
        unused if gates is None else gates,
        unused if kept is None and reset is None else reset if kept is None else kept,
        unused if starts is None else starts,
    ]
    numbers = rows, steps, problem.beta
    blocks = _blocks(problem)
    settings = {**_settings(problem, starts), "KEEP": keep, **blocks}
    if not rows:
        pass
    elif problem.walks:
        blocks = _walk_blocks(problem)
        triton_kernels.forward_walk[_walks(problem, blocks)](
            *tensors, weight, *numbers, **settings, **_walk_settings(problem), **blocks
        )
    else:
        grid = _grid(problem, blocks)
        first, second = weight[: problem.first].t(), weight[problem.first :].t()
        for t in range(steps):
            multiply(entering[t if keep else 0], first, recurrent[:, : problem.first])
            if reset is not None:
                triton_kernels.forward[grid](*tensors, *numbers, t, RESETS=True, **settings)
                multiply(reset, second, recurrent[:, problem.first :])
            triton_kernels.forward[grid](*tensors, *numbers, t, RESETS=False, **settings)
    return Results(outputs, cells if keep else cells[-1:], entering, gates, kept)


def backward(
    problem: Problem,
    inputs: Inputs,
    starts: Tensor | None,
    results: Results,
    d_outputs: Tensor | None,
    d_h: Tensor | None,
    d_c: Tensor | None,
    wants_weight: bool,
) -> Inputs:
    """The gradients of the inputs, after a `forward` that kept.

    Args:
        problem, inputs, starts, results: as `forward` took and gave them, but for the outputs
            and the projected inputs, which are not read.
        d_outputs, d_h, d_c: gradients of the outputs and of the final state, None for zeros.
        wants_weight: whether anybody asks for the gradients of weights and bias.
    """
    steps, rows, units = problem.steps, problem.rows, problem.units
    _, cells, entering, gates, aside = results
    assert gates is not None
    new = gates.new_empty
    after, before = problem.cell == "gru_after", problem.cell == "gru_before"
    d_outputs = gates.new_zeros(steps, rows, units) if d_outputs is None else d_outputs.contiguous()
    d_product, d_state = (
        gates.new_zeros(rows, units)
        if gradient is None
        else gradient.clone(memory_format=torch.contiguous_format)
        for gradient in (d_h, d_c)
    )
    d_gates = torch.empty_like(gates, dtype=problem.factors)
    d_recurrent = torch.empty_like(d_gates) if after else d_gates
    d_aside = new(rows, units) if before else d_state
    weight = inputs.weight.to(problem.factors)
    tensors = [
        gates,
        cells,
        cells if aside is None else aside,
        d_outputs,
        d_product,
        d_state,
        d_gates,
        d_recurrent,
        d_aside,
        gates if starts is None else starts,
    ]
    numbers = rows, steps, problem.beta
    blocks = _blocks(problem)
    settings = {**_settings(problem, starts), **blocks}
    first, second = weight[: problem.first], weight[problem.first :]
    if not rows:
        pass
    elif problem.walks:
        blocks = _walk_blocks(problem)
        turned = weight.t().contiguous()
        triton_kernels.backward_walk[_walks(problem, blocks)](
            *tensors, turned, *numbers, **settings, **_walk_settings(problem), **blocks
        )
    else:
        grid = _grid(problem, blocks)
        for t in reversed(range(steps)):
            triton_kernels.backward[grid](*tensors, *numbers, t, RESETS=False, **settings)
            if before:
                multiply(d_gates[t, :, problem.first :], second, d_aside)
                triton_kernels.backward[grid](*tensors, *numbers, t, RESETS=True, **settings)
            multiply(d_recurrent[t, :, : problem.first], first, d_product)
    if starts is not None:
        d_product.masked_fill_(starts[0].bool().unsqueeze(-1), 0)
    if problem.cell != "lstm":
        d_product += d_state
    d_weight = d_bias = None
    if wants_weight:
        flat = d_recurrent.flatten(0, 1)
        d_weight = multiply(flat[:, : problem.first].t(), entering.flatten(0, 1))
        if before:
            reset = torch.sigmoid(gates[..., :units]) * entering
            turned = flat[:, problem.first :].t()
            second = multiply(turned, reset.to(problem.factors).flatten(0, 1))
            d_weight = torch.cat([d_weight, second])
        d_bias = flat.sum(0, dtype=torch.float32) if after else None
    d_c = d_state if problem.cell == "lstm" else None
    return Inputs(d_gates, d_product, d_c, d_weight, d_bias)  # type: ignore[arg-type]


def trial(problem: Problem, device: torch.device) -> str | None:
    """Why the kernels of a problem cannot be built and run on this device; None if they can."""
    problem = problem._replace(steps=2, rows=1)
    state = torch.zeros(1, problem.units, device=device)
    projected = torch.zeros(2, 1, problem.width, device=device)
    bias = projected.new_zeros(problem.width)
    inputs = Inputs(projected, state, state, state.new_zeros(problem.width, problem.units), bias)
    starts = torch.zeros(2, 1, dtype=torch.uint8, device=device)
    try:
        with torch.cuda.device(device), torch.autocast(device.type, enabled=False):
            results = forward(problem, inputs, starts, keep=True)
            backward(problem, inputs, starts, results, None, None, None, True)
            torch.cuda.synchronize()
    except Exception as error:  # no compiler for the launcher, an old driver, too large a tile, ...
        reason = str(error).strip().splitlines() or [""]
        return f"triton fails on {device} ({type(error).__name__}: {reason[0]})"
    return None
