"""Each kernel of channels with a linear system each equals a loop in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    random_sequence,
    relative_errors,
    seeded,
    seeded_core,
    weighted_loss,
)
from support.interpreted import DEVICE, MISSING, REASON
from torch import Tensor
from torch.nn import functional

from rlgates.kernels import AllSteps, Channels, LinearScan, channels, dispatch
from rlgates.kernels.channels import FIXED, SELECTIVE, SHARED, ChannelKernel, Inputs
from rlgates.kernels.cpu import abi
from rlgates.kernels.cpu import channels as cpu_channels
from rlgates.kernels.layout import CHUNK

# exp(100) is infinite, and its reciprocal the 0 that it should be
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NAMES = ["u", "step", "step_bias", "gate", "a", "b", "c", "skip", "h_0", "initial"]
each_kind = pytest.mark.parametrize("kind", [FIXED, SELECTIVE, SHARED], ids=str)
# (T, B, E, N): one step, no rows, several chunks of steps, several programs of channels.
SHAPES = [(1, 3, 3, 2), (4, 0, 3, 3), (2 * CHUNK + 3, 1, 5, 3), (3, 2, 18, 70), (2, 2, 300, 1)]


class Problem(NamedTuple):
    """The arguments of `channels.run`."""

    systems: Channels
    h_0: Tensor
    initial: Tensor | None
    episode_starts: Tensor | None

    @property
    def inputs(self) -> Inputs:
        return *self.systems, self.h_0, self.initial


@pytest.fixture(params=["native", "triton"])
def kernel(request: pytest.FixtureRequest) -> Any:
    if request.param == "native":
        if not abi.built():
            pytest.skip("rlgates.kernels.cpu._native was not built")
        return cpu_channels
    return triton_channels()


def triton_channels() -> Any:
    if MISSING:
        pytest.skip(REASON)
    from rlgates.kernels.triton import channels as kernel

    return kernel


def device_of(kernel: Any) -> str:
    return "cpu" if kernel is cpu_channels else DEVICE


def draw(
    kind: int,
    steps: int = 5,
    rows: int = 3,
    width: int = 4,
    size: int = 3,
    start_share: float | None = 0.3,
) -> Problem:
    """Numbers like those of a core: decays from 0 to 1, and a share of episode starts."""
    generator = seeded()

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    state = width * size * (2 if kind == FIXED else 1)
    of_channels, of_step = (steps, rows, width), (steps, rows, size)
    if kind == FIXED:
        decay, angle = torch.rand(state // 2, generator=generator), normal(state // 2)
        a = torch.cat([decay * angle.cos(), decay * angle.sin()])
        systems = Channels(
            normal(*of_channels), None, None, None, a, normal(state), normal(state), normal(width)
        )
    else:
        rates = -3 * torch.rand(width if kind == SHARED else state, generator=generator)
        u, step, gate = normal(3, *of_channels)
        b, c = normal(2, *of_step)
        systems = Channels(u, 3 * step - 2, normal(width), gate, rates, b, c, normal(width))
    h_0, initial = normal(2, rows, state)
    if start_share is None:
        return Problem(systems, h_0, None, None)
    starts = torch.rand(steps, rows, generator=generator) < start_share
    return Problem(systems, h_0, initial, starts)


def looped(
    systems: Channels, h_0: Tensor, initial: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `channels.run`, by a loop over the steps; of fixed systems with complex numbers."""
    u, step, step_bias, gate, a, b, c, skip = systems
    steps, rows, width = u.shape
    fixed = step is None
    h_0, initial, a, b, c = (
        torch.complex(*x.chunk(2, dim=-1)) if fixed and x is not None else x
        for x in (h_0, initial, a, b, c)
    )
    size = h_0.shape[-1] // width
    h, ys = h_0.view(rows, width, size), []
    for t in range(steps):
        if episode_starts is not None:
            assert initial is not None
            h = torch.where(episode_starts[t, :, None, None], initial.view_as(h), h)
        if fixed:
            h = a.view(width, size) * h + u[t].unsqueeze(-1) * b.view(width, size)
            y = (h * c.view(width, size).conj()).real.sum(-1)
        else:
            assert step_bias is not None
            rate = a.view(width, -1)
            of_step = functional.softplus(step[t] + step_bias)
            written = (of_step * u[t]).unsqueeze(-1) * b[t].unsqueeze(1)
            h = torch.exp(of_step.unsqueeze(-1) * rate) * h + written
            y = (h * c[t].unsqueeze(1)).sum(-1)
        y = y + skip * u[t]
        ys.append(y if gate is None else y * functional.silu(gate[t]))
    last = h.flatten(1)
    return torch.stack(ys), torch.cat([last.real, last.imag], -1) if fixed else last


