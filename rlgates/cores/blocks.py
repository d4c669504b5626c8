"""Many steps at once, in blocks, for memories with one decay per head and for other cells.

The former are S' = a S + v k^T. Within a block, a step weighs what the others write as in
attention; between blocks S is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rlgates.cell import full_precision
from rlgates.cores.window import episode_begins

BLOCK = 64  # steps
_State = TypeVar("_State")


def in_blocks(
    block: Callable[[list[Any], _State, Tensor | None], tuple[Tensor, _State]],
    parts: Iterable[Tensor | None],
    state: _State,
    episode_starts: Tensor | None,
    steps: int,
    size: int = BLOCK,
) -> tuple[Tensor, _State]:
    """Run all steps, block by block, in full precision under autocast too.

    Args:
        block: gives the results (L, B, ...) of L steps and the state after them, from what these
            steps read, the state before them, and the step of the block in which the episode of
            each began, (L, B), below 0 for an earlier block; None without episode starts.
        parts: what the steps read, (T, B, ...) each, or None.
        state: before the first step.
        episode_starts: (T, B) bool, or None.
        steps: T.
        size: steps of a block.

    Returns:
        the results (T, B, ...) and the state after the last step.
    """
    parts, results = list(parts), []
    begins = None if episode_starts is None else episode_begins(episode_starts)
    with full_precision(next(part for part in parts if part is not None).device.type):
        for begin in range(0, steps, size):
            chosen = slice(begin, begin + size)
            since = None if begins is None else begins[chosen] - begin
            read = [None if part is None else part[chosen] for part in parts]
            result, state = block(read, state, since)
            results.append(result)
    return torch.cat(results), state


class Writes(NamedTuple):
    """What steps write to a memory and read from it, for each head; heads may be broadcast.

    Attributes:
        q, k: query and key, (T, B, heads, key_size).
        v: value, (T, B, heads, value_size).
        log_decay: logarithm of the share of the memory that is kept, (T, B, heads); None if it
            keeps everything.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None


def read_memory(
    writes: Writes, memory: Tensor, first: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """S' q of all steps, and the memory after them.

    Args:
        writes: of all steps.
        memory: S before the first step, (B, heads, value_size, key_size).
        first: S at the start of an episode; None for zeros.
        episode_starts: (T, B) bool, or None.

    Returns:
        the reads (T, B, heads, value_size) and S after the last step.
    """

    def block(parts: list[Any], memory: Tensor, begins: Tensor | None) -> tuple[Tensor, Tensor]:
        return _block(Writes(*parts), memory, first, begins)

    return in_blocks(block, writes, memory, episode_starts, len(writes.v))


def replaced(old: Tensor, mask: Tensor, new: Tensor | None) -> Tensor:
    """`old`, but where `mask` is true `new`; None for zeros, which take no products with them."""
    return old.masked_fill(mask, 0) if new is None else torch.where(mask, new, old)


def product(x: Tensor, memory: Tensor | None) -> Tensor | None:
    """What x (..., L, key_size) reads from a memory (..., value_size, key_size); None for zeros."""
    return None if memory is None else x @ memory.mT


def sums_between(x: Tensor) -> Tensor:
    """The sums of x (..., L) over the steps after s and up to t, (..., L, L), by t and s.

    Only s <= t count. NaN is 0. A difference of two sums from the beginning would lose the digits
    of small numbers that come after a large one.
    """
    # A product: with deterministic algorithms, torch has no `cumsum` on a GPU.
    up_to = x.new_ones(x.shape[-1], x.shape[-1]).tril()
    return up_to @ (x.nan_to_num(0.0).unsqueeze(-1) * up_to.tril(-1))


def _block(
    writes: Writes, memory: Tensor, first: Tensor | None, begins: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same for L steps; `begins` is the step of the block in which the episode of each step
    began, (L, B), below 0 for an earlier one; None if all are."""
    q, k, v = (
        part.permute(1, 2, 0, 3) for part in (writes.q, writes.k, writes.v)
    )  # (B, heads, L, width)
    count = torch.arange(v.shape[2], device=v.device)
    seen = count <= count.unsqueeze(-1)  # (L, L), by a step
    if begins is not None:  # a memory that is not read may hold anything
        memory = replaced(memory, (begins[0] >= 0).view(-1, 1, 1, 1), first)
    of_before = q @ memory.mT
    if begins is not None:
        begin = begins.t().unsqueeze(1)  # (B, 1, L)
        seen, is_new = seen & (count >= begin.unsqueeze(-1)), (begin >= 0).unsqueeze(-1)
        of_before = replaced(of_before, is_new, product(q, first))
        memory = replaced(memory, is_new[:, :, -1:], first)
    # Nothing of another episode may count, even if it is not a number: no product by 0. What is not
    # a number in this one comes back with its key.
    unseen, v = ~seen, torch.where(v.isnan(), 0, v)
    weights, last = (q @ k.mT).masked_fill(unseen, 0), k
    if writes.log_decay is not None:
        log_decay = writes.log_decay.permute(1, 2, 0)
        since = log_decay.unsqueeze(-2).masked_fill(unseen, 0).sum(-1, keepdim=True)
        # of step s at step t
        decay = torch.exp(sums_between(log_decay).masked_fill(unseen, 0))
        left = torch.exp(since)
        weights, of_before = weights * decay, left * of_before
        last, memory = decay[..., -1, :].unsqueeze(-1) * k, left[..., -1:, :] * memory
    last = last.masked_fill(unseen[..., -1, :, None], 0)
    return (weights @ v + of_before).permute(2, 0, 1, 3), memory + v.mT @ last
