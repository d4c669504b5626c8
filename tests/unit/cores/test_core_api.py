"""Cores: custom cells, agreement with torch's layers, parameter counts, options."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from support.cases import build, every_core, every_family
from support.equivalence import count, inputs_and_state, random_inputs, seeded
from support.native import needs_native
from torch import Tensor, nn
from torch.nn.utils import prune

from rlgates import Cell, Core, make_core
from rlgates.core import run_together
from rlgates.cores import LSTM, MinGRU
from rlgates.gates import GATES
from rlgates.registry import core_options

INPUTS, HIDDEN = 3, 8


class Counter(Cell):
    """h' = h + x, with a learned, nonzero initial state."""

    def __init__(self, input_size: int, first: float = 10) -> None:
        super().__init__()
        self.input_size = self.output_size = input_size
        self.state_shapes = {"count": (input_size,)}
        self.start = nn.Parameter(torch.empty(input_size))
        self.first = first
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.start.fill_(self.first)

    def project(self, x: Tensor) -> Tensor:
        return x

    def step(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        total = state[0] + projected
        return total, (total,)

    def initial_state(self, batch_size: int) -> tuple[Tensor, ...]:
        return (self.start.expand(batch_size, -1),)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda h: (h, h), "tuple of the parts of the state, got Tensor instead of the tuple"),
        (lambda h: (h, (h, h)), "must return the parts count of the state, got 2 parts"),
        (lambda h: (h, (h[:, :1],)), r"must return count of shape \(4, 3\), got \(4, 1\)"),
        (lambda h: (h[:, :2], (h,)), r"must return the output of shape \(4, 3\), got \(4, 2\)"),
        (lambda h: (h, (1.0,)), r"count of Wrong\.step must be one tensor, got float"),
    ],
)
def test_a_step_that_breaks_its_promise_is_named(returned: Any, message: str) -> None:
    class Wrong(Counter):
        def step(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
            return returned(state[0] + projected)  # type: ignore[no-any-return]

    with pytest.raises((TypeError, ValueError), match=message):
        Core([Wrong(3)])(torch.ones(2, 4, 3))


def stack_of_counters() -> tuple[Core, Tensor, Tensor]:
    """Two stacked counters, inputs of ones, and an episode start in one of two sequences."""
    episode_starts = torch.zeros(4, 2, dtype=torch.bool)
    episode_starts[2, 0] = True
    return Core([Counter(2), Counter(2, first=20)]), torch.ones(4, 2, 2), episode_starts


def test_a_custom_cell_starts_from_its_initial_state() -> None:
    core, x, episode_starts = stack_of_counters()
    outputs, final = core(x, None, episode_starts)
    # Row 0 begins again at step 2; the layer above counts what the one below gives.
    assert outputs[:, 0, 0].tolist() == [31, 43, 31, 43]
    assert outputs[:, 1, 0].tolist() == [31, 43, 56, 70]
    assert core.initial_state(2).tolist() == [[10, 10, 20, 20]] * 2
    assert final.tolist() == [[12, 12, 43, 43], [14, 14, 70, 70]]
    assert core.trace_gates(x, None, episode_starts).forget == []
    assert list(core.unpack(final)) == ["count"]


def test_the_initial_state_can_be_learned() -> None:
    core, x, episode_starts = stack_of_counters()
    outputs, _ = core(x, torch.zeros(2, 4), episode_starts)
    outputs[:, :, 0].sum().backward()
    # Only row 0 begins inside: its two last steps see the start of each layer (1 + 2, 1 + 1).
    assert [p.grad.tolist() for p in core.parameters() if p.grad is not None] == [[3, 0], [2, 0]]


def test_layers_must_fit_on_each_other() -> None:
    with pytest.raises(ValueError, match=r"layer 1 must have input_size 2, .* got 3"):
        Core([Counter(2), Counter(3)])
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        Core([])


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("name", ["lstm", "c_lstm", "u_lstm", "gru", "c_gru", "u_gru"])
def test_plain_sigmoid_cores_load_layers_of_torch(name: str, num_layers: int) -> None:
    torch.manual_seed(0)
    kind, maps = (nn.LSTM, "ifuo") if "lstm" in name else (nn.GRU, ("reset", "f", "u"))
    reference: Any = kind(INPUTS, HIDDEN, num_layers)
    core = make_core(name, INPUTS, HIDDEN, num_layers)
    core.load_state_dict(reference.state_dict())
    assert count(core) == count(reference)
    x = torch.randn(9, 4, INPUTS, generator=seeded(1))
    names = list(core.cells[0].state_shapes)  # type: ignore[call-overload]
    parts = torch.randn(len(names), num_layers, 4, HIDDEN, generator=seeded(2))
    state = parts.permute(2, 1, 0, 3).flatten(1)
    for initial, begin in ((None, None), (state, tuple(parts) if kind is nn.LSTM else parts[0])):
        expected, last = reference(x, begin)
        outputs, final = core(x, initial)
        torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=1e-6)
        for key, part in zip(names, last if kind is nn.LSTM else [last], strict=True):
            torch.testing.assert_close(core.unpack(final)[key], part, rtol=1e-6, atol=1e-6)
    for layer in range(num_layers):
        stacked = getattr(reference, f"weight_hh_l{layer}").chunk(len(maps))
        for key, part in zip(maps, stacked, strict=True):
            assert torch.equal(core.gate_weights(layer)[f"W_h_{key}"], part)


