"""Under autocast the state stays in float32, close to the run in full precision."""

from __future__ import annotations

import pytest
import torch
from support.cases import build, every_core
from support.equivalence import inputs_and_state, typical_episode_starts

from rlgates.kernels import CellSpec

half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


@every_core
@half
def test_outputs_and_state_stay_in_float32(name: str, dtype: torch.dtype) -> None:
    core = build(name, num_layers=2, backend="plain")
    x, state = inputs_and_state(core)
    episode_starts = typical_episode_starts()
    with torch.autocast("cpu", dtype):
        outputs, final = core(x, state, episode_starts)
        assert core.initial_state(3).dtype == torch.float32
        trace = core.trace_gates(x, state, episode_starts)
    for tensor in (outputs, final, trace.outputs, trace.state, *trace.forget):
        assert tensor.dtype == torch.float32
    assert torch.equal(trace.outputs, outputs)
    exact_outputs, exact_final = core(x, state, episode_starts)
    assert not torch.equal(outputs, exact_outputs), "autocast did nothing"
    torch.testing.assert_close(outputs, exact_outputs, rtol=0.05, atol=0.05)
    torch.testing.assert_close(final, exact_final, rtol=0.05, atol=0.05)


@every_core
def test_kernels_compute_in_float32_under_autocast(name: str) -> None:
    core = build(name, num_layers=2)
    x, state = inputs_and_state(core)
    expected = core(x, state, typical_episode_starts())
    if core.backend_used != "native":
        pytest.skip("it has no native code")
    with torch.autocast("cpu", torch.bfloat16):
        results = core(x, state, typical_episode_starts())
    assert core.backend_used == "native"
    exact = isinstance(core.cells[0].recurrence(), CellSpec)  # the maps of others are torch's
    tolerance = 0.0 if exact else 0.05
    torch.testing.assert_close(results, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_refused(dtype: torch.dtype) -> None:
    core = build("ur_lstm").to(dtype)
    x = torch.ones(2, 3, core.input_size, dtype=dtype)
    with pytest.raises(ValueError, match="must be float32 or float64"):
        core(x)
    core.float()(x.float())


# Rounded inputs move units across a kink, or are divided by small numbers.
MAGNIFIED = {
    "frame_stack": 0.3,
    "mlstm": 0.1,
    "lmu": 0.1,
    "transformer": 0.2,
    "deltanet": 0.1,
    "fwp": 0.2,
    "rwkv7": 0.1,
}


@every_core
@half
def test_gradients_under_autocast(name: str, dtype: torch.dtype) -> None:
    core = build(name, num_layers=2)
    x, state = inputs_and_state(core)
    gradients = []
    for enabled in (False, True):
        core.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            core(x, state, typical_episode_starts())[0].sum().backward()
        gradients.append([p.grad.clone() for p in core.parameters() if p.grad is not None])
    for exact, gradient in zip(*gradients, strict=True):
        assert gradient.dtype == torch.float32
        tolerance = MAGNIFIED.get(name, 0.05)
        assert (gradient - exact).norm() < tolerance * exact.norm()
