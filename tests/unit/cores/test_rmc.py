"""The relational memory core: its step, its gates in each style, its slots, its sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.equivalence import count, seeded

from rlgates import Core, make_core
from rlgates.gates import GATES

Array = NDArray[np.float64]


def build(name: str, inputs: int = 3, size: int = 6, **options: Any) -> Core:
    """A float64 core in which no weight is zero."""
    core = make_core(name, inputs, size, dtype=torch.float64, generator=seeded(0), **options)
    for n, weight in enumerate(core.gate_weights().values()):
        weight += 0.3 * torch.randn(weight.shape, generator=seeded(n), dtype=torch.float64)
    return core


def norm(row: Array, gain: Array, offset: Array) -> Array:
    return gain * (row - row.mean()) / np.sqrt(row.var() + 1e-5) + offset


def attended(
    w: dict[str, Array], memory: Array, x: Array, heads: int, key: int, blocks: int, layers: int
) -> Array:
    """M~ by the equations, one row and one head at a time."""
    rows = [*memory, w["W_in"] @ x + w["b_in"]]
    head = memory.shape[1] // heads
    for n in range(blocks):
        b = {name.removesuffix(f"_{n}"): a for name, a in w.items() if name.endswith(f"_{n}")}
        read: list[list[float]] = [[] for _ in rows]
        normalized = [norm(b["W_qkv"] @ row + b["b_qkv"], b["g_qkv"], b["o_qkv"]) for row in rows]
        for h in range(heads):
            parts = [row[h * (2 * key + head) :][: 2 * key + head] for row in normalized]
            for here, part in enumerate(parts):
                scores = [part[:key] @ other[key : 2 * key] / math.sqrt(key) for other in parts]
                weights = np.exp(scores) / np.exp(scores).sum()
                read[here] += list(
                    sum(p * o[2 * key :] for p, o in zip(weights, parts, strict=True))
                )
        for here, row in enumerate(rows):
            middle = norm(row + np.array(read[here]), b["g_att"], b["o_att"])
            y = middle
            for j in range(layers):
                y = w[f"W_mlp_{j}"] @ (y if j == 0 else np.maximum(y, 0)) + w[f"b_mlp_{j}"]
            rows[here] = norm(middle + y, b["g_mlp"], b["o_mlp"])
    return np.array(rows[:-1])


def sigmoid(y: Array) -> Array:
    return 1 / (1 + np.exp(-y))


SHAPES = [
    {},
    {"num_heads": 3, "key_size": 4},
    {"num_heads": 2, "num_blocks": 2, "mlp_layers": 3, "mem_slots": 3},
    {"mlp_layers": 1, "key_size": 1, "mem_slots": 1},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("style", ["unit", "memory", None])
def test_a_step_by_the_equations(shape: dict[str, int], style: str | None) -> None:
    core = build("rmc", gate_style=style, **shape)
    slots, heads = shape.get("mem_slots", 4), shape.get("num_heads", 1)
    rng = np.random.default_rng(0)
    memory, x = rng.normal(size=(slots, 6)), rng.normal(size=3)
    state = torch.tensor(memory).view(1, -1)
    output, final = core(torch.tensor(x).view(1, 1, 3), state)
    w = {name: weight.numpy() for name, weight in core.gate_weights().items()}
    new = attended(
        w,
        memory,
        x,
        heads,
        shape.get("key_size", 6 // heads),
        shape.get("num_blocks", 1),
        shape.get("mlp_layers", 2),
    )
    forget = core.trace_gates(torch.tensor(x).view(1, 1, 3), state).forget
    if style is None:
        expected = new
        assert forget == []
    else:
        projected = w["W_in"] @ x + w["b_in"]
        f, i = (
            sigmoid(
                np.tanh(memory) @ w[f"W_h_{k}"].T
                + w[f"b_h_{k}"]
                + w[f"W_x_{k}"] @ projected
                + w[f"b_{k}"]
            )
            for k in "fi"
        )
        expected = f * memory + i * np.tanh(new)
        np.testing.assert_allclose(forget[0][0, 0], f.ravel(), rtol=1e-12)
    np.testing.assert_allclose(final.detach(), expected.reshape(1, -1), rtol=1e-11, atol=1e-12)
    assert torch.equal(output[0], final)


def test_a_step_by_hand() -> None:
    """All weights are zero but some offsets and biases, so that the numbers can be written."""
    core = make_core("rmc", 1, 2, dtype=torch.float64, mem_slots=2)
    weights = core.gate_weights()
    for weight in weights.values():
        weight.zero_()
    weights["o_mlp_0"].copy_(torch.tensor([0.5, -1.0]))
    weights["b_i"].fill_(math.log(3))  # i = 3/4
    weights["b_h_f"].fill_(-math.log(4))  # f = 1/5
    # M~ = [[0.5, -1], [0.5, -1]], tanh 0.5 = 0.46211716, tanh 1 = 0.76159416, M = identity:
    expected = [0.2 + 0.34658787, -0.57119562, 0.34658787, 0.2 - 0.57119562]
    assert core(torch.ones(1, 1, 1).double())[1][0].tolist() == pytest.approx(expected, abs=1e-8)
    # A norm of two numbers has one with plus and one with minus: of the gain of the first norm.
    weights["g_att_0"].fill_(3.0)
    weights["g_mlp_0"].fill_(1.0)
    weights["o_mlp_0"].zero_()
    # Rows (1, 0) and (0, 1) become (1, -1) and (-1, 1), up to epsilon: tanh 1 = 0.7616 again.
    expected = [0.2 + 0.571196, -0.571196, -0.571196, 0.2 + 0.571196]
    assert core(torch.ones(1, 1, 1).double())[1][0].tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("gate", [gate for gate in GATES if gate])
def test_every_gate_writes_to_the_memory(gate: str) -> None:
    """M' = f M + i tanh(M~), with M~ of a core without gates and the same other weights."""
    gated = build(f"{gate}_rmc", mem_slots=2, num_heads=2)
    bare = build("rmc", mem_slots=2, num_heads=2, gate_style=None)
    for name, weight in bare.gate_weights().items():
        weight.copy_(gated.gate_weights()[name])
    x, state = torch.randn(1, 5, 3, generator=seeded(1)), torch.randn(5, 12, generator=seeded(2))
    x, state = x.double(), state.double()
    new, trace = bare(x, state)[1].detach().tanh(), gated.trace_gates(x, state)
    f = trace.forget[0][0]
    assert f.shape == (5, 12)
    i = (trace.state - f * state) / new
    assert i.min() > -1e-9
    assert i.max() < 1 + 1e-9
    if GATES[gate].auxiliary in ("refine", "tied"):
        torch.testing.assert_close(i, 1 - f, rtol=1e-6, atol=1e-6)
    else:
        assert (i - (1 - f)).abs().max() > 0.01


