"""GRU and JANET: what they equal, what they count; the options and maps of gated cores."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlgates import Core, make_core
from rlgates.cores import CORES, JANET, core_names
from rlgates.gates import ACTIVATIONS, Gate, refine

INPUTS, HIDDEN = 3, 8


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def build(name: str, num_layers: int = 1, **options: Any) -> Core:
    """A float64 core none of whose weights is zero."""
    core = make_core(name, INPUTS, HIDDEN, num_layers, generator=seeded(0), **options).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=seeded(1)).double()
    return core


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(2), dtype=torch.float64)


def affine(core: Core, key: str, x: Tensor, h: Tensor) -> Tensor:
    w = core.gate_weights()
    return x @ w[f"W_x_{key}"].T + w[f"b_{key}"] + h @ w[f"W_h_{key}"].T + w[f"b_h_{key}"]


def names_of(family: str) -> list[str]:
    return [name for name, (core, _) in core_names().items() if core == family]


# GRU


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("name", ["gru", "c_gru", "u_gru"])
def test_tied_sigmoid_cores_load_torch_gru(name: str, num_layers: int) -> None:
    torch.manual_seed(0)
    reference = nn.GRU(INPUTS, HIDDEN, num_layers)
    core = make_core(name, INPUTS, HIDDEN, num_layers)
    core.load_state_dict(reference.state_dict())
    assert count(core) == count(reference)
    x = torch.randn(9, 4, INPUTS, generator=seeded(1))
    h = torch.randn(num_layers, 4, HIDDEN, generator=seeded(2))
    for given, begin in ((None, None), (h.transpose(0, 1).flatten(1), h)):
        expected, last = reference(x, begin)
        outputs, final = core(x, given)
        torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(core.unpack(final)["h"], last, rtol=1e-6, atol=1e-6)
    for layer in range(num_layers):
        stacked = getattr(reference, f"weight_hh_l{layer}").chunk(3)
        for key, part in zip(("reset", "f", "u"), stacked, strict=True):
            assert torch.equal(core.gate_weights(layer)[f"W_h_{key}"], part)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("r_gru", {}),
        ("f_gru", {}),
        ("o_gru", {}),
        ("gru", {"tied": False}),
        ("gru", {"reset": "before"}),
    ],
)
def test_other_grus_refuse_torch_gru(name: str, options: dict[str, Any]) -> None:
    core = make_core(name, INPUTS, HIDDEN, **options)
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*cells\.0\..*Unexpected.*_l0"):
        core.load_state_dict(nn.GRU(INPUTS, HIDDEN).state_dict())


@pytest.mark.parametrize("reset", ["after", "before"])
@pytest.mark.parametrize("name", ["gru", "ur_gru", "um_gru"])
def test_where_the_reset_acts(name: str, reset: str) -> None:
    core = build(name, reset=reset)
    x, h = drawn(1, 4, INPUTS), drawn(4, HIDDEN)
    w, gate = core.gate_weights(), core.cells[0].gate
    rho = torch.sigmoid(affine(core, "reset", x[0], h))
    f, i = gate(*(affine(core, key, x[0], h) for key in gate.maps))
    from_x = x[0] @ w["W_x_u"].T + w["b_u"]
    if reset == "after":
        u = torch.tanh(from_x + rho * (h @ w["W_h_u"].T + w["b_h_u"]))
    else:
        u = torch.tanh(from_x + (rho * h) @ w["W_h_u"].T + w["b_h_u"])
    torch.testing.assert_close(core(x, h)[0][0], f * h + i * u)
    torch.testing.assert_close(core.observe(x, h).forget[0][0], f)


@pytest.mark.parametrize("reset", ["after", "before"])
def test_gates_on_the_update_side_are_the_same_family(reset: str) -> None:
    """h' = (1 - g) h + g u is the refine GRU with the signs of both its gates turned."""
    core = build("r_gru", reset=reset)
    turned = make_core("r_gru", INPUTS, HIDDEN, reset=reset).double()
    turned.load_state_dict(core.state_dict())
    for name, weight in turned.gate_weights().items():
        if name.endswith(("_f", "_r")):
            weight.neg_()
    x, h = drawn(1, 4, INPUTS), drawn(4, HIDDEN)
    f, r = (torch.sigmoid(affine(turned, key, x[0], h)) for key in "fr")
    kept = core.observe(x, h).forget[0][0]
    torch.testing.assert_close(1 - refine(f, r), kept)
    # With a candidate of 1 everywhere: (1 - g) h + g.
    for name, weight in core.gate_weights().items():
        if name.endswith("_u"):
            weight.fill_(40.0 if name == "b_u" else 0.0)
    g = refine(f, r)
    torch.testing.assert_close(core(x, h)[0][0], (1 - g) * h + g)


# JANET


def test_janet_has_half_the_parameters_of_an_lstm() -> None:
    for num_layers in (1, 2):
        sizes = INPUTS, HIDDEN, num_layers
        assert count(make_core("janet", *sizes)) * 2 == count(make_core("lstm", *sizes))


