"""Each way to run h_t = a_t h_{t-1} + b_t equals a loop in float64: states and all gradients."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.equivalence import relative_error
from torch import Tensor

from rlgates.kernels.cpu import abi
from rlgates.kernels.cpu import scan as cpu_scan
from rlgates.kernels.scan import ScanKernel, ScanProblem, scan

WAYS = ["native", "scan", "triton"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> ScanKernel | None:
    """A `ScanKernel`, or None for the scan in PyTorch."""
    return kernel_of(request.param)


def kernel_of(name: str) -> ScanKernel | None:
    if name == "native" and not abi.built():
        pytest.skip("rlgates.kernels.cpu._native was not built (it needs a C++ compiler)")
    if name == "triton":
        return interpreted()
    return cpu_scan if name == "native" else None


def interpreted() -> Any:
    """`triton_scan` as Triton's interpreter runs it on the CPU: a second copy of the module."""
    pytest.importorskip("triton.language")  # before the variable is set: this copy alone reads it
    name = "rlgates.kernels.triton.scan"
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


def looped(problem: ScanProblem, b: Tensor) -> Tensor:
    """The states (T, B, S), by a loop over the steps."""
    a, h, initial, episode_starts, is_complex = problem
    states = []
    for t, b_t in enumerate(b):
        if episode_starts is not None:
            assert initial is not None
            h = torch.where(episode_starts[t, :, None], initial, h)
        a_t = a if a.ndim == 1 else a[t]
        if is_complex:
            (a_re, a_im), (re, im), (b_re, b_im) = (x.chunk(2, dim=-1) for x in (a_t, h, b_t))
            h = torch.cat([a_re * re - a_im * im + b_re, a_re * im + a_im * re + b_im], dim=-1)
        else:
            h = a_t * h + b_t
        states.append(h)
    return torch.stack(states)


def draw(
    steps: int,
    batch_size: int,
    units: int,
    is_complex: bool = False,
    constant: bool = False,
    start_share: float | None = 0.3,
    seed: int = 0,
) -> tuple[ScanProblem, Tensor]:
    """Numbers like those of a cell: coefficients of sizes 0 to 1, and a share of episode starts."""
    generator = torch.Generator().manual_seed(seed)
    width = units * (1 + is_complex)
    a = torch.rand(width if constant else (steps, batch_size, width), generator=generator)
    h_0, initial = torch.randn(2, batch_size, width, generator=generator)
    b = torch.randn(steps, batch_size, width, generator=generator)
    a = a * 0.7 if is_complex else a
    if start_share is None:
        return ScanProblem(a, h_0, None, None, is_complex), b
    episode_starts = torch.rand(steps, batch_size, generator=generator) < start_share
    return ScanProblem(a, h_0, initial, episode_starts, is_complex), b


def everything(
    problem: ScanProblem,
    b: Tensor,
    kernel: ScanKernel | str | None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """States, final state, and all gradients, by a kernel or by "loop"."""
    names = ("a", "h_0", "initial")
    leaves = {"b": b, **{n: x for n, x in zip(names, problem, strict=False) if x is not None}}
    leaves = {name: x.detach().to(dtype).requires_grad_() for name, x in leaves.items()}
    leaf_problem = problem._replace(**{name: x for name, x in leaves.items() if name != "b"})
    if isinstance(kernel, str):
        states = looped(leaf_problem, leaves["b"])
        final = states[-1]
    else:
        states, final = scan(leaf_problem, leaves["b"], kernel)
    weights = torch.linspace(-1, 1, states.numel(), dtype=dtype).view_as(states).to(states.device)
    loss = (states * weights).sum() + 0.3 * final.square().sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"states": states, "final": final, **dict(zip(leaves, gradients, strict=True))}


def check(
    problem: ScanProblem, b: Tensor, kernel: ScanKernel | None, tolerance: float = 2e-6
) -> None:
    results = everything(problem, b, kernel)
    for name, expected in everything(problem, b, "loop", torch.float64).items():
        result = results[name]
        assert result.dtype == torch.float32
        assert result.shape == expected.shape
        error = relative_error(result, expected)
        assert error < tolerance, f"{name}: {error:.1e}"


NUMBERS = pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
FACTORS = pytest.mark.parametrize("constant", [False, True], ids=["gated", "constant"])
# (T, B, d), of which Triton's interpreter, which takes its time, runs the first ones.
SHAPES = [(1, 2, 3), (5, 0, 17), (6, 1, 70), (2, 33, 1), (19, 7, 16), (5, 1, 33), (2, 2, 64)]


@NUMBERS
@FACTORS
@pytest.mark.parametrize("start_share", [None, 0.3])
@pytest.mark.parametrize("name", WAYS)
def test_equals_the_loop(
    name: str, is_complex: bool, constant: bool, start_share: float | None
) -> None:
    for shape in SHAPES[: 3 if name == "triton" else None]:
        check(*draw(*shape, is_complex, constant, start_share), kernel_of(name))


