"""NRU, RRU and GATO: the contract of every core with their options, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.cases import build_double
from support.equivalence import random_inputs
from torch import Tensor
from torch.func import functional_call

# Every option that changes the equations, on cores of 3 inputs and 6 units.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("nru", {"memory_size": 8, "num_heads": 2}),
    ("nru", {"memory_size": 9, "num_heads": 1, "relu": True}),
    ("nru", {"memory_size": 3, "num_heads": 3, "layer_norm": True}),
    ("rru", {"relu_layers": 3, "expansion": 0.5, "scalar_z": True}),
    ("rru", {"normalize": False, "relu_candidate": True, "fixed_decay": True}),
    ("rru", {"relu_output": True, "start_decay": 0.95, "expansion": 1}),
    ("gato", {"depth": 1, "decay": 0.5, "input_start": "default"}),
    ("gato", {"depth": 2, "inner_size": 3, "decay": 1}),
]
variants = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda v: str(v)[:40])


@variants
def test_variants_keep_the_contract(name: str, options: dict[str, Any]) -> None:
    core = build_double(name, num_layers=2, **options)
    x, episode_starts = random_inputs(core), torch.zeros(5, 3, dtype=torch.bool)
    episode_starts[0, 0] = episode_starts[2:4, 1] = True
    whole, final = core(x, None, episode_starts)
    state, outputs = None, []
    for t in range(5):
        output, state = core(x[t : t + 1], state, episode_starts[t : t + 1])
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, final, rtol=1e-12, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = core.float()(x.float(), None, episode_starts)
    assert outputs.dtype == state.dtype == torch.float32
    for cell in core.cells:
        views = cell.gate_weights()
        for view in views.values():
            view.fill_(7)
        assert sum(view.numel() for view in views.values()) == sum(
            parameter.numel() for parameter in cell.parameters()
        )
        assert all((parameter == 7).all() for parameter in cell.parameters())


@variants
def test_gradients_of_variants(name: str, options: dict[str, Any]) -> None:
    core = build_double(name, **options)
    names = [name for name, _ in core.named_parameters()]

    def run(x: Tensor, state: Tensor, *parameters: Tensor) -> Tensor:
        outputs, final = functional_call(
            core, dict(zip(names, parameters, strict=True)), (x, state)
        )
        return torch.cat([outputs.flatten(), final.flatten()])

    x = random_inputs(core, steps=3, batch_size=2)
    arguments = [x, core(x)[1], *core.parameters()]
    leaves = [argument.detach().clone().requires_grad_() for argument in arguments]
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.slow
@variants
def test_variants_compile_in_one_graph(name: str, options: dict[str, Any]) -> None:
    core = build_double(name, **options)
    x = random_inputs(core, steps=2)
    torch.compiler.reset()
    compiled = torch.compile(core, backend="aot_eager", fullgraph=True)
    for result, expected in zip(compiled(x), core(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
