"""Gates and cores that users register: plain-first, in every core, by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from support.cases import HIDDEN, INPUTS, small
from support.equivalence import inputs_and_state, typical_episode_starts
from torch import Tensor, nn

import rlgates
from rlgates import (
    Activation,
    Auxiliary,
    Cell,
    Gate,
    core_options,
    list_cores,
    make_core,
    register_core,
    register_gate,
)
from rlgates.core import Core, State
from rlgates.cores import LSTM
from rlgates.gates import ACTIVATIONS, AUXILIARIES, GATES, Row
from rlgates.registry import CORES, core_and_gate, core_name


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    """The tables as they were."""
    tables: list[dict[str, Any]] = [ACTIVATIONS, AUXILIARIES, GATES, CORES]
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)


def hard(z: Tensor) -> Tensor:
    return nn.functional.hardsigmoid(z)


HARD = Activation(hard, hard, lambda y: 6 * torch.sigmoid(y) - 3)


class Leaky(Cell):
    """h' = a h + (1 - a) tanh(W x)."""

    def __init__(self, input_size: int, hidden_size: int, rate: float = 0.5) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.output_size, self.rate = hidden_size, rate
        self.state_shapes = {"h": (hidden_size,)}
        self.weight = nn.Parameter(torch.empty(hidden_size, input_size))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.uniform_(self.weight, -0.5, 0.5, generator=generator)

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        h = self.rate * state[0] + (1 - self.rate) * torch.tanh(projected)
        return h, (h,)


def gated_names(prefix: str) -> list[str]:
    return [name for name in list_cores() if name.startswith(f"{prefix}_")]


def check_core(name: str) -> None:
    """It runs without native code, with finite gradients."""
    family = name.partition("_")[2]
    options = small(family)
    core = make_core(name, INPUTS, HIDDEN, dtype=torch.float64, **options)
    x, state = inputs_and_state(core)
    outputs, _ = core(x, state, typical_episode_starts())
    assert core.backend_used == ("scan" if family == "dilated_gru" else "plain")
    outputs.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in core.parameters())


def test_an_activation_of_a_user_works_in_every_gated_core() -> None:
    register_gate("hard", activation=HARD, init="uniform", title="hard sigmoid")
    names = gated_names("hard")
    assert {name.removeprefix("hard_") for name in names} == {
        core for core, row in CORES.items() if row.gates
    }
    for name in names:
        check_core(name)
    core = make_core("hard_lstm", INPUTS, HIDDEN)
    (explanation,) = core.explain_backend(torch.zeros(3, 2, INPUTS))
    assert explanation.passed_over["native"] == "it has no gates of hard"
    biases = hard(core.gate_weights()["b_f"])
    assert ((biases >= 1 / HIDDEN - 1e-6) & (biases <= 1 - 1 / HIDDEN + 1e-6)).all()
    with pytest.raises(ValueError, match="it has no gates of hard"):
        make_core("hard_lstm", INPUTS, HIDDEN, backend="native")(torch.zeros(3, 2, INPUTS))


def test_an_auxiliary_gate_of_a_user_works_in_every_core_that_is_not_made_from_one_map() -> None:
    def squared(phi: Activation, chunk_size: int, f: Tensor) -> tuple[Tensor, Tensor]:
        gate = phi.forget(f).square()
        return gate, 1 - gate

    register_gate("sq", auxiliary=Auxiliary(("f",), squared))
    names = gated_names("sq")
    assert "sq_lstm" in names
    assert "sq_janet" not in names
    for name in names:
        check_core(name)
    trace = make_core("sq_lstm", 3, 4).trace_gates(torch.zeros(2, 1, 3))
    assert trace.forget[0].shape == (2, 1, 4)


