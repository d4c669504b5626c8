"""What would wait for a GPU is found on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select")
INDEXING = ("aten::index.Tensor", "aten::index_put_", "aten::index_put")


class NoLooking(TorchDispatchMode):
    """Raises where Python would wait for the numbers of a tensor on a GPU."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.name()
        masks = name in INDEXING and any(
            isinstance(x, Tensor) and x.dtype == torch.bool for x in tree_leaves(args[1])
        )
        if name in WAITING or masks:
            raise AssertionError(f"{name} waits for the device")
        return function(*args, **(kwargs or {}))
