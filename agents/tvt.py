"""Temporal value transport: paying the past for what the present is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import Tensor

from rlgates.cores import RMA
from rlgates.errors import check_number, check_size

_WINDOW_WITHOUT_DISCOUNT = 25


class Reads(NamedTuple):
    """What the heads of a memory read in T steps of B environments.

    Attributes:
        strengths: (T, B, num_heads).
        weights: (T, B, num_heads, top_k), the largest first.
        ages: of the rows that the weights belong to, in steps before the read, at least 1; 0 of
            rows that were empty. Of the same shape.
    """

    strengths: Tensor
    weights: Tensor
    ages: Tensor


@dataclass(frozen=True)
class TVT:
    """Temporal value transport (Hung et al. 2019, algorithm 1) for agents with an RMA core.

        RecurrentA2C("RMAPolicy", env, n_steps=120, tvt=TVT())

    A strong read of a long-gone step is taken as a sign that this step mattered for the present
    one. So the rewards of the remembered steps are raised by the value of the reading step,
    after a rollout and before its returns are computed. For each head by itself:

    1. A read whose largest weight is on a row of at most `window` steps before, or on an empty
       one, does not count: its strength is 0.
    2. Of each run of consecutive steps with strengths above `threshold`, the step t of the
       largest is kept (the first of several).
    3. Each row that t reads with a weight w, of a step more than `window` before t, adds
       alpha * w * V(t) to the reward of that step.

    Neither the agent nor its reconstruction sees these rewards. They appear in the log as
    `rollout/tvt_reward`, the sum over an episode. Rollouts must consist of whole episodes.

    Args:
        alpha: share of the value that is transported, at least 0.
        threshold: of the read strengths, at least 0.
        window: None for the horizon of the discount, the whole part of 1 / (1 - gamma), as it is
            in floating point: 12 with gamma = 0.92, 24 with 0.96; 25 with gamma = 1.

    The defaults are those of the authors' code (google-deepmind/deepmind-research, tvt).

    Raises:
        ValueError, TypeError: a number out of range or of another type.
    """

    alpha: float = 0.9
    threshold: float = 2.0
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "threshold"):
            if check_number(name, getattr(self, name)) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}.")
        if self.window is not None:
            check_size("window", self.window, minimum=0)

    def horizon(self, gamma: float) -> int:
        """The window with a discount."""
        if self.window is not None:
            return self.window
        return int(1 / (1 - gamma)) if gamma < 1 else _WINDOW_WITHOUT_DISCOUNT

    def rewards(self, reads: Reads, starts: Tensor, values: Tensor, gamma: float) -> Tensor:
        """What is added to the rewards of T steps of B environments.

        Args:
            reads: of these steps.
            starts: (T, B) bool, true where an episode starts.
            values: (T, B), those that the agent predicted.
            gamma: discount.

        Returns:
            (T, B), without gradients.
        """
        far = reads.ages > self.horizon(gamma)
        strengths = reads.strengths.detach() * far[..., 0]
        reading = _peaks(strengths, starts, self.threshold)
        paid = self.alpha * reads.weights.detach() * values.detach()[..., None, None]
        paid = paid * (far & reading.unsqueeze(-1))
        times = torch.arange(len(values), device=values.device).view(-1, 1, 1, 1)
        # (T, B, H, K) -> (T * H * K, B): what goes to which step of each environment
        flat = [x.permute(0, 2, 3, 1).flatten(0, 2) for x in (times - reads.ages, paid)]
        return torch.zeros_like(values).scatter_add_(0, flat[0], flat[1].to(values.dtype))


def _peaks(strengths: Tensor, starts: Tensor, threshold: float) -> Tensor:
    """Where the largest strength of each run above the threshold is, bool (T, B, H)."""
    above = strengths > threshold
    on = torch.cat([torch.zeros_like(above[:1]), above[:-1]]) & ~starts.unsqueeze(-1)
    runs = (above & ~on).cumsum(0)  # steps below the threshold count to the run before them
    height = strengths * above
    size = (len(strengths) + 1, *strengths.shape[1:])
    highest = height.new_zeros(size).scatter_reduce(0, runs, height, "amax").gather(0, runs)
    times = torch.arange(len(strengths), device=strengths.device).view(-1, 1, 1).expand_as(runs)
    at_top = times.where(above & (height == highest), len(strengths))
    first = torch.full_like(runs[:1], len(strengths)).expand(size)
    return times == first.scatter_reduce(0, runs, at_top, "amin").gather(0, runs)


@torch.no_grad()
def read_again(cell: RMA, outputs: Tensor, starts: Tensor) -> Reads:
    """What a core has read in a rollout of whole episodes, from its outputs.

    Args:
        cell: with a memory.
        outputs: of all steps, (T, B, output_size).
        starts: (T, B) bool, true where an episode starts; all are true at step 0.
    """
    parts = cell.split(outputs)
    times = torch.arange(len(starts), device=starts.device).unsqueeze(-1)
    steps = times - (times * starts).cummax(0).values  # in the episode, from 0
    memory = outputs.new_zeros(outputs.shape[1], cell.num_slots, cell.latent_size)
    slots = (steps % cell.num_slots).view(*steps.shape, 1, 1).expand(-1, -1, 1, cell.latent_size)
    weights, ages = [], []
    for t, controller in enumerate(parts.controller):
        memory.masked_fill_(starts[t].view(-1, 1, 1), 0)
        recalled = cell.read(controller, memory)
        memory.scatter_(1, slots[t], parts.latent[t].unsqueeze(1))
        step = steps[t].view(-1, 1, 1)
        age = (step - 1 - recalled.rows) % cell.num_slots + 1
        weights.append(recalled.weights)
        ages.append(age * (age <= step))
    return Reads(cell.read_strengths(outputs), torch.stack(weights), torch.stack(ages))


def check_tvt(tvt: TVT | None) -> TVT | None:
    """`tvt` if it is one or None, else a TypeError."""
    if not (tvt is None or isinstance(tvt, TVT)):
        raise TypeError(f"tvt must be an rlgates.agents.TVT or None, got {tvt!r}.")
    return tvt


def memory_of(policy: RecurrentActorCriticPolicy) -> RMA:
    """The cell whose reads say what mattered.

    Raises:
        ValueError: the policy has no such core.
    """
    core = getattr(policy.lstm_actor, "core", None)
    cell = core.cells[0] if core is not None else None
    if not (isinstance(cell, RMA) and cell.memory):
        raise ValueError(
            "temporal value transport needs the core 'rma' or a gate of it, with memory, got "
            f"{getattr(core, 'name', 'none of rlgates')!r}."
        )
    return cell


def check_whole_episodes(starts: Tensor, ends: Tensor) -> None:
    """Refuse rollouts that begin or end within an episode.

    Args:
        starts: (T, B) bool, true where an episode starts.
        ends: (B,) bool, true where one ended with the last step.

    Raises:
        ValueError: with what n_steps must be.
    """
    if (starts[0] & ends).all():
        return
    steps = len(starts)
    begins = torch.cat([starts, ends.unsqueeze(0)]).cpu()
    lengths = {int(n) for row in begins.T for n in row.nonzero().flatten().diff()}
    told = "temporal value transport needs rollouts that begin and end with an episode"
    if not lengths:
        raise ValueError(
            f"{told}: none is within n_steps = {steps}, set it to the length of an episode."
        )
    if len(lengths) > 1:
        raise ValueError(
            f"{told}, and so episodes of one length: they last {min(lengths)} to {max(lengths)} "
            "steps."
        )
    (length,) = lengths
    raise ValueError(f"{told}: n_steps must be {length} or a multiple of it, got {steps}.")
