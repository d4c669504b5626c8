"""The layers that kernels run: gated ones with each gate, and cells with a kernel of their own."""

from __future__ import annotations

from typing import Any

import torch
from support.equivalence import seeded, seeded_core

from rlgates import Core
from rlgates.gates import GATES
from rlgates.kernels import layout
from rlgates.registry import CORES, core_names

Layer = tuple[str, dict[str, Any]]


def core_name(gate: str, core: str) -> str:
    return core if gate == CORES[core].plain else f"{gate}_{core}"


def in_kernels(gate: str) -> bool:
    """Whether the kernels know a gate; else the plain loop runs it, and says so."""
    row = GATES[gate]
    return row.activation in layout.ACTIVATIONS and row.auxiliary in layout.AUXILIARIES


def layers_of(core: str, *choices: dict[str, Any]) -> list[Layer]:
    """Every gate of a core that kernels know with each set of options, tied and untied where
    allowed."""
    row = CORES[core]
    layers: list[Layer] = []
    for gate in filter(in_kernels, row.gates):
        free = "tied" in GATES[gate].options and "tied" not in row.fixed
        for tied in ({"tied": False}, {"tied": True}) if free else ({},):
            layers += [(core_name(gate, core), {**tied, **options}) for options in choices]
    return layers


LAYERS = [
    *layers_of("lstm", {}),
    *layers_of("gru", {"reset": "after"}, {"reset": "before"}),
    *layers_of("janet", {"beta": 1.0}, {"beta": 0.0}),
]
CHUNKED: list[Layer] = [("om_lstm", {"chunk_size": 5}), ("um_gru", {"chunk_size": 3})]
# A few of each cell, and gates of each kind.
SOME: list[Layer] = [
    ("ur_lstm", {}),
    ("om_lstm", {}),
    ("ff_lstm", {}),
    ("gru", {}),
    ("or_gru", {"reset": "before"}),
    ("ur_janet", {}),
]

# Cells with a kernel of their own, each with the options that change it.
FUSED_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "gato": [
        {},
        {"depth": 2, "inner_size": 1},
        {"depth": 2, "inner_size": 5, "decay": 1.0},
        {"s_update": "increment"},
        {"depth": 2, "inner_size": 3, "s_update": "increment"},
        {"depth": 2, "inner_size": 3, "s_update": "zero"},
    ],
    "rru": [
        {"dropout": 0.0},
        {"dropout": 0.0, "relu_layers": 2, "scalar_z": True},
        {"dropout": 0.0, "relu_layers": 4, "normalize": False, "output_size": 5},
        {"dropout": 0.0, "fixed_decay": True, "relu_candidate": True, "relu_output": True},
        {"dropout": 0.0, "expansion": 0.1, "start_decay": 0.9},
    ],
    "mogrifier": [{"rounds": 0}, {"rounds": 1}, {"rounds": 4, "rank": 2}, {"cap_input": False}],
    "nru": [{}, {"num_heads": 3, "layer_norm": True}, {"num_heads": 1, "relu": True}],
    "elman": [{}, {"nonlinearity": "relu"}],
    "indrnn": [{}, {"nonlinearity": "tanh", "max_recurrent": 0.7}],
    "slstm": [{}, {"forget_bias": -3.0}],
    "lmu": [{"memory_size": 5}, {"memory_size": 17, "theta": 8.0}],
    "cornn": [{"dt": 0.3}, {"dt": 0.2, "gamma": 0.4, "epsilon": 8.0}],
    "lem": [{}, {"dt": 0.3}, {"dt": 2.5}],
    "rmc": [
        {},
        {"num_heads": 2, "num_blocks": 2, "mlp_layers": 3},
        {"mem_slots": 2, "gate_style": "memory", "key_size": 3},
        {"mem_slots": 1, "gate_style": None, "mlp_layers": 1},
        {"mem_slots": 17},  # more rows than a vector has lanes
    ],
    # Of rows of equal cosine, as those of zeros, the loop may choose others.
    "rma": [
        {"latent_size": 4, "num_slots": 6, "top_k": 6},
        {"latent_size": 17, "latent_hidden": 3, "num_slots": 5, "top_k": 2, "num_heads": 1},
        {"latent_size": 20, "num_slots": 40, "top_k": 3, "num_heads": 4},
        {"latent_size": 3, "num_slots": 1, "top_k": 1, "num_heads": 2},
        {"latent_size": 7, "memory": False},
    ],
}
FUSED: list[Layer] = [
    *((name, options) for name, choices in FUSED_OPTIONS.items() for options in choices),
    *layers_of("mogrifier", {}),
    ("um_mogrifier", {"chunk_size": 2}),
    *layers_of("slstm", {}),
    *layers_of("rmc", {"mem_slots": 3}),
    ("um_rmc", {"chunk_size": 2}),
    *layers_of("rma", {"latent_size": 5, "num_slots": 7, "top_k": 7}),
]
# One of each of these cells.
SOME_FUSED: list[Layer] = [
    *((name, FUSED_OPTIONS[name][i]) for name, i in (("gato", 0), ("gato", 2), ("rru", 1))),
    ("nru", {"num_heads": 3, "layer_norm": True}),
    ("elman", {}),
    ("indrnn", {}),
    ("slstm", {}),
    ("cornn", {"dt": 0.3}),
    ("lem", {}),
    ("ur_slstm", {}),
    ("lmu", {"memory_size": 5}),
    ("om_mogrifier", {}),
    ("ur_rmc", {"num_heads": 2}),
    ("ur_rma", {"latent_size": 4, "num_slots": 6, "top_k": 6}),
]
assert {core_names()[name][0] for name, _ in SOME_FUSED} == {*FUSED_OPTIONS}

# The DNC, which has tests of its own.
DNC: list[Layer] = [
    ("dnc", {"num_writes": 2, "num_slots": 7, "word_size": 3, "num_reads": 2}),
    ("dnc", {"num_writes": 3, "num_slots": 20, "word_size": 17, "num_reads": 1, "clip": None}),
    ("dnc", {"clip": 0.4, "output_size": 5}),
    ("dnc", {"num_slots": 1, "word_size": 1, "num_reads": 1}),
    *layers_of("dnc", {"num_slots": 5, "word_size": 4}),
]
SOME_DNC: list[Layer] = [
    ("ur_dnc", {"num_slots": 3, "word_size": 4}),
    ("dnc", {"num_writes": 2, "num_slots": 3, "word_size": 5, "clip": 0.5, "output_size": 3}),
]


def general_core(
    name: str, hidden_size: int, num_layers: int = 1, input_size: int = 5, **options: Any
) -> Core:
    """A core without zero weights."""
    core = seeded_core(name, hidden_size, num_layers, input_size, **options)
    generator = seeded(3)
    with torch.no_grad():
        for parameter in core.parameters():
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.add_(0.2 * noise)
    return core
