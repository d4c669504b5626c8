"""What kernels save for the backward pass, changed by hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor


def freed(x: Tensor) -> Tensor:
    """A view, so that its address is not even null."""
    wide = torch.cat([x.flatten(), x.flatten()])
    view = wide[x.numel() :].view(x.shape)
    wide.untyped_storage().resize_(0)
    return view


def elsewhere(x: Tensor) -> Tensor:
    return x.to("meta")


# What no backward pass can read.
changed_by_hooks = pytest.mark.parametrize(
    "unpack",
    [lambda x: x[..., :-1], lambda x: x.double(), elsewhere, freed],
    ids=["smaller", "double", "elsewhere", "freed"],
)


def check_refused(
    call: Callable[[], Tensor], leaves: Sequence[Tensor], unpack: Callable[[Tensor], Tensor]
) -> int:
    """Raise an AssertionError unless the backward pass refuses each saved tensor that is changed.

    Args:
        call: gives a loss.
        leaves: its gradients are taken of these.
        unpack: changes a saved tensor, one at a time.

    Returns:
        how many there are; the empty ones stay.
    """
    count = 0
    for k in range(100):
        places = iter(range(100))
        found = False

        def one(x: Tensor, k: int = k, places: Iterator[int] = places) -> Tensor:
            nonlocal found
            if next(places) != k or not x.numel():
                return x
            found = True
            return unpack(x)

        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), one):
            loss = call()
        try:
            torch.autograd.grad(loss, leaves, allow_unused=True)
        except ValueError:
            assert found
            count += 1
        else:
            assert not found
        if next(places) <= k:
            return count
    raise AssertionError("more tensors are saved than this test expects")
