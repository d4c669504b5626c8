"""Memory addressing of the DNC (Graves et al. 2016), as pure functions.

Shapes: B batch size, N slots, W word size, R read heads, K write heads, H heads of either
kind. The weights of a head over the slots are in [0, 1] and sum to at most 1. All functions
expect float32 or float64 without autocast.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

# Keeps the gradients of norms and products finite, as in the authors' code.
EPSILON = 1e-6


def cosine_similarity(keys: Tensor, memory: Tensor) -> Tensor:
    """k.M_i / (|k| |M_i| + 1e-6) with |v| = sqrt(v.v + 1e-6); 0 for an empty slot.

    Args:
        keys: (B, H, W).
        memory: (B, N, W).

    Returns:
        (B, H, N).
    """
    # Not a matrix product: its rounding depends on the position of a row, but equal slots must
    # have bit-equal weights, so that ties are broken by their order and not by rounding.
    dot = (keys.unsqueeze(2) * memory.unsqueeze(1)).sum(-1)
    return dot / (_norm(keys).unsqueeze(-1) * _norm(memory).unsqueeze(-2) + EPSILON)


def _norm(vectors: Tensor) -> Tensor:
    return torch.sqrt(vectors.square().sum(-1) + EPSILON)


def content_weights(keys: Tensor, strengths: Tensor, memory: Tensor) -> Tensor:
    """Softmax over the slots of softplus(strength) * cosine_similarity.

    Args:
        keys: (B, H, W).
        strengths: (B, H), before the softplus.
        memory: (B, N, W).

    Returns:
        (B, H, N).
    """
    sharpness = softplus(strengths).unsqueeze(-1)
    return torch.softmax(sharpness * cosine_similarity(keys, memory), dim=-1)


def retention(parts: Tensor) -> Tensor:
    """The product over the heads of 1 - part, from (B, H, ...) to (B, ...)."""
    # The backward pass of torch.prod searches for zeros, which synchronizes a GPU.
    return reduce(torch.mul, (1 - parts).unbind(1))


def next_usage(usage: Tensor, write: Tensor, read: Tensor, free: Tensor) -> Tensor:
    """The usage of each slot: raised by the last writes, lowered by the last reads.

    u' = (u + (1 - u) (1 - prod_k (1 - w_k))) prod_r (1 - f_r r_r), without gradient to w.

    Args:
        usage: u (B, N).
        write: w (B, K, N), the weights of the last step.
        read: r (B, R, N), the weights of the last step.
        free: the free gates f (B, R).
    """
    written = 1 - retention(write.detach())
    return (usage + (1 - usage) * written) * retention(free.unsqueeze(-1) * read)


def allocation_weights(usage: Tensor) -> Tensor:
    """Weights that favour the least used slots.

    With slots in order of increasing usage u, shifted from 0 by 1e-6:
    a_j = (1 - u_j) prod_(i < j) u_i. The sort is stable; gradients flow through the values.

    Args:
        usage: (B, N), in [0, 1].

    Returns:
        (B, N).
    """
    rising, order = torch.sort(EPSILON + (1 - EPSILON) * usage, dim=-1, stable=True)
    # An exclusive cumulative product, by logarithms: finite gradients and no search for zeros.
    before = torch.exp(torch.cumsum(pad(torch.log(rising)[..., :-1], (1, 0)), dim=-1))
    return torch.zeros_like(rising).scatter(-1, order, (1 - rising) * before)


def allocations(usage: Tensor, gates: Tensor) -> Tensor:
    """Allocation weights of each write head, computed head after head.

    Each head raises the usage that the next ones see by (1 - u) * gate * a.

    Args:
        usage: (B, N).
        gates: allocation gate times write gate of each head (B, K).

    Returns:
        (B, K, N).
    """
    heads = [allocation_weights(usage)]
    for gate in gates.unbind(1)[:-1]:
        usage = usage + (1 - usage) * gate.unsqueeze(-1) * heads[-1]
        heads.append(allocation_weights(usage))
    return torch.stack(heads, dim=1)


def next_memory(memory: Tensor, write: Tensor, erase: Tensor, vectors: Tensor) -> Tensor:
    """Erase, then add: M' = M * prod_k (1 - w_k e_k^T) + sum_k w_k v_k^T.

    Args:
        memory: M (B, N, W).
        write: w (B, K, N).
        erase, vectors: e and v (B, K, W).
    """
    write = write.unsqueeze(-1)
    added = (write * vectors.unsqueeze(2)).sum(1)
    return memory * retention(write * erase.unsqueeze(2)) + added


def next_link(link: Tensor, precedence: Tensor, write: Tensor) -> Tensor:
    """The temporal links of each write head: L_ij is near 1 if slot i was written right after j.

    L_ij' = (1 - w_i - w_j) L_ij + w_i p_j, with L_ii = 0.

    Args:
        link: L (B, K, N, N).
        precedence: p (B, K, N), before this step.
        write: w (B, K, N).
    """
    to, since = write.unsqueeze(-1), write.unsqueeze(-2)
    link = (1 - to - since) * link + to * precedence.unsqueeze(-2)
    itself = torch.eye(link.shape[-1], dtype=torch.bool, device=link.device)
    return link.masked_fill(itself, 0)


def next_precedence(precedence: Tensor, write: Tensor) -> Tensor:
    """p' = (1 - sum_i w_i) p + w: how recently each slot was written, (B, K, N)."""
    return (1 - write.sum(-1, keepdim=True)) * precedence + write


def read_weights(read: Tensor, link: Tensor, content: Tensor, modes: Tensor) -> Tensor:
    """Read weights: those of the last step, moved along the links, mixed with content weights.

    r' = sum_k m_k L_k^T r + sum_k m_(K + k) L_k r + m_(2K) content.

    Args:
        read: r (B, R, N), the weights of the last step.
        link: L (B, K, N, N), after this step.
        content: (B, R, N).
        modes: m (B, R, 1 + 2K), backward, forward, content; they sum to 1.

    Returns:
        (B, R, N).
    """
    read = read.unsqueeze(1)
    ways = torch.cat([read @ link, read @ link.mT, content.unsqueeze(1)], dim=1)
    return (modes.mT.unsqueeze(-1) * ways).sum(1)
