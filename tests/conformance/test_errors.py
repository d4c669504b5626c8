"""Errors of gates and cores name the value and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import INPUTS, build, every_core
from support.equivalence import inputs_and_state, typical_episode_starts

from rlgates import Core, make_core
from rlgates.cores import LSTM
from rlgates.gates import Gate, Row


@pytest.mark.parametrize(
    ("name", "size", "options", "error", "message"),
    [
        ("ru", 4, {}, ValueError, r"unknown gate 'ru'\. Allowed: '' \(forget bias 1\), c \(chrono"),
        ("", 0, {}, ValueError, "hidden_size must be at least 1, got 0"),
        ("", True, {}, TypeError, r"hidden_size must be an integer, got True \(bool\)"),
        ("", 1.5, {}, TypeError, r"hidden_size must be an integer, got 1\.5 \(float\)"),
        ("ur", 4, {"t_max": 9}, ValueError, "unknown option for gate 'ur' 't_max'.*: refine_bias"),
        ("", 4, {"forget_bas": 1}, ValueError, "Did you mean 'forget_bias'"),
        ("o", 4, {"forget_bias": 1}, ValueError, "'forget_bias'. It belongs to '', 'r', 'f', 'ff'"),
        ("c", 4, {"t_max": 1.5}, ValueError, "t_max must be at least 2 .*, got 1.5"),
        ("c", 4, {"t_max": 0}, ValueError, "t_max must be at least 2 .*, got 0"),
        ("c", 4, {"t_max": math.inf}, ValueError, "t_max must .* finite, got inf"),
        ("c", 4, {"t_max": math.nan}, ValueError, "t_max must .*, got nan"),
        ("", 4, {"forget_bias": math.nan}, ValueError, "forget_bias must be finite, got nan"),
        ("s", 4, {"forget_bias": -math.inf}, ValueError, "forget_bias must be finite, got -inf"),
        ("ur", 4, {"refine_bias": "minus"}, ValueError, "unknown refine_bias 'minus'.*: minus_fo"),
        ("om", 6, {"chunk_size": 4}, ValueError, r"divide hidden_size 6, got 4\. .*: 1, 2, 3\."),
        ("um", 6, {"chunk_size": 4}, ValueError, r"divide hidden_size 6, got 4\. .*: 1, 2, 3, 6"),
        ("om", 6, {"chunk_size": 6}, ValueError, "at least two.*Got hidden_size 6, chunk_size 6"),
        ("om", 1, {}, ValueError, "gate 'om' orders its units.*keep everything and write nothing"),
        ("o", 1, {}, ValueError, "gate 'o' orders its units.*Got hidden_size 1"),
        ("or", 1, {}, ValueError, "gate 'or' orders its units.*Got hidden_size 1"),
        ("om", 6, {"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
        ("om", 6, {"chunk_size": 2.0}, TypeError, "chunk_size must be an integer, got 2.0"),
        ("f", 6, {"tied": "no"}, TypeError, "tied must be True or False, got 'no'"),
    ],
)
def test_a_gate_refuses(
    name: str, size: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Gate(name, size, **options)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("tanh", "zero", "tied"), "unknown activation 'tanh'. Allowed: sigmoid, fast, "),
        (("sigmoid", "unifrom", "tied"), "unknown init 'unifrom'. Did you mean 'uniform'"),
        (("sigmoid", "zero", "tie"), "unknown auxiliary 'tie'. Did you mean 'tied'"),
        (("cumax", "constant", "tied"), "init 'constant' needs an activation with from_logit"),
    ],
)
def test_a_row_without_a_name_is_checked(row: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gate(Row(*row, title="mine", source=""), 4)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("ru_lstm", 3, 4), {}, ValueError, "Did you mean 'u_lstm' or 'r_lstm' or 'ur_lstm'"),
        (("fast_lstm", 3, 4), {}, ValueError, r"Did you mean 'f_lstm' \(fast\)\?"),
        (("chrono_lstm", 3, 4), {}, ValueError, r"Did you mean 'c_lstm' \(chrono\)\?"),
        (("Refined_GRU", 3, 4), {}, ValueError, r"Did you mean 'r_gru' \(refine\)\?"),
        (("uniform_refine_lstm", 3, 4), {}, ValueError, r"'ur_lstm' \(uniform refine\)\?"),
        (("liner_transformer", 3, 4), {}, ValueError, "Did you mean 'linear_transformer'"),
        (("fast_lru", 3, 4), {}, ValueError, "'fast_lru'. Core 'lru' takes no gate."),
        (("ordered_janet", 3, 4), {}, ValueError, "Core 'janet' does not take gate 'o', but c"),
        (("chrono_janet", 3, 4), {}, ValueError, r"Did you mean 'janet' \(chrono\)\?"),
        (("ugi_dilated_gru", 3, 4), {}, ValueError, r"'u_dilated_gru' \(uniform \(UGI\)\)"),
        (("LSTM", 3, 4), {}, ValueError, "unknown core 'LSTM'. Did you mean 'lstm' or"),
        (
            ("hopfield", 3, 4),
            {},
            ValueError,
            "'hopfield'. Cores: lstm, gru, .*: c_, u_, .*list_cores",
        ),
        (("ur_none", 3, 4), {}, ValueError, "unknown core 'ur_none'. Core 'none' takes no gate"),
        (("lstm", 3, 4), {"forget_bais": 2}, ValueError, "Did you mean 'forget_bias'"),
        (("ur_lstm", 3, 4), {"t_max": 9}, ValueError, r"'ur_lstm': 't_max'. It belongs to c_\."),
        (("c_lstm", 3, 4), {"refine_bias": "zero"}, ValueError, "'refine_bias'.* t_max, tied, inp"),
        (("lstm", 3, 4), {"reset": "after"}, ValueError, r"'reset'. It belongs to gru\. Allowed"),
        (("r_gru", 3, 4), {"tied": True}, ValueError, "'tied'. It belongs to the plain gate, c_, "),
        (("gru", 3, 4), {"test": 1}, ValueError, "'test'. Allowed: "),
        (("none", 3, 4), {"tied": True}, ValueError, "'none': 'tied'.* Allowed: input_scale"),
        (("om_lstm", 3, 6), {"chunk_size": 4}, ValueError, "chunk_size must divide hidden_size 6"),
        (("c_lstm", 3, 4), {"t_max": 1}, ValueError, "t_max must be at least 2 steps"),
        (("lstm", 3, 4), {"forget_bias": math.nan}, ValueError, "forget_bias must be finite"),
        (("ur_lstm", 3, 4), {"refine_bias": "Zero"}, ValueError, "Did you mean 'zero'"),
        (("lstm", 3, 0), {}, ValueError, "hidden_size must be at least 1, got 0"),
        (("lstm", 3, True), {}, TypeError, "hidden_size must be an integer, got True"),
        (("none", 3, 1.5), {}, TypeError, "hidden_size must be an integer, got 1.5"),
        (("lstm", 0, 4), {}, ValueError, "input_size must be at least 1, got 0"),
        (("lstm", "3", 4), {}, TypeError, "input_size must be an integer, got '3'"),
        (("lstm", 3, 4, 0), {}, ValueError, "num_layers must be at least 1, got 0"),
        (("lstm", 3, 4), {"input_scale": 0}, ValueError, "finite and above 0, got 0"),
        (("none", 3, 4), {"input_scale": -1.0}, ValueError, "input_scale .* got -1.0"),
        (("lstm", 3, 4), {"input_scale": math.inf}, ValueError, "above 0, got inf"),
        (("lstm", 3, 4), {"dtype": torch.bfloat16}, ValueError, "float32 or torch.float64, got"),
    ],
)
def test_make_core_refuses(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_core(*arguments, **options)


# Options that belong to some cores, by the number of units.
OPTIONS: dict[int, list[tuple[str, dict[str, Any], type[Exception], str]]] = {
    4: [
        ("dnc", {"num_slots": 0}, ValueError, "num_slots must be at least 1, got 0"),
        ("dnc", {"word_size": -1}, ValueError, "word_size must be at least 1, got -1"),
        ("dnc", {"num_reads": 1.5}, TypeError, r"num_reads must be an integer, got 1.5 \(float\)"),
        ("dnc", {"num_writes": 0}, ValueError, "num_writes must be at least 1, got 0"),
        ("dnc", {"output_size": 0}, ValueError, "output_size must be at least 1, got 0"),
        ("dnc", {"clip": 0}, ValueError, "clip must be finite and above 0, got 0"),
        ("dnc", {"clip": "no"}, TypeError, "clip must be a number, got 'no'"),
        ("dnc", {"num_slot": 4}, ValueError, "'num_slot'. Did you mean 'num_slots'"),
        ("mingru", {"candidate": "tanh"}, ValueError, "unknown candidate 'tanh'.* g, linear"),
        ("minlstm", {"candidate": "linea"}, ValueError, "Did you mean 'linear'"),
        ("minlstm", {"forget_bias": math.nan}, ValueError, "forget_bias must be finite, got nan"),
        ("gilr", {"candidate": "g"}, ValueError, "unknown option of core 'gilr': 'candidate'"),
        ("lru", {"r_min": -0.1}, ValueError, r"r_min <= r_max <= 1 .*, got -0.1 and 1.0"),
        ("lru", {"r_min": 0.9, "r_max": 0.8}, ValueError, "got 0.9 and 0.8"),
        ("lru", {"r_max": 1.01}, ValueError, "got 0.0 and 1.01"),
        ("lru", {"r_min": 1.0}, ValueError, "r_min below 1, got 1.0 and 1.0"),
        ("lru", {"r_min": None}, TypeError, "r_min must be a number, got None"),
        ("lru", {"max_phase": 0}, ValueError, "max_phase must be finite and above 0, got 0"),
        ("lru", {"max_phase": 7}, ValueError, r"max_phase must be at most 2 pi .*, got 7"),
        ("lru", {"trainable_gamma": 1}, TypeError, "trainable_gamma must be True or False"),
        ("ffm", {"memory_size": 0}, ValueError, "memory_size must be at least 1, got 0"),
        ("ffm", {"context_size": 1.5}, TypeError, r"context_size must be an integer, got 1\.5"),
        ("ffm", {"min_period": 0}, ValueError, "min_period must be finite and above 0, got 0"),
        ("ffm", {"max_period": 0.5}, ValueError, "got min_period=1.0 and max_period=0.5"),
        ("s4d", {"ssm_size": 5}, ValueError, r"even.*, got 5\. Nearest allowed: 4 or 6"),
        ("s4d", {"init": "leg"}, ValueError, "unknown init 'leg'. Did you mean 'legs'"),
        ("s4d", {"dt_min": 0}, ValueError, "dt_min must be finite and above 0, got 0"),
        ("s4d", {"dt_min": 0.2}, ValueError, "got dt_min=0.2 and dt_max=0.1"),
        ("s5", {"ssm_size": 0}, ValueError, "ssm_size must be at least 2, got 0"),
        ("s5", {"blocks": 3}, ValueError, r"multiple of 2 \* blocks = 6, got 8"),
        ("s5", {"activation": "glu"}, ValueError, "unknown activation 'glu'"),
        ("s5", {"clip_eigs": 1}, TypeError, "clip_eigs must be True or False, got 1"),
        ("linear_transformer", {"num_heads": 3}, ValueError, "divide hidden_size 4.*nearest is"),
        ("linear_transformer", {"key_size": 0}, ValueError, "key_size must be at least 1, got 0"),
        ("linear_transformer", {"feed_forward": 1}, TypeError, "feed_forward must be True or"),
        ("shm", {"memory_size": 0}, ValueError, "memory_size must be at least 1, got 0"),
        ("shm", {"num_rows": 1.5}, TypeError, r"num_rows must be an integer, got 1\.5"),
        ("mamba", {"ssm_size": 0}, ValueError, "ssm_size must be at least 1, got 0"),
        ("mamba", {"conv_size": 1}, ValueError, "conv_size must be at least 2, got 1"),
        ("mamba", {"expand": 1.5}, TypeError, r"expand must be an integer, got 1\.5"),
        ("mamba", {"dt_rank": 0}, ValueError, "dt_rank must be at least 1, got 0"),
        ("mamba2", {"head_size": 3}, ValueError, r"hidden_size = 8, got 3\. The nearest is"),
        ("mamba2", {"dt_max": 0.0001}, ValueError, "got dt_min=0.001 and dt_max=0.0001"),
        ("dilated_gru", {"levels": 0}, ValueError, "levels must be at least 1, got 0"),
        ("dilated_gru", {"dilation": 1.5}, TypeError, r"dilation must be an integer, got 1\.5"),
        ("dilated_gru", {"levels": 26}, ValueError, r"at most 16,777,216, got 2 \*\* 25"),
        ("cornn", {"dt": 0.0}, ValueError, "dt must be finite and above 0, got 0.0"),
        ("cornn", {"gamma": -1}, ValueError, "gamma must be finite and above 0, got -1"),
        ("cornn", {"epsilon": -0.5}, ValueError, r"epsilon must be at least 0, got -0\.5"),
        ("lem", {"dt": "a"}, TypeError, "dt must be a number, got 'a'"),
        ("rwkv7", {"num_heads": 3}, ValueError, "num_heads must divide hidden_size = 4, got 3"),
        ("rwkv7", {"rank": 0}, ValueError, "rank must be at least 1, got 0"),
        ("rtu", {"nonlinearity": "gelu"}, ValueError, "unknown nonlinearity 'gelu'"),
        ("ur_lru", {}, ValueError, "unknown core 'ur_lru'. Core 'lru' takes no gate"),
        ("ur_minlstm", {}, ValueError, "unknown core 'ur_minlstm'"),
    ],
    6: [
        ("rmc", {"num_heads": 5}, ValueError, r"divide hidden_size 6, got 5\. The nearest is 6"),
        ("rmc", {"num_heads": 4}, ValueError, r"divide hidden_size 6, got 4\. The nearest is 3"),
        ("rmc", {"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ("rmc", {"num_blocks": 0}, ValueError, "num_blocks must be at least 1, got 0"),
        ("rmc", {"mlp_layers": 0}, ValueError, "mlp_layers must be at least 1, got 0"),
        ("rmc", {"mem_slots": 2.0}, TypeError, "mem_slots must be an integer, got 2.0"),
        ("rmc", {"key_size": 0}, ValueError, "key_size must be at least 1, got 0"),
        ("rmc", {"gate_style": "units"}, ValueError, "Did you mean 'unit'.*: unit, memory, None"),
        ("rmc", {"gate_style": 1}, ValueError, "unknown gate_style 1"),
        ("rmc", {"input_bias": math.inf}, ValueError, "input_bias must be finite, got inf"),
        ("rmc", {"input_bias": 1.0, "tied": True}, ValueError, "input_bias .* got 1.0 for Gate"),
        ("rmc", {"input_bias": 1.0, "gate_style": None}, ValueError, "gate_style None"),
        ("c_rmc", {"input_bias": -1.0}, ValueError, r"input_bias .* got -1.0 for Gate\('c', 6\)"),
        ("ur_rmc", {"input_bias": 1.0}, ValueError, "initial b_i of the plain untied gate only"),
        ("ur_rmc", {"gate_style": None}, ValueError, r"plain name, got Gate\('ur', 6\)"),
        ("rmc", {"gate_style": None, "forget_bias": 2}, ValueError, "has no gates.*forget_bias=2"),
        *[
            (
                f"{gate}_rmc",
                {"gate_style": "memory"},
                ValueError,
                "one unit per slot.*Use gate_style",
            )
            for gate in ("u", "ur", "um", "uf", "o", "om", "or")
        ],
        (
            "rma",
            {"top_k": 6, "num_slots": 5},
            ValueError,
            "top_k must be at most num_slots = 5, got 6",
        ),
        ("rma", {"num_slots": 20}, ValueError, "top_k must be at most num_slots = 20, got 50"),
        ("rma", {"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ("rma", {"latent_size": 0}, ValueError, "latent_size must be at least 1, got 0"),
        ("rma", {"latent_hidden": 0}, ValueError, "latent_hidden must be at least 1, got 0"),
        ("rma", {"num_heads": 1.5}, TypeError, r"num_heads must be an integer, got 1\.5"),
        ("rma", {"num_slots": True}, TypeError, "num_slots must be an integer, got True"),
        ("rma", {"memory": 1}, TypeError, "memory must be True or False, got 1"),
        ("rma", {"memory": False, "top_k": -1}, ValueError, "top_k must be at least 1, got -1"),
        ("rma", {"num_slot": 5}, ValueError, "Did you mean 'num_slots'"),
        ("gato", {"depth": 3}, ValueError, r"unknown depth 3\. Allowed: 1, 2"),
        ("gato", {"depth": 0}, ValueError, "depth must be at least 1, got 0"),
        ("gato", {"depth": "1"}, TypeError, "depth must be an integer, got '1'"),
        ("gato", {"inner_size": 0}, ValueError, "inner_size must be at least 1, got 0"),
        ("gato", {"decay": 1.1}, ValueError, "decay must be above 0 and at most 1, got 1.1"),
        ("gato", {"decay": 0}, ValueError, "decay must be finite and above 0, got 0"),
        ("gato", {"input_start": "unifrom"}, ValueError, "Did you mean 'uniform'"),
        ("nru", {"memory_size": 10}, ValueError, r"whole number, got 10 \* 4\. .*heads=4: 9"),
        ("nru", {"memory_size": 64, "num_heads": 3}, ValueError, "num_heads=3: 75"),
        ("nru", {"memory_size": 0}, ValueError, "memory_size must be at least 1, got 0"),
        ("nru", {"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ("nru", {"relu": 1}, TypeError, "relu must be True or False, got 1"),
        ("nru", {"layer_norm": "no"}, TypeError, "layer_norm must be True or False"),
        ("nru", {"memory_siz": 64}, ValueError, "Did you mean 'memory_size'"),
        ("rru", {"output_size": 0}, ValueError, "output_size must be at least 1, got 0"),
        ("rru", {"expansion": 0}, ValueError, "expansion must be finite and above 0, got 0"),
        ("rru", {"relu_layers": 0}, ValueError, "relu_layers must be at least 1, got 0"),
        ("rru", {"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1"),
        ("rru", {"start_decay": 1.0}, ValueError, "above 0 and below 1, got 1.0"),
        ("rru", {"start_decay": 0.9, "fixed_decay": True}, ValueError, "choose one"),
        ("rru", {"normalize": None}, TypeError, "normalize must be True or False"),
        ("rru", {"scalar_z": 1}, TypeError, "scalar_z must be True or False"),
    ],
    2: [
        ("fwp", {"key_size": 1}, ValueError, "key_size must be at least 2 with projections=1"),
        ("fwp", {"num_heads": 2}, ValueError, "key_size must be at least 2 with projections=1"),
        ("rwkv7", {"num_heads": 2}, ValueError, "num_heads must be below hidden_size = 2, got 2"),
    ],
    7: [("gato", {}, ValueError, "hidden_size must be even.*, got 7. Nearest allowed: 6 or 8")],
    1: [
        ("gato", {}, ValueError, r"got 1. Nearest allowed: 2\."),
        *(
            (name, {}, ValueError, "hidden_size must be at least 2, got 1: layer norm makes one")
            for name in ("ffm", "transformer", "gtrxl")
        ),
    ],
    8: [
        ("gru", {"reset": "befor"}, ValueError, "unknown reset 'befor'. Did you mean 'before'"),
        ("gru", {"reset": 1}, ValueError, "unknown reset 1.* Allowed: after, before"),
        ("gru", {"zoneout_cell": 0.1}, ValueError, "It belongs to lstm, mogrifier"),
        ("gru", {"input_scale": 0}, ValueError, "input_scale must be .* above 0, got 0"),
        ("janet", {"beta": "1"}, TypeError, "beta must be a number, got '1'"),
        ("janet", {"beta": float("nan")}, ValueError, "beta must be finite, got nan"),
        ("slstm", {"tied": True}, ValueError, r"tied has no meaning, got Gate\('', 8, tied=True\)"),
        ("f_slstm", {"tied": False}, ValueError, r"tied has no meaning, got Gate\('f', 8, tied"),
        ("janet", {"tied": False}, ValueError, r"must be tied or refine.* got Gate\('c', 8, tied"),
        ("f_janet", {"tied": False}, ValueError, r"must be tied or refine.* got Gate\('f'"),
        (
            "o_janet",
            {},
            ValueError,
            "Core 'janet' does not take gate 'o', but c, u, r, ur, f, ",
        ),
        ("mogrifier", {"rounds": -1}, ValueError, "rounds must be at least 0, got -1"),
        ("mogrifier", {"rounds": 2.5}, TypeError, "rounds must be an integer, got 2.5"),
        ("mogrifier", {"rank": 0}, ValueError, "rank must be at least 1, got 0"),
        ("mogrifier", {"rank": "full"}, TypeError, "rank must be an integer, got 'full'"),
        ("mogrifier", {"cap_input": 1}, TypeError, "cap_input must be True or False, got 1"),
        ("mogrifier", {"round": 1}, ValueError, "Did you mean 'rounds'"),
    ],
}


@pytest.mark.parametrize(
    ("name", "hidden_size", "options", "error", "message"),
    [(name, size, *rest) for size, rows in OPTIONS.items() for name, *rest in rows],
)
def test_cores_refuse_options(
    name: str, hidden_size: int, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_core(name, 3, hidden_size, **options)


@pytest.mark.parametrize(
    ("x", "state", "episode_starts", "message"),
    [
        ((4, 2, 5), None, None, r"x must be \(T, B, 3\) with T >= 1, got \(4, 2, 5\)"),
        ((0, 2, 3), None, None, r"with T >= 1, got \(0, 2, 3\)"),
        ((4, 3), None, None, r"x must be \(T, B, 3\) .*, got \(4, 3\)"),
        ((4, 2, 3), (2, 7), None, r"state must be \(B, 16\) with B = 2, got \(2, 7\)"),
        ((4, 2, 3), (1, 16), None, r"with B = 2, got \(1, 16\)"),
        ((4, 2, 3), None, (2, 4), r"episode_starts must be \(T, B\) = \(4, 2\), got \(2, 4\)"),
        ((4, 2, 3), None, (4,), r"episode_starts must be \(T, B\) = \(4, 2\), got \(4,\)"),
    ],
)
def test_the_lstm_refuses_shapes(x: Any, state: Any, episode_starts: Any, message: str) -> None:
    core = make_core("lstm", 3, 8)
    for call in (core, core.trace_gates):
        with pytest.raises(ValueError, match=message):
            call(
                torch.zeros(x),
                None if state is None else torch.zeros(state),
                None if episode_starts is None else torch.zeros(episode_starts, dtype=torch.bool),
            )


@every_core
def test_every_core_refuses_shapes_and_dtypes(name: str) -> None:
    core = build(name, num_layers=2)
    x, state = inputs_and_state(core)
    episode_starts = typical_episode_starts()
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((x[..., :-1],), rf"x must be \(T, B, {INPUTS}\)"),
        ((x[:0],), "with T >= 1"),
        ((x, torch.zeros(3, core.state_size + 1)), rf"state must be \(B, {core.state_size}\)"),
        ((x, state[:-1]), "with B = 3"),
        ((x, state, episode_starts.T), r"episode_starts must be \(T, B\) = \(7, 3\), got \(3, 7\)"),
        ((x, state, episode_starts.float()), "episode_starts must be bool, got torch.float32"),
        ((x.double(),), "x must be torch.float32, got torch.float64"),
        ((x, state.double()), "state must be torch.float32, got torch.float64"),
    ]
    for arguments, message in wrong:
        for call in (core, core.trace_gates):
            with pytest.raises(ValueError, match=message):
                call(*arguments)


def test_a_core_refuses_other_values() -> None:
    core = make_core("lstm", 3, 8)
    x = torch.zeros(4, 2, 3)
    with pytest.raises(ValueError, match=r"episode_starts must be bool, got torch\.float32"):
        core(x, None, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="batch_size must be at least 0, got -1"):
        core.initial_state(-1)
    with pytest.raises(TypeError, match="batch_size must be an integer"):
        core.initial_state(2.0)
    with pytest.raises(ValueError, match=r"state must be \(B, 16\) .* got \(2, 8\)"):
        core.unpack(torch.zeros(2, 8))
    with pytest.raises(ValueError, match=r"state must be \(B, 16\) .* got \(\)"):
        core.unpack(torch.zeros(()))


def test_a_core_names_arguments_that_are_not_tensors() -> None:
    core = make_core("lstm", 3, 8)
    x = torch.zeros(4, 2, 3)
    h = torch.zeros(2, 8)
    wrong: list[tuple[Any, str]] = [
        ((x.numpy(),), "x must be one tensor, got ndarray"),
        ((None,), "x must be one tensor, got NoneType"),
        ((x, (h, h)), "state must be one tensor, got tuple"),
        ((x, None, [[0]]), "episode_starts must be one tensor, got list"),
    ]
    for arguments, message in wrong:
        with pytest.raises(TypeError, match=message):
            core(*arguments)
    with pytest.raises(TypeError, match="state must be one tensor, got NoneType"):
        core.unpack(None)
    with pytest.raises(ValueError, match="layer must be 0 to 0, got 1"):
        core.gate_weights(1)


def test_parts_of_unequal_layers_are_not_stacked() -> None:
    core = Core([LSTM(3, 8, Gate("", 8)), LSTM(8, 4, Gate("", 4))])
    _, state = core(torch.zeros(4, 2, 3))
    with pytest.raises(ValueError, match="the layers differ in the parts of their states"):
        core.unpack(state)


def test_a_cell_checks_its_sizes() -> None:
    with pytest.raises(ValueError, match="input_size must be at least 1"):
        LSTM(0, 4, Gate("", 4))
    with pytest.raises(ValueError, match=r"must have 4 units, got Gate\('', 5\)"):
        LSTM(3, 4, Gate("", 5))


@pytest.mark.parametrize("part", ["x", "state"])
def test_a_core_names_the_dtype_it_takes(part: str) -> None:
    core = make_core("ur_lstm", 3, 4)
    arguments = {"x": torch.zeros(2, 1, 3), "state": core.initial_state(1)}
    arguments[part] = arguments[part].double()
    with pytest.raises(ValueError, match=rf"{part} must be torch.float32, got torch.float64"):
        core(**arguments)
    with (  # which does not convert float64
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ValueError, match=rf"{part} must be torch.float32, got torch.float64"),
    ):
        core(**arguments)


def test_numbers_of_numpy_are_numbers() -> None:
    core = make_core("lstm", np.int64(3), np.int32(4), forget_bias=np.float32(2))
    assert core.output_size == 4


@pytest.mark.parametrize("option", ["forget_bias", "input_scale"])
@pytest.mark.parametrize("value", ["a", None, [1.0]])
def test_an_option_of_the_wrong_type_is_named(option: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{option} must be a number"):
        make_core("lstm", 3, 4, **{option: value})
