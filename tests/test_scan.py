"""Each way to run h_t = a_t h_{t-1} + b_t equals a loop in float64: states and all gradients."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import instructions, threads  # noqa: F401  fixtures
from torch import Tensor

from rlgates.kernels import calls, native_scan
from rlgates.kernels.scan import Kernel, Problem, scan

WAYS = ["native", "scan", "triton"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Kernel | None:
    """A `Kernel`, or None for doubling."""
    return kernel_of(request.param)


def kernel_of(name: str) -> Kernel | None:
    if name == "native" and not calls.built():
        pytest.skip("rlgates.kernels._native was not built (it needs a C++ compiler)")
    if name == "triton":
        return interpreted()
    return native_scan if name == "native" else None


def interpreted() -> Any:
    """`triton_scan` as Triton's interpreter runs it on the CPU: a second copy of the module."""
    pytest.importorskip("triton.language")  # before the variable is set: this copy alone reads it
    name = "rlgates.kernels.triton_scan"
    if f"{name}_interpreted" not in sys.modules:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            spec.loader.exec_module(module)
        sys.modules[f"{name}_interpreted"] = module
    return sys.modules[f"{name}_interpreted"]


def looped(problem: Problem, into: Tensor) -> Tensor:
    """The states (T, B, S), a step after the other."""
    factor, h, initial, starts, paired = problem
    states = []
    for t, b in enumerate(into):
        if starts is not None:
            assert initial is not None
            h = torch.where(starts[t, :, None], initial, h)
        a = factor if factor.ndim == 1 else factor[t]
        if paired:
            (a_re, a_im), (re, im), (b_re, b_im) = (x.chunk(2, dim=-1) for x in (a, h, b))
            h = torch.cat([a_re * re - a_im * im + b_re, a_re * im + a_im * re + b_im], dim=-1)
        else:
            h = a * h + b
        states.append(h)
    return torch.stack(states)


def draw(
    steps: int,
    rows: int,
    units: int,
    paired: bool = False,
    steady: bool = False,
    share: float | None = 0.3,
    seed: int = 0,
) -> tuple[Problem, Tensor]:
    """Numbers as a cell makes them: factors of sizes 0 to 1, and a share of starts."""
    generator = torch.Generator().manual_seed(seed)
    width = units * (1 + paired)
    factor = torch.rand(width if steady else (steps, rows, width), generator=generator)
    first, initial = torch.randn(2, rows, width, generator=generator)
    into = torch.randn(steps, rows, width, generator=generator)
    factor = factor * 0.7 if paired else factor
    if share is None:
        return Problem(factor, first, None, None, paired), into
    starts = torch.rand(steps, rows, generator=generator) < share
    return Problem(factor, first, initial, starts, paired), into


def everything(
    problem: Problem, into: Tensor, kernel: Kernel | str | None, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """States, the last one, and the gradients of all that has one; "loop" for the loop."""
    names = ("factor", "first", "initial")
    leaves = {"into": into, **{n: x for n, x in zip(names, problem, strict=False) if x is not None}}
    leaves = {name: x.detach().to(dtype).requires_grad_() for name, x in leaves.items()}
    given = problem._replace(**{name: x for name, x in leaves.items() if name != "into"})
    if isinstance(kernel, str):
        states = looped(given, leaves["into"])
        final = states[-1]
    else:
        states, final = scan(given, leaves["into"], kernel)
    weights = torch.linspace(-1, 1, states.numel(), dtype=dtype).view_as(states)
    loss = (states * weights).sum() + 0.3 * final.square().sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"states": states, "final": final, **dict(zip(leaves, gradients, strict=True))}


def check(problem: Problem, into: Tensor, kernel: Kernel | None, tolerance: float = 2e-6) -> None:
    ours = everything(problem, into, kernel)
    for name, want in everything(problem, into, "loop", torch.float64).items():
        got = ours[name]
        assert got.dtype == torch.float32
        assert got.shape == want.shape
        if want.numel():
            error = (got - want).abs().max() / want.abs().max().clamp(min=1)
            assert error < tolerance, f"{name}: {error:.1e}"


NUMBERS = pytest.mark.parametrize("paired", [False, True], ids=["real", "complex"])
FACTORS = pytest.mark.parametrize("steady", [False, True], ids=["gated", "steady"])
# (T, B, d), of which Triton's interpreter, which takes its time, runs the first ones.
SHAPES = [(1, 2, 3), (5, 0, 17), (6, 1, 70), (2, 33, 1), (19, 7, 16), (5, 1, 33), (2, 2, 64)]


@NUMBERS
@FACTORS
@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("name", WAYS)
def test_equals_the_loop(name: str, paired: bool, steady: bool, share: float | None) -> None:
    for shape in SHAPES[: 3 if name == "triton" else None]:
        check(*draw(*shape, paired, steady, share), kernel_of(name))