@pytest.mark.parametrize("name", WAYS)
def test_equals_the_loop_at_any_size(name: str) -> None:
    kernel = kernel_of(name)

    @settings(max_examples=10 if name == "triton" else 60, deadline=None)
    @given(
        steps=st.integers(1, 20),
        batch_size=st.integers(0, 5),
        units=st.integers(1, 40),
        is_complex=st.booleans(),
        constant=st.booleans(),
        start_share=st.sampled_from([None, 0.0, 0.1, 0.5, 1.0]),
        seed=st.integers(0, 99),
    )
    def at_any_size(**arguments: Any) -> None:
        # The one gradient of a small problem may be a small difference of large terms.
        check(*draw(**arguments), kernel, tolerance=5e-6)

    at_any_size()


@NUMBERS
@FACTORS
@pytest.mark.usefixtures("instructions")
def test_equals_the_loop_with_every_instruction_set(is_complex: bool, constant: bool) -> None:
    for shape in SHAPES:
        check(*draw(*shape, is_complex, constant), kernel_of("native"))


@NUMBERS
@pytest.mark.parametrize("start_share", [None, 0.3])
def test_gradients_of_the_torch_scan(is_complex: bool, start_share: float | None) -> None:
    """First and second derivatives against central differences in float64."""
    for constant in (False, True):
        problem, b = draw(6, 2, 2, is_complex, constant, start_share)

        def run(*leaves: Tensor) -> Tensor:
            b, a, h_0, *initial = leaves
            begin = initial[0] if initial else None
            leaf_problem = problem._replace(a=a, h_0=h_0, initial=begin)  # noqa: B023
            return scan(leaf_problem, b, None)[0]

        leaves = [b, *(x for x in problem[:3] if isinstance(x, Tensor))]
        leaves = [x.double().requires_grad_() for x in leaves]
        assert torch.autograd.gradcheck(run, leaves)
        assert torch.autograd.gradgradcheck(run, leaves)


@NUMBERS
@FACTORS
def test_nan_before_an_episode_start_has_no_effect(
    way: ScanKernel | None, is_complex: bool, constant: bool
) -> None:
    problem, b = draw(6, 4, 3, is_complex, constant, 0.0)
    assert problem.episode_starts is not None
    problem.episode_starts[3] = True
    clean = everything(problem, b, way)
    problem.h_0[1] = torch.nan
    if not is_complex:  # else what becomes NaN of it depends on the order of a product
        problem.h_0[2] = torch.inf
    b[1, 0] = torch.nan
    result, expected = everything(problem, b, way), everything(problem, b, "loop")
    for name in ("states", "final"):
        assert torch.equal(result[name].isfinite(), expected[name].isfinite())
        assert torch.equal(result[name].isnan(), expected[name].isnan())
    assert torch.equal(result["states"][3:], clean["states"][3:])
    assert torch.equal(result["final"], clean["final"])
    assert torch.equal(result["b"], clean["b"])
    assert torch.equal(result["h_0"], clean["h_0"])
    assert torch.equal(result["initial"], clean["initial"])
    if not constant:
        assert torch.equal(result["a"][3:], clean["a"][3:])
        assert torch.equal(result["a"].isnan(), expected["a"].isnan())


@NUMBERS
def test_nan_stays_in_its_unit_and_goes_on(way: ScanKernel | None, is_complex: bool) -> None:
    problem, b = draw(5, 3, 4, is_complex, start_share=None)
    b[2, 1, 0] = torch.nan
    states = scan(problem, b, way)[0]
    units = [0, 4] if is_complex else [0]
    assert states[2:, 1, 0].isnan().all()
    assert states[3:, 1, units].isnan().all()
    states[2:, 1, units] = 0
    assert states.isfinite().all()


@NUMBERS
@FACTORS
def test_long_sequences_stay_accurate(is_complex: bool, constant: bool) -> None:
    """Over 4,096 steps, with factors from 0 up to the last number below 1."""
    problem, b = draw(4096, 2, 16, is_complex, constant, 0.0)
    assert problem.episode_starts is not None
    problem.episode_starts[1000, 1] = True
    sizes = torch.tensor([0, 1e-30, 1e-3, 0.5, 0.9, 0.999, 1 - 2**-16, 1 - 2**-24]).repeat(2)
    a = torch.cat([0.6 * sizes, 0.8 * sizes]) if is_complex else sizes
    problem = problem._replace(a=a.expand(problem.a.shape).contiguous())
    exact = everything(problem, b, "loop", torch.float64)
    plain = errors(everything(problem, b, "loop"), exact)
    for name in ("native", "scan"):
        for key, error in errors(everything(problem, b, kernel_of(name)), exact).items():
            assert error < 1e-4, f"{key}: {error:.1e}"
            # Doubling multiplies equal factors, whose products are all wrong to the same side.
            if name == "native" or constant:
                assert error < 2 * plain[key] + 2e-6, f"{key}: {error:.1e} > {plain[key]:.1e}"


