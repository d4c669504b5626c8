"""Native code for attention to the last steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from support.equivalence import check_against_loop, random_sequence, seeded, seeded_core
from support.native import needs_native
from support.saved import changed_by_hooks, check_refused
from torch import Tensor

from rlgates.kernels.cpu import attention

pytestmark = needs_native

# Windows and heads below, at and above whole vectors of 4, 8 and 16 numbers.
CORES: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {"window": 2}),
    ("transformer", {"window": 33, "num_heads": 3}),
    ("gtrxl", {"window": 16}),
    ("gtrxl", {"window": 100, "num_heads": 9}),
]


@pytest.mark.parametrize(("name", "options"), CORES, ids=str)
def test_equals_the_loop(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 9, **options)
    for rows, steps, share in [(3, 135, 0.02), (18, 2, 0.5), (1, 65, 0.3), (2, 64, 0.0)]:
        x, _, starts = random_sequence(core, rows, steps + 5, share)
        state = core(x[:5])[1].detach()
        check_against_loop(core, x[5:], state, starts[5:], 5e-5, backend="scan")


class Case(NamedTuple):
    """Sizes of attention.

    Attributes:
        sizes: T, B, heads, head_size, window.
        share: of steps at which an episode starts.
    """

    sizes: tuple[int, int, int, int, int]
    share: float


CASES = [
    Case((135, 2, 2, 5, 3), 0.1),
    Case((64, 3, 1, 16, 32), 0.02),
    Case((1, 2, 3, 17, 6), 0.5),
    Case((150, 1, 2, 35, 70), 0.0),
    Case((7, 2, 1, 1, 2), 0.3),
    Case((20, 2, 1, 80, 33), 0.05),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def draw(case: Case) -> tuple[list[Tensor], Tensor]:
    """The inputs of `attention.run` that have gradients, and the lengths."""
    steps, batch_size, heads, head_size, window = case.sizes
    generator = seeded(5)
    width = heads * head_size
    shapes: list[tuple[int, ...]] = [(steps, batch_size, width)] * 3
    shapes += [(heads, steps, batch_size, window), (batch_size, 2 * (window - 1) * width)]
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    length = torch.randint(2 * window, (batch_size,), generator=generator).float()
    starts = torch.rand(steps, batch_size, generator=generator) < case.share
    lengths = []
    for start in starts:
        length = torch.where(start, 0, length)
        lengths.append(length.unsqueeze(-1))
        length = length + 1
    return inputs, torch.stack(lengths)


def loop(inputs: list[Tensor], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The equation of `attention.run`, step by step."""
    q, k, v, scores, before = inputs
    heads, _, batch_size, window = scores.shape
    sizes = batch_size, heads, -1
    past = before.view(batch_size, 2, window - 1, heads, q.shape[2] // heads)
    rows = [list(past[:, which].unbind(1)) for which in (0, 1)]
    lags = torch.arange(window - 1, -1, -1)
    outputs = []
    for t, length in enumerate(lengths):
        for kept, new in zip(rows, (k, v), strict=True):
            kept.append(new[t].view(sizes))
        keys, values = (torch.stack(kept[-window:], dim=1) for kept in rows)
        score = torch.einsum("bhd,bwhd->bhw", q[t].view(sizes), keys) + scores[:, t].transpose(0, 1)
        score = score.masked_fill((lags > length).unsqueeze(1), -torch.inf)
        outputs.append(torch.einsum("bhw,bwhd->bhd", score.softmax(-1), values).flatten(1))
    is_kept = (lags[1:] <= lengths[-1])[:, :, None, None]
    last = [torch.stack(kept[len(kept) - window + 1 :], dim=1) * is_kept for kept in rows]
    return torch.stack(outputs), torch.stack(last, dim=1).flatten(1)


def run(inputs: list[Tensor], lengths: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, scores, before = inputs
    return attention.run(q, k, v, scores, before, lengths)


@each_case
@pytest.mark.usefixtures("instructions")
def test_equals_the_equation(case: Case) -> None:
    """Outputs, and gradients of losses of outputs, of what is kept and of both."""
    inputs, lengths = draw(case)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    results, expected = run(inputs, lengths), loop(exact, lengths.double())
    pairs = list(zip(results, expected, strict=True))
    for shares in ((1, 0), (0, 1), (1, 1)):
        of_one, of_other = (
            torch.autograd.grad(
                sum(share * result.sin().sum() for share, result in zip(shares, both, strict=True)),
                tensors,
                allow_unused=True,
                retain_graph=True,
                materialize_grads=True,
            )
            for both, tensors in ((results, inputs), (expected, exact))
        )
        pairs += zip(of_one, of_other, strict=True)
    for one, other in pairs:
        assert (one - other).abs().max() < 2e-5 * (1 + other.abs().max())


@each_case
def test_without_gradients_it_is_the_same(case: Case) -> None:
    inputs, lengths = draw(case)
    with torch.no_grad():
        results = run(inputs, lengths)
    assert all(map(torch.equal, results, run(inputs, lengths)))


@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_threads() -> None:
    inputs, lengths = draw(Case((70, 50, 2, 16, 32), 0.05))
    values = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        outputs, last = run(inputs, lengths)
        loss = outputs.sin().sum() + last.sin().sum()
        values.append([outputs, last, *torch.autograd.grad(loss, inputs)])
    for other in values[1:]:
        assert all(map(torch.equal, other, values[0]))


def test_layout_does_not_matter() -> None:
    """Parts of wider tensors, and what was before the same for all rows of the batch."""
    inputs, lengths = draw(CASES[0])
    before = inputs[4][:1].expand_as(inputs[4])
    expected = run([*inputs[:4], before.detach().clone()], lengths)
    parts = [torch.cat([t, t], dim=-1)[..., : t.shape[-1]] for t in inputs[:4]]
    assert all(map(torch.equal, run([*parts, before], lengths), expected))


@changed_by_hooks
def test_hooks_that_change_more_than_strides_are_refused(
    unpack: Callable[[Tensor], Tensor],
) -> None:
    inputs, lengths = draw(CASES[0])

    def loss() -> Tensor:
        outputs, last = run(inputs, lengths)
        return outputs.sum() + last.sum()

    assert check_refused(loss, inputs, unpack) == 7  # lengths, the weights of softmax, the inputs


def test_hooks_may_change_strides() -> None:
    inputs, lengths = draw(CASES[0])

    def gradients() -> tuple[Tensor, ...]:
        outputs, last = run(inputs, lengths)
        return torch.autograd.grad(outputs.sin().sum() + last.sin().sum(), inputs)

    expected = gradients()
    for unpack in (
        lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
        lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    ):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            assert all(map(torch.equal, gradients(), expected))


def test_nan_of_another_episode_has_no_effect() -> None:
    inputs, lengths = draw(CASES[0]._replace(share=0.0))
    lengths[:, 0] += 100
    lengths[70:] = torch.arange(65.0).view(-1, 1, 1)
    inputs = [tensor.detach().clone() for tensor in inputs]

    def results() -> list[Tensor]:
        leaves = [tensor.requires_grad_() for tensor in inputs]
        outputs, last = run(leaves, lengths)
        loss = outputs[70:].sin().sum() + last.sin().sum()
        found = [outputs, last, *torch.autograd.grad(loss, leaves)]
        for leaf in leaves:
            leaf.requires_grad_(False)
        return [tensor.clone() for tensor in found]

    clean = results()
    for tensor in inputs[:3]:
        tensor[69, 0] = torch.nan
    inputs[4][0] = torch.nan
    outputs, last, d_q, d_k, d_v, *_ = results()
    assert outputs[[0, 69], 0].isnan().all()
    assert torch.equal(last, clean[1])
    for one, other in zip((outputs, d_q, d_k, d_v), [clean[0], *clean[2:5]], strict=True):
        assert torch.equal(one[70:], other[70:])
        assert torch.equal(one[:, 1], other[:, 1])


@pytest.mark.parametrize("place", range(5))
def test_tensors_that_do_not_fit_are_refused(place: int) -> None:
    inputs, lengths = draw(CASES[0])
    tensor = inputs[place]
    steps = tensor[:, :-1] if place == 3 else tensor[:-1]
    for wrong in (tensor.double(), steps, tensor[..., :-1]):
        with pytest.raises(ValueError, match="must be"):
            run([*inputs[:place], wrong, *inputs[place + 1 :]], lengths)


def test_lengths_and_heads_that_do_not_fit_are_refused() -> None:
    inputs, lengths = draw(CASES[0])
    for wrong in (lengths.double(), lengths[1:], lengths.squeeze(-1)):
        with pytest.raises(ValueError, match="length must be"):
            run(inputs, wrong)
    q, k, v, scores, before = inputs
    with pytest.raises(ValueError, match="q must be as wide as 3 heads"):
        run([q, k, v, torch.cat([scores, scores[:1]]), before], lengths)