def test_torch_lstm_loads_inside_a_larger_module() -> None:
    torch.manual_seed(0)
    reference = nn.ModuleDict({"memory": nn.LSTM(INPUTS, HIDDEN, 2), "head": nn.Linear(HIDDEN, 1)})
    core = nn.ModuleDict({"memory": make_core("lstm", INPUTS, HIDDEN, 2), "head": nn.Linear(8, 1)})
    core.load_state_dict(reference.state_dict())
    x = torch.randn(5, 2, INPUTS, generator=seeded(1))
    torch.testing.assert_close(core["memory"](x)[0], reference["memory"](x)[0])


@pytest.mark.parametrize(("name", "layer"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_a_learned_state_is_as_in_torch_after_its_weights_are_loaded(name: str, layer: Any) -> None:
    torch.manual_seed(0)
    reference = nn.ModuleDict({"memory": layer(INPUTS, HIDDEN, 2)})
    core = make_core(name, INPUTS, HIDDEN, 2, learned_state=True)
    assert core.learned is not None
    with torch.no_grad():
        for parameter in core.learned.parameters():
            parameter.fill_(3)
    nn.ModuleDict({"memory": core}).load_state_dict(reference.state_dict())
    assert not core.initial_state(1).any()
    x = torch.randn(5, 2, INPUTS, generator=seeded(1))
    torch.testing.assert_close(core(x)[0], reference["memory"](x)[0])
    state = core.state_dict()
    del state["learned.h_1"]
    with pytest.raises(RuntimeError, match=r"Missing key.*learned\.h_1"):
        core.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "layer", "options"),
    [
        *((name, nn.LSTM, {}) for name in ("ur_lstm", "f_lstm", "o_lstm", "om_lstm", "none")),
        *((name, nn.GRU, {}) for name in ("r_gru", "f_gru", "o_gru")),
        ("gru", nn.GRU, {"tied": False}),
        ("gru", nn.GRU, {"reset": "before"}),
    ],
)
def test_other_cores_refuse_layers_of_torch(name: str, layer: Any, options: dict[str, Any]) -> None:
    message = r"(?s)Missing key.*cells\.0\..*Unexpected.*weight_ih_l0"
    with pytest.raises(RuntimeError, match=message):
        make_core(name, INPUTS, HIDDEN, **options).load_state_dict(
            layer(INPUTS, HIDDEN).state_dict()
        )