@pytest.mark.parametrize(("slots", "size"), [(2, 5), (4, 4), (5, 2)])
def test_the_initial_memory_is_the_identity(slots: int, size: int) -> None:
    core = make_core("rmc", 3, size, 2, mem_slots=slots)
    memory = core.unpack(core.initial_state(3))["memory"]
    assert memory.shape == (2, 3, slots, size)
    expected = [[float(row == column) for column in range(size)] for row in range(slots)]
    assert memory[1, 2].tolist() == expected
    assert core.output_size == slots * size


@pytest.mark.parametrize("name", ["rmc", "ur_rmc", "om_rmc"])
def test_slots_have_no_order(name: str) -> None:
    core = build(name, mem_slots=4, num_heads=2, num_blocks=2)
    x = torch.randn(5, 3, 3, generator=seeded(1)).double()
    memory = torch.randn(3, 4, 6, generator=seeded(2)).double()
    order = torch.tensor([2, 0, 3, 1])
    outputs, final = core(x, memory.flatten(1))
    moved, moved_final = core(x, memory[:, order].flatten(1))
    torch.testing.assert_close(moved, outputs.view(5, 3, 4, 6)[:, :, order].flatten(2))
    torch.testing.assert_close(moved_final, final.view(3, 4, 6)[:, order].flatten(1))
    assert not torch.allclose(moved, outputs, atol=1e-3)


