"""What the kernels know: gates and cells with the shapes of their tensors, and the arguments of
native code.

This is the one table. `header` writes it as C++, which setup.py compiles into the extension, and
`rlgates.kernels.cpu` packs arguments by it. It imports nothing of rlgates, because setup.py runs it
before anything is installed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlgates.kernels.spec import CellSpec

# ---- gates and cells ---------------------------------------------------------------------------

# Gates on their two axes, see `rlgates.gates`: what native code and Triton cover. Of an auxiliary
# gate, the maps, in stacking order; masters begin with m.
ACTIVATIONS = ("sigmoid", "fast", "iterated_fast", "softsign", "cumax")
AUXILIARIES = {
    "untied": ("i", "f"),
    "tied": ("f",),
    "refine": ("r", "f"),
    "master": ("i", "f", "mi", "mf"),
}

# Cells with the weights of a torch.nn layer: the maps beside those of the gate, in stacking order.
STACKED_CELLS = {
    "lstm": ("u", "o"),
    "gru_after": ("reset", "u"),
    "gru_before": ("reset", "u"),
    "janet": ("u",),
}

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
        table: which part of the state is a table that steps change in place; None for no part.
            The states of single steps, which are saved, leave it out.
    """

    output_size: int
    parts: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    saved: tuple[int, ...] = ()
    projects_input: bool = True
    noise: int = 0
    table: int | None = None

    @property
    def table_columns(self) -> slice:
        """The columns of the table in a state; an empty slice at its end if there is none."""
        if self.table is None:
            return slice(self.state_size, self.state_size)
        begin = sum(self.parts[: self.table])
        return slice(begin, begin + self.parts[self.table])

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
        of_step = self.state_size - (0 if self.table is None else self.parts[self.table])
        return (rows + batch_size) * of_step + rows * sum(self.saved)


def gate_columns(gate: GateKey, units: int) -> int:
    """The columns of the maps of a gate."""
    _, auxiliary, chunk_size = gate
    maps = AUXILIARIES[auxiliary]
    masters = sum(name.startswith("m") for name in maps)
    return (len(maps) - masters) * units + masters * units // chunk_size


def columns(cell: str, gate: GateKey, units: int) -> int:
    """The columns of all maps of a stacked cell."""
    return len(STACKED_CELLS[cell]) * units + gate_columns(gate, units)


_CANDIDATES = 3  # of "minimal"


def _require(holds: bool, rule: str, *sizes: int) -> None:
    """Raise a ValueError where a rule is broken: native code trusts the sizes."""
    if not holds:
        raise ValueError(f"{rule}, got {', '.join(map(str, sizes))}.")


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
    _require(inner * outputs > 0, "inner and outputs must be at least 1", inner, outputs)
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
    _require(memory * heads > 0, "memory and heads must be at least 1", memory, heads)
    _require(side**2 == heads * memory, "heads * memory must be side * side", heads, memory, side)
    both, width, norm = units + memory, 2 * heads + 4 * side, units if normalized else 0
    maps = (units, inputs), (units,), (units, both), (width, both), (width,)
    weights = *maps, (norm,), (norm,)
    saved = both, both, units, int(bool(normalized)), width
    return Shapes(units, (units, memory), weights, saved)


def _rmc(
    inputs: int,
    gate: GateKey,
    units: int,
    slots: int,
    heads: int,
    key: int,
    blocks: int,
    layers: int,
    gate_units: int,
) -> Shapes:
    _require(
        slots * heads * key * blocks * layers > 0,
        "slots, heads, key, blocks and layers must be at least 1",
        *(slots, heads, key, blocks, layers),
    )
    _require(units % heads == 0, "heads must divide the units", heads, units)
    _require(gate_units in (0, 1, units), "a slot has 0, 1 or all gated units", gate_units, units)
    rows, width = slots + 1, heads * 2 * key + units
    columns = gate_columns(gate, gate_units) if gate_units else 0
    maps = (units, inputs), (units,), (blocks, width, units)
    norms = *[(blocks, width)] * 3, *[(blocks, units)] * 4
    gates = (columns, units if gate_units else 0), (columns, units if gate_units else 0), (columns,)
    weights = *maps, *norms, (layers, units, units), (layers, units), *gates
    per_row = *(rows * blocks * n for n in (units, width, 3)), blocks * heads * rows**2
    of_gates = slots * units, slots * columns, slots * units
    # After attention; the last block computes the slots alone.
    after = units, (layers - 1) * units, units
    after_attention = *(rows * (blocks - 1) * n for n in after), *(slots * n for n in after)
    saved = *per_row, *of_gates, *after_attention
    return Shapes(slots * units, (slots * units,), weights, saved)


