"""Native code equals the plain loop in float64, in random cases.

A case is its number: `pytest tests/unit/cores/test_random_shapes.py --random-cases 200:300`
runs others than the first hundred, `--random-cases 4711` the one that failed. `make sanitize`
runs some under the sanitizers; if one of them ends the process, the last case in
build/sanitize/cases.log did it.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from support.equivalence import exact_results, plain_reference, relative_error, run_with_gradients
from support.layers import FUSED, LAYERS
from support.native import needs_native
from torch import Tensor, nn

from rlgates import Core, make_core
from rlgates.gates import GATES
from rlgates.kernels.cpu import abi
from rlgates.registry import core_names

pytestmark = needs_native

_logger = logging.getLogger(__name__)

# Around the lengths of vectors, tiles and slabs.
EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65)
LAYOUTS = ("dense", "turned", "every other", "offset", "one for all", "end of a page")
KINKS = {4553}  # a ReLU is 2e-7 from its kink in one row: roundings decide its gradient


class Case(NamedTuple):
    """The settings of one case, sampled by `draw`."""

    number: int
    name: str
    options: dict[str, Any]
    steps: int
    rows: int
    width: int
    units: int
    layers: int
    starts: float | None  # how many
    nan: bool  # in states that a start leaves out
    noise: float  # in the parameters
    layouts: tuple[str, ...]  # of x, the state, the starts and the weights
    frozen: tuple[str, ...]  # x, the state
    frozen_parameters: tuple[bool, ...]  # in order, then again from the first
    learned_state: bool
    used: tuple[bool, bool]  # outputs and final state, in the loss
    threads: int
    instructions: str


# Rounding may swap the rows that a memory reads only the best of.
SMOOTH = [
    (name, options)
    for name, options in FUSED
    if options.get("top_k", 0) == options.get("num_slots", 0) or not options.get("memory", True)
]


def draw(number: int) -> Case:
    """The case of a number, the same everywhere."""
    r = Random(number)
    fused = r.random() < 0.3
    name, options = r.choice(SMOOTH if fused else LAYERS)
    core, gate = core_names()[name]
    row = GATES[gate]
    # The memory of an NRU may grow exponentially.
    long = (6, 12) if core == "nru" else (150, 5)
    steps, rows = r.choice(((6, 12), (6, 12), (25, 40), long, (3, 300)))
    if core == "nru":
        steps = min(steps, 6)
    width, units = r.choice((4, 20, 70)), r.choice((10, 35, 70))

    def size(most: int, least: int = 1) -> int:
        edges = [edge for edge in EDGES if least <= edge <= most]
        return r.choice(edges) if r.random() < 0.6 else r.randint(least, most)

    # Ordered gates, and those in chunks, take two units at least.
    steps, rows, width, units = size(steps), size(rows), size(width), size(units, least=2)
    if r.random() < 0.05 and row.activation != "cumax":
        units = 1
    if core in ("gato", "rmc"):  # two halves, up to two heads
        units += units % 2
    if r.random() < 0.02:
        rows = 0
    if "chunk_size" in row.options:
        sizes = [n for n in EDGES if units % n == 0 and units > n]
        options = {**options, "chunk_size": r.choice(sizes or [1])}
    if "beta" in options:
        options = {**options, "beta": r.choice((0.0, 1.0, 0.4))}
    layouts = r.choices(LAYOUTS, k=4) if r.random() < 0.5 else ["dense"] * 4
    freezes, starts = r.random() < 0.4, r.choice((None, 0.0, 0.05, 0.3, 1.0))
    frozen = [key for key in ("x", "state") if freezes and r.random() < 0.5]
    return Case(
        number=number,
        name=name,
        options=options,
        steps=steps,
        rows=rows,
        width=width,
        units=units,
        layers=r.choice((1, 1, 2, 3)),
        starts=starts,
        nan=r.random() < 0.3,
        noise=r.choice((0.0, 0.1, 0.1 if fused else 0.5)),
        layouts=tuple(layouts),
        frozen=tuple(frozen),
        frozen_parameters=tuple(freezes and r.random() < 0.5 for _ in range(7)),
        learned_state=starts is not None and r.random() < 0.25,
        used=r.choice(((True, True), (True, True), (True, False), (False, True))),
        threads=r.choice((1, 1, 2, 3)),
        instructions=r.choice(("avx512", "avx2", "plain", "")),
    )


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers (but for "one for all"), elsewhere in memory."""
    if layout == "turned":
        order = list(range(x.dim()))[::-1]
        return x.permute(order).contiguous().permute(order)
    if layout == "every other":
        wide = x.new_zeros([2 * n for n in x.shape])
        return wide[tuple(slice(1, None, 2) for _ in x.shape)].copy_(x)
    if layout == "offset":
        return x.new_zeros(x.numel() + 1)[1:].view_as(x).copy_(x)
    if layout == "one for all" and x.dim() > 1 and x.shape[1]:
        return x[:, :1].expand_as(x)
    if layout == "end of a page" and x.numel() and sys.platform == "linux":
        return at_the_end_of_a_page(x)
    return x


