"""Native code for memories of keys and values."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    random_sequence,
    run_in_pieces,
    run_with_gradients,
    seeded,
    seeded_core,
)
from support.native import needs_native
from torch import Tensor

from rlgates.kernels import MemorySteps, ops
from rlgates.kernels.cpu import memories
from rlgates.kernels.layout import CHUNK

pytestmark = needs_native

# Keys below, at and above whole vectors of 4, 8 and 16 numbers; values with and without a rest.
CORES: list[tuple[str, dict[str, Any]]] = [
    ("fwp", {"num_heads": 3, "key_size": 2}),
    ("fwp", {"key_size": 9, "projections": 2}),
    ("deltanet", {"num_heads": 3, "key_size": 16}),
    ("deltanet", {"key_size": 35}),
    ("rwkv7", {}),
    ("rwkv7", {"num_heads": 3}),
    ("mlstm", {"num_heads": 3, "key_size": 5}),
    ("mlstm", {"key_size": 17}),
    ("linear_transformer", {"num_heads": 3}),
    ("linear_transformer", {"key_size": 33}),
]
every_core = pytest.mark.parametrize(("name", "options"), CORES, ids=str)
LONG = 2 * CHUNK + 5


@every_core
@pytest.mark.parametrize("learned_state", [False, True])
def test_equals_the_loop(name: str, options: dict[str, Any], learned_state: bool) -> None:
    if learned_state and name == "rwkv7":
        pytest.skip("it has no such state")
    core = seeded_core(name, 9, learned_state=learned_state, **options)
    for rows, steps, share in [(3, LONG, 0.05), (18, 2, 0.5), (1, CHUNK + 1, 0.3), (2, CHUNK, 0.0)]:
        sequence = random_sequence(core, rows, steps, share)
        check_against_loop(core, *sequence, 5e-5)
        check_against_loop(core, *sequence, 5e-5, backend="scan")


@every_core
@pytest.mark.usefixtures("instructions")
def test_equals_the_loop_with_every_instruction_set(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 9, **options)
    check_against_loop(core, *random_sequence(core, 3, LONG, 0.1), 5e-5)


@every_core
def test_pieces_give_the_same(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 9, **options)
    sequence = random_sequence(core, 3, LONG, 0.1)
    pieces = run_in_pieces(core, *sequence, [1, 3, CHUNK + 2])
    for one, other in zip(core(*sequence), pieces, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@every_core
def test_nan_before_an_episode_start_has_no_effect(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 9, **options)
    x, state, starts = random_sequence(core, 3, LONG, 0.0)
    starts[CHUNK + 2] = True
    clean = run_with_gradients(core, x, state, starts)
    state[1] = x[CHUNK, 1] = torch.nan
    result = run_with_gradients(core, x, state, starts)
    assert core.backend_used == "native"
    assert result["outputs"][CHUNK : CHUNK + 2, 1].isnan().all()
    for key in ("outputs", "x"):
        torch.testing.assert_close(result[key][CHUNK + 2 :], clean[key][CHUNK + 2 :])
        torch.testing.assert_close(result[key][:, [0, 2]], clean[key][:, [0, 2]])
    torch.testing.assert_close(result["final"], clean["final"])


class Case(NamedTuple):
    """Sizes of memories, and which of their parts there are.

    Attributes:
        sizes: T, B, heads, key_size, value_size.
        decay: dimensions of the decays; 0 for none.
        removes: whether something is removed.
        starts: the share of steps at which an episode starts; None without episode starts.
        initial: whether episodes start with a memory that is not zero.
    """

    sizes: tuple[int, int, int, int, int]
    decay: int
    removes: bool
    starts: float | None
    initial: bool = True


CASES = [
    Case((LONG, 2, 2, 5, 3), 4, True, 0.1),
    Case((CHUNK, 3, 1, 16, 4), 3, True, None),
    Case((1, 2, 3, 17, 6), 0, True, 0.5),
    Case((LONG, 1, 2, 32, 5), 3, False, 0.1, initial=False),
    Case((7, 2, 1, 1, 1), 0, False, 0.3),
    Case((40, 2, 1, 40, 9), 4, False, 0.05),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def draw(case: Case) -> tuple[list[Tensor | None], Tensor | None]:
    """The inputs of `memories.run`, in its order, and the episode starts."""
    steps, batch_size, heads, keys, values = case.sizes
    generator = seeded(5)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, requires_grad=True)

    rows = steps, batch_size, heads
    decay = torch.rand(*rows, *[keys] * (case.decay - 3), generator=generator).requires_grad_()
    removal, rate = (0.3 * random(*rows, keys).detach() for _ in range(2))
    memory, initial = (random(batch_size, heads, values, keys) for _ in range(2))
    inputs = [
        *(random(*rows, keys), random(*rows, keys), random(*rows, values)),
        decay if case.decay else None,
        *(t.requires_grad_() if case.removes else None for t in (removal, rate)),
        *(memory, initial if case.initial else None),
    ]
    starts = (
        None if case.starts is None else torch.rand(rows[:2], generator=generator) < case.starts
    )
    return inputs, starts


def run(inputs: list[Any], starts: Tensor | None) -> tuple[Tensor, Tensor]:
    return memories.run(MemorySteps(*inputs[:6]), *inputs[6:], starts)


def loop(inputs: list[Any], starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """The equation of `MemorySteps`, step by step."""
    q, k, v, decay, removal, rate, memory, initial = inputs
    results = []
    for t in range(len(q)):
        if starts is not None:
            first = torch.zeros_like(memory) if initial is None else initial
            memory = torch.where(starts[t, :, None, None, None], first, memory)
        old = memory
        if decay is not None:
            memory = memory * (decay[t, ..., None] if decay.ndim == 3 else decay[t])[:, :, None]
        if removal is not None:
            removed = torch.einsum("bhvk,bhk->bhv", old, removal[t])
            memory = memory - torch.einsum("bhv,bhk->bhvk", removed, rate[t])
        memory = memory + torch.einsum("bhv,bhk->bhvk", v[t], k[t])
        results.append(torch.einsum("bhvk,bhk->bhv", memory, q[t]))
    return torch.stack(results), memory


def gradients(loss: Tensor, inputs: list[Tensor | None]) -> list[Tensor]:
    """Zeros for what the loss does not depend on, such as an initial memory that is not read."""
    leaves = [tensor for tensor in inputs if tensor is not None]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(t) if d is None else d for d, t in zip(found, leaves, strict=True)]


@each_case
def test_equals_the_equation(case: Case) -> None:
    """Outputs, and gradients of losses of y, of the last memory and of both."""
    inputs, starts = draw(case)
    exact = [None if t is None else t.detach().double().requires_grad_() for t in inputs]
    (y, last), (exact_y, exact_last) = run(inputs, starts), loop(exact, starts)
    losses = [(y.sin().sum(), exact_y.sin().sum()), (last.sin().sum(), exact_last.sin().sum())]
    losses.append((losses[0][0] + losses[1][0], losses[0][1] + losses[1][1]))
    pairs = [(y, exact_y), (last, exact_last)]
    for loss, exact_loss in losses:
        pairs += zip(gradients(loss, inputs), gradients(exact_loss, exact), strict=True)
    for one, other in pairs:
        assert (one - other).abs().max() < 2e-5 * (1 + other.abs().max())


@pytest.mark.parametrize("case", [case for case in CASES if case.sizes[0] >= CHUNK], ids=str)
@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_threads(case: Case) -> None:
    steps, _, *others = case.sizes
    inputs, starts = draw(case._replace(sizes=(steps, 300, *others)))
    values = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        y, last = run(inputs, starts)
        values.append([y, last, *gradients(y.sin().sum() + last.sin().sum(), inputs)])
    for other in values[1:]:
        assert all(map(torch.equal, other, values[0]))


def test_layout_does_not_matter() -> None:
    """Parts of wider tensors, and memories that are the same for all rows of the batch."""
    inputs, starts = draw(CASES[0])
    memory, initial = (tensor[:1].expand_as(tensor) for tensor in inputs[6:] if tensor is not None)
    inputs[6:] = memory.detach().clone(), initial.detach().clone()
    inputs = [None if t is None else t.detach().requires_grad_() for t in inputs]
    expected = run(inputs, starts)
    parts: list[Tensor | None] = [
        None if t is None else torch.cat([t, t], dim=-1)[..., : t.shape[-1]] for t in inputs[:6]
    ]
    parts += [memory, initial]
    results = run(parts, starts)
    assert all(map(torch.equal, results, expected))
    losses = [y.square().sum() + last.sum() for y, last in (results, expected)]
    assert all(map(torch.equal, *(gradients(loss, inputs)[:6] for loss in losses)))


def test_the_default_dtype_is_not_that_of_gradients() -> None:
    inputs, starts = draw(CASES[0])
    y, last = run(inputs, starts)
    loss = y.square().sum() + last.square().sum()
    expected = gradients(loss, inputs)
    torch.set_default_dtype(torch.float64)
    try:
        results = gradients(loss, inputs)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, results, expected))


def test_a_second_derivative_raises() -> None:
    inputs, starts = draw(CASES[0])
    y, _ = run(inputs, starts)
    (d_q,) = torch.autograd.grad(y.square().sum(), inputs[0], create_graph=True)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not twice differentiable"):
        d_q.sum().backward()


@pytest.mark.parametrize("place", range(8))
def test_tensors_that_do_not_fit_are_refused(place: int) -> None:
    inputs, starts = draw(CASES[0])
    tensor = inputs[place]
    assert tensor is not None
    for wrong in (tensor.double(), tensor[:-1], tensor.flatten(2), tensor[..., None]):
        with pytest.raises(ValueError, match=r"must be (torch\.\w+ of shape )?\("):
            run([*inputs[:place], wrong, *inputs[place + 1 :]], starts)


def test_parts_that_do_not_fit_are_refused() -> None:
    inputs, starts = draw(CASES[0])
    assert starts is not None
    with pytest.raises(ValueError, match="removal and rate must be given together"):
        run([*inputs[:5], None, *inputs[6:]], starts)
    turned = inputs[6].mT  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="the memory must be"):
        run([*inputs[:6], turned, inputs[7]], starts)
    for wrong in (starts.float(), starts[1:]):
        with pytest.raises(ValueError, match="episode_starts must be"):
            run(inputs, wrong)


@each_case
def test_operator(case: Case) -> None:
    inputs, starts = draw(case)
    torch.library.opcheck(ops._memories, (*inputs, starts, True), raise_exception=True)


@pytest.mark.parametrize("name", ["deltanet", "mlstm", "rwkv7"])
def test_torch_compile_keeps_native_code(name: str) -> None:
    core = seeded_core(name, 4)
    sequence = random_sequence(core, 2, 5, 0.2)
    expected = run_with_gradients(core, *sequence)
    compiled = torch.compile(core, backend="eager", fullgraph=True)
    results = run_with_gradients(compiled, *sequence)
    assert core.backend_used == "native"
    for key, value in expected.items():
        found = results.get(key, results.get(f"_orig_mod.{key}"))
        torch.testing.assert_close(found, value)