def _dnc(
    inputs: int,
    gate: GateKey,
    units: int,
    slots: int,
    word: int,
    reads: int,
    writes: int,
    outputs: int,
) -> Shapes:
    _require(
        slots * word * reads * writes * outputs > 0,
        "slots, word, reads, writes and outputs must be at least 1",
        *(slots, word, reads, writes, outputs),
    )
    width, both, heads = columns("lstm", gate, units), units + reads * word, reads + writes
    said = 3 * writes * word + reads * word + 3 * reads + 3 * writes + 2 * reads * writes
    links = writes * slots * slots
    memory = slots * word, reads * slots, writes * slots, links, writes * slots, slots
    weights = (width, inputs), (width,), (width, both), (said, units), (said,)
    saved = width, both, both, said, heads * slots, writes * slots, writes * slots, outputs
    return Shapes(
        outputs,
        (units, units, *memory, reads * word),
        (*weights, (outputs, both), (outputs,)),
        saved,
    )


def _rma(
    inputs: int,
    gate: GateKey,
    units: int,
    latent: int,
    hidden: int,
    slots: int,
    heads: int,
    top: int,
) -> Shapes:
    _require(latent * hidden > 0, "latent and hidden must be at least 1", latent, hidden)
    _require(
        slots == heads == top == 0 or (heads > 0 and 1 <= top <= slots),
        "slots, heads and top must be 0, or at least 1 with top at most slots",
        *(slots, heads, top),
    )
    width, reads, memory = columns("lstm", gate, units), heads * latent, int(heads > 0)
    low = inputs + 2 * units + reads
    of_latent = (hidden, low), (hidden,), (latent, hidden), (latent,)
    first = (width, latent), (width,), (width, units)
    second = (width, latent + units), (width,), (width, units)
    query = (reads + heads, 2 * units), (reads + heads,)
    return Shapes(
        latent + 2 * units + reads,
        (*[units] * 4, slots * latent, reads, memory),
        (*of_latent, *first, *second, *query),
        (hidden, latent + units, width, width, 2 * units, reads + heads, 4 * heads * top),
        projects_input=False,
        table=4,
    )


def _elman(inputs: int, gate: GateKey, units: int, rectified: int) -> Shapes:
    weights = (units, inputs), (units,), (units, units)
    return Shapes(output_size=units, parts=(units,), weights=weights, saved=(units,))


def _indrnn(inputs: int, gate: GateKey, units: int, rectified: int) -> Shapes:
    weights = (units, inputs), (units,), (units,)
    return Shapes(output_size=units, parts=(units,), weights=weights, saved=(units,))


def _minimal(inputs: int, gate: GateKey, units: int, candidate: int) -> Shapes:
    _require(candidate < _CANDIDATES, f"candidate must be below {_CANDIDATES}", candidate)
    # Without a gate, f and i are shares of the sigmoids of two maps.
    width = units + (2 * units if gate == NO_GATE else gate_columns(gate, units))
    weights = (width, inputs), (width,)
    return Shapes(output_size=units, parts=(units,), weights=weights, saved=(width,))


def _slstm(inputs: int, gate: GateKey, units: int) -> Shapes:
    # Without a gate, f is the sigmoid of one map.
    width = 3 * units + (units if gate == NO_GATE else gate_columns(gate, units))
    weights = (width, inputs), (width,), (width, units)
    return Shapes(output_size=units, parts=(units,) * 4, weights=weights, saved=(width,))


def _feedforward(inputs: int, gate: GateKey, units: int) -> Shapes:
    weights = (units, inputs), (units,)
    return Shapes(output_size=units, parts=(), weights=weights, saved=(units,))