@pytest.mark.parametrize("kind", [{"bidirectional": True}, {"proj_size": 2}, {"bias": False}])
def test_other_kinds_of_torch_lstm_are_refused(kind: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
        make_core("lstm", INPUTS, HIDDEN).load_state_dict(
            nn.LSTM(INPUTS, HIDDEN, **kind).state_dict()
        )


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("gate", GATES)
def test_parameter_counts(gate: str, num_layers: int) -> None:
    """As the LSTM's, 3/4 if tied, 1/(2C) more with master gates (Gu et al. 2020, section 2.6)."""
    name = f"{gate}_lstm" if gate else "lstm"
    standard = count(nn.LSTM(INPUTS, HIDDEN, num_layers))
    factors: dict[str, dict[str, Any]] = {
        "untied": {"factor": 1, "tied": False},
        "tied": {"factor": 3 / 4, "tied": True},
        "refine": {"factor": 1},
    }
    auxiliary = GATES[gate].auxiliary
    if auxiliary == "master":
        for chunk in (1, 2, 4):
            core = make_core(name, INPUTS, HIDDEN, num_layers, chunk_size=chunk)
            assert count(core) == standard * (1 + 1 / (2 * chunk))
    else:
        assert (
            count(make_core(name, INPUTS, HIDDEN, num_layers))
            == standard * factors[auxiliary]["factor"]
        )
    for option in factors.values():
        if "tied" in option and "tied" in GATES[gate].options:
            core = make_core(name, INPUTS, HIDDEN, num_layers, tied=option["tied"])
            assert count(core) == standard * option["factor"]


def test_weights_are_initialised_as_in_torch() -> None:
    weights = make_core("ur_lstm", 50, 100, generator=seeded(0)).gate_weights()
    for key, weight in weights.items():
        if key.startswith("W"):
            assert 0.099 < weight.abs().max() <= 0.1
            assert weight.mean().abs() < 0.005
            assert weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)
        else:
            assert weight.any() == (key in ("b_f", "b_r"))


@pytest.mark.parametrize("name", ["lstm", "none"])
def test_input_scale_acts_only_on_the_first_layer(name: str) -> None:
    one, other = (
        make_core(name, INPUTS, HIDDEN, 2, generator=seeded(0), input_scale=scale)
        for scale in (1.0, 3.0)
    )
    scaled = {"cells.0.weight_ih", "cells.0.weight"}
    assert scaled & set(dict(one.named_parameters()))
    for key, parameter in one.named_parameters():
        expected = 3 * parameter if key in scaled else parameter
        torch.testing.assert_close(other.get_parameter(key), expected)


def test_options_reach_every_layer() -> None:
    core = make_core("c_lstm", 3, 8, 2, t_max=2, tied=True)
    assert [repr(cell.gate) for cell in core.cells] == ["Gate('c', 8, t_max=2, tied=True)"] * 2
    assert not any(core.gate_weights(layer)["b_f"].any() for layer in range(2))
    assert "LSTM(3, 8, Gate('c', 8, t_max=2, tied=True))" in repr(core)


def test_core_options_are_those_that_leave_a_choice() -> None:
    for name in ("janet", "f_janet"):
        assert "tied" not in core_options(name)
        assert make_core(name, 3, 4, tied=True).cells[0].gate.auxiliary == "tied"
    assert core_options("janet")[:3] == ("t_max", "input_scale", "beta")
    assert "tied" in core_options("c_lstm")


def test_forget_gates_by_hand() -> None:
    """Gates of hand-set biases, with no weights: every number is known."""
    core = make_core("r_lstm", 1, 2)
    weights = core.gate_weights()
    for weight in weights.values():
        weight.zero_()
    weights["b_f"].copy_(torch.logit(torch.tensor([0.9, 0.5])))
    weights["b_r"].copy_(torch.tensor([40.0, -40.0]))
    weights["b_u"].fill_(40.0)
    trace = core.trace_gates(torch.zeros(3, 1, 1))
    torch.testing.assert_close(trace.forget[0], torch.tensor([0.99, 0.25]).expand(3, 1, 2))
    # c' = g c + (1 - g), from 0: 1 - g ** t.
    expected = 1 - torch.tensor([0.99, 0.25]) ** 3
    torch.testing.assert_close(core.unpack(trace.state)["c"][0, 0], expected)
    torch.testing.assert_close(trace.outputs[-1, 0], 0.5 * torch.tanh(expected))


