"""Launches of the kernels: tile sizes, buffers, one launch for all steps or several for each.

Nothing here waits for the device, so that a caller can record it in a CUDA graph. Tile sizes and
thresholds are from an H100; those of the persistent kernel and of single steps are estimates.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

import torch
import triton
from torch import Tensor

from rlgates.kernels.layout import AUXILIARIES, STACKED_CELLS
from rlgates.kernels.recording import is_recording
from rlgates.kernels.triton import fused, persistent, step

# The widest layer for a fused kernel: a tile of its backward pass has all units in registers. In a
# CUDA graph, products of wider layers that are spread over the device are faster, and float32 ones,
# which have no tensor cores, always.
MAX_FUSED_UNITS, MAX_FUSED_UNITS_ELSE = 256, 128
# The largest recurrent weights for a persistent kernel, which reads them again at each step: about
# the shared memory of a multiprocessor. Products of larger ones are spread over the device.
MAX_PERSISTENT_BYTES = 2**18
# Rows and units of a program of a fused step, the largest first. Backward, gradients of tiles that
# suit larger batches do not fit into registers.
STEP_TILES = ((128, 64), (64, 32), (32, 32), (16, 32), (16, 16))
MAX_FUSED_STEP_BATCH = 256


Mode = Literal["fused", "persistent", "fused_steps", "steps"]
"""One launch for all steps, one for each, or several for each."""

INTERPRETED = bool(persistent.INTERPRETED.value)


class GatedProblem(NamedTuple):
    """All arguments of the kernels but the tensors.

    Attributes:
        cell, activation, auxiliary, chunk_size: as in `CellSpec`.
        beta: its `constant`.
        precision: of the operands of a product: "ieee" (as exact as float32), "tf32" or "bf16";
            sums, gates and states are float32, except that those pre-activations that are saved for
            the backward pass are as the operands.
        steps, batch_size, units: T, B and H.
    """

    cell: str
    activation: str
    auxiliary: str
    chunk_size: int
    beta: float
    precision: str
    steps: int
    batch_size: int
    units: int

    @property
    def width(self) -> int:
        """The number of columns of all maps."""
        return (len(AUXILIARIES[self.auxiliary]) + len(STACKED_CELLS[self.cell])) * self.units

    @property
    def first_columns(self) -> int:
        """Columns whose product comes first in a step; those that read the reset state follow."""
        return self.width - self.units if self.cell == "gru_before" else self.width

    @property
    def operand_dtype(self) -> torch.dtype:
        """Of the operands of a product."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def columns(self) -> dict[str, int]:
        """The first columns of maps, as at `rlgates.kernels.triton.step`."""
        first = self.units * self.cell.startswith("gru")
        forget = first + self.units * AUXILIARIES[self.auxiliary].index("f")
        candidate = first + self.units * len(AUXILIARIES[self.auxiliary])
        return {"X": first, "F": forget, "U": candidate}


class Inputs(NamedTuple):
    """The inputs of a layer, or their gradients.

    Attributes:
        projected: (T, B, G H), float32, or narrower under autocast.
        h, c: the state before the first step, (B, H) float32; c for an LSTM only.
        weight: recurrent weights (G H, H), with H rows for every map.
        bias: (G H), for "gru_after" only, which adds it to the recurrent products.
        initial_h, initial_c: as h and c, at the start of an episode; None for zeros.
    """

    projected: Tensor
    h: Tensor
    c: Tensor | None
    weight: Tensor
    bias: Tensor | None
    initial_h: Tensor | None = None
    initial_c: Tensor | None = None

    @property
    def initial_cell(self) -> Tensor | None:
        """What `step.forward` has in `cells` at the start of an episode."""
        return self.initial_h if self.initial_c is None else self.initial_c


class Results(NamedTuple):
    """The outputs (T, B, H) and the saved tensors, as described at `step.forward`.

    Without a backward pass `gates` and `extra` are None, and `cells` has only the last state.
    """

    outputs: Tensor
    cells: Tensor
    h_prev: Tensor
    gates: Tensor | None
    extra: Tensor | None


