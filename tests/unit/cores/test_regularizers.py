"""Zoneout and recurrent dropout: what they change while training, their expectation after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.native import needs_native
from torch import Tensor

from rlgates import Core, make_core
from rlgates.cores.stacked import zoneout

INPUTS, HIDDEN, BATCH = 3, 32, 200
NAMES = ["lstm", "ur_lstm", "gru", "ur_gru", "mogrifier", "um_mogrifier"]
WITH_CELL = [name for name in NAMES if not name.endswith("gru")]

every_name = pytest.mark.parametrize("name", NAMES)
every_option = pytest.mark.parametrize(
    ("name", "option"),
    [(name, "zoneout_hidden") for name in NAMES]
    + [(name, "recurrent_dropout") for name in NAMES]
    + [(name, "zoneout_cell") for name in WITH_CELL],
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def build(name: str, **options: Any) -> tuple[Core, Core]:
    """A core with the options, and one of the same weights without them, both in training."""
    plain = make_core(name, INPUTS, HIDDEN, backend="plain")
    core = make_core(name, INPUTS, HIDDEN, backend="plain", **options)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    core.load_state_dict(plain.state_dict())
    return core, plain


def arguments(core: Core, steps: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(steps, BATCH, INPUTS, generator=generator),
        torch.randn(BATCH, core.state_size, generator=generator),
    )


def step(core: Core, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """The parts of the state before and after one step, each (B, d), and the output."""
    x, state = arguments(core)
    torch.manual_seed(seed)
    outputs, final = core(x, state)
    old, new = ({k: v[0] for k, v in core.unpack(s).items()} for s in (state, final))
    return old, new, outputs[0]


def near(share: Tensor, probability: float) -> bool:
    """Whether a share of all units of all rows is within four standard errors."""
    error = (probability * (1 - probability) / (BATCH * HIDDEN)) ** 0.5
    return abs(share.float().mean().item() - probability) < 4 * error


def test_zoneout_of_tensors() -> None:
    new, old = torch.ones(1000), torch.zeros(1000)
    assert zoneout(new, old, 0.0, training=True) is new
    torch.testing.assert_close(zoneout(new, old, 0.2, training=False), torch.full((1000,), 0.8))
    torch.manual_seed(0)
    zoned = zoneout(new, old, 0.2, training=True)
    assert set(zoned.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("probability", [0.05, 0.5])
@pytest.mark.parametrize(
    ("name", "part"), [*((name, "h") for name in NAMES), *((name, "c") for name in WITH_CELL)]
)
def test_a_unit_keeps_its_old_value_at_times(name: str, part: str, probability: float) -> None:
    option = {"h": "zoneout_hidden", "c": "zoneout_cell"}[part]
    core, plain = build(name, **{option: probability})
    old, new, output = step(core)
    _, expected, _ = step(plain)
    kept = new[part] == old[part]
    assert near(kept, probability)
    assert torch.equal(new[part], torch.where(kept, old[part], expected[part]))
    assert torch.equal(output, new["h"]), "the output is the h that is kept"
    for other in new.keys() - {part}:  # h is made from the cell before it is zoned
        assert torch.equal(new[other], expected[other]), "each has a zoneout of its own"
    # Every unit and every row is drawn for itself, anew in each call.
    assert kept.any(dim=0).all()
    assert not kept.all(dim=0).any()
    assert not torch.equal(step(core, seed=1)[1][part], new[part])


@pytest.mark.parametrize("name", WITH_CELL)
def test_h_and_c_are_zoned_for_themselves(name: str) -> None:
    core, _ = build(name, zoneout_cell=0.5, zoneout_hidden=0.5)
    old, new, _ = step(core)
    kept_h, kept_c = new["h"] == old["h"], new["c"] == old["c"]
    assert near(kept_h, 0.5)
    assert near(kept_c, 0.5)
    assert near(kept_h & kept_c, 0.25)


@every_name
def test_evaluation_takes_the_expectation(name: str) -> None:
    options = {"zoneout_hidden": 0.2}
    if name in WITH_CELL:
        options["zoneout_cell"] = 0.4
    core, plain = build(name, **options)
    _, expected, _ = step(plain)
    old, new, output = step(core.eval())
    for part, share in zip(new, options.values(), strict=True):
        torch.testing.assert_close(new[part], (1 - share) * expected[part] + share * old[part])
    assert torch.equal(output, new["h"])
    assert torch.equal(step(core, seed=1)[2], output), "evaluation draws nothing"


@every_name
def test_recurrent_dropout_drops_only_the_candidate(name: str) -> None:
    probability = 0.25
    core, plain = build(name, recurrent_dropout=probability)
    part = "c" if name in WITH_CELL else "h"
    old, new, output = step(core)
    _, expected, _ = step(plain)
    x, state = arguments(core)
    kept = core.trace_gates(x, state).forget[0][0] * old[part]  # what the forget gate leaves
    written = expected[part] - kept
    scaled = kept + written / (1 - probability)
    dropped = (new[part] - kept).abs() < 1e-6
    assert near(dropped, probability)
    torch.testing.assert_close(new[part], torch.where(dropped, kept, scaled))
    if part == "c":  # the gates are left alone: h is what o makes of this c
        ratio = expected["h"] / torch.tanh(expected["c"])
        torch.testing.assert_close(output, ratio * torch.tanh(new["c"]), rtol=1e-3, atol=1e-5)
    assert torch.equal(step(core.eval())[1][part], expected[part]), "off in evaluation"


@every_option
@pytest.mark.parametrize("training", [True, False])
def test_gradient_flows(name: str, option: str, training: bool) -> None:
    core, _ = build(name, **{option: 0.3})
    core.train(training)
    x, state = (tensor.requires_grad_() for tensor in arguments(core, steps=4))
    outputs, final = core(x, state)
    (outputs.square().sum() + final.square().sum()).backward()
    for tensor in (x, state, *core.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.any()


@every_name
def test_a_unit_that_is_zoned_passes_its_gradient_to_the_old_value(name: str) -> None:
    part = "c" if name in WITH_CELL else "h"
    core, _ = build(name, **{"zoneout_cell" if part == "c" else "zoneout_hidden": 0.5})
    x, state = arguments(core)
    state.requires_grad_()
    final = core.unpack(core(x, state)[1])[part][0]
    kept = final == core.unpack(state)[part][0]
    final[kept].sum().backward()
    assert state.grad is not None
    assert torch.equal(core.unpack(state.grad)[part][0], kept.float())


@every_option
def test_noise_comes_from_the_global_generator(name: str, option: str) -> None:
    core, _ = build(name, **{option: 0.5})
    x, state = arguments(core, steps=3)
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(core(x, state)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    core.eval()
    assert torch.equal(core(x, state)[0], core(x, state)[0])


@needs_native
@pytest.mark.parametrize("option", ["zoneout_hidden", "zoneout_cell", "recurrent_dropout"])
def test_native_code_runs_it(option: str) -> None:
    core = make_core("lstm", INPUTS, 4, **{option: 0.5})
    for training in (True, False):
        core.train(training)(torch.ones(2, 1, INPUTS))
        assert core.backend_used == "native"


@every_option
def test_noise_under_autocast_and_in_float64(name: str, option: str) -> None:
    core, _ = build(name, **{option: 0.5})
    x, state = arguments(core, steps=3)
    with torch.autocast("cpu", torch.bfloat16):
        for result in core(x, state):
            assert result.dtype == torch.float32
    for result in core.double()(x.double(), state.double()):
        assert result.dtype == torch.float64
        assert result.isfinite().all()


@every_option
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (1, ValueError, "must be at least 0 and below 1, got 1"),
        (-0.1, ValueError, "must be at least 0 and below 1, got -0.1"),
        (float("nan"), ValueError, "must be finite, got nan"),
        ("half", TypeError, "must be a number, got 'half'"),
        (True, TypeError, "must be a number, got True"),
    ],
)
def test_probabilities_are_checked(
    name: str, option: str, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"{option} {message}"):
        make_core(name, INPUTS, 4, **{option: value})
