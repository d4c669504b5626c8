"""The layers behind the cores as plain data, where native code may run them in place of torch."""

from __future__ import annotations

from typing import Any, Literal

from stable_baselines3.common.torch_layers import MlpExtractor
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rlgates.agents.sequences.distributions import LogCategorical
from rlgates.cell import is_bare
from rlgates.kernels import Heads

_ACTIVATIONS: dict[type[nn.Module], Literal["tanh", "relu"]] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def heads_of(policy: Any) -> Heads | None:
    """The heads of a policy; None unless they are SB3's own layers, with nothing attached.

    That is: discrete actions, an `MlpExtractor` of linear layers with tanh or ReLU, and linear
    heads; no hook, no other `forward` and no parametrization.
    """
    extractor = policy.mlp_extractor
    if type(policy.action_dist) is not LogCategorical or type(extractor) is not MlpExtractor:
        return None
    modules = extractor, extractor.policy_net, extractor.value_net
    if _has_any_global_hook() or not all(map(is_bare, modules)):
        return None
    actor = _layers(extractor.policy_net, policy.action_net)
    critic = _layers(extractor.value_net, policy.value_net)
    if actor is None or critic is None:
        return None
    kinds = actor[0] | critic[0]
    if len(kinds) > 1:
        return None
    activation = _ACTIVATIONS[kinds.pop()] if kinds else "tanh"
    return Heads(activation, actor[1], critic[1])


def _layers(
    hidden: nn.Module, last: nn.Module
) -> tuple[set[type[nn.Module]], tuple[Tensor, ...]] | None:
    """The activations, and weights and biases in turn; None if these are other layers."""
    if type(hidden) is not nn.Sequential:
        return None
    modules: list[Any] = [*hidden._modules.values(), last]
    linears, activations = modules[::2], modules[1::2]
    kinds = set(map(type, activations))
    if not kinds <= _ACTIVATIONS.keys() or not all(map(is_bare, modules)):
        return None
    parts: list[Tensor] = []
    for linear in linears:
        if type(linear) is not nn.Linear or linear.bias is None:
            return None
        parts += linear.weight, linear.bias
    return kinds, tuple(parts)