def test_a_row_of_known_parts_runs_natively() -> None:
    register_gate("cr", init="chrono", auxiliary="refine")
    core = make_core("cr_lstm", 3, 4, t_max=20)
    core(torch.zeros(2, 1, 3))
    assert core.backend_used in ("native", "plain")
    assert core.explain_backend(torch.zeros(2, 1, 3))[0].backend == core.backend_used
    assert "t_max" in core_options("cr_gru")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prefix": "ur"}, ValueError, "'ur' is taken"),
        ({"prefix": "on"}, ValueError, "'on' is taken: 'on_lstm' is another core"),
        ({"prefix": "dilated"}, ValueError, "'dilated' is taken: 'dilated_gru' is another core"),
        ({"prefix": "my_gate"}, ValueError, "lower-case letters and digits"),
        ({"prefix": "x", "activation": "fsat"}, ValueError, "Did you mean 'fast'"),
        (
            {"prefix": "x", "activation": torch.sigmoid},
            TypeError,
            "must be a name or an Activation",
        ),
        ({"prefix": "x", "activation": Activation(hard)}, ValueError, "needs an activation with"),
        ({"prefix": "x", "init": "chron"}, ValueError, "Did you mean 'chrono'"),
        ({"prefix": "x", "auxiliary": Auxiliary(("r",), hard)}, ValueError, "needs a map 'f'"),
    ],
)
def test_gates_are_checked(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        register_gate(**arguments)
    assert {"x", "on", "dilated"}.isdisjoint(GATES)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *((name, {"activation": HARD}) for name in ACTIVATIONS if name.isalnum()),
        *((name, {"auxiliary": Auxiliary(("f",), hard)}) for name in AUXILIARIES),
    ],
)
def test_parts_of_the_library_are_not_defined_anew(name: str, part: dict[str, Any]) -> None:
    before = dict(ACTIVATIONS), dict(AUXILIARIES)
    with pytest.raises(ValueError, match=f"'{name}' is taken: it names an a.* of the library"):
        register_gate(name, **part)
    # A gate of that name is one like any other, which does not change what is refused.
    register_gate(name, **dict.fromkeys(part, name), init="zero")
    with pytest.raises(ValueError, match=f"'{name}' is taken"):
        register_gate(name, **part, init="zero")
    assert before == (ACTIVATIONS, AUXILIARIES)


def test_a_gate_and_a_core_of_a_user_have_different_names() -> None:
    register_core("leaky_lstm", Leaky)
    with pytest.raises(ValueError, match="'leaky' is taken: 'leaky_lstm' is another core"):
        register_gate("leaky", auxiliary="refine")
    register_gate("linear", auxiliary="refine")  # which no transformer takes
    assert make_core("linear_lstm", 3, 4).cells[0].gate.key[1] == "refine"
    assert core_and_gate("linear_transformer") == ("linear_transformer", "")


def test_a_gate_that_is_registered_before_the_cores_is_checked_too() -> None:
    code = "from rlgates import register_gate; register_gate('on'); from rlgates import make_core"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "ValueError: the prefix 'on' is taken: 'on_lstm' is another core" in result.stderr


def test_a_gate_may_be_registered_twice() -> None:
    for _ in range(2):
        register_gate("hard", activation=HARD)
    with pytest.raises(ValueError, match="is taken"):
        register_gate("hard", auxiliary="refine")


def test_a_core_of_a_user_is_one_of_them() -> None:
    assert register_core("leaky", Leaky, title="leaky integrator") is Leaky
    register_core("leaky", Leaky)
    assert "leaky" in list_cores()
    assert "rate" in core_options("leaky")
    core = make_core("leaky", 3, 4, 2, rate=0.25)
    x, state = inputs_and_state(core)
    outputs, final = core(x, state, typical_episode_starts())
    assert outputs.shape == (*x.shape[:2], 4)
    assert final.shape == state.shape
    assert core_name(Leaky) == "leaky"
    with pytest.raises(ValueError, match="unknown option of core 'leaky':"):
        make_core("leaky", 3, 4, rat=0.5)


def test_a_factory_makes_layers() -> None:
    register_core("zoned", partial(LSTM, zoneout_cell=0.5), gates=False)
    register_core("ur_zoned", partial(LSTM, gate="ur"), gates=False)
    assert {"zoned", "ur_zoned"} <= {*list_cores()}
    core = make_core("zoned", 3, 4, 2, dtype=torch.float64, learned_state=True)
    assert [cell.zoneout_cell for cell in core.cells] == [0.5, 0.5]
    x, state = inputs_and_state(core)
    assert core(x, state)[0].dtype == torch.float64
    assert "b_r" in make_core("ur_zoned", 3, 4, zoneout_hidden=0.1).gate_weights()
    with pytest.raises(ValueError, match="Did you mean 'zoneout_cell'"):
        make_core("zoned", 3, 4, zoneout_cel=0.1)


