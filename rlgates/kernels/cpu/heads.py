"""The heads of an actor and a critic on the CPU, and PPO's loss with its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import readable
from rlgates.kernels.scan import raise_second_derivative

_CALL, _NUMBERS = abi.integers(layout.HEADS_CALL), abi.numbers(layout.HEADS_NUMBERS)
_TENSORS = abi.integers(layout.HEADS_TENSORS)
_LAYERS = layout.HEAD_LAYERS + 1
_NO_LOSS = [0] * (8 + 4 * _LAYERS)


class Heads(NamedTuple):
    """Two networks: layers with an activation, then a linear one.

    Attributes:
        activation: of all hidden layers.
        actor, critic: weight (outputs, inputs) and bias (outputs) of each layer. The actor's
            outputs are the logits of its actions, the critic's only output is a value.
    """

    activation: Literal["tanh", "relu"]
    actor: tuple[Tensor, ...]
    critic: tuple[Tensor, ...]


class Taken(NamedTuple):
    """Actions that were taken, and what PPO's loss needs of the policy that took them.

    Attributes:
        actions: int64 (N,).
        old_log_probs, old_values, advantages, returns: (N,).
    """

    actions: Tensor
    old_log_probs: Tensor
    old_values: Tensor
    advantages: Tensor
    returns: Tensor


class LossSettings(NamedTuple):
    """Clipping ranges of ratios and of values (None: no clipping), and coefficients."""

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float


def supports(heads: Heads) -> bool:
    """Whether native code runs so many layers."""
    return all(2 <= len(parts) <= 2 * _LAYERS for parts in heads[1:])


def outputs(heads: Heads, x: Tensor, critic_x: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Log-probabilities and values, without gradients; all float32 on the CPU.

    Args:
        heads: the networks.
        x: what the actor reads, (N, I).
        critic_x: what the critic reads, (N, J); None if it reads the same.

    Returns:
        the log-probabilities of all actions, (N, actions), and the values, (N,).

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    call, x, critic_x, weights = _checked(heads, x, critic_x)
    log_probs, values = x.new_empty(len(x), heads.actor[-1].numel()), x.new_empty(len(x))
    places = log_probs.data_ptr(), values.data_ptr(), *_NO_LOSS
    settings = LossSettings(0.0, None, 0.0, 0.0)
    abi._native.heads_forward(_pack(call, settings, (x, critic_x), weights, places))
    return log_probs, values


def ppo_losses(
    heads: Heads, x: Tensor, critic_x: Tensor | None, taken: Taken, settings: LossSettings
) -> tuple[Tensor, ...]:
    """PPO's loss (Schulman et al. 2017, eq. 9) with the gradients of all tensors of the networks.

    They are computed with the loss: a backward pass hands them out, once.

    Args:
        heads, x, critic_x: as in `outputs`.
        taken: the actions, and what is known of them.
        settings: ranges and coefficients.

    Returns:
        scalars: the loss, and without gradients the policy's, the value's and the entropy's term,
        the KL divergence from the old policy and the share of ratios that were clipped.

    Raises:
        ValueError: shapes or dtypes do not fit together, or an action that does not exist.
    """
    call, taken, x, critic_x, weights = _checked_loss(heads, x, critic_x, taken)
    loss, terms = _Loss.apply(call, taken, settings, x, critic_x, *weights)  # type: ignore[no-untyped-call]
    return loss, *terms.unbind()


def ppo_gradients(
    heads: Heads,
    x: Tensor,
    critic_x: Tensor | None,
    taken: Taken,
    settings: LossSettings,
    needs: tuple[bool, bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of `ppo_losses` and its gradients, without autograd.

    Args:
        heads, x, critic_x, taken, settings: as there.
        needs: whether x and critic_x need gradients; where one does not, nothing is written.

    Returns:
        its scalars as one tensor (6,), and the gradients of x, critic_x and all weights and biases,
        the actor's before the critic's.

    Raises:
        ValueError: as there.
    """
    call, taken, x, critic_x, weights = _checked_loss(heads, x, critic_x, taken)
    return _loss(call, taken, settings, (x, critic_x, *weights), needs)


@cache
def _call(activation: str, actor: Sequence[int], critic: Sequence[int], inputs: Any) -> list[int]:
    """The fields of `HEADS_CALL` after `rows`: outputs of all layers, and inputs of both."""
    hidden = actor[:-1], critic[:-1]
    return [
        *(actor[-1], activation == "relu", *inputs, *map(len, hidden)),
        *(width for widths in hidden for width in abi.padded(widths, layout.HEAD_LAYERS)),
    ]


