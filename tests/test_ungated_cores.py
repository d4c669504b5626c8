"""NRU, RRU and GATO: the contract of every core with their options, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import build, sequence
from torch import Tensor
from torch.func import functional_call

from rlgates import make_core

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
    core = build(name, num_layers=2, **options)
    x, starts = sequence(core), torch.zeros(5, 3, dtype=torch.bool)
    starts[0, 0] = starts[2:4, 1] = True
    whole, final = core(x, None, starts)
    state, outputs = None, []
    for t in range(5):
        output, state = core(x[t : t + 1], state, starts[t : t + 1])
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, final, rtol=1e-12, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = core.float()(x.float(), None, starts)
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
    core = build(name, **options)
    names = [name for name, _ in core.named_parameters()]

    def run(x: Tensor, state: Tensor, *parameters: Tensor) -> Tensor:
        outputs, final = functional_call(
            core, dict(zip(names, parameters, strict=True)), (x, state)
        )
        return torch.cat([outputs.flatten(), final.flatten()])

    x = sequence(core, steps=3, batch=2)
    arguments = [x, core(x)[1], *core.parameters()]
    leaves = [argument.detach().clone().requires_grad_() for argument in arguments]
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.slow
@variants
def test_variants_compile_in_one_graph(name: str, options: dict[str, Any]) -> None:
    core = build(name, **options)
    x = sequence(core, steps=2)
    torch.compiler.reset()
    compiled = torch.compile(core, backend="aot_eager", fullgraph=True)
    for given, expected in zip(compiled(x), core(x), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "hidden", "options", "error", "message"),
    [
        ("gato", 7, {}, ValueError, "hidden_size must be even.*, got 7. Nearest allowed: 6 or 8"),
        ("gato", 1, {}, ValueError, r"got 1. Nearest allowed: 2\."),
        ("gato", 6, {"depth": 3}, ValueError, r"unknown depth 3\. Allowed: 1, 2"),
        ("gato", 6, {"depth": 0}, ValueError, "depth must be at least 1, got 0"),
        ("gato", 6, {"depth": "1"}, TypeError, "depth must be an integer, got '1'"),
        ("gato", 6, {"inner_size": 0}, ValueError, "inner_size must be at least 1, got 0"),
        ("gato", 6, {"decay": 1.1}, ValueError, "decay must be above 0 and at most 1, got 1.1"),
        ("gato", 6, {"decay": 0}, ValueError, "decay must be finite and above 0, got 0"),
        ("gato", 6, {"input_start": "unifrom"}, ValueError, "Did you mean 'uniform'"),
        ("nru", 6, {"memory_size": 10}, ValueError, r"whole number, got 10 \* 4\. .*heads=4: 9"),
        ("nru", 6, {"memory_size": 64, "num_heads": 3}, ValueError, "num_heads=3: 75"),
        ("nru", 6, {"memory_size": 0}, ValueError, "memory_size must be at least 1, got 0"),
        ("nru", 6, {"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ("nru", 6, {"relu": 1}, TypeError, "relu must be True or False, got 1"),
        ("nru", 6, {"layer_norm": "no"}, TypeError, "layer_norm must be True or False"),
        ("nru", 6, {"memory_siz": 64}, ValueError, "Did you mean 'memory_size'"),
        ("rru", 6, {"output_size": 0}, ValueError, "output_size must be at least 1, got 0"),
        ("rru", 6, {"expansion": 0}, ValueError, "expansion must be finite and above 0, got 0"),
        ("rru", 6, {"relu_layers": 0}, ValueError, "relu_layers must be at least 1, got 0"),
        ("rru", 6, {"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1"),
        ("rru", 6, {"start_decay": 1.0}, ValueError, "above 0 and below 1, got 1.0"),
        ("rru", 6, {"start_decay": 0.9, "fixed_decay": True}, ValueError, "choose one"),
        ("rru", 6, {"normalize": None}, TypeError, "normalize must be True or False"),
        ("rru", 6, {"scalar_z": 1}, TypeError, "scalar_z must be True or False"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    name: str, hidden: int, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_core(name, 3, hidden, **options)
