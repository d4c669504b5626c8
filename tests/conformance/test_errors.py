"""Every error that a gate or a core raises says what was given and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from conformance.cases import INPUTS, build, every_core, inputs, some_starts
from rlgates import Core, make_core
from rlgates.cores import LSTM
from rlgates.gates import Gate


@pytest.mark.parametrize(
    ("name", "size", "options", "error", "message"),
    [
        ("ru", 4, {}, ValueError, r"unknown gate 'ru'\. Allowed: , c, u, "),
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
    ("arguments", "options", "error", "message"),
    [
        (("ru_lstm", 3, 4), {}, ValueError, "Did you mean 'u_lstm' or 'r_lstm' or 'ur_lstm'"),
        (("LSTM", 3, 4), {}, ValueError, "unknown core 'LSTM'. Did you mean 'lstm' or"),
        (("rnn", 3, 4), {}, ValueError, "'rnn'. Cores: lstm, gru, .*: c_, u_, .*list_cores"),
        (("ur_none", 3, 4), {}, ValueError, "unknown core 'ur_none'"),
        (("lstm", 3, 4), {"forget_bais": 2}, ValueError, "Did you mean 'forget_bias'"),
        (("ur_lstm", 3, 4), {"t_max": 9}, ValueError, r"'ur_lstm' 't_max'. It belongs to c_\."),
        (("c_lstm", 3, 4), {"refine_bias": "zero"}, ValueError, "'refine_bias'.* t_max, tied, inp"),
        (("lstm", 3, 4), {"reset": "after"}, ValueError, r"'reset'. It belongs to gru\. Allowed"),
        (("r_gru", 3, 4), {"tied": True}, ValueError, "'tied'. It belongs to the plain gate, c_, "),
        (("gru", 3, 4), {"test": 1}, ValueError, "'test'. Allowed: "),
        (("none", 3, 4), {"tied": True}, ValueError, "'none' 'tied'.* Allowed: input_scale"),
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


@pytest.mark.parametrize(
    ("x", "state", "starts", "message"),
    [
        ((4, 2, 5), None, None, r"x must be \(T, B, 3\) with T >= 1, got \(4, 2, 5\)"),
        ((0, 2, 3), None, None, r"with T >= 1, got \(0, 2, 3\)"),
        ((4, 3), None, None, r"x must be \(T, B, 3\) .*, got \(4, 3\)"),
        ((4, 2, 3), (2, 7), None, r"state must be \(B, 16\) with B = 2, got \(2, 7\)"),
        ((4, 2, 3), (1, 16), None, r"with B = 2, got \(1, 16\)"),
        ((4, 2, 3), None, (2, 4), r"starts must be \(T, B\) = \(4, 2\), got \(2, 4\)"),
        ((4, 2, 3), None, (4,), r"starts must be \(T, B\) = \(4, 2\), got \(4,\)"),
    ],
)
def test_the_lstm_refuses_shapes(x: Any, state: Any, starts: Any, message: str) -> None:
    core = make_core("lstm", 3, 8)
    for call in (core, core.observe):
        with pytest.raises(ValueError, match=message):
            call(
                torch.zeros(x),
                None if state is None else torch.zeros(state),
                None if starts is None else torch.zeros(starts, dtype=torch.bool),
            )


@every_core
def test_every_core_refuses_shapes_and_dtypes(name: str) -> None:
    core = build(name, num_layers=2)
    x, state = inputs(core)
    starts = some_starts()
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((x[..., :-1],), rf"x must be \(T, B, {INPUTS}\)"),
        ((x[:0],), "with T >= 1"),
        ((x, torch.zeros(3, core.state_size + 1)), rf"state must be \(B, {core.state_size}\)"),
        ((x, state[:-1]), "with B = 3"),
        ((x, state, starts.T), r"starts must be \(T, B\) = \(7, 3\), got \(3, 7\)"),
        ((x, state, starts.float()), "starts must be bool, got torch.float32"),
        ((x.double(),), "x must be torch.float32, got torch.float64"),
        ((x, state.double()), "state must be torch.float32, got torch.float64"),
    ]
    for arguments, message in wrong:
        for call in (core, core.observe):
            with pytest.raises(ValueError, match=message):
                call(*arguments)


def test_a_core_refuses_other_values() -> None:
    core = make_core("lstm", 3, 8)
    x = torch.zeros(4, 2, 3)
    with pytest.raises(ValueError, match=r"starts must be bool, got torch\.float32"):
        core(x, None, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="batch_size must be at least 0, got -1"):
        core.initial_state(-1)
    with pytest.raises(TypeError, match="batch_size must be an integer"):
        core.initial_state(2.0)
    with pytest.raises(ValueError, match=r"state must be \(B, 16\) .* got \(2, 8\)"):
        core.unpack(torch.zeros(2, 8))


def test_a_core_names_what_is_no_tensor() -> None:
    core = make_core("lstm", 3, 8)
    x = torch.zeros(4, 2, 3)
    h = torch.zeros(2, 8)
    wrong: list[tuple[Any, str]] = [
        ((x.numpy(),), "x must be one tensor, got ndarray"),
        ((None,), "x must be one tensor, got NoneType"),
        ((x, (h, h)), "state must be one tensor, got tuple"),
        ((x, None, [[0]]), "starts must be one tensor, got list"),
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


def test_a_cell_checks_its_own_sizes() -> None:
    with pytest.raises(ValueError, match="input_size must be at least 1"):
        LSTM(0, 4, Gate("", 4))
    with pytest.raises(ValueError, match=r"must have 4 units, got Gate\('', 5\)"):
        LSTM(3, 4, Gate("", 5))


@pytest.mark.parametrize("part", ["x", "state"])
def test_a_core_names_the_dtype_it_takes(part: str) -> None:
    core = make_core("ur_lstm", 3, 4)
    given = {"x": torch.zeros(2, 1, 3), "state": core.initial_state(1)}
    given[part] = given[part].double()
    with pytest.raises(ValueError, match=rf"{part} must be torch.float32, got torch.float64"):
        core(**given)


def test_numbers_of_numpy_are_numbers() -> None:
    core = make_core("lstm", np.int64(3), np.int32(4), forget_bias=np.float32(2))
    assert core.output_size == 4


@pytest.mark.parametrize("option", ["forget_bias", "input_scale"])
@pytest.mark.parametrize("value", ["a", None, [1.0]])
def test_an_option_of_the_wrong_type_is_named(option: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{option} must be a number"):
        make_core("lstm", 3, 4, **{option: value})
