"""Kernels get addresses: whatever tensors are, what is read there is what they say, or an error.

PyTorch has tensors without memory (zeros that it knows of), views with negated numbers, and tensors
whose memory was freed; and hooks may replace what is saved for the backward pass by anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    random_sequence,
    relative_errors,
    run_with_gradients,
)
from support.layers import SOME, SOME_FUSED, Layer, general_core
from support.native import needs_native
from support.saved import changed_by_hooks, check_refused, elsewhere, freed
from torch import Tensor, nn

from rlgates import Core, make_core
from rlgates.kernels import ops
from rlgates.kernels.cpu import layer
from rlgates.kernels.cpu import scan as cpu_scan
from rlgates.kernels.scan import ScanProblem, scan
from rlgates.kernels.spec import CellSpec

pytestmark = needs_native

LINEAR: list[Layer] = [(name, {}) for name in ("ur_mingru", "om_gilr", "minlstm", "lru")]
MEMORIES: list[Layer] = [(name, {}) for name in ("deltanet", "mlstm")]
OTHERS = [*LINEAR, *MEMORIES]
of_each_kernel = pytest.mark.parametrize(
    "layer_", [*SOME, *SOME_FUSED, *OTHERS], ids=lambda layer_: f"{layer_[0]}-{layer_[1]}"
)


def problem(of: Layer, **options: Any) -> tuple[Core, tuple[Tensor, Tensor, Tensor]]:
    core = general_core(of[0], 18, backend="native", **of[1], **options)
    return core, random_sequence(core, 3, 6)


def negated(x: Tensor) -> Tensor:
    """The same numbers, whose memory has the other sign."""
    view = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert view.is_neg()
    # What is saved may have parts that nobody wrote or reads, with any bits.
    torch.testing.assert_close(view, x, rtol=0, atol=0, equal_nan=True)
    return view


def zeros_without_memory(x: Tensor) -> Tensor:
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


def replaced(core: Core, change: Callable[[Tensor], Tensor]) -> Core:
    for name, parameter in list(core.named_parameters()):
        module, _, key = name.rpartition(".")
        setattr(core.get_submodule(module), key, nn.Parameter(change(parameter.detach())))
    return core


@of_each_kernel
@pytest.mark.parametrize("change", [negated, zeros_without_memory])
@pytest.mark.parametrize("what", ["x", "state", "weights"])
def test_tensors_without_memory_of_their_numbers(
    what: str, change: Callable[[Tensor], Tensor], layer_: Layer
) -> None:
    core, (x, state, starts) = problem(layer_, learned_state=True)
    if what == "weights":  # and the learned state
        core = replaced(core, change)
    x, state = change(x) if what == "x" else x, change(state) if what == "state" else state
    results = run_with_gradients(core, x, state, starts)
    assert core.backend_used == "native"
    expected = run_with_gradients(
        replaced(core, Tensor.clone), x.clone(), state.clone(), starts.clone()
    )
    # The products of the others are torch's, whose rounding may depend on where numbers lie.
    rtol, atol = (1e-6, 2e-6) if layer_ in OTHERS else (0, 0)
    torch.testing.assert_close(results, expected, rtol=rtol, atol=atol)


class _Gradients(torch.autograd.Function):
    """The identity; its backward pass changes the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> tuple[Tensor, None]:
        return ctx.change(d[0]), None


@of_each_kernel
@pytest.mark.parametrize("change", [negated, zeros_without_memory])
@pytest.mark.parametrize("which", [0, 1], ids=["outputs", "final"])
def test_gradients_without_memory_of_their_numbers(
    which: int, change: Callable[[Tensor], Tensor], layer_: Layer
) -> None:
    core, sequence = problem(layer_)
    gradients = []
    for clean in (Tensor.clone, lambda d: change(d).clone(), change):
        results = list(core(*sequence))
        results[which] = _Gradients.apply(results[which], clean)  # type: ignore[no-untyped-call]
        loss = results[0].sin().sum() + results[1].square().sum()
        gradients.append(torch.autograd.grad(loss, list(core.parameters())))
    torch.testing.assert_close(*gradients[1:], rtol=0, atol=0)