def _lmu(inputs: int, gate: GateKey, units: int, memory: int) -> Shapes:
    _require(memory > 0, "memory must be at least 1", memory)
    maps = (units + 1, inputs), (units + 1,), (units + 1, units), (memory,), (units, memory)
    weights = *maps, (memory, memory), (memory,)
    return Shapes(units, (units, memory), weights, saved=(units + 1, memory))


def _cornn(inputs: int, gate: GateKey, units: int) -> Shapes:
    weights = (units, inputs), (units,), (units, 2 * units), (3,)
    return Shapes(output_size=units, parts=(units, units), weights=weights, saved=(units,))


def _lem(inputs: int, gate: GateKey, units: int) -> Shapes:
    weights = (4 * units, inputs), (4 * units,), (3 * units, units), (units, units)
    return Shapes(units, (units, units), weights, saved=(4 * units, units))


class NativeCell(NamedTuple):
    """A cell of native code.

    Attributes:
        header: its file in csrc/cells, without the ending.
        struct: the C++ type that computes it.
        shapes: gives the shapes of its tensors from the input size, its gate and its sizes.
    """

    header: str
    struct: str
    shapes: Callable[..., Shapes]


CELLS = {
    "lstm": NativeCell("lstm", "Lstm", partial(_stacked, "lstm")),
    "gru_after": NativeCell("gru", "Gru<false>", partial(_stacked, "gru_after")),
    "gru_before": NativeCell("gru", "Gru<true>", partial(_stacked, "gru_before")),
    "janet": NativeCell("janet", "Janet", partial(_stacked, "janet")),
    "gato": NativeCell("gato", "Gato", _gato),
    "rru": NativeCell("rru", "Rru", _rru),
    "mogrifier": NativeCell("mogrifier", "Mogrifier", _mogrifier),
    "nru": NativeCell("nru", "Nru", _nru),
    "elman": NativeCell("elman", "Elman", _elman),
    "indrnn": NativeCell("elman", "IndRnn", _indrnn),
    "minimal": NativeCell("minimal", "Minimal", _minimal),
    "slstm": NativeCell("slstm", "Slstm", _slstm),
    "feedforward": NativeCell("feedforward", "FeedForward", _feedforward),
    "lmu": NativeCell("lmu", "Lmu", _lmu),
    "cornn": NativeCell("ode", "CoRnn", _cornn),
    "lem": NativeCell("ode", "Lem", _lem),
    "rmc": NativeCell("rmc", "Rmc", _rmc),
    "dnc": NativeCell("dnc", "Dnc", _dnc),
    "rma": NativeCell("rma", "Rma", _rma),
}


def shapes_of(spec: CellSpec, input_size: int) -> Shapes:
    """The shapes of a cell's tensors; its weights do not matter.

    Raises:
        ValueError: sizes that no such cell has.
    """
    gate = spec.gate or NO_GATE
    chunk, units = gate[2], spec.sizes[0]
    _require(min(input_size, units) > 0, "inputs and units must be at least 1", input_size, units)
    _require(min(spec.sizes) >= 0, "sizes must be at least 0", *spec.sizes)
    _require(chunk > 0 and units % chunk == 0, "chunks must divide the units", chunk, units)
    return CELLS[spec.cell].shapes(input_size, gate, *spec.sizes)


# ---- arguments of native code ------------------------------------------------------------------

# The most of each that a cell may have.
SIZES, PARTS, WEIGHTS, SAVED = 8, 9, 16, 13

# Fields of the arguments, each of eight bytes: names, and the lengths of arrays. Those of a layer
# are CALL, LAYER and PROBABILITIES, then the addresses of the episode starts, (T, B), and of
# TENSORS, which are float32 and contiguous unless a stride is given; one that is absent, or whose
# gradient is not needed, is a null pointer. T is `steps`, B `batch_size`.
Fields = Sequence[tuple[str, int]]