@every_core
@pytest.mark.parametrize("num_layers", [1, 2])
def test_pack_inverts_unpack(name: str, num_layers: int) -> None:
    core = build(name, num_layers)
    if len({str(cell.state_shapes) for cell in core.cells}) > 1:
        pytest.skip("its layers have different states")
    _, state = inputs_and_state(core)
    parts = core.unpack(state)
    if parts:
        assert torch.equal(core.pack(parts), state)
        with pytest.raises(ValueError, match="the parts must be"):
            core.pack({**parts, "other": state})
        with pytest.raises(ValueError, match=r"must be \(num_layers, B"):
            core.pack({part: value[:, :, :-1] for part, value in parts.items()})


@every_core
def test_gradients_by_gate_name(name: str) -> None:
    core = build(name)
    assert set(core.gate_gradients().values()) == {None}
    outputs, _ = core(random_inputs(core))
    outputs.sum().backward()
    weights, gradients = core.gate_weights(), core.gate_gradients()
    assert weights.keys() == gradients.keys()
    with torch.no_grad():
        for parameter in core.parameters():
            if parameter.grad is not None:
                parameter.copy_(parameter.grad)
    for key, gradient in gradients.items():
        assert gradient is None or torch.equal(gradient, weights[key])


@pytest.mark.parametrize("name", ["ur_lstm", "mamba2", "rru"])
def test_gradients_by_gate_name_of_parameters_of_other_strides(name: str) -> None:
    core = build(name)
    turned = {
        key: value.mT.contiguous().mT if value.ndim > 1 else value
        for key, value in core.state_dict().items()
    }
    results = []
    for assign in (False, True):
        core.load_state_dict(turned, assign=assign)
        core.zero_grad()
        core(random_inputs(core))[0].sum().backward()
        results.append(core.gate_gradients())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", ["ur_lstm", "mamba2", "rru"])
def test_parameters_may_share_their_memory(name: str) -> None:
    """As those that optimizers without gradients set from one vector."""
    core = build(name)
    x = random_inputs(core)

    def gradients() -> dict[str, Tensor | None]:
        core.zero_grad()
        core(x)[0].sum().backward()
        return core.gate_gradients()

    expected = gradients()
    vector = nn.utils.parameters_to_vector(core.parameters()).detach()
    nn.utils.vector_to_parameters(vector, core.parameters())
    for key, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected[key])


@every_core
def test_reset_parameters_samples_them_again(name: str) -> None:
    core = build(name, learned_state=True, seed=3)
    again = build(name, learned_state=True, seed=4)
    core.reset_parameters(seeded(5))
    again.reset_parameters(seeded(5))
    for one, other in zip(core.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": None}, "Wrong must have a parameter"),
        ({"state_shapes": {"count": ()}}, r"part 'count' of the state must be \(size, ...\), got"),
    ],
)
def test_a_cell_that_cannot_have_a_state_is_refused(change: Any, message: str) -> None:
    class Wrong(Counter):
        def __init__(self) -> None:
            super().__init__(3)
            for name, value in change.items():
                setattr(self, name, value)

    with pytest.raises(ValueError, match=message):
        Core([Wrong()])


def test_a_linear_state_has_one_axis() -> None:
    class Wide(MinGRU):
        def __init__(self) -> None:
            super().__init__(3, 4)
            self.state_shapes = {"h": (2, 2)}

    with pytest.raises(ValueError, match=r"Wide: part 'h' of the state must be \(size,\), got"):
        Core([Wide()])


def test_a_projection_of_other_steps_is_named() -> None:
    class Wrong(Counter):
        def project(self, x: Tensor) -> Tensor:
            return x[1:]

    with pytest.raises(ValueError, match=r"Wrong\.project must return 2 steps as x has, got 1"):
        Core([Wrong(3)])(torch.ones(2, 4, 3))


