"""Under autocast the state stays in float32 and near the run in full precision."""

from __future__ import annotations

import pytest
import torch

from conformance.cases import build, every_core, inputs, some_starts

half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


@every_core
@half
def test_outputs_and_state_stay_in_float32(name: str, dtype: torch.dtype) -> None:
    core = build(name, num_layers=2)
    x, state = inputs(core)
    starts = some_starts()
    with torch.autocast("cpu", dtype):
        outputs, final = core(x, state, starts)
        assert core.initial_state(3).dtype == torch.float32
        seen = core.observe(x, state, starts)
    for tensor in (outputs, final, seen.outputs, seen.state, *seen.forget):
        assert tensor.dtype == torch.float32
    assert torch.equal(seen.outputs, outputs)
    exact_outputs, exact_final = core(x, state, starts)
    assert not torch.equal(outputs, exact_outputs), "autocast did nothing"
    torch.testing.assert_close(outputs, exact_outputs, rtol=0.05, atol=0.05)
    torch.testing.assert_close(final, exact_final, rtol=0.05, atol=0.05)


@every_core
@half
def test_gradients_under_autocast(name: str, dtype: torch.dtype) -> None:
    core = build(name, num_layers=2)
    x, state = inputs(core)
    gradients = []
    for enabled in (False, True):
        core.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            core(x, state, some_starts())[0].sum().backward()
        gradients.append([p.grad.clone() for p in core.parameters() if p.grad is not None])
    for exact, given in zip(*gradients, strict=True):
        assert given.dtype == torch.float32
        assert (given - exact).norm() < 0.05 * exact.norm()
