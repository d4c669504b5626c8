"""CUDA graphs on a CPU: operations are recorded as they run, and a replay runs them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Records what operations do to tensors; like a graph, it knows nothing of Python's objects."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tree_leaves(results)))
        return results

    def replay(self) -> None:
        """Run the operations again, into the tensors of the recording."""
        with torch.no_grad():
            for func, args, kwargs, results in self.calls:
                for old, new in zip(results, tree_leaves(func(*args, **kwargs)), strict=True):
                    # A view has the new numbers already.
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def record(
    function: Callable[[], Any], device: torch.device, remedy: str, pool: Any = None
) -> tuple[Callable[[], None], Any, Any]:
    """As `rlgates.agents.recording.record`, but it also runs the function."""
    tensors: dict[int, tuple[Tensor, Tensor]] = {}
    generator = torch.get_rng_state()

    class Saving(Tape):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            for x in tree_leaves((args, kwargs)):
                if isinstance(x, Tensor):
                    tensors.setdefault(x.data_ptr(), (x, x.detach().clone()))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Saving() as tape:
        results = function()
    with torch.no_grad():
        for tensor, before in tensors.values():  # recording changes nothing
            tensor.copy_(before)
    torch.set_rng_state(generator)
    return tape.replay, results, pool