def multiply(left: Tensor, right: Tensor, result: Tensor | None = None) -> Tensor:
    """left @ right in float32, whatever the dtype of the operands."""
    if left.dtype is torch.float32:
        return torch.mm(left, right, out=result)
    if left.is_cuda:
        if result is None:
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left, right, out_dtype=torch.float32, out=result)
    return torch.mm(left.float(), right.float(), out=result)


def launch_mode(problem: GatedProblem, fits: bool, backward: bool) -> Mode:
    """How to run the steps of a layer, if there is a `fused_tile` that fits or none.

    A fused kernel has no second product, and not all units of a row at once. From Python, launches
    for each step take many times as long as the work of most layers. Without tensor cores, products
    of cuBLAS are faster than those in a fused kernel.
    """
    most = MAX_FUSED_UNITS
    if is_recording() or problem.precision == "ieee":
        most = min(most, MAX_FUSED_UNITS_ELSE)
    fusible = problem.cell != "gru_before" and problem.activation != "cumax"
    if fits and fusible and problem.units <= most:
        return "fused"
    size = problem.width * problem.units * problem.operand_dtype.itemsize
    if size <= MAX_PERSISTENT_BYTES:
        return "persistent"
    if not fusible or problem.precision == "ieee":
        return "steps"
    too_large = backward and problem.batch_size > MAX_FUSED_STEP_BATCH
    return "steps" if too_large else "fused_steps"