@contextmanager
def other_defaults() -> Iterator[None]:
    """float64 and a device without memory."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("name", "options"),
    [("rru", {"dropout": 0.5}), ("ur_lstm", {"zoneout_cell": 0.2}), *OTHERS, ("mamba", {})],
    ids=str,
)
def test_the_default_dtype_and_device_do_not_matter(name: str, options: dict[str, Any]) -> None:
    core, sequence = problem((name, options))
    results = []
    for defaults in (nullcontext, other_defaults):
        torch.manual_seed(3)
        with defaults():
            results.append(
                run_with_gradients(core, *sequence, loss=lambda y, h: y.sin().sum() + h.sum())
            )
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_the_gradient_of_a_sign() -> None:
    """It is known to be zero, so PyTorch gives it no memory."""
    core = make_core("nru", 5, 8)
    core(torch.randn(7, 3, 5))[0].sgn().sum().backward()
    assert all(not parameter.grad.any() for parameter in core.parameters())


@of_each_kernel
@pytest.mark.parametrize(
    "unpack",
    [
        lambda x: x.clone().t().contiguous().t() if x.ndim == 2 else x.clone(),
        lambda x: x.transpose(0, -1).contiguous().transpose(0, -1) if x.ndim else x,
        lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]] if x.ndim else x,
        lambda x: negated(x) if x.dtype is torch.float32 else x,
    ],
    ids=["turned", "transposed", "in a wider one", "negated"],
)
@pytest.mark.parametrize("learned_state", [False, True])
def test_hooks_may_change_strides(
    learned_state: bool, unpack: Callable[[Tensor], Tensor], layer_: Layer
) -> None:
    core, sequence = problem(layer_, learned_state=learned_state)
    expected = run_with_gradients(core, *sequence)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        results = run_with_gradients(core, *sequence)
    for name, error in relative_errors(results, expected).items():
        assert error < 1e-6, name
    with torch.autograd.graph.save_on_cpu():
        results = run_with_gradients(core, *sequence)
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


@contextmanager
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@of_each_kernel
def test_memory_that_was_not_written_is_not_read(layer_: Layer) -> None:
    """The RMC saves some: its last block needs no row for the input."""
    core, sequence = problem(layer_, learned_state=True)
    expected = run_with_gradients(core, *sequence)
    with new_memory_is_nan():
        results = run_with_gradients(core, *sequence)
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


# ---- kernels without a core around them --------------------------------------------------------


class Direct:
    """A kernel and its tensors by name; `call` runs it and gives the outputs and the last state."""

    def __init__(self, of: Layer | bool) -> None:
        self.starts = torch.rand(6, 3) < 0.3
        if isinstance(of, bool):
            names, width = ("b", "a", "h_0", "initial"), 8
            shapes = [(6, 3, width), (6, 3, width), (3, width), (3, width)]
            tensors = [torch.rand(shape) for shape in shapes]
        else:
            core, (x, state, _) = problem(of)
            self.spec: CellSpec = core.cells[0].recurrence()
            tensors = [x, state, state.clone(), *(w.detach().clone() for w in self.spec.weights)]
            names = ("x", "state", "initial", *(f"weight {k}" for k in range(len(tensors) - 3)))
        self.of = of
        self.tensors = {
            name: tensor.requires_grad_() for name, tensor in zip(names, tensors, strict=True)
        }

    def call(self, operator: bool = False) -> tuple[Tensor, Tensor]:
        one, *others = self.tensors.values()
        if isinstance(self.of, bool):
            scanned = ScanProblem(*others, self.starts, self.of)
            return ops.scan(scanned, one) if operator else scan(scanned, one, cpu_scan)
        state, initial, *weights = others
        run = ops.run if operator else layer.run
        return run(self.spec._replace(weights=tuple(weights)), one, state, self.starts, initial)


of_each = pytest.mark.parametrize(
    "of",
    [False, True, *SOME, *SOME_FUSED],
    ids=lambda of: str(of) if isinstance(of, bool) else of[0],
)
# With one on "meta", an operator runs its fake implementation, which reads no memory.
as_operator = pytest.mark.parametrize("operator", [False, True], ids=["eager", "operator"])


@of_each
@as_operator
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (freed, "the memory of .* was freed"),
        (elsewhere, "must be torch.float32 of shape .* on cpu, got .* on meta"),
        (lambda x: x.double(), "got torch.float64 of shape"),
        (lambda x: x[..., :-1], "must be torch.float32 of shape"),
    ],
    ids=["freed", "elsewhere", "double", "smaller"],
)
def test_other_tensors_are_refused(
    change: Callable[[Tensor], Tensor], message: str, operator: bool, of: Layer | bool
) -> None:
    if operator and change is elsewhere:
        pytest.skip("the fake implementation runs")
    direct = Direct(of)
    for name, tensor in list(direct.tensors.items())[1:]:  # others have the sizes of the first
        if not tensor.numel():
            continue
        direct.tensors[name] = change(tensor.detach())
        with pytest.raises(ValueError, match=message):
            direct.call(operator)
        direct.tensors[name] = tensor
    name = next(iter(direct.tensors))
    direct.tensors[name] = freed(direct.tensors[name].detach())
    with pytest.raises(ValueError, match=r"the memory of .* was freed"):
        direct.call(operator)


@of_each
@as_operator
@pytest.mark.parametrize(
    "starts", [torch.zeros(6, 2).bool(), torch.zeros(6, 3), torch.zeros(6, 3).bool().to("meta")]
)
def test_other_starts_are_refused(starts: Tensor, operator: bool, of: Layer | bool) -> None:
    if operator and starts.is_meta:
        pytest.skip("the fake implementation runs")
    direct = Direct(of)
    direct.starts = starts
    with pytest.raises(ValueError, match=r"starts must be torch.bool of shape"):
        direct.call(operator)


@of_each
@as_operator
@pytest.mark.parametrize("change", [negated, zeros_without_memory])
def test_tensors_of_each_kind(
    change: Callable[[Tensor], Tensor], operator: bool, of: Layer | bool
) -> None:
    direct = Direct(of)
    for name, tensor in list(direct.tensors.items()):
        results = []
        for given in (change(tensor.detach()), change(tensor.detach()).clone()):
            direct.tensors[name] = given.requires_grad_()
            outputs, final = direct.call(operator)
            loss = outputs.sin().sum() + final.square().sum()
            leaves = list(direct.tensors.values())
            results.append((outputs, final, *torch.autograd.grad(loss, leaves, allow_unused=True)))
        direct.tensors[name] = tensor
        torch.testing.assert_close(*results, rtol=0, atol=0)


@of_each
@as_operator
@changed_by_hooks
def test_hooks_that_change_more_than_strides_are_refused(
    unpack: Callable[[Tensor], Tensor], operator: bool, of: Layer | bool
) -> None:
    if operator and unpack is elsewhere:
        pytest.skip("the fake implementation runs")
    direct = Direct(of)

    def loss() -> Tensor:
        outputs, final = direct.call(operator)
        return outputs.sum() + final.sum()

    assert check_refused(loss, list(direct.tensors.values()), unpack) >= 3


@pytest.mark.parametrize(
    ("cell", "sizes", "message"),
    [
        ("rma", (4, 3, 3, 5, 2, 6), r"top must be .* at most slots, got 5, 2, 6\."),
        ("rma", (4, 3, 3, 0, 2, 0), "slots, heads and top must be 0, or at least 1"),
        ("rma", (4, 0, 3, 5, 2, 3), "latent and hidden must be at least 1, got 0, 3"),
        ("minimal", (4, 7), "candidate must be below 3, got 7"),
        ("rmc", (4, 2, 0, 2, 1, 1, 4), r"must be at least 1, got 2, 0, 2, 1, 1\."),
        ("rmc", (4, 2, 3, 2, 1, 1, 4), "heads must divide the units, got 3, 4"),
        ("rmc", (4, 2, 2, 2, 1, 1, 3), "a slot has 0, 1 or all gated units, got 3, 4"),
        ("dnc", (4, 3, 2, 0, 1, 4), "must be at least 1, got 3, 2, 0, 1, 4"),
        ("nru", (4, 0, 4, 0, 1, 1), "memory and heads must be at least 1, got 0, 4"),
        ("nru", (4, 4, 4, 3, 1, 1), r"heads \* memory must be side \* side, got 4, 4, 3"),
        ("rru", (4, 0, 1, 3, 1, 1, 1), "inner and outputs must be at least 1, got 0, 3"),
        ("lmu", (4, 0), "memory must be at least 1, got 0"),
        ("lstm", (0,), "inputs and units must be at least 1, got 5, 0"),
        ("mogrifier", (4, -1, 0), "sizes must be at least 0, got 4, -1, 0"),
    ],
)
def test_sizes_that_no_cell_has_are_refused(
    cell: str, sizes: tuple[int, ...], message: str
) -> None:
    """Native code trusts them: it would read other memory."""
    spec = CellSpec(cell, sizes, (), gate=("sigmoid", "tied", 1))
    x, state = torch.zeros(2, 3, 5), torch.zeros(3, 4)
    with pytest.raises(ValueError, match=message):
        layer.run(spec, x, state, None)


def test_chunks_that_do_not_divide_the_units_are_refused() -> None:
    spec = CellSpec("lstm", (4,), (), gate=("sigmoid", "master", 3))
    with pytest.raises(ValueError, match="chunks must divide the units, got 3, 4"):
        layer.run(spec, torch.zeros(2, 3, 5), torch.zeros(3, 8), None)


def test_what_a_long_sequence_saves_may_be_in_large_pages() -> None:
    core = make_core("lstm", 3, 256, backend="native")
    steps, batch_size = 60, 50
    sequence = random_sequence(core, batch_size, steps)
    assert steps * batch_size * 4 * (4 * 256 + 2 * 256) > 16 * 2**20  # bytes of maps and states
    check_against_loop(core, *sequence)
