"""The NRU: its memory updates and initial values."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from support.cases import build_double, zeroed
from support.equivalence import random_inputs, seeded

from rlgates import make_core
from rlgates.cores.nru import unit_rows


@pytest.mark.parametrize("scale", [1e15, 1e8, 1.0, 1e-9, 1e-11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_have_a_5_norm_of_one_at_every_scale(scale: float, dtype: torch.dtype) -> None:
    v = (scale * torch.randn(4, 2, 9, generator=seeded(0), dtype=torch.float64)).to(dtype)
    v.requires_grad_()
    rows = unit_rows(v)
    torch.testing.assert_close(rows.norm(p=5, dim=-1), torch.ones(4, 2, dtype=dtype))
    weights = torch.randn(4, 2, 9, generator=seeded(1), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((rows * weights).sum(), v)
    exact = v.detach().double().requires_grad_()
    normal = (exact / exact.norm(p=5, dim=-1, keepdim=True) * weights).sum()
    (expected,) = torch.autograd.grad(normal, exact)
    torch.testing.assert_close(gradient, expected.to(dtype), rtol=1e-4, atol=1e-5 / scale)


def test_tiny_rows_stay_small() -> None:
    v = torch.tensor([[0.0, 0.0, 0.0], [1e-14, 0.0, -1e-14]], requires_grad=True)
    rows = unit_rows(v)
    torch.testing.assert_close(rows, torch.tensor([[0, 0, 0], [0.01, 0, -0.01]]))
    (gradient,) = torch.autograd.grad(rows.sum(), v)
    torch.testing.assert_close(gradient, torch.full((2, 3), 1e12))


@pytest.mark.parametrize(("amount", "sign"), [("b_alpha", 1), ("b_beta", -1)])
def test_nru_writes_and_erases_rows_of_norm_one(amount: str, sign: int) -> None:
    core = make_core("nru", 2, 3, memory_size=8, num_heads=2, dtype=torch.float64)
    ramp = torch.tensor([1.0, 2.0, 3.0, 4.0])
    vector = "v" if amount == "b_alpha" else "w"
    biases = {f"b_{vector}1": ramp, f"b_{vector}2": torch.tensor([1.0, 1.0, 1.0, 2.0])}
    weights = zeroed(core, **biases, **{amount: torch.tensor([6.0, -2.0])})
    zero = torch.zeros(1, 1, 2, dtype=torch.float64)
    memory = core.unpack(core(zero)[1])["m"][0, 0]
    # The index of the first vector comes first: row 1 is made of its 1 and 2, row 2 of 3 and 4.
    first, second = (
        torch.outer(half, weights[f"b_{vector}2"]).flatten() for half in ramp.double().split(2)
    )
    expected = sign * (6 * first / first.norm(p=5) - 2 * second / second.norm(p=5)) / 2
    torch.testing.assert_close(memory, expected, rtol=1e-12, atol=1e-12)


def test_nru_memory_reads_only_the_new_h() -> None:
    core = build_double("nru", memory_size=4, num_heads=1)
    x, state = random_inputs(core, steps=1), torch.rand(3, 10, generator=seeded(3)).double()
    other = state + torch.tensor([1.0] * 6 + [0.0] * 4)  # another h, the same memory
    memory = core.unpack(core(x, state)[1])["m"]
    for arguments in ((x + 1, state), (x, other)):
        assert not torch.allclose(core.unpack(core(*arguments)[1])["m"], memory)
    core.gate_weights()["b_h"].fill_(-100)  # the new h is zero whatever comes in
    outputs, final = core(x, state)
    assert not outputs.any()
    assert torch.equal(core(x + 1, other)[1], final)


def test_nru_relu_is_on_amounts_and_vectors() -> None:
    signs = {"b_v1": torch.tensor([1.0, -1.0]), "b_v2": torch.tensor([1.0, 2.0])}
    expected = {(1.0, False): 1, (-1.0, False): -1, (1.0, True): 1, (-1.0, True): 0}
    for (alpha, relu), factor in expected.items():
        core = make_core("nru", 2, 3, memory_size=4, num_heads=1, relu=relu)
        zeroed(core, b_alpha=alpha, **signs)
        memory = core.unpack(core(torch.zeros(1, 1, 2))[1])["m"][0, 0]
        row = torch.tensor([1.0, 2.0, 0.0, 0.0] if relu else [1.0, 2.0, -1.0, -2.0])
        torch.testing.assert_close(memory, factor * row / row.norm(p=5))


def test_nru_layer_norm_is_on_the_units() -> None:
    core = build_double("nru", memory_size=4, num_heads=1, layer_norm=True)
    x, weights = random_inputs(core, steps=1), core.gate_weights()
    z = x @ weights["W_x_h"].t() + weights["b_h"]
    centred = z - z.mean(-1, keepdim=True)
    normal = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    expected = (normal * weights["g_h"] + weights["o_h"]).relu()
    torch.testing.assert_close(core(x)[0], expected, rtol=1e-12, atol=1e-12)
    fresh = make_core("nru", 3, 6, layer_norm=True).gate_weights()
    assert (fresh["g_h"] == 1).all() & (fresh["o_h"] == 0).all()
    assert "g_h" not in make_core("nru", 3, 6).gate_weights()


def test_nru_can_grow_without_bound_and_debug_raises() -> None:
    core = make_core("nru", 1, 4, memory_size=4, num_heads=1)
    zeroed(core, W_alpha=1.0, b_alpha=1.0, b_v1=1.0, b_v2=1.0)
    x = torch.zeros(20, 1, 1)
    sizes = []
    state = None
    for _ in range(2):
        state = core(x, state)[1]
        sizes.append(state.max().item())
    assert sizes[1] > sizes[0] ** 1.9 > 1e10
    core.debug = True
    with pytest.raises(ValueError, match="must be finite"):
        core(torch.zeros(100, 1, 1), state)


@pytest.mark.parametrize(
    ("hidden", "heads", "expected"),
    [(128, 4, 64), (512, 4, 144), (256, 4, 100), (1, 4, 4), (6, 3, 12), (128, 12, 75), (64, 1, 49)],
)
def test_nru_memory_size_follows_from_the_units(hidden: int, heads: int, expected: int) -> None:
    core = make_core("nru", 3, hidden, num_heads=heads, device="meta")
    assert core.state_size == hidden + expected
    assert math.isqrt(expected * heads) ** 2 == expected * heads


def test_nru_is_initialised_like_linear_layers() -> None:
    weights = make_core("nru", 16, 128, generator=seeded(0)).gate_weights()
    for name, weight in weights.items():
        bound = (208 if name.endswith("_h") else 192) ** -0.5
        fits = scipy.stats.kstest(
            weight.flatten().numpy(), scipy.stats.uniform(-bound, 2 * bound).cdf
        )
        assert fits.pvalue > 1e-3, name