def fused_tile(
    problem: GatedProblem, backward: bool, device: torch.device
) -> dict[str, int] | None:
    """The tile of a fused kernel, its warps, and how many tiles of weights are loaded ahead.

    They were the fastest of those tried on an H100, with a refine gate; None where none fits into
    the shared memory of the device.
    """
    units = max(16, triton.next_power_of_2(problem.units))
    row = problem.operand_dtype.itemsize * (problem.width // problem.units)  # of all maps
    if backward:
        inner, warps = units, 4
        tiles = ((32, 3), (32, 2), (16, 3), (16, 2))
    else:
        # At least two blocks, since a single one would not be loaded ahead.
        inner, warps = max(16, min(units // 2, 128 // problem.operand_dtype.itemsize)), 8
        tiles = ((128, 3), (64, 3), (32, 3), (16, 3))
    processors, memory = processor(device)
    for block, stages in tiles:
        block = min(block, units)
        # Gradients that wait for their products, or states.
        scratch = block * 5 * 2**8 if backward else 2**14
        if stages * block * inner * row + scratch > memory:
            continue
        # A program reads all weights: of more programs than processors, half read half as much.
        many = not backward and block == 128 and problem.batch_size > 16 * processors
        many = many and stages * block * inner * row + 2 * scratch <= memory
        return {
            "BLOCK_BATCH": 32 if many else 16,
            "BLOCK_UNITS": block,
            "BLOCK_INNER": inner,
            "num_warps": warps,
            "num_stages": stages,
        }
    return None


def step_tile(problem: GatedProblem, backward: bool, device: torch.device) -> dict[str, int]:
    """The tile of a fused kernel for single steps, its warps, and the tiles loaded ahead.

    The largest for which most processors have a program: it reads least. Programs of the smallest
    load their weights at once.
    """
    processors, memory = processor(device)
    units = max(16, triton.next_power_of_2(problem.units))
    size, maps = problem.operand_dtype.itemsize, problem.width // problem.units
    for rows, columns in STEP_TILES:
        columns = min(columns, units)
        programs = triton.cdiv(problem.batch_size, rows) * triton.cdiv(problem.units, columns)
        if 4 * programs >= 3 * processors:
            break
    small = rows <= 32
    inner = min(512 // size, units) if small else 128 // size
    of_stage = inner * size * (rows + columns * (1 if backward else maps))
    stages = (3 if backward else 1) if small else 4
    return {
        "BLOCK_BATCH": rows,
        "BLOCK_UNITS": columns,
        "BLOCK_INNER": inner,
        "num_warps": 8 if rows * columns >= 4096 else 4,
        "num_stages": max(1, min(stages, memory // of_stage)),
    }


@cache
def processor(device: torch.device) -> tuple[int, int]:
    """The number of multiprocessors, and the shared memory of each in bytes."""
    if device.type != "cuda":  # the interpreter
        return 132, 227 * 2**10
    properties: Any = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin


def dot_precision(problem: GatedProblem, device: torch.device) -> str:
    """Of the products in a kernel; only those of float32 have a choice.

    On tensor cores three products of tf32 make one that is as exact as in float32, in half of the
    time or less.
    """
    if problem.precision != "ieee":
        return "tf32"
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 8:
        return "ieee"
    return "tf32x3"


def _choice(
    problem: GatedProblem, backward: bool, device: torch.device
) -> tuple[Mode, dict[str, int] | None]:
    """How to run the steps, and the tile of a fused kernel."""
    tile = fused_tile(problem, backward, device)
    mode = launch_mode(problem, tile is not None, backward)
    return mode, step_tile(problem, backward, device) if mode == "fused_steps" else tile


def _settings(
    problem: GatedProblem,
    mode: Mode,
    tile: dict[str, int] | None,
    inputs: Inputs,
    episode_starts: Tensor | None,
) -> dict[str, Any]:
    """The constants of the kernels: the layer, the tile (that of a fused one), and warps."""
    settings = {
        "UNITS": problem.units,
        "WIDTH": problem.width,
        **problem.columns,
        "CELL": problem.cell,
        "ACTIVATION": problem.activation,
        "AUXILIARY": problem.auxiliary,
        "CHUNK": problem.chunk_size,
        "HAS_STARTS": episode_starts is not None,
        "HAS_INITIAL": episode_starts is not None and inputs.initial_h is not None,
        "enable_fp_fusion": True,  # the default, but Triton 3.9 warns where it is not set
    }
    ieee = problem.precision == "ieee"
    if mode != "steps":
        settings["PRECISION"] = dot_precision(problem, inputs.weight.device)
    if mode in ("fused", "fused_steps"):
        return settings | (tile or {})
    all_units = triton.next_power_of_2(problem.units)
    units = max(16, all_units)
    if problem.activation != "cumax" and mode == "steps":
        units = min(units, 256)
    settings |= {
        "BLOCK_ROWS": min(max(1, 1024 // units), 16),
        "BLOCK_UNITS": units,
        "num_warps": min(16, max(4, units // 256)),
    }
    if mode == "persistent":
        settings |= {
            "BLOCK_BATCH": 16,
            "BLOCK_OUTER": min(64, max(16, all_units)),
            "BLOCK_INNER": 32,
            "num_stages": 2 if ieee else 3,
        }
    return settings


def _grid(problem: GatedProblem, mode: Mode, settings: dict[str, Any]) -> tuple[int, ...]:
    if mode in ("fused", "persistent"):
        return (triton.cdiv(problem.batch_size, settings["BLOCK_BATCH"]),)
    rows = settings["BLOCK_BATCH" if mode == "fused_steps" else "BLOCK_ROWS"]
    units = triton.cdiv(problem.units, settings["BLOCK_UNITS"])
    return triton.cdiv(problem.batch_size, rows), units


def _begin(
    problem: GatedProblem,
    inputs: Inputs,
    h_prev: Tensor,
    cells: Tensor,
    episode_starts: Tensor | None,
) -> None:
    """Write what the first step reads into `h_prev` and `cells`."""
    cell = inputs.h if inputs.c is None else inputs.c
    units = min(256, triton.next_power_of_2(problem.units))
    rows = 1024 // units
    step.begin[triton.cdiv(problem.batch_size, rows), triton.cdiv(problem.units, units)](
        *(inputs.h, cell, h_prev, cells),
        h_prev if episode_starts is None else episode_starts,
        h_prev if inputs.initial_h is None else inputs.initial_h,
        *(problem.batch_size, inputs.h.stride(0), cell.stride(0)),
        UNITS=problem.units,
        HAS_STARTS=episode_starts is not None,
        HAS_INITIAL=episode_starts is not None and inputs.initial_h is not None,
        BLOCK_ROWS=rows,
        BLOCK_UNITS=units,
        enable_fp_fusion=True,  # the default, but Triton 3.9 warns where it is not set
    )


def forward(
    problem: GatedProblem, inputs: Inputs, episode_starts: Tensor | None, save: bool
) -> Results:
    """Run a layer over a sequence.

    Args:
        problem: what to run.
        inputs: contiguous, but for the rows of h and c; they are not changed.
        episode_starts: (T, B) uint8, not 0 where an episode starts; None if none does.
        save: whether to save tensors for the backward pass.
    """
    steps, batch_size, units = problem.steps, problem.batch_size, problem.units
    new = inputs.h.new_empty
    weight = inputs.weight.to(problem.operand_dtype)
    outputs = new(steps, batch_size, units)
    cells = new(steps + 1 if save else 2, batch_size, units)
    h_prev = weight.new_empty(steps if save else 2, batch_size, units)
    gates = weight.new_empty(steps, batch_size, problem.width) if save else None
    u_recurrent = new(steps, batch_size, units) if save and problem.cell == "gru_after" else None
    reset = weight.new_empty(batch_size, units) if problem.cell == "gru_before" else None
    unused = outputs  # a placeholder that is neither read nor written
    tensors = [
        unused if inputs.bias is None else inputs.bias,
        cells,
        h_prev,
        outputs,
        unused if gates is None else gates,
        next((tensor for tensor in (u_recurrent, reset) if tensor is not None), unused),
        unused if episode_starts is None else episode_starts,
        unused if inputs.initial_h is None else inputs.initial_h,
        unused if inputs.initial_cell is None else inputs.initial_cell,
    ]
    numbers = batch_size, steps, problem.beta
    mode, tile = _choice(problem, False, weight.device)
    settings = _settings(problem, mode, tile, inputs, episode_starts) | {"SAVE": save}
    grid = _grid(problem, mode, settings)
    recurrent = new(batch_size, problem.width)
    products = inputs.projected, recurrent
    results = Results(
        outputs, cells if save else cells[steps % 2, None], h_prev, gates, u_recurrent
    )
    if not batch_size:
        return results
    _begin(problem, inputs, h_prev, cells, episode_starts)
    if mode == "fused":
        fused.forward_fused[grid](inputs.projected, *tensors, weight, *numbers, **settings)
    elif mode == "persistent":
        persistent.forward_persistent[grid](*products, *tensors, weight, *numbers, **settings)
    elif mode == "fused_steps":
        for t in range(steps):
            fused.forward_step[grid](inputs.projected, *tensors, weight, *numbers, t, **settings)
    else:
        first = weight[: problem.first_columns].t()
        second = weight[problem.first_columns :].t()
        for t in range(steps):
            multiply(h_prev[t if save else t % 2], first, recurrent[:, : problem.first_columns])
            if reset is not None:
                step.forward[grid](*products, *tensors, *numbers, t, RESET_ONLY=True, **settings)
                multiply(reset, second, recurrent[:, problem.first_columns :])
            step.forward[grid](*products, *tensors, *numbers, t, RESET_ONLY=False, **settings)
    return results


def backward(
    problem: GatedProblem,
    inputs: Inputs,
    episode_starts: Tensor | None,
    results: Results,
    d_outputs: Tensor | None,
    d_h: Tensor | None,
    d_c: Tensor | None,
    needs_weight_grad: bool,
) -> Inputs:
    """The gradients of the inputs, after a `forward` with `save`.

    Args:
        problem, inputs, episode_starts, results: arguments and results of `forward`; the outputs
            and the projected inputs are not read.
        d_outputs, d_h, d_c: gradients of the outputs and of the final state, None for zeros.
        needs_weight_grad: whether weights and bias need gradients.
    """
    steps, batch_size, units = problem.steps, problem.batch_size, problem.units
    _, cells, h_prev, gates, extra = results
    assert gates is not None
    new = cells.new_empty
    after, before = problem.cell == "gru_after", problem.cell == "gru_before"
    d_outputs = (
        cells.new_zeros(steps, batch_size, units) if d_outputs is None else d_outputs.contiguous()
    )
    d_products, d_states = (new(2, batch_size, units) for _ in range(2))
    for pair, gradient in ((d_products, d_h), (d_states, d_c)):
        pair[steps % 2] = 0 if gradient is None else gradient
    d_gates = torch.empty_like(gates)
    d_recurrent = torch.empty_like(d_gates) if after else d_gates
    d_extra = new(batch_size, units) if before else d_states  # a placeholder
    d_initial_h, d_initial_cell = (
        None if initial is None else torch.zeros_like(initial)
        for initial in (inputs.initial_h, inputs.initial_cell)
    )
    weight = inputs.weight.to(problem.operand_dtype)
    tensors = [
        gates,
        cells,
        cells if extra is None else extra,
        d_outputs,
        d_products,
        d_states,
        d_gates,
        d_recurrent,
        gates if episode_starts is None else episode_starts,
        gates if inputs.initial_cell is None else inputs.initial_cell,
        gates if d_initial_h is None else d_initial_h,
        gates if d_initial_cell is None else d_initial_cell,
    ]
    numbers = batch_size, steps, problem.beta
    mode, tile = _choice(problem, True, weight.device)
    settings = _settings(problem, mode, tile, inputs, episode_starts)
    grid = _grid(problem, mode, settings)
    first, second = weight[: problem.first_columns], weight[problem.first_columns :]
    if not batch_size:
        pass
    elif mode == "fused":
        fused.backward_fused[grid](*tensors, weight.t().contiguous(), *numbers, **settings)
    elif mode == "persistent":
        transposed = weight.t().contiguous()
        persistent.backward_persistent[grid](d_extra, *tensors, transposed, *numbers, **settings)
    elif mode == "fused_steps":
        transposed = weight.t().contiguous()
        for t in reversed(range(steps)):
            fused.backward_step[grid](*tensors, transposed, *numbers, t, **settings)
        multiply(d_recurrent[0], weight, d_products[0])
    else:
        for t in reversed(range(steps)):
            step.backward[grid](d_extra, *tensors, *numbers, t, RESET_ONLY=False, **settings)
            if before:
                multiply(d_gates[t, :, problem.first_columns :], second, d_extra)
                step.backward[grid](d_extra, *tensors, *numbers, t, RESET_ONLY=True, **settings)
            multiply(d_recurrent[t, :, : problem.first_columns], first, d_products[t % 2])
    d_product, d_state = d_products[0], d_states[0]
    if episode_starts is not None:
        starts = episode_starts[0].view(torch.bool).unsqueeze(-1)
        if d_initial_h is not None:
            d_initial_h += torch.where(starts, d_product, 0)
        d_product.masked_fill_(starts, 0)
    d_c, d_initial_c = d_state, d_initial_cell
    if problem.cell != "lstm":
        d_product += d_state
        if d_initial_h is not None and d_initial_cell is not None:
            d_initial_h += d_initial_cell
        d_c = d_initial_c = None
    d_weight = d_bias = None
    if needs_weight_grad:
        flat = d_recurrent.flatten(0, 1)
        d_weight = multiply(flat[:, : problem.first_columns].t(), h_prev.flatten(0, 1))
        if before:
            reset = torch.sigmoid(gates[..., :units].float()) * h_prev
            d_reset_product = flat[:, problem.first_columns :].t()
            second = multiply(d_reset_product, reset.to(problem.operand_dtype).flatten(0, 1))
            d_weight = torch.cat([d_weight, second])
        d_bias = flat.sum(0, dtype=torch.float32) if after else None
    return Inputs(d_gates, d_product, d_c, d_weight, d_bias, d_initial_h, d_initial_c)  # type: ignore[arg-type]


def launch_error(problem: GatedProblem, device: torch.device) -> str | None:
    """Why the kernels of a problem cannot be built and run on a device; None if they can."""
    problem = problem._replace(steps=2, batch_size=1)
    state = torch.zeros(1, problem.units, dtype=torch.float32, device=device)
    projected = state.new_zeros(2, 1, problem.width)
    bias = projected.new_zeros(problem.width)
    inputs = Inputs(projected, state, state, state.new_zeros(problem.width, problem.units), bias)
    episode_starts = torch.zeros(2, 1, dtype=torch.uint8, device=device)
    try:
        with torch.cuda.device(device), torch.autocast(device.type, enabled=False):
            results = forward(problem, inputs, episode_starts, save=True)
            backward(problem, inputs, episode_starts, results, None, None, None, True)
            torch.cuda.synchronize()
    except Exception as error:  # no compiler for the launcher, an old driver, too large a tile, ...
        reason = str(error).strip().splitlines() or [""]
        return f"triton fails on {device} ({type(error).__name__}: {reason[0]})"
    return None