@pytest.mark.parametrize("backend", ["auto", "plain"])
def test_hooks_of_a_cell_see_its_layer(backend: Any) -> None:
    core = make_core("ur_lstm", INPUTS, HIDDEN, 2, backend=backend)
    x, seen = torch.randn(5, 2, INPUTS), []
    expected = core(x)
    core.cells[1].register_forward_hook(lambda _, inputs, results: seen.append((inputs, results)))
    outputs, final = core(x)
    ((below,), (above, state)) = seen[0]
    assert torch.equal(outputs, expected[0])
    assert above is outputs
    assert below.shape == (5, 2, HIDDEN)
    assert torch.equal(final, torch.cat([final[:, : 2 * HIDDEN], state], dim=-1))
    core.cells[0].register_forward_pre_hook(lambda _, inputs: (0 * inputs[0],))
    assert torch.equal(core(x)[0], core(0 * x)[0])


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    "change",
    [
        lambda cell: prune.random_unstructured(cell, "weight_hh", 0.5),
        lambda cell: nn.utils.weight_norm(cell, "weight_hh"),
        lambda cell: nn.utils.spectral_norm(cell, "weight_hh"),
    ],
    ids=["prune", "weight_norm", "spectral_norm"],
)
def test_weights_that_hooks_compute_are_trained(change: Any) -> None:
    """By the tools of torch that compute a weight anew before each call."""
    core = make_core("lstm", INPUTS, HIDDEN)
    change(core.cells[0])
    (name,) = (n for n, _ in core.named_parameters() if n.endswith(("_orig", "_v")))
    before, first = core.get_parameter(name).detach().clone(), core(torch.ones(3, 2, INPUTS))[0]
    optimizer = torch.optim.SGD(core.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        core(torch.ones(3, 2, INPUTS))[0].sum().backward()
        optimizer.step()
    assert not torch.equal(core.get_parameter(name), before)
    assert not torch.equal(core(torch.ones(3, 2, INPUTS))[0], first)


INNER_LAYERS = [
    *[("dnc", name) for name in ("interface", "out")],
    *[("rmc", name) for name in ("input", "gate_x", "gate_h", "mlp", "mlp.0", "mlp.1", "blocks.0")],
    *[("rmc", f"blocks.0.{name}") for name in ("qkv", "norm_qkv", "norm_att", "norm_mlp")],
    ("nru_layer_norm", "norm"),
]


def with_inner(name: str) -> Core:
    options = {"layer_norm": True} if name == "nru_layer_norm" else {}
    return make_core(name.removesuffix("_layer_norm"), INPUTS, 8, **options)


@needs_native
@pytest.mark.parametrize(("name", "inner"), INNER_LAYERS)
def test_changed_layers_inside_a_cell_are_called(name: str, inner: str) -> None:
    """Native code computes with the weights of such layers, and would not call them."""
    core = with_inner(name)
    layer, x, calls = core.cells[0].get_submodule(inner), torch.randn(5, 2, INPUTS), []
    expected = core(x)[0]
    assert core.backend_used == "native"
    handle = layer.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(core(x)[0], expected)
    assert calls
    handle.remove()
    forward = layer.forward
    layer.forward = lambda *args: 2 * forward(*args)
    changed = core(x)[0]
    assert not torch.allclose(changed, expected)
    core.backend = "plain"
    assert torch.equal(core(x)[0], changed)
    core.backend = "native"
    with pytest.raises(
        ValueError, match="native backend cannot run this: it computes with the weights of modules"
    ):
        core(x)


@pytest.mark.parametrize(
    ("name", "inner", "other"),
    [
        ("nru_layer_norm", "norm", lambda _: nn.LayerNorm(8, eps=0.1)),
        ("nru_layer_norm", "norm", lambda _: nn.LayerNorm(8, bias=False)),
        ("nru_layer_norm", "norm", lambda _: nn.LayerNorm(8, elementwise_affine=False)),
        ("rmc", "blocks.0.norm_att", lambda _: nn.LayerNorm(8, eps=0.1)),
        ("rmc", "blocks.0.norm_mlp", lambda _: nn.LayerNorm((5, 8))),
        ("rmc", "mlp.0", lambda _: nn.Linear(8, 8, bias=False)),
        ("rmc", "mlp.3", lambda _: nn.ReLU()),
        ("dnc", "out", lambda out: nn.Linear(out.in_features, out.out_features, bias=False)),
    ],
)
def test_replaced_layers_inside_a_cell_are_called(name: str, inner: str, other: Any) -> None:
    """Native code knows only such layers as were built."""
    core, x = with_inner(name), torch.randn(5, 2, INPUTS)
    parent, _, child = inner.rpartition(".")
    layers = core.cells[0].get_submodule(parent)
    setattr(layers, child, other(getattr(layers, child, None)))
    outputs = core(x)[0]
    assert core.backend_used == "plain"
    core.backend = "plain"
    assert torch.equal(outputs, core(x)[0])


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("dnc", "controller"),
        ("rma", "controller_1"),
        ("rma", "controller_2"),
        ("gtrxl", "carry_1"),
        ("dilated_gru", "grus.1.cells.0"),
    ],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_hooks_that_would_not_run_are_refused(name: str, inner: str, steps: int) -> None:
    core = make_core(name, INPUTS, 8)
    layer = core.cells[0].get_submodule(inner)
    nn.utils.weight_norm(layer, "weight" if name == "gtrxl" else "weight_ih")
    x = torch.randn(steps, 2, INPUTS)
    for backend, call in (("auto", core), ("plain", core), ("auto", core.trace_gates)):
        core.backend = backend
        with pytest.raises(TypeError, match=f"hooks on {re.escape(inner)} would not run"):
            call(x)


