"""Infinities, NaN and numbers at the ends of float32: kernels are finite where the loop is.

A case is its number, as in `tests/unit/cores/test_random_shapes.py`. Outputs, states and gradients
of native code are finite exactly where those of the plain loop in float32 are. There are two
exceptions:

- Where finite numbers overflow on the way (`Overflows`), the order of a sum decides whether it is
  infinite, NaN or finite. There native code only must not be finite where the loop is finite
  neither in float32 nor in float64.
- The Mogrifier LSTM with a `rank` is left out: native code multiplies by the product of the two
  factors, the loop by one after the other, where infinities of both signs may meet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from random import Random
from typing import Any

import pytest
import torch
from support import interpreted
from support.equivalence import (
    check_against_loop,
    plain_reference,
    random_sequence,
    run_with_gradients,
)
from support.layers import FUSED, LAYERS, Layer, general_core
from support.native import needs_native
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlgates import Core, make_core

built = needs_native

LINEAR: list[Layer] = [(name, {}) for name in ("ur_mingru", "om_gilr", "minlstm", "lru")]
Kinds = tuple[list[Layer], list[Layer], list[Layer]]
# Without maps that are products, and without reads of some rows, of which any may be NaN.
FUSED_HERE = [
    (name, options)
    for name, options in FUSED
    if "rank" not in options and options.get("top_k") == options.get("num_slots")
]
KINDS: Kinds = LAYERS, FUSED_HERE, LINEAR
MOST = torch.finfo(torch.float32).max
# Every bit of this NaN is set, unlike those that arithmetic gives.
OTHER_NAN = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32).item()
SPECIAL = (
    *(math.inf, -math.inf, math.nan, OTHER_NAN, 3e38, 1e38, -1e38, 1e30, 1e20, -1e19),
    *(105.0, -105.0, 89.0, -88.0, 0.0, 1e-38, 1e-40, -1e-40, 1e-45),
)


class Case:
    """A core, its inputs and state with a few special numbers, and a description."""

    def __init__(self, number: int, kinds: Kinds) -> None:
        r = Random(number)
        self.layer = name, options = r.choice(r.choices(kinds, weights=(2, 2, 1))[0])
        self.core = general_core(name, 6 * r.choice((1, 2, 3)), r.choice((1, 1, 2)), **options)
        self.x, self.state, starts = random_sequence(self.core, 3, 5, seed=number)
        self.starts = r.choice((starts, None))
        self.where = r.choice(("x", "state", "weights", "all"))
        parameters = [parameter.detach() for parameter in self.core.parameters()]
        places = {"x": [self.x], "state": [self.state], "weights": parameters}
        for place in [self.where] if self.where != "all" else places:
            for _ in range(r.choice((1, 1, 3))):
                numbers = r.choice([t for t in places[place] if t.numel()]).view(-1)
                numbers[r.randrange(len(numbers))] = r.choice(SPECIAL)

    def results(self, core: Core, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        return run_with_gradients(core, self.x.to(dtype), self.state.to(dtype), self.starts)


class Overflows(TorchDispatchMode):
    """Records whether finite numbers or products of them, in float64, are infinite in float32."""

    found = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        name = op.overloadpacket.__name__
        factors = [largest(t) for t in args if isinstance(t, Tensor)]
        numbers = [largest(t) for t in tree_leaves(result) if isinstance(t, Tensor)]
        if name in ("mul", "mm", "addmm", "addcmul") and len(factors) > 1:
            numbers.append(factors[-2] * factors[-1])
        if "layer_norm" in name:
            numbers.append(max(factors) ** 2)
        self.found |= max(numbers, default=0) > MOST
        return result


def largest(x: Tensor) -> float:
    """The size of the largest finite number."""
    finite = x.detach()[x.detach().isfinite()]
    return float(finite.double().abs().max()) if finite.numel() else 0.0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """In this thread: one that it starts would flush them for ever, so none is."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def check(number: int, backend: str = "native", kinds: Kinds = KINDS) -> bool:
    """Raise an AssertionError where case `number` differs; whether finite numbers overflowed."""
    case = Case(number, kinds)
    case.core.backend = backend
    results = case.results(case.core)
    assert case.core.backend_used == backend
    with flushed_denormals() if backend == "native" else nullcontext():  # as native code does
        expected = case.results(plain_reference(case.core, None))
    with Overflows() as overflows:
        exact = case.results(plain_reference(case.core), torch.float64)
    for name, result in results.items():
        wrong = result.isfinite() != expected[name].isfinite()
        if overflows.found:
            wrong &= result.isfinite() & ~exact[name].isfinite()
            if case.layer[0] == "rru":
                # A row whose squares overflow is normalized to 0: a ReLU then lets nothing pass.
                wrong &= result != 0
        values = result[wrong][:3].tolist(), expected[name][wrong][:3].tolist()
        assert not wrong.any(), f"case {number}, {case.layer}, {case.where}, {name}: {values}"
    return overflows.found


@built
def test_finite_where_the_loop_is() -> None:
    overflows = [check(number) for number in range(50)]
    assert sum(overflows) < 18


@built
@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_finite_where_the_loop_is_in_two_thousand_cases(block: int) -> None:
    for number in range(200 * block, 200 * (block + 1)):
        check(number)


@built
@pytest.mark.parametrize("number", [math.nan, OTHER_NAN])
@pytest.mark.usefixtures("instructions")
def test_any_nan_gives_nan(number: float) -> None:
    """The bits of a NaN are not taken for those of a number."""
    for name, options in (*KINDS[0], *KINDS[1]):
        core = general_core(name, 6, backend="native", **options)
        x, state, _ = random_sequence(core, 2, 1)
        x[0, 0] = number
        outputs, _ = core(x, state)
        assert outputs[0, 0].isnan().all(), name
        assert outputs[0, 1].isfinite().all(), name


