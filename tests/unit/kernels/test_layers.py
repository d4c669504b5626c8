"""Each kernel of a layer equals the plain loop in float64: values, states and all gradients.

What is true of one of them alone stands in `test_gated`, `test_fused` and `test_triton`.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import interpreted
from support.equivalence import (
    check_against_loop,
    random_sequence,
    rounding_error,
    run_with_gradients,
    seeded_core,
    weighted_loss,
)
from support.layers import FUSED, LAYERS, SOME, SOME_FUSED, Layer, general_core
from support.native import needs_native
from torch import Tensor

from rlgates import Core


class Kernel(NamedTuple):
    """A kernel, its layers, and the sizes and tolerances with which it is tested."""

    backend: str
    layers: list[Layer]
    some: list[Layer]  # a few of each cell
    build: Callable[..., Core]
    sequence: Callable[..., tuple[Tensor, Tensor, Tensor]]
    shape: tuple[int, int, int]  # (H, B, T)
    close: dict[str, float]  # to the gradients of the loop, in float32
    same: dict[str, float]  # to another call of the kernel
    multiple: int = 1  # of which the units must be one
    rounds_more: bool = False  # small normalized layers enlarge rounding errors
    one_launch: bool = False  # of Triton

    def make(self, layer: Layer, num_layers: int = 1, **options: Any) -> Core:
        """A core that runs the kernel."""
        name, more = layer
        return self.build(name, self.shape[0], num_layers, backend=self.backend, **more, **options)

    def problem(self, layer: Layer) -> tuple[Core, tuple[Tensor, Tensor, Tensor]]:
        """A core that runs the kernel, and a sequence for it."""
        core = self.make(layer)
        return core, self.sequence(core, *self.shape[1:])

    def check(self, core: Core, *sequence: Tensor | None, **kwargs: Any) -> None:
        kwargs.setdefault("tolerance", 1e-5 if self.backend == "triton" else 2e-5)
        check_against_loop(core, *sequence, backend=self.backend, **kwargs)  # type: ignore[arg-type]


def _triton(one_launch: bool, some: list[Layer]) -> Kernel:
    near = {"rtol": 0, "atol": 1e-6}
    makers = interpreted.seeded_core, interpreted.random_sequence
    return Kernel("triton", LAYERS, some, *makers, (5, 3, 2), {}, near, one_launch=one_launch)


NATIVE = {
    "gated": Kernel(
        *("native", LAYERS, SOME, seeded_core, random_sequence, (33, 7, 5)),
        close={},
        same={"rtol": 0, "atol": 0},
    ),
    "fused": Kernel(
        *("native", FUSED, SOME_FUSED, general_core, random_sequence, (34, 7, 5)),
        close={"rtol": 1e-4, "atol": 2e-5},
        same={"rtol": 0, "atol": 0},
        multiple=2,
        rounds_more=True,
    ),
}
# Each layer in one of the two ways.
TRITON = {"persistent": _triton(True, SOME[::2]), "steps": _triton(False, SOME[1::2])}
KERNELS = NATIVE | TRITON
# The cells that are linear in their state, of which `test_linear_backends` has more.
LINEAR: list[Layer] = [(name, {}) for name in ("mingru", "om_gilr", "minlstm", "lru")]
ALL = KERNELS | {
    f"linear, {backend}": Kernel(
        *(backend, LINEAR, LINEAR, general_core, random_sequence, (33, 7, 9)),
        close={"rtol": 1e-4, "atol": 1e-4},
        same={"rtol": 0, "atol": 0},
    )
    for backend in ("native", "scan")
}
GATED = {name: kernel for name, kernel in KERNELS.items() if kernel.layers is LAYERS}
MARKS = {
    "native": [needs_native],
    "scan": [],
    "triton": [
        pytest.mark.skipif(interpreted.MISSING, reason=interpreted.REASON),
        # exp(100) is infinite, and its reciprocal the 0 that it should be
        pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    ],
}


def each(
    kernels: dict[str, Kernel], layers: Callable[[Kernel], list[Layer]], slow: bool = False
) -> Any:
    """Each kernel with layers of its own; Triton, where it is interpreted, may be slow."""
    return pytest.mark.parametrize(
        ("kernel", "layer"),
        [
            pytest.param(
                kernel,
                layer,
                id=f"{name}-{layer[0]}-{layer[1]}",
                marks=[*MARKS[kernel.backend], *[pytest.mark.slow] * (slow and name in TRITON)],
            )
            for name, kernel in kernels.items()
            for layer in layers(kernel)
        ],
    )


every_layer = each(NATIVE, lambda kernel: kernel.layers)
some_layers = each(KERNELS, lambda kernel: kernel.some)
of_any_kernel = each(ALL, lambda kernel: kernel.some)
one_layer = each(KERNELS, lambda kernel: kernel.some[:1])
native_kernels = pytest.mark.parametrize(
    "kernel",
    [pytest.param(kernel, id=name, marks=MARKS["native"]) for name, kernel in NATIVE.items()],
)


@pytest.fixture(autouse=True)
def _launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton runs all steps in one launch or not."""
    kernel = request.node.callspec.params["kernel"]
    if kernel.backend == "triton":
        interpreted.run_in_one_launch(monkeypatch, kernel.one_launch)


