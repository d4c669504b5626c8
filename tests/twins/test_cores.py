"""Cores without a large memory against their twins; the others have files of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.twin_harness import (
    INPUTS,
    build,
    check,
    check_derivative,
    gated_cases,
    label,
    single_for,
    told,
)

from rlgates.gates import GATES
from rlgates.registry import CORES
from twins import linear, rru, ungated, window
from twins.attention import gtrxl, transformer
from twins.delta import deltanet, fwp, rwkv7
from twins.gated import dilated_gru, gru, janet, lem, lstm, mogrifier
from twins.gates import MAIN
from twins.gato import gato
from twins.lmu import lmu
from twins.nru import nru
from twins.sequence import Initial, Step, zeros
from twins.xlstm import mlstm, slstm

Options = dict[str, Any]
BEFORE, LINEAR, TWO = {"reset": "before"}, {"candidate": "linear"}, {"num_layers": 2}
LARGE, NO_GAMMA = {"hidden_size": 6}, {"trainable_gamma": False}
DEEP = LARGE | {"depth": 2, "inner_size": 3}
WINDOW = LARGE | {"window": 3, "num_heads": 2}
NRU = {"memory_size": 8, "num_heads": 2, "hidden_size": 3}
FFM = {"memory_size": 2, "context_size": 3}
S4D = {"ssm_size": 4, "hidden_size": 3}
ATTENTION = {"input_size": 3, "hidden_size": 4, "key_size": 2}
SHM = {"input_size": 4, "memory_size": 3, "num_rows": 2}
MAMBA = {"ssm_size": 2, "hidden_size": 3, "conv_size": 3}
RRU = {"output_size": 3, "expansion": 0.7, "hidden_size": 4}


def unread_of_gato(options: Options) -> tuple[str, ...]:
    """What the ablations leave unread."""
    match options.get("s_update", "sum"):
        case "sum":
            return ()
        case "increment":
            return ("s",)
    inner = ("W1_x", "W1_r", "b1", "W2", "b2")
    return ("s", *(inner if options.get("depth") == 2 else ("W_x_A", "a", "b_A")))


class Twin(NamedTuple):
    """The twin of a core, and the options with which the core is compared with it."""

    step: Step
    cases: list[tuple[str, Options]]
    # With which the twin's own derivative is compared with differences.
    derived: list[tuple[str, Options]]
    initial: Initial = zeros
    single: Callable[[str], float] = lambda name: 1e-6
    unread: Callable[[Options], tuple[str, ...]] = lambda options: ()
    random_state: bool = True  # whether any numbers are a state


def each(name: str, *choices: Options, sizes: Options | None = None) -> list[tuple[str, Options]]:
    return [(name, {**(sizes or {}), **options}) for options in choices]


TWINS = {
    "lstm": Twin(lstm, gated_cases("lstm"), each("s_lstm", {})),
    "gru": Twin(gru, gated_cases("gru", BEFORE, BEFORE | TWO), each("ur_gru", {}, BEFORE)),
    "dilated_gru": Twin(
        dilated_gru,
        each(
            "dilated_gru",
            {},
            TWO | {"levels": 2},
            {"levels": 1, "tied": False},
            {"levels": 2, "dilation": 3},
        )
        + [(name, {"levels": 2}) for name in ("ur_dilated_gru", "om_dilated_gru")]
        + each("um_dilated_gru", LARGE | {"levels": 2, "chunk_size": 3}),
        each("dilated_gru", {"levels": 2}),
    ),
    "janet": Twin(
        janet,
        gated_cases("janet", {"beta": 0.0}, {"beta": -0.7} | TWO, switch_tied=False),
        each("ur_janet", {}),
        single=single_for,
    ),
    "mogrifier": Twin(
        mogrifier,
        gated_cases(
            "mogrifier",
            {"rounds": 0},
            {"rounds": 1},
            {"rounds": 2},
            {"rounds": 4, "input_size": 3, "rank": 2},
            {"input_size": 4, "hidden_size": 3, "rank": 2} | TWO,
            {"cap_input": False},
            {"rounds": 0, "cap_input": False} | TWO,
        ),
        each("mogrifier", {}, {"rank": 2, "input_size": 3}),
        single=single_for,
    ),
    "mingru": Twin(
        linear.mingru,
        gated_cases("mingru", LINEAR, LINEAR | TWO),
        each("ur_mingru", {}),
        single=single_for,
    ),
    "gilr": Twin(linear.gilr, gated_cases("gilr"), each("s_gilr", {}), single=single_for),
    "minlstm": Twin(
        linear.minlstm, each("minlstm", {}, TWO, LINEAR, LINEAR | TWO), each("minlstm", {})
    ),
    "lru": Twin(
        linear.lru,
        each("lru", {}, TWO, NO_GAMMA, NO_GAMMA | TWO),
        each("lru", {}),
    ),
    "elman": Twin(
        ungated.elman,
        each("elman", {}, TWO, {"nonlinearity": "relu"}),
        each("elman", {}),
    ),
    "indrnn": Twin(
        ungated.indrnn,
        each("indrnn", {}, TWO, {"nonlinearity": "tanh", "max_recurrent": 0.3}),
        each("indrnn", {"nonlinearity": "tanh"}),
    ),
    "cornn": Twin(
        ungated.cornn,
        each("cornn", {}, TWO, {"dt": 0.2, "gamma": 0.4, "epsilon": 8.0}, {"epsilon": 0.0}),
        each("cornn", {"dt": 0.3}),
    ),
    "lem": Twin(
        lem,
        each("lem", {}, TWO, {"dt": 0.3}, {"dt": 2.5}),
        each("lem", {}),
        single=lambda name: 1e-5,  # where dt is above 2, states grow
    ),
    "lmu": Twin(
        lmu,
        each("lmu", {"memory_size": 4}, {"memory_size": 7, "theta": 9.5} | TWO),
        each("lmu", {"memory_size": 3}),
    ),
    "slstm": Twin(
        slstm,
        gated_cases("slstm", LARGE | {"num_heads": 3}, switch_tied=False),
        each("slstm", {}) + each("ur_slstm", {}),
        single=single_for,
        random_state=False,  # n is a sum of positive numbers
    ),
    "mlstm": Twin(
        mlstm,
        each("mlstm", {}, TWO, LARGE | {"num_heads": 3}, LARGE | {"num_heads": 2, "key_size": 5}),
        each("mlstm", {}),
    ),
    **{
        name: Twin(
            step,
            each(name, WINDOW, WINDOW | TWO, {"window": 9, "mlp_size": 3}),
            each(name, WINDOW),
            single=lambda name: 1e-5,  # a layer norm divides by what may be small
            random_state=False,
        )
        for name, step in {"transformer": transformer, "gtrxl": gtrxl}.items()
    },
    "fwp": Twin(
        fwp,
        each("fwp", {}, TWO, LARGE | {"num_heads": 3, "key_size": 4, "projections": 2}),
        each("fwp", {}),
        single=lambda name: 1e-5,
    ),
    "deltanet": Twin(
        deltanet,
        each("deltanet", {}, TWO, LARGE | {"num_heads": 3, "key_size": 4}),
        each("deltanet", {}),
        single=lambda name: 1e-5,
    ),
    "rwkv7": Twin(
        rwkv7,
        each("rwkv7", {}, TWO, LARGE | {"num_heads": 3}, sizes={"rank": 2}),
        each("rwkv7", {"rank": 2}),
        single=lambda name: 1e-5,
    ),
    "frame_stack": Twin(
        window.frame_stack,
        each("frame_stack", {}, TWO, {"window": 2}, {"window": 8}),
        each("frame_stack", {}),
    ),
    "frame_conv": Twin(
        window.frame_conv,
        each("frame_conv", {}, TWO, {"window": 2}, {"window": 8}),
        each("frame_conv", {}),
    ),
    "positional": Twin(window.positional, each("positional", {}, TWO), []),
    "ffm": Twin(
        linear.ffm,
        each("ffm", {}, TWO, {"memory_size": 3, "context_size": 2, "hidden_size": 3}, sizes=FFM),
        each("ffm", FFM),
    ),
    "s4d": Twin(
        linear.s4d,
        each("s4d", {}, TWO, {"init": "inv"}, {"init": "legs"} | TWO, sizes=S4D),
        each("s4d", S4D),
        single=lambda name: 1e-5,  # the maps after the state magnify its rounding
    ),
    "s5": Twin(
        linear.s5,
        each("s5", {}, TWO, {"blocks": 2}, {"clip_eigs": False}, sizes={"ssm_size": 8})
        + each(
            "s5", *({"activation": name} for name in ("half_glu2", "full_glu", "gelu", "linear"))
        ),
        each("s5", {}),
        single=lambda name: 1e-5,
    ),
    "linear_transformer": Twin(
        linear.linear_transformer,
        each(
            "linear_transformer",
            {},
            TWO,
            {"num_heads": 2, "key_size": 1},
            {"num_heads": 4, "feed_forward": False} | TWO,
            sizes=ATTENTION,
        ),
        each("linear_transformer", ATTENTION),
        single=lambda name: 1e-5,
        random_state=False,  # z is a sum of positive numbers
    ),
    "shm": Twin(
        linear.shm,
        each("shm", {}, {"num_rows": 1}, TWO, sizes=SHM),
        each("shm", SHM),
        single=lambda name: 1e-5,
    ),
    "mamba": Twin(
        linear.mamba,
        each("mamba", {}, TWO, {"conv_size": 2, "dt_rank": 2, "expand": 1}, sizes=MAMBA),
        each("mamba", MAMBA),
        single=lambda name: 1e-5,
    ),
    "mamba2": Twin(
        linear.mamba2,
        each("mamba2", {}, TWO, {"conv_size": 4, "head_size": 2}, sizes=MAMBA),
        each("mamba2", MAMBA),
        single=lambda name: 1e-5,
    ),
    "rtu": Twin(linear.rtu, each("rtu", {}, TWO, {"nonlinearity": "tanh"}), each("rtu", {})),
    "none": Twin(linear.memoryless, each("none", {}, TWO), []),
    "gato": Twin(
        gato,
        each(
            "gato",
            LARGE,
            LARGE | TWO,
            {"decay": 0.45, "hidden_size": 4},
            DEEP,
            DEEP | TWO,
            DEEP | {"inner_size": 1, "decay": 1.0, "hidden_size": 2},
            *(
                {"s_update": name} | deep
                for name in ("increment", "zero")
                for deep in (LARGE, DEEP)
            ),
        ),
        each("gato", LARGE, DEEP),
        unread=unread_of_gato,
    ),
    "nru": Twin(
        nru,
        each(
            "nru",
            NRU,
            {"memory_size": 4, "num_heads": 1},
            {"memory_size": 9, "num_heads": 4},  # a head is one and a half rows of the product
            NRU | TWO,
            NRU | {"relu": True},
            NRU | {"layer_norm": True},
            NRU | {"relu": True, "layer_norm": True} | TWO,
        ),
        each("nru", *(NRU | {"relu": flag, "layer_norm": flag} for flag in (False, True))),
        # A direction is divided by its norm, which may be small: rounding is magnified, in the
        # core no more than by the equations themselves.
        single=lambda name: 1e-4,
    ),
    "rru": Twin(
        rru.rru,
        each(
            "rru",
            {},
            TWO,
            {"expansion": 1.3, "output_size": 1, "hidden_size": 3},
            {"relu_layers": 2},
            {"relu_layers": 3} | TWO,
            {"normalize": False},
            {"scalar_z": True},
            {"relu_candidate": True},
            {"relu_output": True},
            {"relu_candidate": True, "relu_output": True} | TWO,
            {"fixed_decay": True},
            {"start_decay": 0.95},
            {"normalize": False, "scalar_z": True, "fixed_decay": True} | TWO,
            sizes=RRU,
        ),
        each("rru", {"relu_layers": 2}, sizes=RRU),
        rru.initial,
    ),
}


def rows(of: Callable[[Twin], list[tuple[str, Options]]]) -> Any:
    return pytest.mark.parametrize(
        ("twin", "name", "options"),
        [
            pytest.param(twin, name, options, id=f"{name}-{label(options)}")
            for twin in TWINS.values()
            for name, options in of(twin)
        ],
    )


def test_every_gate_and_core_has_a_twin() -> None:
    assert set(MAIN) == set(GATES)
    assert {*TWINS, "rmc", "dnc", "rma"} == set(CORES)


@rows(lambda twin: twin.cases)
def test_a_core_equals_its_twin(twin: Twin, name: str, options: Options) -> None:
    check(
        twin.step,
        build(name, **options),
        twin.initial,
        single=twin.single(name),
        without_gradient=twin.unread(options),
        random_state=twin.random_state,
        **told(twin.step, name, options),
    )


@rows(lambda twin: twin.derived)
def test_the_twins_differentiate_rightly(twin: Twin, name: str, options: Options) -> None:
    core = build(name, **options)
    check_derivative(twin.step, core, twin.initial, **told(twin.step, name, options))


def test_minlstm_gates_far_below_zero() -> None:
    """Both gates are far below the smallest float32, and their quotient is not."""
    core = build("minlstm").float()
    weights = core.gate_weights()
    for name, value in {"W_f": 0.0, "W_i": 0.0, "b_f": -200.0, "b_i": -199.0}.items():
        weights[name].fill_(value)
    x = torch.ones(1, 1, INPUTS)
    assert core.trace_gates(x).forget[0].numpy() == pytest.approx(1 / (1 + np.e))
    core(x)[0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in core.parameters())


def test_width_of_the_hidden_layer_of_the_rru() -> None:
    core = build("rru", expansion=1.6, input_size=3, hidden_size=5, num_layers=2, output_size=4)
    widths = [len(core.gate_weights(layer)["b_j"]) for layer in (0, 1)]
    assert widths == [13, 14]  # round(1.6 (3 + 5)) and round(1.6 (4 + 5))