class Deep(Core):
    """Two layers of different kinds."""

    def __init__(self, input_size: int, hidden_size: int, rate: float = 0.5) -> None:
        super().__init__([Leaky(input_size, hidden_size, rate), LSTM(hidden_size, 2)])


def test_a_factory_or_a_class_makes_a_core_as_a_whole() -> None:
    register_core("deep", Deep)
    register_core("wide", partial(Deep, rate=0.1))
    generator = torch.Generator()
    core = make_core(
        "deep", 3, 4, dtype=torch.float64, backend="plain", debug=True, rate=0.25,
        generator=generator.manual_seed(0),
    )  # fmt: skip
    assert isinstance(core, Deep)
    assert (core.name, core.backend, core.debug, core.output_size) == ("deep", "plain", True, 2)
    assert core.cells[0].rate == 0.25
    assert {parameter.dtype for parameter in core.parameters()} == {torch.float64}
    same = make_core("wide", 3, 4, rate=0.25, generator=generator.manual_seed(0))
    torch.testing.assert_close(same.double().state_dict(), core.state_dict(), rtol=0, atol=0)
    for option in ({"num_layers": 2}, {"skip_connections": True}, {"learned_state": True}):
        with pytest.raises(ValueError, match="makes the core as a whole: num_layers must be 1"):
            make_core("deep", 3, 4, **option)  # type: ignore[arg-type]


def unnamed(input_size: int, hidden_size: int, **options: Any) -> Cell:
    raise NotImplementedError


def stacked(input_size: int, hidden_size: int, num_layers: int = 1) -> Core:
    raise NotImplementedError


class NoStep(Cell):
    def project(self, x: Tensor) -> Tensor:
        return x


class NoSizes(Leaky):
    def __init__(self, hidden_size: int) -> None:
        super().__init__(1, hidden_size)