def _checked(
    heads: Heads, x: Tensor, critic_x: Tensor | None
) -> tuple[list[int], Tensor, Tensor | None, list[Tensor]]:
    """The sizes of a call, and its tensors as native code reads them.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together, or memory was freed.
    """
    read = x if critic_x is None else critic_x
    inputs, weights = (x.shape[1], read.shape[1]), list[Tensor]()
    sizes: list[tuple[int, ...]] = []
    for width, parts in zip(inputs, heads[1:], strict=True):
        sizes.append(tuple([bias.numel() for bias in parts[1::2]]))
        for weight, bias, size in zip(parts[::2], parts[1::2], sizes[-1], strict=True):
            weights += [
                readable("a weight", weight, (size, width)),
                readable("a bias", bias, (size,)),
            ]
            width = size
    if sizes[1][-1] != 1:
        raise ValueError(f"the critic must have one output, got {sizes[1][-1]}.")
    x = readable("x", x, x.shape)
    if critic_x is not None:
        critic_x = readable("critic_x", critic_x, (len(x), inputs[1]))
    return _call(heads.activation, *sizes, inputs), x, critic_x, weights


def _checked_loss(
    heads: Heads, x: Tensor, critic_x: Tensor | None, taken: Taken
) -> tuple[list[int], Taken, Tensor, Tensor | None, list[Tensor]]:
    """As `_checked`, with the actions that were taken.

    Raises:
        ValueError: as `_checked`, or an action that does not exist.
    """
    call, x, critic_x, weights = _checked(heads, x, critic_x)
    shape, count = x.shape[:1], heads.actor[-1].numel()
    actions = readable("actions", taken.actions, shape, torch.int64)
    if len(actions):
        low, high = map(int, actions.aminmax())
        if low < 0 or high >= count:
            raise ValueError(f"actions must be in [0, {count}), got {low} to {high}.")
    rest = (
        readable(name, value, shape)
        for name, value in zip(Taken._fields[1:], taken[1:], strict=True)
    )
    return call, Taken(actions, *rest), x, critic_x, weights


def _spread(call: Sequence[int], addresses: Sequence[int]) -> list[int]:
    """The addresses of weights and biases of both networks as `HEADS_TENSORS` has them."""
    actor = 2 * call[4] + 2
    both = addresses[:actor], addresses[actor:]
    return [a for kind in (0, 1) for part in both for a in abi.padded(part[kind::2], _LAYERS)]


def _pack(
    call: Sequence[int],
    settings: LossSettings,
    x: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    places: Sequence[int],
) -> bytes:
    """The arguments of native code; `places` are those of `HEADS_TENSORS` from `log_probs` on."""
    rows, limit = len(x[0]), settings.clip_range_vf  # type: ignore[arg-type]
    addresses = _spread(call, [weight.data_ptr() for weight in weights])
    return (
        _CALL.pack(abi.num_threads(), rows, *call)
        + _NUMBERS.pack(settings[0], -1.0 if limit is None else limit, *settings[2:])
        + _TENSORS.pack(*map(abi.address, x), *addresses, *places)
    )


def _loss(
    call: Sequence[int],
    taken: Taken,
    settings: LossSettings,
    tensors: Sequence[Any],
    needs: tuple[bool, bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss and its terms, (6,), and the gradients of x, critic_x and the weights.

    Args:
        needs: whether x and critic_x need theirs; where one does not, its place is not written.
    """
    x, critic_x, *weights = tensors
    losses = x.new_empty(6)
    gradients = [None if t is None else torch.empty_like(t) for t in tensors]
    addresses = [abi.address(d) for d in gradients]
    of_inputs = [place if need else 0 for place, need in zip(addresses, needs, strict=False)]
    places = 0, 0, *map(abi.address, taken), losses.data_ptr(), *of_inputs
    places += tuple(_spread(call, addresses[2:]))
    abi._native.heads_loss(_pack(call, settings, (x, critic_x), weights, places))
    return losses, gradients


class _Loss(torch.autograd.Function):
    """The loss and, without gradients, its terms; the gradients are computed with it."""

    @staticmethod
    def forward(
        ctx: Any, call: Sequence[int], taken: Taken, settings: LossSettings, *tensors: Any
    ) -> tuple[Tensor, Tensor]:
        needs = ctx.needs_input_grad[3:]
        losses, gradients = _loss(call, taken, settings, tensors, needs[:2])
        needed = [d if need else None for d, need in zip(gradients, needs, strict=True)]
        return keep(ctx, losses, needed)

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        return None, None, None, *hand_out(ctx, d_loss)


def keep(ctx: Any, losses: Tensor, gradients: list[Tensor | None]) -> tuple[Tensor, Tensor]:
    """The results of a function that has its gradients already, which `hand_out` will hand out."""
    ctx.gradients = gradients
    loss, terms = losses[0].clone(), losses[1:]
    ctx.mark_non_differentiable(terms)
    ctx.set_materialize_grads(False)
    return loss, terms


def hand_out(ctx: Any, d_loss: Tensor) -> list[Tensor | None]:
    """The gradients that the context of a function keeps, times that of the loss; once.

    Raises:
        RuntimeError: they were handed out before, or gradients of them are asked for.
    """
    if torch.is_grad_enabled():  # with create_graph=True
        raise_second_derivative(ctx)
    gradients, ctx.gradients = ctx.gradients, None
    if gradients is None:
        raise RuntimeError("the gradients of this loss were used before: compute the loss again.")
    if d_loss != 1:
        torch._foreach_mul_([d for d in gradients if d is not None], d_loss)
    return gradients  # type: ignore[no-any-return]
