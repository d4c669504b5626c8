"""Features of small images: native code equals torch, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.native import needs_native
from support.saved import changed_by_hooks, check_refused, elsewhere
from torch import Tensor, nn

from rlgates import kernels
from rlgates.agents import GridEncoder
from rlgates.kernels import layout, ops
from rlgates.kernels.cpu import grid

pytestmark = needs_native


def encoder(channels: int, height: int, width: int, dim: int, cell_dim: int) -> GridEncoder:
    torch.manual_seed(0)
    space = spaces.Box(0, 255, (channels, height, width), np.uint8)
    return GridEncoder(space, dim, cell_dim)


def images(count: int, module: GridEncoder, colours: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = module._observation_space.shape
    palette = torch.randint(0, 256, (colours, shape[0]), generator=generator) / 255
    pixels = torch.randint(0, colours, (count, *shape[1:]), generator=generator)
    return palette[pixels].permute(0, 3, 1, 2)


def results(module: GridEncoder, x: Tensor) -> dict[str, Any]:
    features = module(x)
    weights = dict(module.named_parameters())
    weighting = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
    loss = (features * weighting).sum()
    gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {"features": features.detach(), **dict(zip(weights, gradients, strict=True))}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("sizes", "count", "colours"),
    [
        ((3, 5, 5, 64, 16), 700, 9),
        ((3, 5, 7, 20, 16), 33, 64),
        ((1, 1, 2, 3, 1), 5, 2),
        ((4, 3, 3, 50, 33), 17, 20),
        ((3, 2, 2, 8, 3), 0, 1),
    ],
)
def test_equals_torch(
    sizes: Any, count: int, colours: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        module = encoder(*sizes)
        x = images(count, module, colours)
        assert kernels.grid_features(x.flatten(2), *module.parameters()) is not None
        found = results(module, x)
        monkeypatch.setattr(kernels, "grid_features", lambda *_: None)
        expected = results(module.double(), x.double())
    finally:
        torch.set_num_threads(before)
    for name, value in expected.items():
        scale = value.abs().max().item() if value.numel() else 0.0
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=3e-6 * (1 + scale))


@pytest.mark.parametrize("case", ["colours", "float64", "image gradient", "autocast", "NaN"])
def test_else_torch_computes_them(case: str) -> None:
    module = encoder(3, 4, 4, 20, 6)
    x = images(40, module, layout.COLOURS + 36 if case == "colours" else 5)
    if case == "float64":
        module, x = module.double(), x.double()
    if case == "image gradient":
        x.requires_grad_()
    if case == "NaN":
        x[:5] = float("nan")
    with torch.autocast("cpu", enabled=case == "autocast"):
        assert kernels.grid_features(x.flatten(2), *module.parameters()) is None
        assert module(x).shape == (40, 20)


def test_layers_that_were_changed_are_called() -> None:
    """Whatever the number of colours in a batch: features of an image do not depend on others."""
    module = encoder(3, 4, 4, 20, 6)
    few, many = (images(40, module, colours) for colours in (5, layout.COLOURS + 36))
    together = torch.cat([few, many])
    expected, calls = module(few), []
    handle = module.places[0].register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(module(few), expected)
    assert calls
    handle.remove()
    for change in (
        lambda: setattr(module.places, "1", nn.Tanh()),
        lambda: module.cells.append(nn.Tanh()),
        lambda: module.cells[1].register_forward_hook(lambda _, __, y: y + 1),
    ):
        before = module(few)
        change()
        assert not torch.allclose(module(few), before)
        torch.testing.assert_close(module(together)[:40], module(few))


def test_layers_without_a_bias_are_called() -> None:
    module = encoder(3, 4, 4, 20, 6)
    module.cells[0] = nn.Linear(3, 6, bias=False)
    assert module(images(4, module, 5)).shape == (4, 20)


@pytest.mark.parametrize("where", ["one weight", "all weights", "an image"])
@pytest.mark.parametrize("way", ["eager", "operator", "many colours"])
def test_nan_stays(where: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = encoder(3, 4, 4, 20, 6)
    x = images(40, module, 200 if way == "many colours" else 5)
    with torch.no_grad():
        if where == "an image":
            x[3, :, 2, 1] = torch.nan
        else:
            module.cells[0].weight[0 if where == "one weight" else slice(None), 0] = torch.nan
    if way != "eager":
        monkeypatch.setattr(kernels, "grid_features", ops.grid)
    assert kernels.grid_features(x.flatten(2), *module.parameters()) is not None
    found = results(module, x)
    monkeypatch.setattr(kernels, "grid_features", lambda *_: None)
    for name, value in results(module, x).items():
        if where == "an image" and name != "features":  # NaN of a colour reaches other places
            assert found[name][value.isnan()].isnan().all()
        else:
            torch.testing.assert_close(
                found[name], value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
            )


def test_images_and_features_can_be_changed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    module = encoder(3, 4, 5, 20, 6)
    gradients = []
    for features in (kernels.grid_features, lambda *_: None):
        monkeypatch.setattr(kernels, "grid_features", features)
        x = images(40, module, 9)
        features = module(x)
        if not gradients:
            x.zero_()
        loss = features.mul_(2).square().sum()
        gradients.append(torch.autograd.grad(loss, list(module.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_the_default_dtype_does_not_matter() -> None:
    module = encoder(3, 4, 5, 20, 6)
    x = images(40, module, 9)
    expected = results(module, x)["cells.0.weight"]
    torch.set_default_dtype(torch.float64)
    try:
        loss = (module(x) * torch.ones(())).sum()
        (gradient,) = torch.autograd.grad(loss, module.cells[0].weight)
    finally:
        torch.set_default_dtype(torch.float32)
    assert gradient.dtype == expected.dtype


def test_the_width_of_a_cell_fits_that_of_the_features() -> None:
    space = spaces.Box(0, 255, (3, 4, 4), np.uint8)
    widths = [GridEncoder(space, dim).cells[0].out_features for dim in (2, 9, 16, 17, 64)]
    assert widths == [1, 4, 8, 16, 16]


def test_shapes_are_checked() -> None:
    module = encoder(3, 4, 4, 20, 6)
    x = images(3, module, 5)
    with pytest.raises(ValueError, match="place_weight must be"):
        grid.run(x.flatten(2)[:, :, :-1], *module.parameters())


@pytest.mark.parametrize("colours", [9, 200])
def test_operator(colours: int) -> None:
    """For compiled graphs, which cannot choose: torch computes it where there are more colours."""
    module = encoder(3, 4, 5, 20, 6)
    x, weights = images(40, module, colours).flatten(2), list(module.parameters())
    assert (grid.run(x, *weights) is None) == (colours > layout.COLOURS)
    weighting = torch.randn(40, 20, generator=torch.Generator().manual_seed(2))
    features = ops.grid(x, *weights)
    cells = module.cells((2 * x - 1).transpose(1, 2))
    expected = torch.cat([module.places(cells.flatten(1)), cells.amax(dim=1)], dim=1)
    torch.testing.assert_close(features, expected)
    for one, other in zip(
        torch.autograd.grad((features * weighting).sum(), weights),
        torch.autograd.grad((expected * weighting).sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    arguments = x, [weight.detach().requires_grad_() for weight in weights]
    torch.library.opcheck(ops._grid, arguments, rtol=1e-4, atol=1e-4)


def test_a_compiled_encoder_keeps_the_native_code() -> None:
    module = encoder(3, 4, 5, 20, 6)
    x = images(40, module, 9)
    expected = results(module, x)
    torch.compiler.reset()
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph

    module.compile(backend=keep, fullgraph=True)
    torch.testing.assert_close(results(module, x), expected)
    assert len(graphs) == 1
    assert "rlgates.grid" in graphs[0]


def test_compiled_transforms_leave_it_to_torch() -> None:
    module = encoder(3, 4, 5, 20, 6)
    x = images(6, module, 9)
    weights = {name: weight.detach() for name, weight in module.named_parameters()}

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, weights, (x,)).square().sum()

    torch.compiler.reset()
    compiled = torch.compile(torch.func.grad(loss), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(weights), torch.func.grad(loss)(weights))


@pytest.mark.parametrize("operator", [False, True], ids=["eager", "operator"])
@changed_by_hooks
def test_hooks_that_change_what_was_saved_are_refused(
    unpack: Callable[[Tensor], Tensor], operator: bool
) -> None:
    if operator and unpack is elsewhere:
        pytest.skip("the fake implementation runs")
    module = encoder(3, 4, 5, 20, 6)
    x, weights = images(40, module, 9).flatten(2), list(module.parameters())
    run: Any = ops.grid if operator else grid.run
    assert check_refused(lambda: run(x, *weights).sum(), weights, unpack) == (9 if operator else 7)


def test_hooks_may_change_strides() -> None:
    module = encoder(3, 4, 5, 20, 6)
    x = images(40, module, 9)
    expected = results(module, x)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x, lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]]
    ):
        torch.testing.assert_close(results(module, x), expected, rtol=0, atol=0)


def test_a_second_derivative_raises() -> None:
    module = encoder(3, 5, 5, 8, 4)
    weights = list(module.parameters())
    loss = module(images(6, module, 4)).square().sum()
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    with pytest.raises(RuntimeError, match="not twice differentiable"):
        torch.autograd.grad(gradients[0].sum(), weights)