CALL: Fields = (
    ("threads", 1),
    ("steps", 1),
    ("batch_size", 1),
    ("needs_state_grad", 1),  # of the state before the first step or of the initial state
    ("needs_weight_grad", 1),  # of any weight
    ("state_stride", 1),  # between rows of the batch, of state_0
    ("initial_stride", 1),  # and of initial
)
LAYER: Fields = (
    ("cell", 1),
    ("activation", 1),  # of the gate, and its auxiliary gate; -1 without a gate
    ("auxiliary", 1),
    ("chunk_size", 1),  # how many units share one master value
    ("sizes", SIZES),  # whose meaning the cell declares
    ("input_size", 1),
    ("projected_width", 1),  # of the input that the steps read; 0 if they read the input itself
    ("output_size", 1),
    ("state_size", 1),
    ("table_at", 1),  # where the table is in the state, or its end
    ("table_size", 1),  # 0 if there is none
    ("dropout_width", 1),
    ("noise_width", 1),  # dropout_width, then state_size if there is zoneout noise
    ("part_width", PARTS),  # of each part of the state
    ("saved_width", SAVED),  # of each tensor that is saved for the backward pass
    ("weight_numel", WEIGHTS),
)
PROBABILITIES: Fields = (
    ("dropout", 1),  # 0 in evaluation
    ("zoneout", PARTS),  # of each part of the state
    ("constant", 1),  # beta of JANET, the decay rate of GATO, the clip of the DNC, dt of LEM
)
TENSORS: Fields = (
    ("x", 1),  # (T, B, input_size)
    ("noise", 1),  # (T, B, noise_width), uniform in [0, 1)
    ("state_0", 1),  # (B, state_size), before the first step
    ("initial", 1),  # (B, state_size), at episode starts; null for zeros
    ("weights", WEIGHTS),
    ("outputs", 1),  # (T, B, output_size)
    ("state_n", 1),  # (B, state_size)
    # For the backward pass, null without one: the states before each step and after the last,
    # (T + 1, B, state_size - table_size), then what the cell saves, (T, B, width) each.
    ("saved", 1),
    ("d_outputs", 1),  # null for zeros
    ("d_x", 1),
    ("d_state", 1),  # of the final state; becomes that of state_0
    ("d_initial", 1),
    ("d_weights", WEIGHTS),
)
SCAN_CALL: Fields = (
    ("threads", 1),
    ("steps", 1),
    ("batch_size", 1),
    ("units", 1),
    ("width", 1),  # units, or twice as many if they are complex
    ("a_step_stride", 1),  # 0 where a is the same
    ("a_row_stride", 1),
    ("h_0_stride", 1),  # between rows of the batch
    ("initial_stride", 1),
)
SCAN_TENSORS: Fields = (
    ("a", 1),  # (T, B, width), as strided
    ("h_0", 1),  # (B, width), before the first step
    ("initial", 1),  # and at episode starts
    ("b", 1),  # (T, B, width)
    ("states", 1),  # (T, B, width), after each step
    ("d_states", 1),  # (T, B, width)
    ("d_carry", 1),  # (B, width), of the last state; becomes that of h_0
    ("d_a", 1),  # (T, B, width), or in float64 and summed over the steps
    ("d_a_sums", 1),  # (B, width)
    ("d_b", 1),  # (T, B, width)
    ("d_initial", 1),  # (B, width), summed over the steps
)
CHUNK = 32  # steps between the states that channels and memories keep for the backward pass
# Of channels with a linear system each, (E) of size N; what native code does with them is in
# csrc/drivers/channels.h.
CHANNELS_CALL: Fields = (
    ("threads", 1),
    ("steps", 1),
    ("batch_size", 1),
    ("channels", 1),
    ("size", 1),
    ("width", 1),  # of the state: channels * size, or twice as many if it is complex
    ("kind", 1),  # fixed, selective, or selective with one rate a channel
    ("groups", 1),  # of rows of the batch, with sums of their own
    ("sums", 1),  # numbers of a group in `d_sums`
    ("u_stride", 1),  # between steps of a row, here and below
    ("step_stride", 1),
    ("gate_stride", 1),
    ("b_stride", 1),
    ("c_stride", 1),
    ("h_0_stride", 1),  # between rows of the batch
    ("initial_stride", 1),
)
CHANNELS_TENSORS: Fields = (
    ("u", 1),  # (T, B, E)
    ("step", 1),  # (T, B, E), and null for fixed systems, as all that only selective ones have
    ("step_bias", 1),  # (E)
    ("gate", 1),  # (T, B, E)
    ("a", 1),  # (width); of selective systems the rates, (width) or (E)
    ("b", 1),  # (width), of selective systems (T, B, N)
    ("c", 1),
    ("skip", 1),  # (E)
    ("h_0", 1),  # (B, width), before the first step
    ("initial", 1),  # and at episode starts
    ("outputs", 1),  # (T, B, E)
    ("last", 1),  # (B, width), after the last step
    ("kept", 1),  # (ceil(T / CHUNK) - 1, B, width), after each chunk but the last; null without
    ("y", 1),  # (T, B, E) before the gate, for the backward pass of selective systems
    ("d_outputs", 1),
    ("d_carry", 1),  # (B, width), of the last state; becomes that of h_0
    ("d_u", 1),
    ("d_step", 1),
    ("d_gate", 1),
    ("d_b", 1),  # (T, B, N)
    ("d_c", 1),
    ("d_initial", 1),  # (B, width), summed over the steps
    # (groups, sums) in float64: of a, of b and c in fixed systems, of skip, and of step_bias
    ("d_sums", 1),
)
# Of memories of keys and values; what native code does with them is in csrc/drivers/memories.h.
MEMORIES_CALL: Fields = (
    ("threads", 1),
    ("steps", 1),
    ("batch_size", 1),
    ("heads", 1),
    ("key_size", 1),
    ("value_size", 1),
    ("width", 1),  # of the state: heads * value_size * key_size
    ("decays_alike", 1),  # whether the numbers of a key have one decay
    ("before_stride", 1),  # between rows of the batch
    ("initial_stride", 1),
)
MEMORIES_TENSORS: Fields = (
    ("q", 1),  # (T, B, heads, key_size)
    ("k", 1),
    ("v", 1),  # (T, B, heads, value_size)
    ("decay", 1),  # (T, B, heads) or as q; null for none
    ("removal", 1),  # as q; null, with `rate`, where nothing is removed
    ("rate", 1),
    ("before", 1),  # (B, width), before the first step
    ("initial", 1),  # and at episode starts; null for zeros
    ("outputs", 1),  # (T, B, heads, value_size)
    ("last", 1),  # (B, width), after the last step
    ("kept", 1),  # (ceil(T / CHUNK) - 1, B, width), after each chunk but the last; null without
    ("d_outputs", 1),
    ("d_q", 1),
    ("d_k", 1),
    ("d_v", 1),
    ("d_decay", 1),
    ("d_removal", 1),
    ("d_rate", 1),
    ("d_carry", 1),  # (B, width), of the last state; becomes that of before
    ("d_initial", 1),  # (B, width), summed over the steps
)
# Of numbers convolved over the last steps.
CONV_CALL: Fields = (
    ("threads", 1),
    ("steps", 1),
    ("batch_size", 1),
    ("width", 1),
    ("taps", 1),  # steps that are read, at least 2
    ("groups", 1),  # of rows of the batch, with sums of their own
    ("u_stride", 1),  # between steps of a row
    ("window_stride", 1),  # between rows of the batch
)
CONV_TENSORS: Fields = (
    ("u", 1),  # (T, B, width)
    ("window", 1),  # (B, taps - 1, width), the oldest first
    ("weight", 1),  # (taps, width), the present step first
    ("bias", 1),  # (width)
    ("outputs", 1),  # (T, B, width)
    ("last", 1),  # the window after the last step
    ("d_outputs", 1),
    ("d_last", 1),
    ("d_u", 1),  # begin as zeros, as those below
    ("d_window", 1),
    ("d_sums", 1),  # (groups, (taps + 1) * width) in float64: of weight, then of bias
)
# Of attention to the last steps.
ATTENTION_CALL: Fields = (
    ("threads", 1),
    ("steps", 1),
    ("batch_size", 1),
    ("heads", 1),
    ("head_size", 1),
    ("window", 1),  # steps that are attended to, the present one among them
    ("k_stride", 1),  # between steps of a row
    ("v_stride", 1),
    ("before_stride", 1),  # between rows of the batch
)
ATTENTION_TENSORS: Fields = (
    ("q", 1),  # (T, B, heads, head_size)
    ("k", 1),  # as q
    ("v", 1),
    ("scores", 1),  # (heads, T, B, window), the present step last
    ("length", 1),  # (T, B), steps of the episode before this one
    ("before", 1),  # (B, 2, window - 1, heads, head_size): keys, then values, the oldest first
    ("outputs", 1),  # as q
    ("last", 1),  # as before
    ("weights", 1),  # as scores; null where no gradient is needed
    ("d_outputs", 1),
    ("d_last", 1),
    ("d_q", 1),
    ("d_k", 1),  # begin as zeros, as d_v and d_before
    ("d_v", 1),
    ("d_scores", 1),
    ("d_before", 1),
)
COLOURS = 64  # the most of `GridArgs`: colours of all images of a call
GRID_CALL: Fields = (
    ("threads", 1),
    ("images", 1),
    ("channels", 1),
    ("num_places", 1),
    ("cell_dim", 1),
    ("place_dim", 1),
)
GRID_TENSORS: Fields = (
    ("x", 1),  # (N, channels, num_places)
    ("cell_weight", 1),  # (cell_dim, channels)
    ("cell_bias", 1),
    ("place_weight", 1),  # (place_dim, num_places, cell_dim)
    ("place_bias", 1),
    ("features", 1),  # (N, place_dim + cell_dim)
    # For the backward pass: how many colours there are, they, and which each pixel has.
    ("num_colours", 1),  # (1)
    ("palette", 1),  # (COLOURS, channels)
    ("colours", 1),  # (N, num_places)
    ("d_features", 1),
    ("d_cell_weight", 1),
    ("d_cell_bias", 1),
    ("d_place_weight", 1),
    ("d_place_bias", 1),
)
HEAD_LAYERS = 4  # the most layers with an activation of a head
# Of an actor and a critic, one after the other.
HEADS_CALL: Fields = (
    ("threads", 1),
    ("rows", 1),
    ("actions", 1),
    ("rectifies", 1),  # the activation: ReLU, or else tanh
    ("input_size", 2),
    ("hidden_layers", 2),
    ("width", 2 * HEAD_LAYERS),  # of each hidden layer
)
HEADS_NUMBERS: Fields = (
    ("clip_range", 1),
    ("clip_range_vf", 1),  # negative for none
    ("ent_coef", 1),
    ("vf_coef", 1),
)
HEADS_TENSORS: Fields = (
    ("x", 2),  # (N, input_size); the second is null where the critic reads that of the actor
    ("weights", 2 * HEAD_LAYERS + 2),  # (outputs, inputs), the last layer without activation
    ("biases", 2 * HEAD_LAYERS + 2),
    ("log_probs", 1),  # (N, actions)
    ("values", 1),  # (N)
    # For the loss, all (N):
    ("taken", 1),  # actions
    ("old_log_probs", 1),
    ("old_values", 1),
    ("advantages", 1),
    ("returns", 1),
    ("losses", 1),  # (6), see `rlgates.kernels.cpu.heads.ppo_losses`
    ("d_x", 2),
    ("d_weights", 2 * HEAD_LAYERS + 2),
    ("d_biases", 2 * HEAD_LAYERS + 2),
)
ADAM_CALL: Fields = (
    ("threads", 1),
    ("count", 1),  # tensors
)
ADAM_NUMBERS: Fields = (
    ("learning_rate", 1),
    ("beta1", 1),
    ("beta2", 1),
    ("epsilon", 1),
    ("max_norm", 1),  # of the gradient of all
)
ADAM_TABLE: Fields = (  # of each tensor
    ("weight", 1),
    ("gradient", 1),
    ("mean", 1),  # running means, of the gradient and of its square
    ("square", 1),
    ("step", 1),  # how many there were, a float as in torch
)
ADAM_TENSORS: Fields = (
    ("norm", 1),  # of the gradient before it is clipped
    ("table", 1),
)


