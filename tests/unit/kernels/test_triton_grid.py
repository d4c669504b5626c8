"""Features of small images in Triton: equal to torch, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.interpreted import DEVICE, REASON
from support.saved import changed_by_hooks, check_refused, elsewhere
from torch import Tensor

from rlgates import kernels
from rlgates.agents import GridEncoder
from rlgates.kernels.triton import grid_op

pytest.importorskip("triton", reason=REASON)


def problem(sizes: Any, count: int) -> tuple[GridEncoder, Tensor]:
    """An encoder with weights of either sign, and images of a few colours."""
    channels, height, width, dim, cell_dim = sizes
    torch.manual_seed(0)
    space = spaces.Box(0, 255, (channels, height, width), np.uint8)
    module = GridEncoder(space, dim, cell_dim).to(DEVICE)
    palette = torch.randint(0, 256, (6, channels)) / 255
    pixels = torch.randint(0, 6, (count, height * width))
    return module, palette[pixels].transpose(1, 2).contiguous().to(DEVICE)


def results(features: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """The features and the gradients of the weights, in float64."""
    weighting = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
    loss = (features * weighting.to(features)).sum()
    return [t.detach().double() for t in (features, *torch.autograd.grad(loss, weights))]


SIZES = [
    ((3, 3, 4, 64, 16), 140),
    ((1, 1, 2, 3, 1), 5),
    ((4, 3, 3, 50, 33), 17),
    ((15, 2, 2, 8, 3), 33),
    ((3, 2, 2, 8, 3), 0),
]


@pytest.mark.parametrize(("sizes", "count"), SIZES)
@pytest.mark.parametrize("half", [False, True])
def test_equals_torch(sizes: Any, count: int, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = problem(sizes, count)
    weights = list(module.parameters())
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        features = grid_op.run(x, *weights)
    assert features.dtype == (torch.bfloat16 if half else torch.float32)
    found = results(features, weights)
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        torch.testing.assert_close(grid_op.run(x, *weights).double(), found[0], rtol=0, atol=0)
    monkeypatch.setattr(kernels, "grid_features", lambda *_: None)
    module.double()
    images = x.double().view(count, *sizes[:3])
    expected = results(module(images), list(module.parameters()))
    # In half precision a few numbers are on the other side of a ReLU.
    tolerance = 5e-2 if half else 1e-6
    for value, target in zip(found, expected, strict=True):
        assert value.shape == target.shape
        assert (value - target).norm() <= tolerance * (1e-6 + target.norm())


def test_numbers_that_are_not_finite_stay() -> None:
    module, x = problem((3, 2, 2, 8, 3), 4)
    x[1, 0, 2] = torch.nan
    features = grid_op.run(x, *module.parameters())
    assert features.isnan().any(1).tolist() == [False, True, False, False]


def test_nan_weights_get_the_gradients_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = problem((3, 2, 2, 8, 3), 4)
    weights = list(module.parameters())
    with torch.no_grad():
        weights[0][0, 0] = torch.nan
    found = results(grid_op.run(x, *weights), weights)
    monkeypatch.setattr(kernels, "grid_features", lambda *_: None)
    expected = results(module(x.view(4, 3, 2, 2)), weights)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter runs it")
def test_the_trial_does_not_depend_on_the_default_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    torch.set_default_dtype(torch.float64)
    try:
        assert grid_op._runs.__wrapped__(torch.device("cpu"))
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_operators_are_well_formed() -> None:
    module, x = problem((3, 2, 2, 8, 3), 20)
    weights = [w.detach().requires_grad_() for w in module.parameters()]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(grid_op._grid, (x, weights, False, True), test_utils=tests)


def test_wrong_shapes_and_second_derivatives_are_refused() -> None:
    module, x = problem((3, 2, 2, 8, 3), 4)
    weights = list(module.parameters())
    with pytest.raises(ValueError, match="place_weight must be"):
        grid_op.run(x[:, :, :3], *weights)
    (gradient,) = torch.autograd.grad(grid_op.run(x, *weights).sum(), weights[0], create_graph=True)
    with pytest.raises(RuntimeError, match="not twice differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("half", [False, True])
@changed_by_hooks
def test_hooks_that_change_what_was_saved_are_refused(
    unpack: Callable[[Tensor], Tensor], half: bool
) -> None:
    if unpack is elsewhere:
        pytest.skip("the fake implementation runs")
    module, x = problem((3, 2, 2, 8, 3), 4)
    weights = list(module.parameters())

    def loss() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
            return grid_op.run(x, *weights).float().sum()

    assert check_refused(loss, weights, unpack) == 7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_encoder_on_a_gpu_uses_them() -> None:
    module, x = problem((3, 5, 5, 64, 16), 30)
    assert kernels.grid_features(x, *module.parameters()) is not None
    with torch.autocast("cuda", torch.bfloat16):
        features = kernels.grid_features(x, *module.parameters())
    assert features is not None
    assert features.dtype is torch.bfloat16
