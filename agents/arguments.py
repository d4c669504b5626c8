"""Unknown arguments of agents and policies: an error that says where they belong."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from rlgates.errors import suggestion
from rlgates.gates import GATES
from rlgates.registry import CORES

P = ParamSpec("P")
Owner = TypeVar("Owner")

_OTHER_NAMES = {
    "num_layers": "The number of layers is n_lstm_layers.",
    "hidden_size": "The number of units is lstm_hidden_size.",
    "gate": "The gate is the prefix of core, as in 'ur_lstm'.",
}
"""Names of `make_core` that policies do not have."""
_FROM_ALGORITHM = {
    "observation_space": "env",
    "action_space": "env",
    "lr_schedule": "learning_rate",
    "use_sde": "use_sde",
}
"""Arguments of policies that an algorithm passes itself, from which of its own."""


def check_policy_kwargs(policy_kwargs: Any) -> None:
    """Check that `policy_kwargs` of an algorithm are options, without those that it passes itself.

    Raises:
        TypeError: they are not.
    """
    if not isinstance(policy_kwargs, Mapping | None):
        raise TypeError(f"policy_kwargs must be a dictionary or None, got {policy_kwargs!r}.")
    for name, source in _FROM_ALGORITHM.items():
        if name in (policy_kwargs or ()):
            raise TypeError(
                f"policy_kwargs must not have {name!r}: the policy gets it from the agent's "
                f"argument {source}."
            )


def explained(
    init: Callable[Concatenate[Owner, P], None],
) -> Callable[Concatenate[Owner, P], None]:
    """A constructor without `**kwargs`, whose TypeError for an unknown name says which is meant."""
    names = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def wrapper(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            if name not in names:
                passed = {} if hasattr(type(self), "policy_aliases") else _FROM_ALGORITHM
                allowed = [
                    known for known in names if known not in passed and not known.startswith("_")
                ]
                hint = _hint(type(self), name) or suggestion(name, allowed)
                raise TypeError(
                    f"unknown argument of {type(self).__name__} {name!r}.{hint} "
                    f"Allowed: {', '.join(allowed)}."
                )
        init(self, *args, **kwargs)

    return wrapper


def _hint(owner: Any, name: str) -> str:
    """Where an argument belongs that is not one of `owner`, an algorithm or a policy."""
    aliases = getattr(owner, "policy_aliases", None)  # of an algorithm
    if name in _OTHER_NAMES:
        return f" {_OTHER_NAMES[name]}" + (" It is one of policy_kwargs." if aliases else "")
    if aliases:
        place = "policy_kwargs"
        belongs = name in inspect.signature(next(iter(aliases.values()))).parameters
    else:
        place = "core_kwargs"
        belongs = any(name in row.options for table in (GATES, CORES) for row in table.values())
    return f' Give it in {place}={{"{name}": ...}}.' if belongs else ""
