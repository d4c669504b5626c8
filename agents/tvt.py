"""Temporal value transport: rewards for the past steps that a strong memory read refers to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import Tensor

from rlgates.cores import RMA
from rlgates.deprecation import warn_renamed
from rlgates.errors import check_nonnegative, check_size

_UNDISCOUNTED_WINDOW = 25


class MemoryReads(NamedTuple):
    """What the heads of a memory read in T steps of B environments.

    Attributes:
        strengths: (T, B, num_heads).
        weights: (T, B, num_heads, top_k), in decreasing order.
        ages: steps since the rows of these weights were written, at least 1, or 0 for empty
            rows; (T, B, num_heads, top_k).
    """

    strengths: Tensor
    weights: Tensor
    ages: Tensor


@dataclass(frozen=True)
class TVT:
    """Temporal value transport (Hung et al. 2019, algorithm 1) for agents with an RMA core.

        RecurrentA2C("RMAPolicy", env, n_steps=120, tvt=TVT())

    A strong read of a distant step is taken as evidence that this step mattered for the current
    one. So, after a rollout and before its returns are computed, the value of the reading step is
    added to the rewards of the steps it reads. For each head separately:

    1. The strength of a read is set to 0 if its largest weight is on an empty row, or on a row
       that was written at most `window` steps before.
    2. In each run of consecutive steps with strengths above `threshold`, the step t with the
       largest strength is kept (the first of equal ones).
    3. Each row that t reads with a weight w, and that was written more than `window` steps before
       t, adds alpha * w * V(t) to the reward of the step that wrote it.

    Neither the agent nor its reconstruction observes these rewards. They are logged as
    `rollout/tvt_reward`, the sum over an episode. Rollouts must consist of whole episodes.

    Args:
        alpha: share of the value that is transported, at least 0.
        threshold: of the read strengths, at least 0.
        window: in steps. None for the effective horizon of the discount, the integer part of
            1 / (1 - gamma) in floating point: 12 for gamma = 0.92, 24 for 0.96; 25 for gamma = 1.

    The defaults are those of the authors' code (google-deepmind/deepmind-research, tvt).

    Raises:
        ValueError: a number out of range.
        TypeError: a value of another type.
    """

    alpha: float = 0.9
    threshold: float = 2.0
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "threshold"):
            check_nonnegative(name, getattr(self, name))
        if self.window is not None:
            check_size("window", self.window, minimum=0)

    def window_for(self, gamma: float) -> int:
        """The window in steps, for this discount."""
        if self.window is not None:
            return self.window
        return int(1 / (1 - gamma)) if gamma < 1 else _UNDISCOUNTED_WINDOW

    def horizon(self, gamma: float) -> int:
        """Deprecated name of `window_for`."""
        warn_renamed("TVT.horizon", "TVT.window_for")
        return self.window_for(gamma)

    def rewards(
        self, reads: MemoryReads, episode_starts: Tensor, values: Tensor, gamma: float
    ) -> Tensor:
        """The rewards to add to T steps of B environments.

        Args:
            reads: in these steps.
            episode_starts: (T, B) bool, true where an episode starts.
            values: (T, B), as the agent predicted them.
            gamma: discount.

        Returns:
            (T, B), without gradients.
        """
        distant = reads.ages > self.window_for(gamma)
        strengths = reads.strengths.detach() * distant[..., 0]
        reading = _peaks(strengths, episode_starts, self.threshold)
        rewards = self.alpha * reads.weights.detach() * values.detach()[..., None, None]
        rewards = rewards * (distant & reading.unsqueeze(-1))
        times = torch.arange(len(values), device=values.device).view(-1, 1, 1, 1)
        # (T, B, H, K) -> (T * H * K, B): the steps that are read, and their rewards
        steps, rewards = (
            x.permute(0, 2, 3, 1).flatten(0, 2) for x in (times - reads.ages, rewards)
        )
        return torch.zeros_like(values).scatter_add_(0, steps, rewards.to(values.dtype))


def _peaks(strengths: Tensor, episode_starts: Tensor, threshold: float) -> Tensor:
    """Where each run above the threshold has its largest strength, (T, B, H) bool."""
    above = strengths > threshold
    continues = torch.cat([torch.zeros_like(above[:1]), above[:-1]]) & ~episode_starts.unsqueeze(-1)
    runs = (above & ~continues).cumsum(0)  # steps below the threshold belong to the run before
    height = strengths * above
    size = (len(strengths) + 1, *strengths.shape[1:])
    highest = height.new_zeros(size).scatter_reduce(0, runs, height, "amax").gather(0, runs)
    times = torch.arange(len(strengths), device=strengths.device).view(-1, 1, 1).expand_as(runs)
    at_top = times.where(above & (height == highest), len(strengths))
    first = torch.full_like(runs[:1], len(strengths)).expand(size)
    return times == first.scatter_reduce(0, runs, at_top, "amin").gather(0, runs)


@torch.no_grad()
def recompute_reads(cell: RMA, outputs: Tensor, episode_starts: Tensor) -> MemoryReads:
    """The memory reads of a rollout of whole episodes, recomputed from the outputs of its core.

    Args:
        cell: with a memory.
        outputs: of all steps, (T, B, output_size).
        episode_starts: (T, B) bool, true where an episode starts; all true at step 0.
    """
    parts = cell.split(outputs)
    times = torch.arange(len(episode_starts), device=episode_starts.device).unsqueeze(-1)
    steps = times - (times * episode_starts).cummax(0).values  # within the episode, from 0
    memory = outputs.new_zeros(outputs.shape[1], cell.num_slots, cell.latent_size)
    slots = (steps % cell.num_slots).view(*steps.shape, 1, 1).expand(-1, -1, 1, cell.latent_size)
    weights, ages = [], []
    for t, controller in enumerate(parts.controller):
        memory.masked_fill_(episode_starts[t].view(-1, 1, 1), 0)
        read = cell.read(controller, memory)
        memory.scatter_(1, slots[t], parts.latent[t].unsqueeze(1))
        step = steps[t].view(-1, 1, 1)
        age = (step - 1 - read.rows) % cell.num_slots + 1
        weights.append(read.weights)
        ages.append(age * (age <= step))
    return MemoryReads(cell.read_strengths(outputs), torch.stack(weights), torch.stack(ages))


def check_tvt(tvt: TVT | None) -> TVT | None:
    """`tvt` itself.

    Raises:
        TypeError: neither a TVT nor None.
    """
    if not (tvt is None or isinstance(tvt, TVT)):
        raise TypeError(f"tvt must be an rlgates.agents.TVT or None, got {tvt!r}.")
    return tvt


def rma_cell(policy: RecurrentActorCriticPolicy) -> RMA:
    """The RMA cell of the actor, which must have a memory and no layer above it.

    Raises:
        ValueError: the policy has none, or several.
    """
    core: Any = getattr(policy.lstm_actor, "core", None)
    cell = core.cells[0] if core is not None else None
    if isinstance(cell, RMA) and len(core.cells) != 1:  # a rollout keeps the last one's outputs
        raise ValueError(
            "temporal value transport needs a core of one layer, whose memory it reads, got "
            f"n_lstm_layers={len(core.cells)}."
        )
    if not (isinstance(cell, RMA) and cell.memory):
        raise ValueError(
            "temporal value transport needs the core 'rma' or a gate of it, with memory, got "
            f"{getattr(core, 'name', 'none of rlgates')!r}."
        )
    return cell


def check_whole_episodes(episode_starts: Tensor, last_episode_starts: Tensor) -> None:
    """Check that a rollout neither starts nor ends within an episode.

    Args:
        episode_starts: (T, B) bool, true where an episode starts.
        last_episode_starts: (B,) bool, true where the last step ended an episode.

    Raises:
        ValueError: it does; the message says what n_steps must be.
    """
    if (episode_starts[0] & last_episode_starts).all():
        return
    steps = len(episode_starts)
    starts = torch.cat([episode_starts, last_episode_starts.unsqueeze(0)]).cpu()
    lengths = {int(n) for env in starts.T for n in env.nonzero().flatten().diff()}
    requirement = "temporal value transport needs rollouts that begin and end with an episode"
    if not lengths:
        raise ValueError(
            f"{requirement}: none is within n_steps = {steps}, set it to the length of an episode."
        )
    if len(lengths) > 1:
        raise ValueError(
            f"{requirement}, and so episodes of one length: they last {min(lengths)} to "
            f"{max(lengths)} steps."
        )
    (length,) = lengths
    raise ValueError(f"{requirement}: n_steps must be {length} or a multiple of it, got {steps}.")