@pytest.mark.parametrize("name", WAYS)
def test_equals_the_loop_at_any_size(name: str) -> None:
    kernel = kernel_of(name)

    @settings(max_examples=10 if name == "triton" else 60, deadline=None, derandomize=True)
    @given(
        steps=st.integers(1, 20),
        rows=st.integers(0, 5),
        units=st.integers(1, 40),
        paired=st.booleans(),
        steady=st.booleans(),
        share=st.sampled_from([None, 0.0, 0.1, 0.5, 1.0]),
        seed=st.integers(0, 99),
    )
    def at_any_size(**drawn: Any) -> None:
        check(*draw(**drawn), kernel)

    at_any_size()


@NUMBERS
@FACTORS
@pytest.mark.usefixtures("instructions")
def test_equals_the_loop_with_every_instruction_set(paired: bool, steady: bool) -> None:
    for shape in SHAPES:
        check(*draw(*shape, paired, steady), kernel_of("native"))


@NUMBERS
@pytest.mark.parametrize("share", [None, 0.3])
def test_gradients_of_doubling(paired: bool, share: float | None) -> None:
    """Against central differences in float64, and those of the gradients once more."""
    for steady in (False, True):
        problem, into = draw(6, 2, 2, paired, steady, share)

        def run(*leaves: Tensor) -> Tensor:
            into, factor, first, *initial = leaves
            begin = initial[0] if initial else None
            given = problem._replace(factor=factor, first=first, initial=begin)  # noqa: B023
            return scan(given, into, None)[0]

        leaves = [into, *(x for x in problem[:3] if isinstance(x, Tensor))]
        leaves = [x.double().requires_grad_() for x in leaves]
        assert torch.autograd.gradcheck(run, leaves)
        assert torch.autograd.gradgradcheck(run, leaves)


@NUMBERS
@FACTORS
def test_nan_before_a_start_is_left_out(way: Kernel | None, paired: bool, steady: bool) -> None:
    problem, into = draw(6, 4, 3, paired, steady, 0.0)
    assert problem.starts is not None
    problem.starts[3] = True
    clean = everything(problem, into, way)
    problem.first[1] = torch.nan
    if not paired:  # else what becomes NaN of it depends on the order of a product
        problem.first[2] = torch.inf
    into[1, 0] = torch.nan
    got, want = everything(problem, into, way), everything(problem, into, "loop")
    for name in ("states", "final"):
        assert torch.equal(got[name].isfinite(), want[name].isfinite())
        assert torch.equal(got[name].isnan(), want[name].isnan())
    assert torch.equal(got["states"][3:], clean["states"][3:])
    assert torch.equal(got["final"], clean["final"])
    assert torch.equal(got["into"], clean["into"])
    assert torch.equal(got["first"], clean["first"])
    assert torch.equal(got["initial"], clean["initial"])
    if not steady:
        assert torch.equal(got["factor"][3:], clean["factor"][3:])
        assert torch.equal(got["factor"].isnan(), want["factor"].isnan())


@NUMBERS
def test_nan_stays_in_its_unit_and_goes_on(way: Kernel | None, paired: bool) -> None:
    problem, into = draw(5, 3, 4, paired, share=None)
    into[2, 1, 0] = torch.nan
    states = scan(problem, into, way)[0]
    units = [0, 4] if paired else [0]
    assert states[2:, 1, 0].isnan().all()
    assert states[3:, 1, units].isnan().all()
    states[2:, 1, units] = 0
    assert states.isfinite().all()


@NUMBERS
@FACTORS
def test_long_sequences_stay_accurate(paired: bool, steady: bool) -> None:
    """Over 4,096 steps, with factors from 0 up to the last number below 1."""
    problem, into = draw(4096, 2, 16, paired, steady, 0.0)
    assert problem.starts is not None
    problem.starts[1000, 1] = True
    sizes = torch.tensor([0, 1e-30, 1e-3, 0.5, 0.9, 0.999, 1 - 2**-16, 1 - 2**-24]).repeat(2)
    factor = torch.cat([0.6 * sizes, 0.8 * sizes]) if paired else sizes
    problem = problem._replace(factor=factor.expand(problem.factor.shape).contiguous())
    exact = everything(problem, into, "loop", torch.float64)
    plain = errors(everything(problem, into, "loop"), exact)
    for name in ("native", "scan"):
        for key, error in errors(everything(problem, into, kernel_of(name)), exact).items():
            assert error < 1e-4, f"{key}: {error:.1e}"
            # Doubling multiplies equal factors, whose products are all wrong to the same side.
            if name == "native" or steady:
                assert error < 2 * plain[key] + 2e-6, f"{key}: {error:.1e} > {plain[key]:.1e}"


