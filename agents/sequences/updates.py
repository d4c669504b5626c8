"""Updates with rollouts of sequences: the base class of the recurrent algorithms."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import Tensor

from rlgates.agents.compilation import as_tensors
from rlgates.agents.ranks import ALONE, Ranks
from rlgates.agents.recording import aside, copied
from rlgates.agents.sequences.buffers import Minibatch
from rlgates.agents.sequences.policy import ActionEvaluation
from rlgates.agents.sequences.rollouts import SequenceRollouts
from rlgates.errors import TrainingDiverged


class SequenceAlgorithm(SequenceRollouts):
    """An algorithm that trains a policy on the rollouts it collects; subclasses define the loss."""

    def _evaluate(self, batch: Minibatch) -> ActionEvaluation:
        evaluation: ActionEvaluation = self._graph(self.policy.evaluate, batch)(
            batch.observations,
            batch.actions,
            batch.states,
            batch.episode_starts,
            batch.action_masks,
        )
        return evaluation

    def _normalized(self, batch: Minibatch) -> Tensor:
        """The advantages of a minibatch with mean 0 and variance 1, those of all ranks together."""
        advantages = batch.advantages
        if self.ranks.is_alone:
            if advantages.numel() > 1:
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            return advantages
        mean, variance, count = self.ranks.moments(advantages.flatten(), counts=batch.weight > 0)
        std = (variance * count / (count - 1)).sqrt()
        normalized = ((advantages - mean) / (std + 1e-8)).to(advantages.dtype)
        return torch.where(count > 1, normalized, advantages)

    def _begin_update(self) -> None:
        """Prepare the policy and its optimizer for an update with the current rollout.

        Raises:
            ValueError: the rollout is not complete.
            TypeError: something that would never run was attached to the policy.
        """
        self._check_policy()
        buffer = self.rollout_buffer
        if not buffer.full:
            raise ValueError(
                f"train needs a whole rollout, got {buffer.pos} of {buffer.buffer_size} steps: "
                "collect a rollout first, as learn does."
            )
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)

    def _parameters(self) -> list[Tensor]:
        """What the optimizer trains."""
        return [p for group in self.policy.optimizer.param_groups for p in group["params"]]

    @abstractmethod
    def _loss(self, batch: Minibatch, settings: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of a minibatch, and its metrics."""

    def _compute_gradients(self, batch: Minibatch, settings: Any) -> dict[str, Tensor]:
        """Set the gradients to those of a minibatch, and return its metrics, those of all ranks.

        Args:
            batch: averages over the part of it that this rank has are its objective and metrics.
            settings: of `_loss`.
        """
        parameters = self._parameters()
        # Free those of the last minibatch: the next ones get their memory.
        for parameter in parameters:
            parameter.grad = None
        compiles = self._compiles(batch)
        if compiles:
            settings = as_tensors(settings, self.device)
        if self._records():
            # What a graph cannot see: a callback may freeze weights, or give others to train.
            options = tuple((id(p), p.requires_grad) for p in parameters), self.normalize_advantage
            compute = self._replayed("gradients", self._gradients) if compiles else self._gradients
            with aside(self.device):
                metrics, gradients = compute(batch, settings, options)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            return copied(metrics)  # type: ignore[no-any-return]
        objective, metrics = self._loss(batch, settings)
        (objective if self.ranks.is_alone else objective * batch.weight).backward()
        return self.ranks.reduce(parameters, metrics, batch.weight)

    def _gradients(
        self, batch: Minibatch, settings: Any, _: Any
    ) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        """The metrics of a minibatch and the gradients of all parameters; None of frozen ones."""
        objective, metrics = self._loss(batch, settings)
        trained = [p for p in self._parameters() if p.requires_grad]
        gradients: Any = torch.autograd.grad(objective, trained, allow_unused=True)
        found = {
            # With the strides of the parameter, as backward() would, and a fused optimizer needs.
            id(p): torch.empty_like(p).copy_(g)
            for p, g in zip(trained, gradients, strict=True)
            if g is not None
        }
        metrics = {name: value.detach() for name, value in metrics.items()}
        return metrics, [found.get(id(p)) for p in self._parameters()]

    def _step_optimizer(self) -> Tensor:
        """Take a gradient step; returns the norm of the gradient before it was clipped."""
        optimizer = self.policy.optimizer
        norm = self._clip_and_step(optimizer, self.max_grad_norm)
        if norm is None:
            norm = torch.nn.utils.clip_grad_norm_(
                self._parameters(), self.max_grad_norm, foreach=True
            )
            optimizer.step()
        return norm

    def _record(self, metrics: dict[str, Any]) -> None:
        """Record the metrics of an update in the logger, under `train/`."""
        for name, value in metrics.items():
            self.logger.record(f"train/{name}", float(value))
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", self.policy.log_std.exp().mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")


@contextmanager
def all_or_nothing(policy: RecurrentActorCriticPolicy) -> Iterator[None]:
    """Restore a policy and its optimizer if an update fails or is interrupted."""
    weights = _clone(dict(policy.state_dict()))
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
    if type(value) is dict:
        return {name: _clone(part) for name, part in value.items()}
    if type(value) is list:
        return list(map(_clone, value))
    return copy.deepcopy(value)  # of `get_extra_state`, which may return anything


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
