"""The reconstruction losses of the RMA: by hand, and their gradients in the core."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.cases import small
from support.equivalence import seeded
from torch import Tensor

from rlgates import make_core
from rlgates.agents.rma.reconstruction import RMAReconstruction
from rlgates.cores.rma import RMA

T, B, L, A, HEADS = 4, 3, 6, 5, 2
SHAPE = (3, 5, 7)


def build(**options: Any) -> RMAReconstruction:
    decoder = RMAReconstruction(L, SHAPE, A, **options)
    decoder.reset_parameters(seeded(0))
    return decoder


def random_arguments(seed: int = 0) -> dict[str, Tensor]:
    generator = seeded(seed)
    return {
        "latent": torch.randn(T, B, L, generator=generator),
        "image": torch.rand(T, B, *SHAPE, generator=generator),
        "action": torch.randint(A, (T, B), generator=generator),
        "reward": torch.randn(T, B, generator=generator),
        "strengths": 4 * torch.rand(T, B, HEADS, generator=generator),
    }


def test_losses_of_decoders_that_know_nothing() -> None:
    decoder = build()
    for parameter in decoder.parameters():
        torch.nn.init.zeros_(parameter)
    arguments = random_arguments()
    arguments["reward"].fill_(3)
    arguments["strengths"].fill_(1)
    arguments["strengths"][0, 0, 0] = 5
    losses = decoder(**arguments)
    assert losses.image.item() == pytest.approx(T * 50 * math.log(2), rel=1e-5)
    assert losses.action.item() == pytest.approx(T * math.log(A), rel=1e-5)
    assert losses.reward.item() == pytest.approx(T * 0.5 * 9)
    assert losses.strength.item() == pytest.approx(5e-5 * (T * HEADS * 2 + 3 / B))
    assert losses.total.item() == pytest.approx(sum(loss.item() for loss in losses))


def test_losses_step_by_step() -> None:
    """Every term from its formula, one number after the other."""
    decoder, arguments = build(strength_hinge=1.5), random_arguments()
    losses = decoder(**arguments)
    predicted = decoder.decode(arguments["latent"])
    expected = dict.fromkeys(losses._fields, 0.0)
    for t in range(T):
        for b in range(B):
            p, x = predicted.image[t, b].double().sigmoid(), arguments["image"][t, b].double()
            entropy = -(x * p.log() + (1 - x) * (1 - p).log())
            expected["image"] += 50 * entropy.mean().item() / B
            chosen = predicted.action[t, b].softmax(dim=-1)[arguments["action"][t, b]]
            expected["action"] -= chosen.log().item() / B
            difference = predicted.reward[t, b] - arguments["reward"][t, b]
            expected["reward"] += 0.5 * difference.item() ** 2 / B
            for strength in arguments["strengths"][t, b].tolist():
                expected["strength"] += 5e-5 * max(1.5, strength) / B
    for name, value in expected.items():
        assert getattr(losses, name).item() == pytest.approx(value, rel=1e-5)


def test_weights_scale_their_losses() -> None:
    names = ("image", "action", "reward", "strength")
    plain = build()(**random_arguments())
    scaled = build(image_weight=100, action_weight=3, reward_weight=0, strength_weight=5e-4)(
        **random_arguments()
    )
    for name, factor in zip(names, (2, 3, 0, 10), strict=True):
        assert getattr(scaled, name).item() == pytest.approx(factor * getattr(plain, name).item())


def test_the_decoders_are_those_of_the_paper() -> None:
    decoder = RMAReconstruction(200, (3, 5, 5), 4)
    parameters = {name: p.numel() for name, p in decoder.named_parameters()}
    assert sum(n for k, n in parameters.items() if k.startswith("image")) == (
        (200 * 800 + 800) + (32 * 16 * 9 + 16) + (16 * 3 * 9 + 3)
    )
    assert sum(n for k, n in parameters.items() if k.startswith("action")) == 804
    assert sum(n for k, n in parameters.items() if k.startswith("reward")) == 201
    predicted = decoder.decode(torch.randn(2, 200))
    assert predicted.image.shape == (2, 3, 5, 5)
    assert predicted.action.shape == (2, 4)
    assert predicted.reward.shape == (2,)
    weight = decoder.image[0].weight
    assert isinstance(weight, Tensor)
    assert weight.abs().max() <= 2 / 200**0.5
    assert weight.std().item() == pytest.approx(0.88 / 200**0.5, rel=0.02)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 5), (4, 2, 9)])
def test_sizes_follow_the_image(shape: tuple[int, int, int]) -> None:
    decoder = RMAReconstruction(L, shape, A, channels=2)
    assert decoder.decode(torch.zeros(2, 7, L)).image.shape == (2, 7, *shape)
    assert decoder.decode(torch.zeros(0, L)).image.shape == (0, *shape)


def test_bytes_are_images_too() -> None:
    decoder, arguments = build(), random_arguments()
    pixels = (255 * arguments["image"]).to(torch.uint8)
    floats = decoder(**(arguments | {"image": pixels / 255}))
    assert torch.equal(decoder(**(arguments | {"image": pixels})).image, floats.image)


def test_the_hinge_stops_below_itself() -> None:
    arguments = random_arguments()
    strengths = arguments["strengths"].requires_grad_()
    build()(**arguments).total.backward()
    assert strengths.grad is not None
    expected = torch.where(strengths > 2, 5e-5 / B, 0.0)
    torch.testing.assert_close(strengths.grad, expected)


@pytest.mark.parametrize("memory", [True, False])
def test_gradients_reach_the_core(memory: bool) -> None:
    options = small("rma") | {"memory": memory}
    core = make_core("rma", 3, 6, **options, generator=seeded(0))
    cell = core.cells[0]
    assert isinstance(cell, RMA)
    decoder = RMAReconstruction(4, SHAPE, A)
    outputs, _ = core(torch.randn(T, B, 3, generator=seeded(1)))
    arguments = random_arguments() | {
        "latent": cell.split(outputs).latent,
        "strengths": cell.read_strengths(outputs),
    }
    losses = decoder(**arguments)
    losses.total.backward()
    for module in (core, decoder):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name
    assert bool(losses.strength) == memory


def test_losses_under_autocast() -> None:
    decoder, arguments = build(), random_arguments()
    exact = decoder(**arguments)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = decoder(**arguments)
    for one, other in zip(rounded, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.02, atol=0)
    double = build().double()
    arguments["latent"] = arguments["latent"].double()
    assert double(**arguments).image.dtype == torch.float64


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"latent": torch.zeros(T, L)}, r"latent must be \(T, B, 6\), B >= 1, got \(4, 6\)"),
        ({"latent": torch.zeros(T, 0, L)}, r"B >= 1, got \(4, 0, 6\)"),
        ({"latent": torch.zeros(T, B, 2)}, r"latent must be \(\.\.\., 6\), got \(4, 3, 2\)"),
        ({"image": torch.zeros(T, B, 5, 7, 3)}, r"image must be \(4, 3, 3, 5, 7\), got \(4, 3, 5"),
        ({"image": torch.zeros(T, B, *SHAPE).long()}, r"image must be floats .*, got torch\.int64"),
        ({"action": torch.zeros(T, B, 1).long()}, r"action must be \(4, 3\), got \(4, 3, 1\)"),
        ({"action": torch.zeros(T, B)}, r"action must be integers, got torch\.float32"),
        ({"reward": torch.zeros(B, T)}, r"reward must be \(4, 3\), got \(3, 4\)"),
        ({"strengths": torch.zeros(T, B)}, r"strengths must be \(4, 3, 1\), got \(4, 3\)"),
        ({"strengths": torch.zeros(T, 1, 2)}, r"strengths must be \(4, 3, 2\), got \(4, 1, 2\)"),
        ({"latent": torch.zeros(T, B, L).double()}, "latent must be torch.float32, got .*64"),
        ({"image": torch.full((T, B, *SHAPE), 255.0)}, "image must be from 0 to 1, got 255 to 255"),
        ({"image": torch.full((T, B, *SHAPE), -0.5)}, "image must be from 0 to 1, got -0.5"),
        ({"image": torch.full((T, B, *SHAPE), math.nan)}, "image must be from 0 to 1, got nan"),
        ({"action": torch.full((T, B), A)}, "action must be from 0 to 4, got 5 to 5"),
        ({"action": torch.full((T, B), -100)}, "action must be from 0 to 4, got -100"),
    ],
)
def test_losses_refuse(changed: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()(**(random_arguments() | changed))


@pytest.mark.parametrize("name", ["latent", "image", "action", "reward", "strengths"])
def test_losses_name_what_is_no_tensor(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be one tensor, got list"):
        build()(**(random_arguments() | {name: [0.0]}))


def test_decoding_checks_latents() -> None:
    with pytest.raises(TypeError, match="latent must be one tensor, got NoneType"):
        build().decode(None)
    with pytest.raises(ValueError, match=r"latent must be \(\.\.\., 6\), got \(\)"):
        build().decode(torch.tensor(1.0))


def test_few_bits_are_enough_for_an_action() -> None:
    decoder, arguments = RMAReconstruction(L, SHAPE, 300), random_arguments()
    floats = decoder(**arguments)
    arguments["action"] = arguments["action"].to(torch.uint8)
    assert torch.equal(decoder(**arguments).total, floats.total)


def test_ranges_are_checked_on_the_cpu_or_on_request() -> None:
    """On the meta device, as on a GPU, values are not available."""
    arguments = {name: tensor.to("meta") for name, tensor in random_arguments().items()}
    assert build().to("meta")(**arguments).total.device.type == "meta"
    with pytest.raises(RuntimeError, match="meta"):
        build(debug=True).to("meta")(**arguments)


def test_losses_compile_in_one_graph() -> None:
    decoder, arguments = build(), random_arguments()
    torch.compiler.reset()
    compiled = torch.compile(decoder, backend="eager", fullgraph=True)
    assert compiled(**arguments).total.item() == pytest.approx(decoder(**arguments).total.item())


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((0, SHAPE, A), {}, ValueError, "latent_size must be at least 1, got 0"),
        ((L, (5, 5), A), {}, ValueError, r"image_shape must be \(C, H, W\), got \(5, 5\)"),
        ((L, (3, 0, 5), A), {}, ValueError, "image_shape must be at least 1, got 0"),
        ((L, 84, A), {}, TypeError, r"image_shape must be \(C, H, W\), got 84"),
        ((L, None, A), {}, TypeError, r"image_shape must be \(C, H, W\), got None"),
        ((L, (3, 5.0, 5), A), {}, TypeError, "image_shape must be an integer, got 5.0"),
        ((L, SHAPE, A), {"debug": 1}, TypeError, "debug must be True or False, got 1"),
        ((L, SHAPE, 2.0), {}, TypeError, r"num_actions must be an integer, got 2\.0"),
        ((L, SHAPE, A), {"channels": 0}, ValueError, "channels must be at least 1, got 0"),
        ((L, SHAPE, A), {"image_weight": -1}, ValueError, "image_weight must be at least 0"),
        ((L, SHAPE, A), {"strength_weight": "a"}, TypeError, "strength_weight must be a number"),
        ((L, SHAPE, A), {"strength_hinge": math.nan}, ValueError, "strength_hinge must be finite"),
    ],
)
def test_decoders_refuse(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        RMAReconstruction(*arguments, **options)