def errors(given: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """The largest one of each, beside the largest number."""
    return {k: ((given[k] - x).abs().max() / x.abs().max()).item() for k, x in exact.items()}


@NUMBERS
def test_layout_does_not_matter(way: Kernel | None, paired: bool) -> None:
    problem, into = draw(5, 3, 4, paired)
    want = everything(problem, into, way)

    def strange(x: Tensor) -> Tensor:
        """The same numbers, from the last axis to the first."""
        axes = tuple(reversed(range(x.ndim)))
        return x.permute(axes).contiguous().permute(axes)

    def in_a_wider_one(x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=-1)[..., : x.shape[-1]]

    for change in (strange, in_a_wider_one):
        other = Problem(*(change(x) for x in problem[:4] if x is not None), paired)
        states, final = scan(other, change(into), way)
        torch.testing.assert_close(states, want["states"])
        torch.testing.assert_close(final, want["final"])
    row = problem._replace(
        factor=problem.factor[:1, :1].expand(5, 3, -1), initial=problem.first[:1].expand(3, -1)
    )
    check(row, into, way)


@NUMBERS
@FACTORS
def test_only_the_final_state_is_used(way: Kernel | None, paired: bool, steady: bool) -> None:
    problem, into = draw(5, 3, 4, paired, steady)
    into.requires_grad_()
    lasts = scan(problem, into, way)[1], looped(problem, into)[-1]
    gradients = [torch.autograd.grad(last.square().sum(), into)[0] for last in lasts]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("wanted", ["into", "factor", "first", "initial"])
@FACTORS
def test_only_one_gradient_is_wanted(way: Kernel | None, steady: bool, wanted: str) -> None:
    problem, into = draw(5, 3, 4, False, steady)
    want = everything(problem, into, way)[wanted]
    leaf = (into if wanted == "into" else getattr(problem, wanted)).requires_grad_()
    states, final = scan(problem, into, way)
    weights = torch.linspace(-1, 1, states.numel()).view_as(states)
    ((states * weights).sum() + 0.3 * final.square().sum()).backward()
    assert torch.equal(leaf.grad, want)


@NUMBERS
def test_gradients_add_up_and_the_graph_can_be_kept(way: Kernel | None, paired: bool) -> None:
    problem, into = draw(5, 3, 4, paired)
    into.requires_grad_()
    loss = scan(problem, into, way)[0].square().sum()
    loss.backward(retain_graph=True)
    assert into.grad is not None
    once = into.grad.clone()
    loss.backward()
    assert torch.equal(into.grad, 2 * once)


def test_starts_changed_before_the_backward_pass_are_noticed(way: Kernel | None) -> None:
    problem, into = draw(5, 3, 4)
    assert problem.starts is not None
    states, _ = scan(problem, into.requires_grad_(), way)
    problem.starts.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.mark.parametrize("name", ["native", "triton"])
def test_a_second_derivative_is_refused(name: str) -> None:
    problem, into = draw(5, 3, 4)
    states, _ = scan(problem, into.requires_grad_(), kernel_of(name))
    (gradient,) = torch.autograd.grad(states.square().sum(), into, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='scan'"):
        gradient.square().sum().backward()


@NUMBERS
@FACTORS
@pytest.mark.usefixtures("threads")
def test_threads_change_nothing(paired: bool, steady: bool) -> None:
    """Sizes at which there are two and three of them, with rows cut between them."""
    problem, into = draw(50, 3, 5000, paired, steady)
    values = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        values.append(everything(problem, into, kernel_of("native")))
    for other in values[1:]:
        assert all(torch.equal(other[name], value) for name, value in values[0].items())


@pytest.mark.parametrize("part", ["factor", "first", "initial"])
def test_what_does_not_fit_is_refused(way: Kernel | None, part: str) -> None:
    """Native code is given addresses alone: a size that does not fit must not reach it."""
    problem, into = draw(5, 3, 4)
    tensor = getattr(problem, part)
    for wrong in (tensor[..., :3], tensor[:-1], tensor.double()):
        with pytest.raises(ValueError, match=r"must be torch.float32 of shape \("):
            scan(problem._replace(**{part: wrong}), into, way)
    if way is not None:
        with pytest.raises(ValueError, match=r"must be torch.float32 of shape"):
            scan(problem, into.double(), way)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@NUMBERS
@FACTORS
@pytest.mark.parametrize("share", [None, 0.3])
def test_triton_on_a_gpu(paired: bool, steady: bool, share: float | None) -> None:
    pytest.importorskip("triton")
    from rlgates.kernels import triton_scan

    for shape in (*SHAPES, (300, 40, 130)):
        problem, into = draw(*shape, paired, steady, share)
        there = Problem(*(x if x is None else x.cuda() for x in problem[:4]), paired)
        ours = everything(there, into.cuda(), triton_scan)
        for name, want in everything(problem, into, "loop", torch.float64).items():
            torch.testing.assert_close(ours[name].cpu().double(), want, rtol=2e-5, atol=2e-5)
