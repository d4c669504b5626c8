"""What Python and native code agree on: ids, maps, and the fields of the arguments.

This is the one table. `header` writes it as C++, which setup.py compiles into the extension, and
`rlgates.kernels.cpu` packs arguments by it. It imports nothing, because setup.py runs it before
anything is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

# Gates on their two axes, see `rlgates.gates`: what native code and Triton cover.
ACTIVATIONS = ("sigmoid", "fast", "iterated_fast", "softsign", "cumax")
AUXILIARIES = ("untied", "tied", "refine", "master")

# Cells with the weights of a torch.nn layer: the maps beside those of the gate, in stacking order.
STACKED_CELLS = {
    "lstm": ("u", "o"),
    "gru_after": ("reset", "u"),
    "gru_before": ("reset", "u"),
    "janet": ("u",),
}
CELLS = (*STACKED_CELLS, "gato", "rru", "mogrifier", "nru")

# The most of each that a cell may have.
SIZES, PARTS, WEIGHTS, SAVED = 8, 4, 10, 6

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
    ("dropout_width", 1),
    ("noise_width", 1),  # dropout_width, then state_size if there is zoneout noise
    ("part_width", PARTS),  # of each part of the state
    ("saved_width", SAVED),  # of each tensor that is saved for the backward pass
    ("weight_numel", WEIGHTS),
)
PROBABILITIES: Fields = (
    ("dropout", 1),  # 0 in evaluation
    ("zoneout", PARTS),  # of each part of the state
    ("constant", 1),  # beta of JANET, the decay rate of GATO
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
    # (T + 1, B, state_size), then what the cell saves, (T, B, width) each.
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


def length(fields: Fields) -> int:
    """How many numbers of eight bytes they are."""
    return sum(count for _, count in fields)


def _enumeration(name: str, words: Sequence[str]) -> str:
    return f"enum {name} {{ {', '.join(word.upper() for word in words)} }};"


def _declarations(kind: str, fields: Fields) -> list[str]:
    return [f"  {kind}{name}{f'[{count}]' if count > 1 else ''};" for name, count in fields]


def _tensors(fields: Fields) -> list[str]:
    starts = "  const unsigned char *episode_starts;"  # (T, B)
    kinds = {"d_a_sums": "double *"}
    return [starts, *(_declarations(kinds.get(f[0], "float *"), [f])[0] for f in fields)]


def header() -> str:
    """All of this as C++."""
    layer_length = sum(map(length, (CALL, LAYER, PROBABILITIES, TENSORS))) + 1
    scan_length = length(SCAN_CALL) + length(SCAN_TENSORS) + 1
    lines = [
        "// Written by rlgates/kernels/layout.py, which explains it.",
        _enumeration("Activation", ACTIVATIONS),
        _enumeration("Auxiliary", AUXILIARIES),
        _enumeration("CellId", CELLS),
        "struct LayerArgs {",
        f"  enum {{ SIZES = {SIZES}, PARTS = {PARTS}, WEIGHTS = {WEIGHTS}, SAVED = {SAVED} }};",
        *_declarations("int64_t ", [*CALL, *LAYER]),
        *_declarations("double ", PROBABILITIES),
        *_tensors(TENSORS),
        "};",
        f"static_assert(sizeof(LayerArgs) == 8 * {layer_length});",
        "struct ScanArgs {",
        *_declarations("int64_t ", SCAN_CALL),
        *_tensors(SCAN_TENSORS),
        "};",
        f"static_assert(sizeof(ScanArgs) == 8 * {scan_length});",
    ]
    return "\n".join(lines) + "\n"