@built
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lstm", {"recurrent_dropout": 0.5}),
        ("gru", {"recurrent_dropout": 0.5}),
        ("mogrifier", {"recurrent_dropout": 0.5}),
        ("rru", {"dropout": 0.5}),
    ],
)
def test_nan_is_not_dropped(name: str, options: dict[str, float]) -> None:
    """Dropout multiplies, as in PyTorch."""
    core = general_core(name, 64, backend="native", **options)
    x, state, _ = random_sequence(core, 2, 1)
    x[0, 0] = torch.nan
    for core.backend in ("native", "plain"):
        outputs, _ = core(x, state)
        assert outputs[0, 0].isnan().all()


@built
@pytest.mark.parametrize(
    ("name", "options", "steps"), [("lstm", {"forget_bias": -3.0}, 55), ("mingru", {}, 300)]
)
@pytest.mark.parametrize("batch", [1, 64])  # the second takes both threads
@pytest.mark.usefixtures("instructions", "threads")
def test_numbers_too_small_for_float32_are_zero(
    name: str, options: dict[str, float], steps: int, batch: int
) -> None:
    """They would slow down processors; the caller's arithmetic still has them."""
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    core = make_core(name, 8, 64, generator=generator, **options)
    x = torch.randn(steps, batch, 8, generator=generator)
    state = core.initial_state(batch).requires_grad_()
    tiny = torch.finfo(torch.float32).tiny
    for core.backend, some in (("native", False), ("plain", True)):
        outputs, _ = core(x, state)
        (gradient,) = torch.autograd.grad(outputs[-1].sum(), state)
        assert core.backend_used == core.backend
        assert ((gradient != 0) & (gradient.abs() < tiny)).any() == some
    for size in (2, 2**18):
        assert (torch.full((size,), tiny) / 2).all()


@built
@pytest.mark.parametrize(
    ("name", "batch"), [("lstm", 16), ("gato", 16), ("mingru", 128), ("mlstm", 16)]
)
def test_threads_that_it_starts_have_numbers_too_small_for_float32(name: str, batch: int) -> None:
    """A thread starts in the mode of the one that starts it, and stays in it."""

    def of_new_threads() -> Tensor:
        torch.set_num_threads(2)
        core = make_core(name, 64, 64)
        x = torch.randn(64, batch, 64)
        outputs, _ = core(x)
        outputs.sum().backward()
        assert core.backend_used == "native"
        return torch.full((2**18,), torch.finfo(torch.float32).tiny) / 2

    with ThreadPoolExecutor(1) as executor:  # it has no threads of OpenMP yet
        assert executor.submit(of_new_threads).result().all()


@built
def test_zoneout_selects() -> None:
    """As in the loop: the gradient of a unit that keeps its value is not multiplied by zero."""
    core = general_core("lstm", 64, zoneout_hidden=0.5, zoneout_cell=0.5)
    x, state, _ = random_sequence(core, 1, 1)
    for core.backend in ("native", "plain"):
        _, final = core(x, state)
        infinite = final[:, :64].sum() * torch.inf
        (gradient,) = torch.autograd.grad(infinite, core.cells[0].bias_ih)
        kept = final[0, :64] == state[0, :64]
        assert 10 < kept.sum() < 54
        assert torch.equal(gradient[-64:].isfinite(), kept)  # of the output gate


@built
def test_equal_gates_share_the_gradient_of_their_minimum() -> None:
    core = general_core("mogrifier", 8, backend="native", rounds=0)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.zero_()
        core.cells[0].bias_ih[-16:] = 1.0  # of u and o
    x, state, _ = random_sequence(core, 2, 1)
    results = run_with_gradients(core, x, state, None)
    expected = run_with_gradients(plain_reference(core, None), x, state, None)
    assert expected["cells.0.bias_ih"][:8].any()
    torch.testing.assert_close(results, expected)


@built
@pytest.mark.parametrize(
    ("gate", "f", "i"), [("f", -5.0, -65.0), ("r", -80.0, -70.0), ("r", -84.0, -84.2)]
)
@pytest.mark.usefixtures("instructions")
def test_gates_are_small_enough_for_their_logarithms(gate: str, f: float, i: float) -> None:
    """Where the input gate of an sLSTM is as small, what it keeps is not 0."""
    core = general_core(f"{gate}_slstm", 6)
    weights = core.cells[0].gate_weights()
    with torch.no_grad():
        core.cells[0].weight_ih.zero_()
        core.cells[0].weight_hh.zero_()
        weights["b_f"].fill_(f)
        weights["b_i"].fill_(i)
        if gate == "r":
            weights["b_r"].zero_()
    x, state, _ = random_sequence(core, 3, 1)
    state[:, -6:] = 0.0  # of the part m
    check_against_loop(core, x, state, None)


@pytest.mark.skipif(interpreted.MISSING, reason=interpreted.REASON)
@pytest.mark.skipif(interpreted.DEVICE != "cpu", reason="the numbers are on the CPU")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 8), *(pytest.param(k, k + 100, marks=pytest.mark.slow) for k in (8, 108, 208))],
)
def test_triton_is_finite_where_the_loop_is(
    first: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(first, last):
        interpreted.run_in_one_launch(monkeypatch, number % 2 == 0)
        check(number, "triton", (LAYERS, LAYERS, LAYERS))
