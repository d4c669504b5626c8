"""What the updates of all recurrent algorithms share: averages, and no half-made update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import Tensor

from rlgates.errors import Diverged


@contextmanager
def all_or_nothing(policy: RecurrentActorCriticPolicy) -> Iterator[None]:
    """Leave a policy and its optimizer as they were if an update fails or is interrupted."""
    weights = {name: value.clone() for name, value in policy.state_dict().items()}
    optimizer = _copied(policy.optimizer.state_dict())
    try:
        yield
    except BaseException:
        policy.load_state_dict(weights)
        policy.optimizer.load_state_dict(optimizer)
        raise


def _copied(value: Any) -> Any:
    """As copy.deepcopy, for what a state dict is made of, in a tenth of the time."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return list(map(_copied, value)) if isinstance(value, list) else value


def check_norm(norms: list[Tensor]) -> None:
    """Refuse gradients that are not finite, one norm of them a minibatch.

    Raises:
        Diverged: one is not.
    """
    wrong = (~torch.stack(norms).isfinite()).nonzero()
    if len(wrong):
        raise Diverged(
            f"the gradient of minibatch {int(wrong[0])} is not finite: the model is left as it "
            "was before this update. Look for very large rewards or observations, or normalize "
            "them (VecNormalize)."
        )


class Means:
    """Averages of named numbers over minibatches, without waiting for a GPU in between."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor) -> None:
        """Add a number for each name."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(value.detach())

    def result(self) -> dict[str, float]:
        """The average of each."""
        return {name: torch.stack(values).mean().item() for name, values in self._values.items()}


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - var(returns - values) / var(returns); NaN if returns do not vary."""
    variance = returns.var(unbiased=False)
    if variance == 0:
        return float("nan")
    return float(1 - (returns - values).var(unbiased=False) / variance)
