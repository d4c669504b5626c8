"""What the twins of the cores with a memory share."""

from __future__ import annotations

import numpy as np

from twins.gates import Array


def softmax(z: Array) -> Array:
    """Over the last axis."""
    weights = np.exp(z - z.real.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def softplus(z: Array) -> Array:
    """log(1 + exp(z)), without the exponential of a large number."""
    above = z.real > 0
    return np.where(above, z, 0) + np.log1p(np.exp(np.where(above, -z, z)))


def join(*parts: Array, axis: int = -1) -> Array:
    """Side by side along one of the last axes; leading axes may differ."""
    lead = np.broadcast_shapes(*(part.shape[:axis] for part in parts))
    return np.concatenate(
        [np.broadcast_to(part, (*lead, *part.shape[axis:])) for part in parts], axis=axis
    )


def flat(part: Array) -> Array:
    """The last two axes as one."""
    return part.reshape(*part.shape[:-2], -1)