def errors(results: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of each tensor, relative to its largest number."""
    return {k: ((results[k] - x).abs().max() / x.abs().max()).item() for k, x in exact.items()}


@NUMBERS
def test_layout_does_not_matter(way: ScanKernel | None, is_complex: bool) -> None:
    problem, b = draw(5, 3, 4, is_complex)
    expected = everything(problem, b, way)

    def strange(x: Tensor) -> Tensor:
        """The same numbers, with the axes in reversed order."""
        axes = tuple(reversed(range(x.ndim)))
        return x.permute(axes).contiguous().permute(axes)

    def in_a_wider_one(x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=-1)[..., : x.shape[-1]]

    for change in (strange, in_a_wider_one):
        other = ScanProblem(*(change(x) for x in problem[:4] if x is not None), is_complex)
        states, final = scan(other, change(b), way)
        torch.testing.assert_close(states, expected["states"])
        torch.testing.assert_close(final, expected["final"])
    row = problem._replace(
        a=problem.a[:1, :1].expand(5, 3, -1), initial=problem.h_0[:1].expand(3, -1)
    )
    check(row, b, way)


@NUMBERS
@FACTORS
def test_only_the_final_state_is_used(
    way: ScanKernel | None, is_complex: bool, constant: bool
) -> None:
    problem, b = draw(5, 3, 4, is_complex, constant)
    b.requires_grad_()
    lasts = scan(problem, b, way)[1], looped(problem, b)[-1]
    gradients = [torch.autograd.grad(last.square().sum(), b)[0] for last in lasts]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("leaf_name", ["b", "a", "h_0", "initial"])
@FACTORS
def test_only_one_gradient_is_needed(
    way: ScanKernel | None, constant: bool, leaf_name: str
) -> None:
    problem, b = draw(5, 3, 4, False, constant)
    expected = everything(problem, b, way)[leaf_name]
    leaf = (b if leaf_name == "b" else getattr(problem, leaf_name)).requires_grad_()
    states, final = scan(problem, b, way)
    weights = torch.linspace(-1, 1, states.numel()).view_as(states)
    ((states * weights).sum() + 0.3 * final.square().sum()).backward()
    assert torch.equal(leaf.grad, expected)


@NUMBERS
def test_gradients_add_up_and_the_graph_can_be_kept(
    way: ScanKernel | None, is_complex: bool
) -> None:
    problem, b = draw(5, 3, 4, is_complex)
    b.requires_grad_()
    loss = scan(problem, b, way)[0].square().sum()
    loss.backward(retain_graph=True)
    assert b.grad is not None
    once = b.grad.clone()
    loss.backward()
    assert torch.equal(b.grad, 2 * once)


def test_episode_starts_modified_before_the_backward_pass_raise(way: ScanKernel | None) -> None:
    problem, b = draw(5, 3, 4)
    assert problem.episode_starts is not None
    states, _ = scan(problem, b.requires_grad_(), way)
    problem.episode_starts.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.mark.parametrize("name", ["native", "triton"])
def test_a_second_derivative_raises(name: str) -> None:
    problem, b = draw(5, 3, 4)
    states, _ = scan(problem, b.requires_grad_(), kernel_of(name))
    (gradient,) = torch.autograd.grad(states.square().sum(), b, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.square().sum().backward()


@NUMBERS
@FACTORS
@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_threads(is_complex: bool, constant: bool) -> None:
    """Sizes with two and three threads, which split the batch."""
    problem, b = draw(50, 3, 5000, is_complex, constant)
    values = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        values.append(everything(problem, b, kernel_of("native")))
    for other in values[1:]:
        assert all(torch.equal(other[name], value) for name, value in values[0].items())


@pytest.mark.parametrize("part", ["a", "h_0", "initial"])
def test_invalid_sizes_are_refused(way: ScanKernel | None, part: str) -> None:
    """Native code receives only addresses, so sizes are checked before."""
    problem, b = draw(5, 3, 4)
    tensor = getattr(problem, part)
    for wrong in (tensor[..., :3], tensor[:-1], tensor.double()):
        with pytest.raises(ValueError, match=r"must be torch.float32 of shape \("):
            scan(problem._replace(**{part: wrong}), b, way)
    if way is not None:
        with pytest.raises(ValueError, match=r"must be torch.float32 of shape"):
            scan(problem, b.double(), way)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@NUMBERS
@FACTORS
@pytest.mark.parametrize("start_share", [None, 0.3])
def test_triton_on_a_gpu(is_complex: bool, constant: bool, start_share: float | None) -> None:
    pytest.importorskip("triton")
    from rlgates.kernels.triton import scan as triton_scan

    for shape in (*SHAPES, (300, 40, 130)):
        problem, b = draw(*shape, is_complex, constant, start_share)
        on_gpu = ScanProblem(*(x if x is None else x.cuda() for x in problem[:4]), is_complex)
        results = everything(on_gpu, b.cuda(), triton_scan)
        for name, expected in everything(problem, b, "loop", torch.float64).items():
            largest = expected.detach().abs().max().item() if expected.numel() else 0.0
            atol = 2e-5 * max(1.0, largest)
            torch.testing.assert_close(results[name].cpu().double(), expected, rtol=2e-5, atol=atol)
