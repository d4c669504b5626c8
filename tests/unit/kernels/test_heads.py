"""The heads of actor and critic: native code equals torch, in values, losses and gradients."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from support.native import needs_native
from torch import Tensor, nn

from rlgates import kernels
from rlgates.agents.sequences.buffers import Minibatch
from rlgates.agents.sequences.distributions import LogCategorical
from rlgates.agents.sequences.losses import ppo_loss
from rlgates.agents.sequences.policy import ActionEvaluation, States
from rlgates.kernels import Heads, LossSettings, Taken, layout

pytestmark = needs_native
SETTINGS = LossSettings(0.2, None, 0.03, 0.7)
# Inputs (of the critic, if it has its own), hidden layers of both, actions, rows.
SIZES: dict[str, Any] = {
    "usual": (64, None, (64,), (64,), 4, 700),
    "own input of the critic": (17, 5, (33, 20), (7,), 3, 300),
    "no hidden layers": (13, None, (), (), 18, 37),
    "most layers": (3, None, (5, 6, 7, 8), (2, 3, 4, 5), 2, 40),
    "few rows": (16, 16, (9,), (40,), 5, 3),
    "one action": (8, None, (8,), (8,), 1, 20),
}


def make(name: str, activation: Any = "tanh") -> tuple[Heads, Tensor, Tensor | None, Taken]:
    width, critic_width, hidden, critic_hidden, actions, rows = SIZES[name]
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    def network(*widths: int) -> tuple[Tensor, ...]:
        parts: list[Tensor] = []
        for inputs, outputs in pairwise(widths):
            parts += normal(outputs, inputs, scale=inputs**-0.5), normal(outputs, scale=0.1)
        return tuple(part.requires_grad_() for part in parts)

    x = normal(rows, width).requires_grad_()
    critic_x = None if critic_width is None else normal(rows, critic_width).requires_grad_()
    heads = Heads(
        activation,
        network(width, *hidden, actions),
        network(critic_width or width, *critic_hidden, 1),
    )
    with torch.no_grad():
        log_probs, values = by_torch(heads, x, critic_x)
        chosen = torch.randint(0, actions, (rows,), generator=generator)
        old = log_probs.gather(1, chosen[:, None]).squeeze(1) + normal(rows, scale=0.3)
    old_values = values + normal(rows, scale=0.3)
    return heads, x, critic_x, Taken(chosen, old, old_values, normal(rows), normal(rows))


def by_torch(heads: Heads, x: Tensor, critic_x: Tensor | None) -> tuple[Tensor, Tensor]:
    def run(parts: tuple[Tensor, ...], value: Tensor) -> Tensor:
        for weight, bias in zip(parts[:-2:2], parts[1:-2:2], strict=True):
            value = getattr(torch, heads.activation)(nn.functional.linear(value, weight, bias))
        return nn.functional.linear(value, *parts[-2:])

    values = run(heads.critic, x if critic_x is None else critic_x).flatten()
    return torch.log_softmax(run(heads.actor, x), dim=-1), values


def losses_by_torch(
    heads: Heads, x: Tensor, critic_x: Tensor | None, taken: Taken, settings: LossSettings
) -> tuple[Tensor, ...]:
    """In plain torch, by the distribution and the loss of the agents."""
    distribution = LogCategorical(heads.actor[-1].numel())
    distribution.log_probs, values = by_torch(heads, x, critic_x)
    none = torch.empty(0)
    actions, old_log_probs, old_values, advantages, returns = taken
    evaluation = ActionEvaluation(
        values, distribution.log_prob(actions), distribution.entropy(), {}
    )
    states = States(none, None)
    batch = Minibatch(
        none, none, None, none, old_values, old_log_probs, advantages, returns, states
    )
    return ppo_loss(evaluation, batch, advantages, settings)


def tensors(heads: Heads, x: Tensor, critic_x: Tensor | None) -> list[Tensor]:
    return [x, *([] if critic_x is None else [critic_x]), *heads.actor, *heads.critic]


def in_double(*values: Any) -> list[Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        if isinstance(value, Taken):
            return Taken(*map(convert, value))
        return tuple(map(convert, value)) if isinstance(value, tuple) else value

    return [
        Heads(v[0], convert(v[1]), convert(v[2])) if isinstance(v, Heads) else convert(v)
        for v in values
    ]


def check_close(found: Tensor, expected: Tensor) -> None:
    scale = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=3e-6 * (1 + scale))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("name", SIZES)
def test_outputs(name: str, activation: str) -> None:
    heads, x, critic_x, _ = make(name, activation)
    assert kernels.supports_heads(heads)
    assert kernels.head_outputs(heads, x, critic_x) is None, "it has no gradients"
    with torch.no_grad():
        found = kernels.head_outputs(heads, x, critic_x)
        assert found is not None
        for value, expected in zip(found, by_torch(*in_double(heads, x, critic_x)), strict=True):
            check_close(value, expected)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        LossSettings(0.1, 0.2, 0.0, 1.0),
        LossSettings(0.3, 0.0, 0.5, 0.5),
        LossSettings(0.0, 0.4, 0.2, 0.0),
    ],
)
@pytest.mark.parametrize("name", SIZES)
def test_loss_and_gradients(name: str, settings: LossSettings) -> None:
    heads, x, critic_x, taken = make(name, "relu" if name == "few rows" else "tanh")
    found = kernels.ppo_losses(heads, x, critic_x, taken, settings)
    assert found is not None
    assert [number.requires_grad for number in found] == [True] + [False] * 5
    gradients = torch.autograd.grad(2 * found[0], tensors(heads, x, critic_x))
    double = in_double(heads, x, critic_x, taken)
    expected = losses_by_torch(*double, settings)
    for number, exact in zip(found, expected, strict=True):
        check_close(number.detach(), exact.detach().double())
    exact_gradients = torch.autograd.grad(2 * expected[0], tensors(*double[:3]))
    for gradient, exact in zip(gradients, exact_gradients, strict=True):
        check_close(gradient, exact)


def test_only_needed_gradients() -> None:
    """As for a critic whose gradient stops at the core, or frozen weights."""
    heads, x, critic_x, taken = make("few rows")
    assert critic_x is not None
    critic_x.requires_grad_(False)
    heads.actor[0].requires_grad_(False)
    found = kernels.ppo_losses(heads, x, critic_x, taken, SETTINGS)
    expected = losses_by_torch(heads, x, critic_x, taken, SETTINGS)
    assert found is not None
    found[0].backward()
    needed = [t for t in tensors(heads, x, critic_x) if t.requires_grad]
    for tensor, exact in zip(needed, torch.autograd.grad(expected[0], needed), strict=True):
        assert tensor.grad is not None
        check_close(tensor.grad, exact.double())
    assert critic_x.grad is None
    assert heads.actor[0].grad is None


def test_gradients_are_handed_out_once() -> None:
    heads, x, critic_x, taken = make("usual")
    found = kernels.ppo_losses(heads, x, critic_x, taken, SETTINGS)
    assert found is not None
    found[0].backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="used before"):
        found[0].backward()


def test_a_second_derivative_raises() -> None:
    heads, x, critic_x, taken = make("usual")
    found = kernels.ppo_losses(heads, x, critic_x, taken, SETTINGS)
    assert found is not None
    with pytest.raises(RuntimeError, match="not twice differentiable"):
        found[0].backward(create_graph=True)


@pytest.mark.parametrize("case", ["impossible action", "taken all the same", "NaN", "infinite"])
def test_numbers_that_are_not_finite(case: str) -> None:
    heads, x, critic_x, taken = make("own input of the critic")
    with torch.no_grad():
        if case == "NaN":
            x[3, 2] = float("nan")
        elif case == "infinite":
            taken.old_log_probs[5] = -float("inf")
        else:
            heads.actor[-1][1] = -float("inf")
            if case == "impossible action":
                taken.actions[taken.actions == 1] = 0
    double = in_double(heads, x, critic_x, taken)
    found = kernels.ppo_losses(heads, x, critic_x, taken, SETTINGS)
    expected = losses_by_torch(*double, SETTINGS)
    assert found is not None
    for number, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(
            number.detach().double(), exact.detach().double(), rtol=1e-4, atol=1e-5, equal_nan=True
        )
    gradients = torch.autograd.grad(found[0], tensors(heads, x, critic_x))
    exact_gradients = torch.autograd.grad(expected[0], tensors(*double[:3]))
    for gradient, exact in zip(gradients, exact_gradients, strict=True):
        assert torch.equal(gradient.isfinite().all(), exact.isfinite().all())


@pytest.mark.parametrize("case", ["float64", "autocast", "layers", "torch.func", "no bias"])
def test_else_torch_computes_them(case: str) -> None:
    heads = make("usual")[0]
    if case == "float64":
        heads = in_double(heads)[0]
    if case == "layers":
        square = torch.eye(64), torch.zeros(64)
        heads = heads._replace(actor=square * layout.HEAD_LAYERS + heads.actor)
    if case == "no bias":
        heads = heads._replace(actor=heads.actor[:1])
    found = []
    if case == "torch.func":
        torch.func.vmap(lambda _: found.append(kernels.supports_heads(heads)) or _)(torch.ones(2))
    with torch.autocast("cpu", enabled=case == "autocast"):
        assert not (found or [kernels.supports_heads(heads)])[0]


def test_arguments_are_checked() -> None:
    heads, x, _, taken = make("usual")
    with pytest.raises(ValueError, match="a weight must be"):
        kernels.ppo_losses(heads, x[:, 1:], None, taken, SETTINGS)
    with pytest.raises(ValueError, match="returns must be"):
        kernels.ppo_losses(heads, x, None, taken._replace(returns=taken.returns[1:]), SETTINGS)
    too_many = taken._replace(actions=torch.arange(700) % 5)
    with pytest.raises(ValueError, match=r"actions must be in \[0, 4\), got 0 to 4"):
        kernels.ppo_losses(heads, x, None, too_many, SETTINGS)
    with pytest.raises(ValueError, match="one output, got 4"):
        kernels.ppo_losses(heads._replace(critic=heads.actor), x, None, taken, SETTINGS)