def length(fields: Fields) -> int:
    """How many numbers of eight bytes they are."""
    return sum(count for _, count in fields)


def _enumeration(name: str, words: Sequence[str]) -> str:
    return f"enum {name} {{ {', '.join(word.upper() for word in words)} }};"


def _declarations(kind: str, fields: Fields) -> list[str]:
    return [f"  {kind}{name}{f'[{count}]' if count > 1 else ''};" for name, count in fields]


_STARTS = "  const unsigned char *episode_starts;"  # (T, B)
_KINDS = {
    "d_a_sums": "double *",
    "d_sums": "double *",
    "num_colours": "int64_t *",
    "colours": "unsigned char *",
    "taken": "int64_t *",
    "table": "const AdamTensor *",
}


def _tensors(fields: Fields) -> list[str]:
    return [_declarations(_KINDS.get(f[0], "float *"), [f])[0] for f in fields]


def digest() -> int:
    """A number of this table: native code that was built from another one has another number."""
    return zlib.crc32((_contract() + kernels()).encode()) & 0x7FFFFFFF


def header() -> str:
    """Gates, cells and arguments as C++, and the `digest`."""
    return f"{_contract()}enum {{ LAYOUT_DIGEST = {digest()} }};\n"


def _arguments(
    name: str,
    call: Fields,
    tensors: Fields,
    *,
    numbers: Fields = (),
    has_starts: bool = False,
    constants: str = "",
) -> list[str]:
    """The arguments of one function as a struct."""
    size = sum(map(length, (call, numbers, tensors))) + has_starts
    return [
        f"struct {name} {{",
        *([f"  enum {{ {constants} }};"] if constants else []),
        *_declarations("int64_t ", call),
        *_declarations("double ", numbers),
        *([_STARTS] if has_starts else []),
        *_tensors(tensors),
        "};",
        f"static_assert(sizeof({name}) == 8 * {size});",
    ]