# (H, B, T), the units as multiples
SHAPES = [
    *((2, 2, 5), (3, 33, 1), (16, 7, 19), (17, 0, 2), (33, 33, 2), (64, 1, 19), (128, 7, 1)),
    *((3, 7, 19), (17, 33, 5), (64, 2, 2), (128, 33, 2), (16, 1, 1), (33, 0, 1)),
]
EVEN_SHAPES = [
    *((2, 2, 5), (6, 33, 1), (16, 7, 19), (18, 0, 2), (34, 33, 2), (64, 1, 19), (130, 3, 2))
]


def shapes(kernel: Kernel) -> list[tuple[int, int, int]]:
    return SHAPES if kernel.multiple == 1 else EVEN_SHAPES


@every_layer
def test_equals_the_loop(kernel: Kernel, layer: Layer) -> None:
    turn = kernel.layers.index(layer)
    stride = 4 if kernel.multiple == 1 else 3
    for i, (h, b, t) in enumerate(shapes(kernel)):
        if (i + turn) % stride == 0:
            core = kernel.build(layer[0], h, **layer[1])
            x, state, episode_starts = random_sequence(core, b, t)
            kernel.check(core, x, state, episode_starts if (turn + i // stride) % 3 else None)


@pytest.mark.slow
@every_layer
def test_equals_the_loop_at_every_shape(kernel: Kernel, layer: Layer) -> None:
    for h, b, t in shapes(kernel):
        core = kernel.build(layer[0], h, **layer[1])
        x, state, episode_starts = random_sequence(core, b, t)
        for mask in (None, episode_starts):
            rounding = rounding_error(core, x, state, mask) if kernel.rounds_more else 0.0
            kernel.check(core, x, state, mask, tolerance=max(2e-5, 10 * rounding))


@native_kernels
@pytest.mark.parametrize(("h", "b", "t"), [(34, 7, 5), (64, 33, 2), (6, 3, 1)])
def test_equals_the_loop_with_every_instruction_set(
    kernel: Kernel, instructions: str, h: int, b: int, t: int
) -> None:
    h -= h == 34 and kernel.multiple == 1  # no vector is full
    for name, options in kernel.layers[:: 1 if h == 6 else 4]:
        core = kernel.build(name, h, **options)
        kernel.check(core, *random_sequence(core, b, t))


@native_kernels
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_equals_the_loop_at_any_size(kernel: Kernel, data: st.DataObject) -> None:
    draw = data.draw
    name, options = draw(st.sampled_from(kernel.layers))
    h = kernel.multiple * draw(st.integers(3 - kernel.multiple, 70 // kernel.multiple))
    core = kernel.build(name, h, draw(st.integers(1, 2)), draw(st.integers(1, 40)), **options)
    rows, steps, seed = (draw(st.integers(*ends)) for ends in ((0, 15), (1, 6), (0, 9)))
    sequence = random_sequence(core, rows, steps, seed=seed)
    kernel.check(core, *sequence, tolerance=max(2e-5, 10 * rounding_error(core, *sequence)))


@each(NATIVE, lambda kernel: kernel.some)
@pytest.mark.parametrize(("h", "b", "t"), [(20, 5, 150), (6, 300, 3), (8, 17, 40)])
def test_long_sequences_and_large_batches(
    kernel: Kernel, layer: Layer, h: int, b: int, t: int
) -> None:
    """Steps are processed in slabs, and sequences of a slab in blocks."""
    core = seeded_core(layer[0], h, **layer[1])
    kernel.check(core, *random_sequence(core, b, t))


@one_layer
@pytest.mark.parametrize("where", ["first", "last", "all", "none"])
def test_episode_starts_anywhere(kernel: Kernel, layer: Layer, where: str) -> None:
    core, (x, state, episode_starts) = kernel.problem(layer)
    episode_starts[:] = where == "all"
    if where in ("first", "last"):
        episode_starts[0 if where == "first" else -1] = True
    kernel.check(core, x, state, episode_starts)


@some_layers
def test_episodes_start_from_a_learned_state(kernel: Kernel, layer: Layer) -> None:
    core = kernel.make(layer, num_layers=2, learned_state=True)
    x, state, episode_starts = kernel.sequence(core, *kernel.shape[1:])
    kernel.check(core, x, state, episode_starts)
    kernel.check(core, x, core.initial_state(x.shape[1]), episode_starts)


@each(GATED, lambda kernel: kernel.layers, slow=True)
@pytest.mark.parametrize("size", [8.0, 40.0, 1e4])
def test_large_pre_activations(kernel: Kernel, layer: Layer, size: float) -> None:
    core = kernel.make(layer)
    with torch.no_grad():
        bias = core.cells[0].bias_ih
        order = torch.randperm(len(bias), generator=torch.Generator().manual_seed(0))
        bias.copy_(torch.linspace(-size, size, len(bias))[order])
    sequence = kernel.sequence(core, 4, 3)
    for name, value in run_with_gradients(core, *sequence).items():
        assert value.isfinite().all(), name
    # A slope may be as steep as cosh 3 (fast) or cosh 3 cosh 10 (iterated): so are its errors.
    kernel.check(core, *sequence, tolerance=1e-4)


@some_layers
def test_nan_stays_in_its_sequence_until_an_episode_start(kernel: Kernel, layer: Layer) -> None:
    core = kernel.make(layer)
    x, state, episode_starts = kernel.sequence(core, 4, 6)
    episode_starts[:] = False
    episode_starts[3] = True
    x[1, 0, 0] = torch.nan
    state[1], state[2] = torch.nan, torch.inf
    plain = copy.deepcopy(core)
    plain.backend = "plain"
    x.requires_grad_()
    state.requires_grad_()
    result, expected = (one(x, state, episode_starts)[0] for one in (core, plain))
    assert torch.equal(result.isnan(), expected.isnan())
    assert result[1:3, 0].isnan().all()
    assert result[3:].isfinite().all()
    assert result[:, 3].isfinite().all()
    gradients = [
        torch.autograd.grad(outputs[3:].sum(), (x, state)) for outputs in (result, expected)
    ]
    close = {key: 10 * value for key, value in kernel.close.items()}
    torch.testing.assert_close(gradients[0][0][3:], gradients[1][0][3:], **close)
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())


@each(GATED, lambda kernel: kernel.layers, slow=True)
def test_nan_pre_activations_give_nan(kernel: Kernel, layer: Layer) -> None:
    core = kernel.build(layer[0], 3, backend=kernel.backend, **layer[1])
    ones = torch.ones(1, 1, 5 + core.state_size).to(next(core.parameters()))
    for row in range(0, core.cells[0].weight_ih.shape[0], 3):
        broken = copy.deepcopy(core)
        with torch.no_grad():
            broken.cells[0].bias_ih[row] = torch.nan
            assert broken(ones[..., :5], ones[0, :, 5:])[0].isnan().any()


@some_layers
def test_steps_equal_the_sequence(kernel: Kernel, layer: Layer) -> None:
    core = kernel.make(layer, num_layers=2)
    x, state, episode_starts = kernel.sequence(core, *kernel.shape[1:])
    close = {"rtol": 1e-5, "atol": 1e-5} if kernel.rounds_more else {"rtol": 0, "atol": 2e-6}
    with torch.no_grad():
        outputs, final = core(x, state, episode_starts)
        for t in range(len(x)):
            output, state = core(x[t : t + 1], state, episode_starts[t : t + 1])
            torch.testing.assert_close(output[0], outputs[t], **close)
    torch.testing.assert_close(state, final, **close)


@of_any_kernel
def test_without_gradients_the_values_are_the_same(kernel: Kernel, layer: Layer) -> None:
    core, sequence = kernel.problem(layer)
    expected = core(*sequence)
    assert expected[0].requires_grad
    for without in (torch.no_grad(), torch.inference_mode()):
        with without:
            torch.testing.assert_close(core(*sequence), expected, **kernel.same)


@of_any_kernel
def test_frozen_weights(kernel: Kernel, layer: Layer) -> None:
    """Each alone, all of a kind, and all of them; in Triton's interpreter, each with one layer."""
    names = [name for name, _ in kernel.make(layer).named_parameters()]
    if kernel.backend == "triton" and interpreted.DEVICE == "cpu":
        names = names[kernel.some.index(layer) :: len(kernel.some)]
    for frozen in ("", "weight", "bias", *names):
        core, sequence = kernel.problem(layer)
        for name, parameter in core.named_parameters():
            parameter.requires_grad_(frozen not in name)
        kernel.check(core, *sequence)


@pytest.mark.parametrize("used", [0, 1], ids=["outputs", "final_state"])
@of_any_kernel
def test_only_one_result_is_used(kernel: Kernel, layer: Layer, used: int) -> None:
    """The gradient of a sum is an expanded scalar, which kernels copy."""
    gradients = []
    core, sequence = kernel.problem(layer)
    for core.backend in (kernel.backend, "plain"):
        total = core(*sequence)[used].sum()
        gradients.append(
            torch.autograd.grad(total, core.parameters(), allow_unused=True, materialize_grads=True)
        )
    torch.testing.assert_close(*gradients, **kernel.close)


@some_layers
def test_layout_does_not_matter(kernel: Kernel, layer: Layer) -> None:
    core, (x, state, episode_starts) = kernel.problem(layer)
    expected = core(x, state, episode_starts)
    strange, tilted, masks = (
        tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in (x, state, episode_starts)
    )
    wide = torch.cat([state, state], dim=1)[:, : state.shape[1]]
    for result in (core(strange, tilted, masks), core(x, wide, episode_starts)):
        torch.testing.assert_close(result, expected)
    weight = next(parameter for parameter in core.cells[0].parameters() if parameter.dim() == 2)
    weight.data = weight.data.t().contiguous().t()
    kernel.check(core, strange, tilted, masks)
    expanded = core(x[:, :1].expand_as(x), state[:1].expand_as(state))[0]
    torch.testing.assert_close(expanded[:, 0], expanded[:, -1])


@of_any_kernel
def test_outputs_can_be_modified_in_place_and_the_graph_can_be_kept(
    kernel: Kernel, layer: Layer
) -> None:
    gradients = []
    for backend in (kernel.backend, "plain"):
        core, sequence = kernel.problem(layer)
        core.backend = backend
        outputs, final = core(*sequence)
        outputs = outputs.relu() if backend == "plain" else outputs.relu_()
        value = weighted_loss(outputs.cpu(), final.mul_(2).cpu())
        value.backward(retain_graph=True)
        value.backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    torch.testing.assert_close(*gradients, **kernel.close)


@one_layer
def test_episode_starts_modified_before_the_backward_pass_raise(
    kernel: Kernel, layer: Layer
) -> None:
    core, sequence = kernel.problem(layer)
    outputs, _ = core(*sequence)
    sequence[2].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


@one_layer
def test_a_backward_pass_frees_the_episode_starts(kernel: Kernel, layer: Layer) -> None:
    core, (x, state, episode_starts) = kernel.problem(layer)
    outputs, _ = core(x, state, episode_starts)
    kept = weakref.ref(episode_starts)
    outputs.sum().backward()
    del episode_starts
    assert kept() is None


@one_layer
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("power", [1, 2])
def test_a_second_derivative_raises(kernel: Kernel, layer: Layer, power: int, frozen: bool) -> None:
    core, (x, state, _) = kernel.problem(layer)
    value = core.requires_grad_(not frozen)(x.requires_grad_(), state)[0].pow(power).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.square().sum().backward()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("batch_size", [5, 33])
@each(NATIVE, lambda kernel: kernel.some)
def test_results_do_not_depend_on_threads(kernel: Kernel, layer: Layer, batch_size: int) -> None:
    core = seeded_core(layer[0], 64, backend="native", **layer[1])
    sequence = random_sequence(core, batch_size, 70)
    values = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        values.append(run_with_gradients(core, *sequence))
    for other in values[1:]:
        assert torch.equal(values[0]["outputs"], other["outputs"])
        for key, expected in values[0].items():  # each thread adds up its rows
            near = (1e-5 + 1e-5 * kernel.rounds_more) * expected.abs().max().clamp(min=1)
            assert (other[key] - expected).abs().max() < near, key
