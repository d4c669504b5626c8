"""Clipping and a step of Adam in native code: as torch does them, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.native import needs_native
from torch import Tensor, nn

from rlgates.kernels import ClipAndStep

pytestmark = needs_native
SHAPES = ((), (1,), (3, 5), (64, 64), (4097,), (40_000,))


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def adam(parameters: list[nn.Parameter], **options: Any) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, **{"lr": 3e-3, "eps": 1e-5, "fused": True, **options})


def give(parameters: list[nn.Parameter], scale: float, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def in_torch(optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
    parameters = optimizer.param_groups[0]["params"]
    norm = nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)
    optimizer.step()
    return norm


def begun(**options: Any) -> tuple[list[nn.Parameter], torch.optim.Adam]:
    """Weights and their optimizer after the first step, with gradients for the next."""
    parameters = weights()
    optimizer = adam(parameters, **options)
    give(parameters, 1.0)
    in_torch(optimizer, 0.5)
    give(parameters, 1.0, seed=1)
    return parameters, optimizer


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_are_those_of_torch(threads: int) -> None:
    (found, native), (expected, plain) = begun(), begun()
    clip_and_step, before = ClipAndStep(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for step, scale in enumerate((1e-4, 10.0, 0.1, 1e-3)):
            give(found, scale, step)
            give(expected, scale, step)
            norm = clip_and_step(native, 0.5)
            assert norm is not None
            torch.testing.assert_close(norm, in_torch(plain, 0.5), rtol=1e-6, atol=0.0)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=0.0)
        states = native.state[one], plain.state[other]
        for name in ("exp_avg", "exp_avg_sq", "step"):
            torch.testing.assert_close(*(s[name] for s in states), rtol=1e-5, atol=1e-9)


def test_the_default_dtype_and_device_do_not_matter() -> None:
    (_, native), (_, plain) = begun(), begun()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            norm = ClipAndStep()(native, 0.5)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(norm, in_torch(plain, 0.5), rtol=1e-6, atol=0.0)


def test_steps_do_not_depend_on_threads() -> None:
    results, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            parameters, optimizer = begun()
            norm = ClipAndStep()(optimizer, 0.5)
        finally:
            torch.set_num_threads(before)
        assert norm is not None
        results.append(torch.cat([norm[None], *(p.detach().flatten() for p in parameters)]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_the_first_step_is_left_to_torch() -> None:
    parameters = weights()
    optimizer = adam(parameters)
    give(parameters, 1.0)
    assert ClipAndStep()(optimizer, 0.5) is None
    assert not optimizer.state


def test_weights_without_a_gradient_stay() -> None:
    parameters, optimizer = begun()
    parameters[3].grad = None
    before = [parameter.detach().clone() for parameter in parameters]
    assert ClipAndStep()(optimizer, 0.5) is not None
    moved = [not torch.equal(one, other) for one, other in zip(parameters, before, strict=True)]
    assert moved == [index != 3 for index in range(len(parameters))]
    assert [optimizer.state[parameter]["step"].item() for parameter in parameters[2:5]] == [2, 1, 2]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_are_seen_in_the_norm(value: float) -> None:
    parameters, optimizer = begun()
    assert parameters[2].grad is not None
    parameters[2].grad[1, 1] = value
    norm = ClipAndStep()(optimizer, 0.5)
    assert norm is not None
    assert not norm.isfinite()


def test_autograd_sees_that_weights_change() -> None:
    parameters, optimizer = begun()
    loss = parameters[2].square().sum()
    assert ClipAndStep()(optimizer, 0.5) is not None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_memory_that_moved_is_found() -> None:
    parameters, optimizer = begun()
    clip_and_step = ClipAndStep()
    assert clip_and_step(optimizer, 0.5) is not None
    old = parameters[3].data
    kept = old.clone()
    parameters[3].data = old.clone()
    give(parameters, 1.0, seed=2)
    assert clip_and_step(optimizer, 0.5) is not None
    assert torch.equal(old, kept), "it wrote to the memory that the weight had before"
    assert not torch.equal(parameters[3], kept)
    parameters[3].data = kept.double()
    assert clip_and_step(optimizer, 0.5) is None


def with_schedule() -> torch.optim.Optimizer:
    _, optimizer = begun()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


def with_hook() -> torch.optim.Optimizer:
    _, optimizer = begun()
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


def with_groups() -> torch.optim.Optimizer:
    _, optimizer = begun()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": 1.0})
    return optimizer


def transposed() -> torch.optim.Optimizer:
    parameters, optimizer = begun()
    parameters[2].grad = torch.ones(5, 3).t()
    return optimizer


OTHERS: dict[str, Callable[[], torch.optim.Optimizer]] = {
    "foreach": lambda: begun(fused=None, foreach=True)[1],
    "amsgrad": lambda: begun(amsgrad=True)[1],
    "maximize": lambda: begun(maximize=True)[1],
    "an epsilon of 0": lambda: begun(eps=0.0)[1],
    "weight decay": lambda: begun(weight_decay=0.1)[1],
    "AdamW": lambda: torch.optim.AdamW(weights(), fused=True),
    "a learning rate that is a tensor": lambda: begun(lr=torch.tensor(1e-3))[1],
    "a schedule": with_schedule,
    "a hook": with_hook,
    "two groups": with_groups,
    "a gradient that is not contiguous": transposed,
    "no gradient": lambda: adam(weights()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_else_is_left_to_torch(name: str) -> None:
    optimizer = OTHERS[name]()
    before = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
    assert ClipAndStep()(optimizer, 0.5) is None
    for one, other in zip(optimizer.param_groups[0]["params"], before, strict=True):
        assert torch.equal(one, other)