def at_the_end_of_a_page(x: Tensor) -> Tensor:
    """Whoever reads behind it dies."""
    size = x.numel() * x.element_size()
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + pages
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    buffer = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=pages - size)
    return buffer.view_as(x).copy_(x)


def loss(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """Of the outputs, the final state, or both, as the case says."""

    def value(outputs: Tensor, state: Tensor) -> Tensor:
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
        terms = (outputs * weights).sum(), 0.3 * state.square().sum()
        total = sum(term for term, used in zip(terms, case.used, strict=True) if used)
        assert isinstance(total, Tensor)
        return total

    return value


def built(case: Case, generator: torch.Generator) -> Core:
    """The core of a case, with weights as they are laid out."""
    options = {**case.options, "learned_state": case.learned_state}
    core = make_core(case.name, case.width, case.units, case.layers, generator=generator, **options)
    for k, (name, parameter) in enumerate(list(core.named_parameters())):
        module, _, key = name.rpartition(".")
        noise = case.noise * torch.randn(parameter.shape, generator=generator)
        moved = nn.Parameter(laid_out(parameter.detach() + noise, case.layouts[3]))
        moved.requires_grad_(not case.frozen_parameters[k % len(case.frozen_parameters)])
        setattr(core.get_submodule(module), key, moved)
    return core


def check(case: Case) -> None:
    generator = torch.Generator().manual_seed(case.number)
    core = built(case, generator)
    x = torch.randn(case.steps, case.rows, case.width, generator=generator)
    state = torch.randn(case.rows, core.state_size, generator=generator)
    if case.name.endswith("slstm"):
        state = 1 + state.abs()  # its n, by which it divides, is at least 1 in a run
    starts = None
    if case.starts is not None:
        starts = torch.rand(case.steps, case.rows, generator=generator) < case.starts
        starts = laid_out(starts, case.layouts[2])
        if case.nan:
            state[starts[0]] = torch.nan
    x, state = laid_out(x, case.layouts[0]), laid_out(state, case.layouts[1])
    torch.set_num_threads(case.threads)
    core.backend = "native"
    arguments = x, state, starts
    kwargs: Any = {"loss": loss(case), "frozen": case.frozen}
    results = run_with_gradients(core, *arguments, **kwargs)
    assert core.backend_used == "native"
    with torch.no_grad():
        for result, expected in zip(core(*arguments), results.values(), strict=False):
            assert torch.equal(result, expected), "without gradients the values are others"
    exact = exact_results(core, *arguments, **kwargs)
    for name, expected in exact.items():
        error, allowed = relative_error(results[name], expected), 2e-5
        # Steep gates over many steps: the loop has such errors too, or they come of roundings of
        # the weights alone.
        if not error <= allowed:
            loop = run_with_gradients(plain_reference(core, None), *arguments, **kwargs)
            allowed += 30 * relative_error(loop[name], expected)
        if not error <= allowed:
            moved = exact_results(rounded(plain_reference(core)), *arguments, **kwargs)
            allowed += 10 * relative_error(moved[name], expected)
        assert error <= allowed, f"{name}: {error:.1e}, {allowed:.1e} allowed"


@torch.no_grad()
def rounded(core: Core) -> Core:
    """A core of float64 whose weights are moved by what rounding in float32 may do to them."""
    generator = torch.Generator().manual_seed(0)
    for weight in core.parameters():
        weight.mul_(1 + 2e-7 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return core


def run(numbers: Iterable[int]) -> None:
    for number in numbers:
        case = draw(number)
        _logger.debug("%s", case)
        try:
            abi._native.use(case.instructions)
        except ValueError:
            abi._native.use("")  # which this processor has
        try:
            check(case)
        except Exception as error:
            raise AssertionError(f"{case}: {error}") from error


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads, instructions = torch.get_num_threads(), abi._native.use()
    yield
    torch.set_num_threads(threads)
    abi._native.use(instructions)


def test_random_cases(pytestconfig: pytest.Config) -> None:
    first, _, last = pytestconfig.getoption("random_cases").partition(":")
    run(range(int(first), int(last or int(first) + 1)))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_ten_thousand_cases(block: int) -> None:
    run(number for number in range(500 * block, 500 * (block + 1)) if number not in KINKS)


def test_a_case_is_its_number() -> None:
    assert draw(7) == draw(7) != draw(8)
    cases = [draw(number) for number in range(5000)]
    assert {case.name for case in cases} == {name for name, _ in [*LAYERS, *SMOOTH]}
    assert {layout for case in cases for layout in case.layouts} == set(LAYOUTS)