@pytest.mark.parametrize(
    ("name", "cell", "error", "message"),
    [
        ("lstm", Leaky, ValueError, "the name 'lstm' is taken"),
        ("ur_lstm", Leaky, ValueError, "the name 'ur_lstm' is taken"),
        ("on_lstm", Leaky, ValueError, "is taken"),
        ("Leaky", Leaky, ValueError, "lower-case"),
        ("leaky", nn.LSTM, TypeError, "must be a concrete subclass of rlgates.Cell or a factory"),
        ("leaky", Cell, TypeError, "must be a concrete subclass"),
        ("leaky", NoStep, TypeError, r"NoStep.*, which lacks the methods reset_parameters, step"),
        ("leaky", nn.Sigmoid(), ValueError, "Sigmoid.* lacks input_size, hidden_size"),
        ("leaky", 3, TypeError, "or a factory, got 3"),
        ("leaky", NoSizes, ValueError, "NoSizes lacks input_size"),
        ("leaky", unnamed, ValueError, r"unnamed must name its options, got \*\*options"),
        ("leaky", stacked, ValueError, "stacked has an option num_layers, which make_core has"),
    ],
)
def test_cores_are_checked(name: str, cell: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        register_core(name, cell)
    assert "leaky" not in CORES


def test_what_the_constructor_of_a_cell_must_set_is_named() -> None:
    class Forgetful(Leaky):
        def __init__(self, input_size: int, hidden_size: int) -> None:
            nn.Module.__init__(self)
            self.input_size = input_size

    register_core("forgetful", Forgetful)
    with pytest.raises(TypeError, match="of Forgetful must set output_size, state_shapes"):
        make_core("forgetful", 3, 4)


def test_a_factory_must_return_a_cell() -> None:
    register_core("none_at_all", lambda input_size, hidden_size: None)
    with pytest.raises(TypeError, match="must return a Cell or a Core, got None"):
        make_core("none_at_all", 3, 4)


def test_what_is_not_registered_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown core 'leaky'.*has to be registered first"):
        make_core("leaky", 3, 4)
    with pytest.raises(ValueError, match="register_core"):
        core_name(Leaky)


def test_gates_by_name_and_as_instances() -> None:
    generator = torch.Generator()
    x = torch.randn(5, 2, 3)
    expected = make_core("ur_lstm", 3, 4, generator=generator.manual_seed(0))(x)
    for gate in ("ur", GATES["ur"], Gate("ur", 4)):
        core = make_core("lstm", 3, 4, gate=gate, generator=generator.manual_seed(0))
        torch.testing.assert_close(core(x), expected, rtol=0, atol=0)
    assert make_core("janet", 3, 4, gate="c").name == "janet"
    custom = make_core("gru", 3, 4, gate=Gate("", 4, tied=True, forget_bias=3.0))
    assert (custom.gate_weights()["b_f"] == 3).all()


@pytest.mark.parametrize(
    ("name", "gate", "options", "message"),
    [
        ("ur_lstm", "c", {}, "has gate 'ur' already"),
        ("ur_lstm", Gate("c", 4), {}, "takes no other gate"),
        ("lstm", Gate("ur", 5), {}, "must have 4 units"),
        ("lstm", "uu", {}, "unknown gate of lstm 'uu'"),
        ("lstm", "chrono", {}, "unknown gate of lstm 'chrono'. Did you mean 'c'"),
        ("lstm", Gate("c", 4), {"tied": True}, "has its options already"),
        ("nru", "c", {}, "core 'nru' takes no gate, got gate='c'"),
        ("rru", Gate("c", 4), {}, "takes no other gate"),
    ],
)
def test_gates_are_refused(name: str, gate: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_core(name, 3, 4, gate=gate, **options)
    with pytest.raises(TypeError, match="must be a name, a Row of GATES or a Gate"):
        make_core("lstm", 3, 4, gate=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("core", [core for core, row in CORES.items() if row.gates])
def test_cells_take_gates_by_name_by_row_and_as_instances(core: str) -> None:
    cell = CORES[core].cell
    options = small(core)

    def same_as(name: str, made: Cell) -> None:
        other = make_core(name, INPUTS, HIDDEN, **options).cells[0]
        assert repr(made) == repr(other)
        assert {name: p.shape for name, p in made.named_parameters()} == {
            name: p.shape for name, p in other.named_parameters()
        }

    same_as(core, cell(INPUTS, HIDDEN, **options))
    for key in CORES[core].gates:
        name = core if key == CORES[core].plain else f"{key}_{core}"
        same_as(name, cell(INPUTS, HIDDEN, gate=key, **options))
        same_as(name, cell(INPUTS, HIDDEN, gate=GATES[key], **options))
    made = cell(INPUTS, HIDDEN, gate=Row("fast", "uniform", "refine", "new", ""), **options)
    assert "Gate('new', 6)" in repr(made) or core == "dnc"  # its controller has the gate
    with pytest.raises(ValueError, match=f"must have {HIDDEN} units"):
        cell(INPUTS, HIDDEN, gate=Gate("ur", HIDDEN + 1), **options)
    with pytest.raises(ValueError, match=r"unknown gate 'urr'.* Did you mean 'ur'"):
        cell(INPUTS, HIDDEN, gate="urr", **options)
    with pytest.raises(TypeError, match="must be a name, a Row of GATES or a Gate"):
        cell(INPUTS, HIDDEN, gate=nn.Sigmoid(), **options)


def test_a_row_that_is_not_in_the_table_needs_no_name() -> None:
    row = Row("fast", "chrono", "refine", "fast chrono refine", "")
    for core in (make_core("gru", 3, 4, gate=row), rlgates.nn.GRU(3, 4, gate=row).cores[0]):
        assert isinstance(core, Core)
        assert {"b_r", "b_f"} <= core.gate_weights().keys()
        core(torch.zeros(2, 1, 3))
    untied = Row("fast", "chrono", "untied", "fast chrono", "")
    assert "b_i" not in make_core("janet", 3, 4, gate=untied).gate_weights()
    assert "b_i" in make_core("lstm", 3, 4, gate=untied).gate_weights()
