"""What the updates of all recurrent algorithms share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import Tensor

from rlgates.agents.ranks import ALONE, Ranks
from rlgates.errors import TrainingDiverged


@contextmanager
def all_or_nothing(policy: RecurrentActorCriticPolicy) -> Iterator[None]:
    """Restore a policy and its optimizer if an update fails or is interrupted."""
    weights = {name: value.clone() for name, value in policy.state_dict().items()}
    optimizer = _clone(policy.optimizer.state_dict())
    try:
        yield
    except BaseException:
        policy.load_state_dict(weights)
        policy.optimizer.load_state_dict(optimizer)
        raise


def _clone(value: Any) -> Any:
    """A deep copy of a state dict, ten times as fast as copy.deepcopy."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _clone(part) for name, part in value.items()}
    return list(map(_clone, value)) if isinstance(value, list) else value


def check_gradient_norms(norms: list[Tensor]) -> None:
    """Check that the gradient norms of the minibatches, of which there may be none, are finite.

    Raises:
        TrainingDiverged: one is not.
    """
    if not norms:
        return
    non_finite = (~torch.stack(norms).isfinite()).nonzero()
    if len(non_finite):
        raise TrainingDiverged(
            f"the gradient of minibatch {int(non_finite[0])} is not finite: the model is left as "
            "it was before this update. Look for very large rewards or observations, or normalize "
            "them (VecNormalize)."
        )


class MeanMetrics:
    """Averages of named scalars over minibatches, without synchronizing with a GPU."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor) -> None:
        """Add one value for each name."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(value.detach())

    def result(self) -> dict[str, float]:
        """The average of each name."""
        means = [torch.stack(values).mean() for values in self._values.values()]
        # One look at all of them: each would wait for the GPU.
        return dict(zip(self._values, torch.stack(means).tolist() if means else [], strict=True))


def explained_variance(values: Tensor, returns: Tensor, ranks: Ranks = ALONE) -> float:
    """1 - var(returns - values) / var(returns) of all ranks; NaN if the returns are constant."""
    if not ranks.is_alone:
        pairs = torch.stack([returns, returns - values], dim=-1).flatten(0, -2)
        all_returns, errors = ranks.moments(pairs)[1].tolist()
        return 1 - errors / all_returns if all_returns else float("nan")
    variance = returns.var(unbiased=False)
    if variance == 0:
        return float("nan")
    return float(1 - (returns - values).var(unbiased=False) / variance)