def test_a_core_of_another_forward_runs_it_beside_others() -> None:
    class Scaled(Core):
        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            return super().forward(2 * x, *args, **kwargs)

    core = Scaled([LSTM(INPUTS, HIDDEN)])
    x, episode_starts = torch.randn(4, 2, INPUTS), torch.zeros(4, 2, dtype=torch.bool)
    ((outputs, _),) = run_together([(core, x, core.initial_state(2))], episode_starts)
    assert torch.equal(outputs, core(x)[0])


@pytest.mark.parametrize("rate", ["dt", "gamma", "epsilon"])
def test_rates_of_a_cornn_can_be_changed(rate: str) -> None:
    core, x = make_core("cornn", INPUTS, HIDDEN), torch.randn(5, 2, INPUTS)
    before = core(x)[0]
    setattr(core.cells[0], rate, 0.5)
    outputs = core(x)[0]
    assert not torch.allclose(outputs, before)
    core.backend = "plain"
    torch.testing.assert_close(outputs, core(x)[0])


@every_core
def test_a_state_in_half_precision_is_widened(name: str) -> None:
    core = build(name)
    x, state = inputs_and_state(core)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, final = core(x, state.bfloat16())
        again = core(x, state.bfloat16().float())
    assert final.dtype == torch.float32
    assert torch.equal(final, again[1])
    assert torch.equal(outputs, again[0])


@every_family
def test_weights_load_into_a_core_without_memory_yet(name: str) -> None:
    core = build(name)
    x = random_inputs(core)
    expected = core(x)[0]
    empty = build(name, device="meta").to_empty(device="cpu")
    empty.load_state_dict(core.state_dict())
    assert torch.equal(empty(x)[0], expected)
    assigned = build(name, device="meta")
    assigned.load_state_dict(core.state_dict(), assign=True)
    assert torch.equal(assigned(x)[0], expected)


def test_parametrized_weights_have_no_gradient_by_name() -> None:
    core = make_core("lstm", INPUTS, HIDDEN)
    nn.utils.parametrizations.weight_norm(core.cells[0], "weight_hh")
    with pytest.raises(ValueError, match="computed from others has no gradient of its own"):
        core.gate_gradients()