def problem_of(inputs: Inputs, episode_starts: Tensor | None) -> Problem:
    *systems, h_0, initial = inputs
    return Problem(Channels(*systems), h_0, initial, episode_starts)  # type: ignore[arg-type]


def mapped(function: Callable[[Tensor], Tensor], problem: Problem) -> Problem:
    """The function of each tensor."""
    tensors = (
        None if x is None else function(x) for x in (*problem.inputs, problem.episode_starts)
    )
    *inputs, starts = tensors
    return problem_of(inputs, starts)


def run(problem: Problem, kernel: ChannelKernel) -> tuple[Tensor, Tensor]:
    """On the device of the kernel."""
    device = device_of(kernel)
    return channels.run(*mapped(lambda x: x.to(device), problem), kernel)


def everything(
    problem: Problem,
    kernel: ChannelKernel | None,
    loss: Callable[[Tensor, Tensor], Tensor] = weighted_loss,
) -> dict[str, Tensor]:
    """Outputs, last state and all gradients, by a kernel or by the loop in float64, on the CPU."""

    def leaf(x: Tensor) -> Tensor:
        if x.dtype == torch.bool:
            return x
        return x.detach().to(torch.float64 if kernel is None else x.dtype).requires_grad_()

    problem = mapped(leaf, problem)
    outputs, last = looped(*problem) if kernel is None else run(problem, kernel)
    leaves = {name: x for name, x in zip(NAMES, problem.inputs, strict=True) if x is not None}
    outputs, last = outputs.cpu(), last.cpu()
    gradients = torch.autograd.grad(
        loss(outputs, last), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    results = {"outputs": outputs, "last": last, **dict(zip(leaves, gradients, strict=True))}
    return {name: x.detach() for name, x in results.items()}


def check(problem: Problem, kernel: ChannelKernel, tolerance: float = 1e-5, **kwargs: Any) -> None:
    results = everything(problem, kernel, **kwargs)
    expected = everything(problem, None, **kwargs)
    assert {result.dtype for result in results.values()} == {torch.float32}
    for name, error in relative_errors(results, expected).items():
        assert results[name].shape == expected[name].shape
        assert error < tolerance, f"{name}: {error:.1e}"


@each_kind
def test_equals_the_loop(kernel: ChannelKernel, kind: int) -> None:
    for shape in SHAPES:
        if kind != SHARED or shape[-1] > 1:  # one rate a number is one a channel then
            check(draw(kind, *shape), kernel)
    check(draw(kind, start_share=None), kernel)
    check(draw(kind, start_share=1.0), kernel)


@each_kind
def test_without_gradients_the_outputs_are_the_same(kernel: ChannelKernel, kind: int) -> None:
    problem = draw(kind)
    expected = everything(problem, kernel)
    for one, name in zip(run(problem, kernel), ("outputs", "last"), strict=True):
        assert torch.equal(one.cpu(), expected[name])


@each_kind
def test_nan_before_an_episode_start_has_no_effect(kernel: ChannelKernel, kind: int) -> None:
    problem = draw(kind, start_share=0.0)
    assert problem.episode_starts is not None
    problem.episode_starts[2] = True
    clean = everything(problem, kernel)
    problem.h_0[1] = torch.nan
    problem.systems.u[1, 1] = torch.nan
    result = everything(problem, kernel)
    assert result["outputs"][:2, 1].isnan().all()
    assert torch.equal(result["outputs"][2:], clean["outputs"][2:])
    for name in ("last", "h_0", "initial"):
        assert torch.equal(result[name], clean[name])
    for name in ("u", "step", "gate", "b", "c"):
        if name in result and result[name].ndim > 1:
            assert torch.equal(result[name][2:], clean[name][2:])
            assert torch.equal(result[name][:, [0, 2]], clean[name][:, [0, 2]])


@each_kind
def test_large_numbers_stay_finite(kernel: ChannelKernel, kind: int) -> None:
    problem = draw(kind)
    for tensor in (problem.systems.step, problem.systems.gate):
        if tensor is not None:
            tensor *= 60
    check(problem, kernel, 2e-5)


@each_kind
def test_layout_does_not_matter(kernel: ChannelKernel, kind: int) -> None:
    """Rows any distance apart, as those of a wider tensor, and one row for the whole batch."""
    problem = draw(kind)
    expected = everything(problem, kernel)

    def in_a_wider_one(x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=-1)[..., : x.shape[-1]]

    def reversed_axes(x: Tensor) -> Tensor:
        axes = tuple(reversed(range(x.ndim)))
        return x.permute(axes).contiguous().permute(axes)

    for change in (in_a_wider_one, reversed_axes):
        result = run(mapped(change, problem), kernel)
        for one, name in zip(result, ("outputs", "last"), strict=True):
            assert torch.equal(one.cpu(), expected[name])
    check(problem._replace(h_0=problem.h_0[:1].expand(3, -1)), kernel)


@pytest.mark.parametrize("place", [0, 1], ids=["outputs", "last"])
def test_only_one_result_is_used(kernel: ChannelKernel, place: int) -> None:
    check(draw(SELECTIVE), kernel, loss=lambda *results: results[place].square().sum())


def test_episode_starts_modified_before_the_backward_pass_raise(kernel: ChannelKernel) -> None:
    problem = draw(SELECTIVE)
    assert problem.episode_starts is not None
    on_device = mapped(lambda x: x.to(device_of(kernel)), problem)
    assert on_device.episode_starts is not None
    outputs, _ = channels.run(*on_device._replace(h_0=on_device.h_0.requires_grad_()), kernel)
    on_device.episode_starts.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


@each_kind
def test_a_second_derivative_raises(kernel: ChannelKernel, kind: int) -> None:
    problem = draw(kind)
    problem = problem._replace(h_0=problem.h_0.requires_grad_())
    outputs, _ = run(problem, kernel)
    (gradient,) = torch.autograd.grad(outputs.square().sum(), problem.h_0, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.square().sum().backward()


@each_kind
def test_invalid_sizes_are_refused(kernel: ChannelKernel, kind: int) -> None:
    """A kernel receives only addresses, so sizes are checked before."""
    problem = draw(kind)
    given = problem.inputs
    for place, tensor in enumerate(given):
        if tensor is None or place == 0:  # u, which gives the sizes
            continue
        for wrong in (tensor[..., :-1], tensor.double()):
            inputs = [*given[:place], wrong, *given[place + 1 :]]
            with pytest.raises(ValueError, match=r"must be torch\.\w+ of shape \("):
                run(problem_of(inputs, problem.episode_starts), kernel)


def test_episode_starts_without_an_initial_state_are_refused(kernel: ChannelKernel) -> None:
    with pytest.raises(ValueError, match="episodes that start need an initial state"):
        run(draw(SELECTIVE)._replace(initial=None), kernel)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_kind
def test_triton_on_a_gpu(kind: int) -> None:
    for shape in (*SHAPES[:-1], (300, 40, 130, 16)):
        check(draw(kind, *shape), triton_channels(), 2e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [("s4d", {"ssm_size": 6}), ("mamba", {"ssm_size": 3}), ("mamba2", {"head_size": 6})],
    ids=str,
)
def test_cores_run_it_in_triton(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only Triton's interpreter runs, which no core chooses."""
    kernel = triton_channels()
    calls: list[Problem] = []

    def forward(problem: Problem, *others: Any) -> None:
        calls.append(problem)
        original(problem, *others)

    original = kernel.forward
    monkeypatch.setattr(kernel, "forward", forward)
    for kind in (LinearScan, AllSteps):
        row = dispatch._BACKENDS[kind]
        anywhere = row["triton"]._replace(unsupported_reason=lambda call: None)
        monkeypatch.setitem(dispatch._BACKENDS, kind, {**row, "triton": anywhere})
    core = seeded_core(name, 3, learned_state=True, **options).to(DEVICE)
    check_against_loop(core, *random_sequence(core, 2, 4), backend="triton")
    assert len(calls) == 1