def _contract() -> str:
    of_layers = f"SIZES = {SIZES}, PARTS = {PARTS}, WEIGHTS = {WEIGHTS}, SAVED = {SAVED}"
    chunk, colours, layers = f"CHUNK = {CHUNK}", f"COLOURS = {COLOURS}", f"LAYERS = {HEAD_LAYERS}"
    lines = [
        "// Written by rlgates/kernels/layout.py, which explains it.",
        "// The function `use` names the chosen instructions when it is given none.",
        _enumeration("Activation", ACTIVATIONS),
        _enumeration("Auxiliary", [*AUXILIARIES]),
        _enumeration("CellId", [*CELLS]),
        *_arguments(
            "LayerArgs",
            [*CALL, *LAYER],
            TENSORS,
            numbers=PROBABILITIES,
            has_starts=True,
            constants=of_layers,
        ),
        *_arguments("ScanArgs", SCAN_CALL, SCAN_TENSORS, has_starts=True),
        *_arguments(
            "ChannelArgs", CHANNELS_CALL, CHANNELS_TENSORS, has_starts=True, constants=chunk
        ),
        *_arguments("MemoryArgs", MEMORIES_CALL, MEMORIES_TENSORS, has_starts=True),
        *_arguments("ConvArgs", CONV_CALL, CONV_TENSORS, has_starts=True),
        *_arguments("AttentionArgs", ATTENTION_CALL, ATTENTION_TENSORS),
        *_arguments("GridArgs", GRID_CALL, GRID_TENSORS, constants=colours),
        *_arguments(
            "HeadsArgs", HEADS_CALL, HEADS_TENSORS, numbers=HEADS_NUMBERS, constants=layers
        ),
        "struct AdamTensor {",
        "  int64_t numel;",
        *_tensors(ADAM_TABLE),
        "};",
        *_arguments("AdamArgs", ADAM_CALL, ADAM_TENSORS, numbers=ADAM_NUMBERS),
    ]
    return "\n".join(lines) + "\n"


def kernels() -> str:
    """The C++ that includes every cell and finds its kernel by its id."""
    headers = dict.fromkeys(cell.header for cell in CELLS.values())
    cases = [
        f"    case {name.upper()}: return &kernel_of<{cell.struct}>;"
        for name, cell in CELLS.items()
    ]
    lines = [
        "// Written by rlgates/kernels/layout.py.",
        *(f'#include "cells/{header}.h"' for header in headers),
        "static const Kernel *kernel_for(CellId cell) {",
        "  switch (cell) {",
        *cases,
        "  }",
        "  __builtin_unreachable();",
        "}",
    ]
    return "\n".join(lines) + "\n"