def test_slots_of_equal_initial_value_stay_equal() -> None:
    core = build("ur_rmc", size=2, mem_slots=4)
    x = torch.randn(5, 1, 3, generator=seeded(1)).double()
    memory = core.unpack(core(x)[1])["memory"][0, 0]
    torch.testing.assert_close(memory[2], memory[3], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(memory[1], memory[2], atol=1e-3)


def test_slots_attend_to_each_other() -> None:
    core = build("rmc", mem_slots=3)
    x = torch.zeros(1, 1, 3).double()
    memory = torch.randn(1, 3, 6, generator=seeded(2)).double()
    other = memory.clone()
    other[0, 2] += 1
    differs = core(x, memory.flatten(1))[0] != core(x, other.flatten(1))[0]
    assert differs.view(3, 6).all()


def inside(size: int, heads: int, key: int, inputs: int) -> int:
    """Parameters of one block, the MLP of two layers and the input."""
    qkv = heads * (2 * key + size // heads)
    return qkv * (size + 3) + 4 * size + 2 * size * (size + 1) + size * (inputs + 1)


def test_parameter_counts() -> None:
    core = {gate: make_core(f"{gate}_rmc" if gate else "rmc", 5, 12, num_heads=3) for gate in GATES}
    one_map = 2 * 12 * (12 + 1)
    assert count(core[""]) == inside(12, 3, 4, 5) + 2 * one_map
    # r takes the place of i.
    for gate in ("c", "u", "r", "ur", "o", "or"):
        assert count(core[gate]) == count(core[""])
    for gate in ("f", "uf", "ff", "s"):
        assert count(core[gate]) == count(core[""]) - one_map
    for gate in ("om", "um"):
        assert count(core[gate]) == count(core[""]) + 2 * one_map
    memory = make_core("rmc", 5, 12, num_heads=3, gate_style="memory")
    assert count(memory) == inside(12, 3, 4, 5) + 2 * 2 * (12 + 1)
    bare = make_core("rmc", 5, 12, num_heads=3, gate_style=None)
    assert count(bare) == inside(12, 3, 4, 5)
    wide = make_core("rmc", 5, 12, num_heads=3, key_size=7, gate_style=None)
    assert count(wide) == inside(12, 3, 7, 5)
    # The MLP is shared by the blocks, the projections and layer norms are not.
    twice = make_core("rmc", 5, 12, num_heads=3, num_blocks=2, gate_style=None)
    assert count(twice) - count(bare) == 3 * 12 * (12 + 3) + 4 * 12
    deep = make_core("rmc", 5, 12, num_heads=3, mlp_layers=3, gate_style=None)
    assert count(deep) - count(bare) == 12 * (12 + 1)
    assert count(make_core("rmc", 5, 12, num_heads=3, mem_slots=9)) == count(core[""])


def test_one_gate_for_a_slot() -> None:
    for gate in ("", "c", "r", "f", "ff", "s"):
        core = make_core(f"{gate}_rmc" if gate else "rmc", 3, 6, mem_slots=5, gate_style="memory")
        assert core.gate_weights()["W_h_f"].shape == (1, 6)
        forget = core.trace_gates(torch.zeros(2, 3, 3)).forget[0]
        assert forget.shape == (2, 3, 5)
    # The longest expected dependency is that of the core's width, or as given.
    for options, longest in (({}, 60), ({"t_max": 20}, 20)):
        cores = [
            make_core("c_rmc", 3, 60, generator=seeded(n), gate_style="memory", **options)
            for n in range(20)
        ]
        times = torch.cat([core.gate_weights()["b_f"].exp() for core in cores])
        assert 0.6 * longest < times.max() <= longest - 1 + 1e-3


def test_starting_weights() -> None:
    core = make_core("rmc", 16, 64, generator=seeded(0), forget_bias=2.0, input_bias=-1.0)
    fan_in = {"W_in": 16}
    for name, weight in core.gate_weights().items():
        if name.startswith("W_"):
            deviation = fan_in.get(name, 64) ** -0.5
            assert weight.abs().max() <= 2 * deviation
            # A normal cut at two deviations has 0.8796 of its deviation.
            assert weight.std() / deviation == pytest.approx(0.88, abs=0.04)
        elif name.startswith("g_"):
            assert (weight == 1).all()
        else:
            assert (weight == {"b_f": 2.0, "b_i": -1.0}.get(name, 0.0)).all()
    plain = make_core("rmc", 16, 64).gate_weights()
    assert (plain["b_f"] == 1).all()
    assert not plain["b_i"].any()