@pytest.mark.parametrize("t_max", [None, 300.0])
def test_janet_starts_as_chrono(t_max: float | None) -> None:
    size = 500
    options = {} if t_max is None else {"t_max": t_max}
    weights = make_core("janet", INPUTS, size, generator=seeded(0), **options).gate_weights()
    times = weights["b_f"].exp()
    longest = (size if t_max is None else t_max) - 1
    assert times.min() >= 1
    assert 0.95 * longest < times.max() <= longest * 1.0001
    assert times.mean().item() == pytest.approx((1 + longest) / 2, rel=0.1)
    assert not weights["b_u"].any()
    assert not weights["b_h_u"].any()
    assert not weights["b_h_f"].any()


@pytest.mark.parametrize("beta", [None, 0.0, 1.0, 2.5, -0.5])
@pytest.mark.parametrize("name", names_of("janet"))
def test_janet_by_hand(name: str, beta: float | None) -> None:
    core = build(name, **({} if beta is None else {"beta": beta}))
    phi = ACTIVATIONS[core.cells[0].gate.row.activation].forget
    x, h = drawn(1, 4, INPUTS), drawn(4, HIDDEN)
    s = affine(core, "f", x[0], h)
    shifted = s - (1.0 if beta is None else beta)
    keep, write = phi(s), 1 - phi(shifted)
    if core.cells[0].gate.auxiliary == "refine":
        r = torch.sigmoid(affine(core, "r", x[0], h))
        keep, write = refine(phi(s), r), 1 - refine(phi(shifted), r)
    new = keep * h + write * torch.tanh(affine(core, "u", x[0], h))
    torch.testing.assert_close(core(x, h)[0][0], new)
    torch.testing.assert_close(core(x, h)[1], new)
    torch.testing.assert_close(core.observe(x, h).forget[0][0], keep)
    if beta == 0:
        torch.testing.assert_close(write, 1 - keep)


def test_janet_without_shift_is_a_mean_of_the_past() -> None:
    """Fully tied, a candidate of 1 leads from 0 to 1 and never beyond; beta = 1 goes beyond."""
    for beta, largest in ((0.0, 1.0), (1.0, 1.3)):
        core = make_core("janet", 1, 2, beta=beta)
        weights = core.gate_weights()
        for weight in weights.values():
            weight.zero_()
        weights["b_u"].fill_(40.0)
        weights["b_f"].copy_(torch.logit(torch.tensor([0.9, 0.5])))
        outputs, _ = core(torch.zeros(200, 1, 1))
        assert (outputs.amax() > largest) == (beta > 0)
        write = 1 - torch.sigmoid(weights["b_f"] - beta)
        expected = write / (1 - torch.sigmoid(weights["b_f"]))
        torch.testing.assert_close(outputs[-1, 0], expected)


# All of them


@pytest.mark.parametrize("family", ["gru", "janet", "mogrifier"])
def test_maps_are_stacked_as_documented(family: str) -> None:
    doc = CORES[family].cell.__doc__ or ""
    lines = dict(re.findall(r"\n +(\w+) gates +(\w+(?:, \w+)*)", doc))
    cores = [make_core(name, INPUTS, HIDDEN) for name in names_of(family)]
    if family == "gru":
        cores.append(make_core("gru", INPUTS, HIDDEN, tied=False))
    found = set()
    for core in cores:
        weights = core.gate_weights()
        found.add(core.cells[0].gate.auxiliary)
        order = lines[core.cells[0].gate.auxiliary].split(", ")
        stacked = torch.cat([weights[f"W_x_{key}"] for key in order])
        assert torch.equal(stacked, core.cells[0].weight_ih)
    assert found == set(lines)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("gru", {"reset": "befor"}, ValueError, "unknown reset 'befor'. Did you mean 'before'"),
        ("gru", {"reset": 1}, ValueError, "unknown reset 1.* Allowed: after, before"),
        ("gru", {"zoneout_cell": 0.1}, ValueError, "It belongs to lstm, mogrifier"),
        ("gru", {"input_scale": 0}, ValueError, "input_scale must be .* above 0, got 0"),
        ("janet", {"beta": "1"}, TypeError, "beta must be a number, got '1'"),
        ("janet", {"beta": float("nan")}, ValueError, "beta must be finite, got nan"),
        ("janet", {"tied": False}, ValueError, r"must be tied or refine.* got Gate\('c', 8, tied"),
        ("f_janet", {"tied": False}, ValueError, r"must be tied or refine.* got Gate\('f'"),
        ("o_janet", {}, ValueError, r"unknown core 'o_janet'\. Did you mean '\w*janet'"),
        ("mogrifier", {"rounds": -1}, ValueError, "rounds must be at least 0, got -1"),
        ("mogrifier", {"rounds": 2.5}, TypeError, "rounds must be an integer, got 2.5"),
        ("mogrifier", {"rank": 0}, ValueError, "rank must be at least 1, got 0"),
        ("mogrifier", {"rank": "full"}, TypeError, "rank must be an integer, got 'full'"),
        ("mogrifier", {"cap_input": 1}, TypeError, "cap_input must be True or False, got 1"),
        ("mogrifier", {"round": 1}, ValueError, "Did you mean 'rounds'"),
    ],
)
def test_options_are_checked(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_core(name, INPUTS, HIDDEN, **options)


def test_janet_refuses_gates_that_a_shift_does_not_change() -> None:
    with pytest.raises(ValueError, match=r"not cumax, got Gate\('or', 4\)"):
        JANET(3, 4, Gate("or", 4))
    with pytest.raises(ValueError, match=r"must be tied or refine.*got Gate\('um', 4\)"):
        JANET(3, 4, Gate("um", 4))
