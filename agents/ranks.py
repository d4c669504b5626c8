"""One agent trained by several processes, each with its own part of the environments.

They exchange with the collectives of torch.distributed, over the process group that a script has
made with `torch.distributed.init_process_group`. A process alone exchanges nothing.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from torch import Tensor

from rlgates.errors import check_flag

T = TypeVar("T")


class RankLost(RuntimeError):
    """Another process of the group ended, or is out of step with this one."""


@contextmanager
def _exchange() -> Iterator[None]:
    """Errors of a collective as `RankLost`."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(
            "another process of this training ended, or is out of step with this one; the first "
            f"that failed says why. ({str(error).strip().splitlines()[0]})"
        ) from error


@dataclass(frozen=True)
class Ranks:
    """The processes that train one agent together, and which environments each of them has.

    Rank r has the environments [first, first + count) of `total`, in the order of the ranks. All
    methods but `spread`, `own` and `split` are collective: every rank must call them.

    Attributes:
        rank, size: of this process, and of the group.
        first, count, total: environments.
    """

    rank: int = 0
    size: int = 1
    first: int = 0
    count: int = 0
    total: int = 0

    @classmethod
    def world(cls) -> Ranks:
        """All processes of torch.distributed, if it is initialized; else this one alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @classmethod
    def asked_for(cls, distributed: bool) -> Ranks:
        """`world` if `distributed`, else this process alone.

        Raises:
            TypeError: `distributed` is no bool. ValueError: torch.distributed is not initialized.
        """
        if not check_flag("distributed", distributed):
            return cls()
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "distributed=True needs a process group: call torch.distributed.init_process_group "
                "first, in a script started by torchrun."
            )
        return cls.world()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that writes."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    # -- environments

    def split(self, total: int) -> Ranks:
        """These ranks with `total` environments, as equally divided as can be.

        Raises:
            ValueError: there are more ranks than environments.
        """
        if total < self.size:
            raise ValueError(
                f"n_envs must be at least {self.size}, one for each process, got {total}."
            )
        first, end = (r * total // self.size for r in (self.rank, self.rank + 1))
        return replace(self, first=first, count=end - first, total=total)

    def joined(self, count: int) -> Ranks:
        """These ranks, of which this one has `count` environments."""
        counts = self.gather(count)
        return replace(self, first=sum(counts[: self.rank]), count=count, total=sum(counts))

    def spread(self, x: Tensor, fill: float = 0) -> Tensor:
        """(count, ...) -> (total, ...), with `fill` for the environments of other ranks."""
        if self.is_alone:
            return x
        wide = x.new_full((self.total, *x.shape[1:]), fill)
        wide[self.first : self.first + self.count] = x
        return wide

    def own(self, x: Any) -> Any:
        """(total, ...) -> (count, ...), the part of this rank."""
        return x if self.is_alone else x[self.first : self.first + self.count]

    # -- exchange

    def gather(self, value: T) -> list[T]:
        """The values of all ranks; they are pickled."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.size
        with _exchange():
            dist.all_gather_object(values, _pack(value))
        return [_unpack(value) for value in values]

    def from_first(self, function: Callable[[], T]) -> T:
        """What `function` returns or raises on rank 0, on all ranks; the others do not call it."""
        if self.is_alone:
            return function()
        outcome: list[Any] = [None]
        if self.is_first:
            try:
                outcome = [_pack((function(), None))]
            except Exception as error:
                outcome = [_pack((None, _picklable(error)))]
        with _exchange():
            dist.broadcast_object_list(outcome, src=0)
        value, failure = _unpack(outcome[0])
        if failure is not None:
            raise failure
        return value  # type: ignore[no-any-return]

    def sum(self, x: Tensor) -> Tensor:
        """Sum `x` over the ranks, in place."""
        if not self.is_alone:
            with _exchange():
                dist.all_reduce(x)
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """Make `x` that of rank 0, in place."""
        if not self.is_alone:
            with _exchange():
                dist.broadcast(x, src=0)
        return x

    def moments(self, x: Tensor, counts: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance (of the population) and number over dimension 0 of all ranks, float64.

        The moments of the ranks are merged (Chan et al. 1979), so that nothing cancels.

        Args:
            x: (n, ...).
            counts: whether the numbers of this rank count.
        """
        x = x.double()
        n = x.new_full(x.shape[1:], len(x) if counts else 0)
        local = torch.stack([n, x.mean(0), x.var(0, correction=0)])
        parts = [torch.empty_like(local) for _ in range(self.size)]
        with _exchange():
            dist.all_gather(parts, local)
        n, means, variances = torch.stack(parts, dim=1)
        count = n.sum(0)
        mean = (n * means).sum(0) / count
        variance = (n * (variances + (means - mean).square())).sum(0) / count
        return mean, variance, count

    def reduce(
        self, parameters: Sequence[Tensor], metrics: dict[str, Tensor], weight: float
    ) -> dict[str, Tensor]:
        """Sum gradients and metrics over the ranks, in one all-reduce.

        Args:
            parameters: with gradients, which become those of all ranks.
            metrics: scalars, averages over the part of a minibatch that this rank has.
            weight: of that part; those of all ranks add up to 1. The gradients have it already.

        Returns:
            the metrics of the whole minibatch.
        """
        if self.is_alone:
            return metrics
        trained = [parameter for parameter in parameters if parameter.grad is not None]
        gradients = [
            parameter.grad.flatten() for parameter in trained if parameter.grad is not None
        ]
        scalars = torch.stack([value.detach() for value in metrics.values()]) * weight
        flat = self.sum(torch.cat([*gradients, scalars]))
        *gradients_sums, scalars = flat.split([*map(len, gradients), len(scalars)])
        for parameter, gradient in zip(trained, gradients_sums, strict=True):
            parameter.grad = gradient.view_as(parameter)
        return dict(zip(metrics, scalars, strict=True))

    def same_random(self, device: torch.device) -> None:
        """Let torch's generators go on from the state of those of rank 0.

        All ranks draw the random numbers of all environments and keep their own, so that their
        number does not change what is drawn.
        """
        if self.is_alone:
            return
        cuda = device.type == "cuda"
        cpu_state, cuda_state = self.from_first(
            lambda: (torch.get_rng_state(), torch.cuda.get_rng_state(device) if cuda else None)
        )
        torch.set_rng_state(cpu_state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, device)

    def in_order(self, values: Sequence[tuple[int, T]]) -> list[T]:
        """Values of all ranks, each with its step: by step, and then by rank."""
        pairs = chain.from_iterable(self.gather(list(values)))
        return [value for _, value in sorted(pairs, key=lambda pair: pair[0])]


ALONE = Ranks()


def _pack(value: Any) -> bytes:
    """A value as bytes; pickle alone cannot take tensors of every dtype."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpack(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)


def _picklable(error: Exception) -> Exception:
    """An error as the other ranks can get it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# -- environments


def seed_envs(env: VecEnv, seed: int, ranks: Ranks) -> None:
    """Seed the environments of this rank so that those of all ranks differ as those of one would.

    A batch of rlgates shares one seed and numbers its environments from its `first_index`; SB3
    gives environment k the seed `seed + k`.
    """
    env.seed(seed + ranks.first if _first_index(env) is None else seed)


def _first_index(env: VecEnv) -> int | None:
    """The index of the first environment of a batch of rlgates; None for others."""
    return getattr(getattr(env.unwrapped, "env", None), "first_index", None)


def check_first_index(env: VecEnv, ranks: Ranks) -> None:
    """Raise ValueError if the environments of this rank are not those behind the ranks before."""
    first = _first_index(env)
    if not ranks.is_alone and first not in (None, ranks.first):
        raise ValueError(
            f"the environments of rank {ranks.rank} must have the indices from {ranks.first} on, "
            f"got {first}: make them with first_index={ranks.first}."
        )


class PooledMeanStd(RunningMeanStd):
    """Running moments of the numbers of all ranks, for a `VecNormalize`."""

    def update(self, arr: np.ndarray[Any, Any]) -> None:
        ranks = Ranks.world()
        if ranks.is_alone:  # loaded from a file
            super().update(arr)
            return
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        moments = ranks.moments(torch.as_tensor(arr, dtype=torch.float64, device=device))
        mean, variance, count = (moment.cpu().numpy() for moment in moments)
        self.update_from_moments(mean, variance, float(count.flat[0]))


def pool_statistics(env: VecEnv, ranks: Ranks) -> None:
    """Let a `VecNormalize` among the wrappers use the statistics of all ranks, those of rank 0 now.

    They are exchanged in every step, so that the number of ranks does not change what agents see.
    """
    normalize = unwrap_vec_normalize(env)
    if ranks.is_alone or normalize is None:
        return
    statistics: Any = normalize.obs_rms if normalize.norm_obs else None
    if isinstance(statistics, dict):
        normalize.obs_rms = {name: _pooled(part, ranks) for name, part in statistics.items()}
    elif statistics is not None:
        normalize.obs_rms = _pooled(statistics, ranks)  # type: ignore[assignment]
    normalize.ret_rms = _pooled(normalize.ret_rms, ranks)


def _pooled(statistics: RunningMeanStd, ranks: Ranks) -> PooledMeanStd:
    pooled = PooledMeanStd(shape=np.shape(statistics.mean))
    vars(pooled).update(ranks.from_first(lambda: dict(vars(statistics))))
    return pooled
