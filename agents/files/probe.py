"""Policies without memory: names, dtypes and shapes of their tensors, before any is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.utils import FloatSchedule
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rlgates.agents.files import tensors
from rlgates.agents.files.values import short

_MAX_CALLS = 100_000  # of torch while a policy is built; the largest take some thousand


class _Meter(TorchFunctionMode):
    """Ends the building of a policy that makes too many tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.calls > _MAX_CALLS:
            raise ValueError("its policy has too many parts")
        return func(*args, **(kwargs or {}))


def build_probe(
    policy: type[Any],
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    options: Mapping[str, Any],
) -> Any:
    """A policy on the meta device: names, dtypes and shapes without memory, or random numbers.

    Raises:
        ValueError: these arguments make no policy.
    """

    class Probe(policy):  # type: ignore[misc]
        device = torch.device("meta")

        def _build(self, lr_schedule: Any) -> None:
            if isinstance(self.action_dist, StateDependentNoiseDistribution):
                self.action_dist.sample_weights = lambda *_, **__: None  # type: ignore[method-assign]
            super()._build(lr_schedule)

    # Adam would ask for a device with its fused kernel.
    arguments = {**options, "optimizer_class": torch.optim.SGD, "optimizer_kwargs": None}
    try:
        with torch.device("meta"), _Meter():
            return Probe(observation, action, FloatSchedule(0.0), **arguments)
    except Exception as error:  # the arguments come from a file: anything may be wrong with them
        raise ValueError(f"its policy cannot be built: {short(error, most=300)}") from error


def unique(policy: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a policy, each under its first name.

    Raises:
        ValueError: a state of the policy is not a tensor.
    """
    first = _first_names(policy)
    return {name: x for name, x in _named(policy).items() if first[name] == name}


def read_weights(policy: nn.Module, part: bytes) -> dict[str, Tensor]:
    """The state dictionary of a policy, which may be on the meta device, from a part."""
    first = _first_names(policy)
    stored = tensors.unpack(part, tensors.spec_of(unique(policy)))
    return {name: stored[first[name]] for name in first}


def _named(policy: nn.Module) -> dict[str, Tensor]:
    named: dict[str, Tensor] = policy.state_dict(keep_vars=True)
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"the state {name!r} of the policy is not a tensor")
    return named


def _first_names(policy: nn.Module) -> dict[str, str]:
    """By name, the first name of the same tensor: extractors may be shared."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(x), name) for name, x in _named(policy).items()}
