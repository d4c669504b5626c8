"""The contract of cores: shapes, names, copies, files, devices, generators, tracing."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from support.cases import (
    HIDDEN,
    INPUTS,
    both_dtypes,
    build,
    every_core,
    every_family,
    gated_cores,
    small,
)
from support.equivalence import assert_close, inputs_and_state, seeded, typical_episode_starts

from rlgates import Core, list_cores, make_core, timescale
from rlgates.registry import ALIASES, CORES


def same_parameters(one: Core, other: Core) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(p, q) for (a, p), (b, q) in pairs)


def test_names_are_gate_and_core() -> None:
    names = list_cores()
    assert len(set(names)) == len(names)
    expected = set()
    for core, row in CORES.items():
        prefixes = [f"{gate}_" if gate != row.plain else "" for gate in row.gates or [row.plain]]
        expected |= {prefix + core for prefix in prefixes}
    assert set(names) == expected
    assert {"ur_lstm", "ur_gru", "f_gru", "u_mingru", "ur_rmc", "ur_dnc", "ur_rma"} <= expected
    assert set(ALIASES.values()) <= expected
    assert not set(ALIASES) & expected


@every_core
@both_dtypes
@pytest.mark.parametrize("num_layers", [1, 3])
def test_shapes_and_names(name: str, dtype: torch.dtype, num_layers: int) -> None:
    core = build(name, num_layers, dtype=dtype)
    x, state = inputs_and_state(core, batch_size=4)
    assert (core.name, core.input_size, core.num_layers) == (name, INPUTS, num_layers)
    outputs, final = core(x, state, typical_episode_starts(batch_size=4))
    assert outputs.shape == (7, 4, core.output_size)
    for tensor in (final, core.initial_state(4)):
        assert tensor.shape == (4, core.state_size)
        assert tensor.dtype == outputs.dtype == dtype
    parts = core.unpack(final)
    assert list(parts) == list(core.cells[0].state_shapes)
    for key, part in parts.items():
        assert part.shape == (num_layers, 4, *core.cells[0].state_shapes[key])
    # Layer by layer, part by part, the parts are the state.
    packed = [part[layer].flatten(1) for layer in range(num_layers) for part in parts.values()]
    assert torch.equal(torch.cat([final[:, :0], *packed], dim=-1), final)


@every_core
def test_repr_shows_name_and_sizes(name: str) -> None:
    core = build(name, num_layers=2)
    assert f"{name!r}, input_size={INPUTS}, output_size={core.output_size}" in repr(core)
    assert f"num_layers=2, state_size={core.state_size}" in repr(core)


# Values of the options whose default does not tell what another one could be.
OTHER_VALUES: dict[str, Any] = {
    "activation": "full_glu",
    "candidate": "linear",
    "dt_min": 0.01,
    "dt_rank": 2,
    "gate_style": "memory",
    "head_size": 4,
    "init": "legs",
    "input_start": "default",
    "key_size": 2,
    "latent_hidden": 2,
    "memory_size": 16,
    "mlp_size": 5,
    "max_period": 99.0,
    "output_size": 5,
    "rank": 2,
    "reset": "before",
    "s_update": "zero",
    "ssm_size": 8,
    "start_decay": 0.5,
}


def other_than(default: Any) -> Any:
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):  # a nonlinearity
        return {"tanh": "relu", "relu": "tanh"}[default]
    return default + 1 if isinstance(default, int) else 0.25


@every_family
def test_repr_shows_sizes_and_options(name: str) -> None:
    plain = make_core(name, INPUTS, HIDDEN).cells[0]
    assert plain.extra_repr().startswith(f"{INPUTS}, {HIDDEN}")
    for option in plain.options:
        default = inspect.signature(type(plain)).parameters[option].default
        assert default is None or f", {option}=" not in plain.extra_repr()
        value = OTHER_VALUES[option] if option in OTHER_VALUES else other_than(default)
        chosen = make_core(name, INPUTS, HIDDEN, **{option: value}).cells[0]
        assert f", {option}={value!r}" in chosen.extra_repr()


@every_core
def test_copies_and_files(name: str) -> None:
    core = build(name, num_layers=2)
    arguments = (*inputs_and_state(core), typical_episode_starts())
    expected = core(*arguments)
    stored, weights = io.BytesIO(), io.BytesIO()
    torch.save(core, stored)
    torch.save(core.state_dict(), weights)
    stored.seek(0)
    weights.seek(0)
    loaded = make_core(name, INPUTS, HIDDEN, 2, **small(name))
    assert not same_parameters(loaded, core)
    loaded.load_state_dict(torch.load(weights))
    copies = [
        copy.deepcopy(core),
        pickle.loads(pickle.dumps(core)),
        torch.load(stored, weights_only=False),
        loaded.eval(),
    ]
    for other in copies:
        assert repr(other) == repr(core)
        assert all(map(torch.equal, other(*arguments), expected))
        with torch.no_grad():
            next(other.parameters()).add_(1)
    assert all(map(torch.equal, core(*arguments), expected)), "a copy shares its weights"


@every_core
def test_everything_is_on_the_device(name: str) -> None:
    core = make_core(name, INPUTS, HIDDEN, num_layers=2, device="meta", **small(name))
    assert {parameter.device.type for parameter in core.parameters()} == {"meta"}
    x, episode_starts = (
        torch.zeros(5, 2, INPUTS, device="meta"),
        torch.zeros(5, 2, device="meta") > 0,
    )
    outputs, final = core(x, core.initial_state(2), episode_starts)
    assert outputs.device.type == final.device.type == "meta"
    assert outputs.shape == (5, 2, core.output_size)


@every_core
def test_parameters_depend_only_on_the_generator(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    options = small(name)
    one, same, other = (make_core(name, 3, 6, 2, generator=seeded(n), **options) for n in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before), "the global generator was touched"
    assert same_parameters(one, same)
    assert not same_parameters(one, other)


@every_core
def test_without_a_generator_parameters_come_from_the_global_one(name: str) -> None:
    cores = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        cores.append(make_core(name, 3, 6, 2, **small(name)))
    assert same_parameters(cores[0], cores[1])
    assert not same_parameters(cores[0], cores[2])
    again = copy.deepcopy(cores[0])
    for cell in again.cells:
        cell.reset_parameters()
    assert not same_parameters(cores[0], again)


@every_core
def test_gate_weights_are_views_of_all_parameters(name: str) -> None:
    core = build(name, num_layers=2)
    for layer, cell in enumerate(core.cells):
        views = core.gate_weights(layer)
        for view in views.values():
            assert not view.requires_grad
            view.fill_(7)
        total = sum(parameter.numel() for parameter in cell.parameters())
        assert sum(view.numel() for view in views.values()) == total
        assert all((parameter == 7).all() for parameter in cell.parameters())


@every_core
def test_tracing_equals_the_forward_pass(name: str) -> None:
    core = build(name, num_layers=2)
    arguments = (*inputs_and_state(core), typical_episode_starts())
    trace = core.trace_gates(*arguments)
    for result, expected in zip((trace.outputs, trace.state), core(*arguments), strict=True):
        assert not result.requires_grad
        assert_close(result, expected.detach())
    for forget in trace.forget:
        assert forget.shape[:2] == (7, 3)
        assert forget.min() >= 0
        assert forget.max() <= 1
        assert timescale(forget).isfinite().all()
        assert timescale(forget).min() >= 1


@gated_cores
def test_every_gated_layer_is_traced(name: str) -> None:
    core = build(name, num_layers=2)
    arguments = (*inputs_and_state(core), typical_episode_starts())
    forget = core.trace_gates(*arguments).forget
    assert len(forget) == 2
    assert forget[0].shape == forget[1].shape
    assert not torch.equal(*forget)
    # A gate is that of its own step: observed step by step, they are the same.
    state = arguments[1]
    for t in range(7):
        step = core.trace_gates(arguments[0][t : t + 1], state, arguments[2][t : t + 1])
        for layer in range(2):
            assert_close(step.forget[layer][0], forget[layer][t])
        state = step.state


def test_compiles_in_one_graph() -> None:
    check_compiled("ur_lstm", "eager")


@pytest.mark.slow
@every_core
def test_every_core_compiles_in_one_graph(name: str) -> None:
    check_compiled(name, "aot_eager", num_layers=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own use of it
@every_family
def test_compiles_to_native_code(name: str) -> None:
    check_compiled(name, "inductor")


def check_compiled(name: str, backend: str, num_layers: int = 1) -> None:
    core = build(name, num_layers)
    arguments = (*inputs_and_state(core, steps=2), typical_episode_starts(2))
    results = []
    torch.compiler.reset()
    for run in (core, torch.compile(core, backend=backend, fullgraph=True)):
        core.zero_grad()
        outputs, final = run(*arguments)
        (outputs.sum() + final.sum()).backward()
        results.append((outputs, final, *(p.grad for p in core.parameters())))
    for eager, compiled in zip(*results, strict=True):
        largest = max([1.0, *eager.abs().flatten().tolist()])  # the state may be empty
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=2e-5 * largest)
