"""What an agent computes again and again on a GPU, as CUDA graphs.

A launch of a small kernel from Python takes longer than the kernel. A graph is one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from rlgates.kernels.recording import recording

_WARM_UPS = 2
"""Calls before the recording: in the first ones kernels are compiled, and libraries set up."""


class Recorded:
    """A function of tensors whose work on the GPU is recorded once, and replayed by later calls.

    A graph reads and writes the same memory in every replay. Arguments are copied to tensors that
    it owns. It also owns the results: the next call overwrites them. What the function does to
    Python's objects, it does in the first calls alone. Arguments of other shapes, or other numbers
    among them, begin a new recording.

    Args:
        function: of tensors and other arguments, in tuples and dictionaries too. It never waits for
            the GPU, and takes random numbers from the default generator.
        device: of the tensors.

    Raises:
        ValueError: when called, where the function cannot be recorded.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        self.function, self.device = function, device
        self._signature: Any = None
        self._calls = 0
        self._inputs: list[Any] = []
        self._args: Any = ()
        self._replay: Callable[[], None] | None = None
        self._results: Any = None

    def __call__(self, *args: Any) -> Any:
        leaves, structure = tree_flatten(args)
        signature = structure, [_signature(leaf) for leaf in leaves]
        if signature != self._signature:
            self._signature, self._calls = signature, 0
            self._replay = self._results = None
            self._inputs = copied(leaves)
            self._args = tree_unflatten(self._inputs, structure)
        else:
            for own, given in zip(self._inputs, leaves, strict=True):
                if isinstance(own, Tensor):
                    own.copy_(given)
        self._calls += 1
        if self._calls <= _WARM_UPS:
            with recording(), aside(self.device):
                return self.function(*self._args)
        if self._replay is None:
            with recording():
                self._replay, self._results = record(
                    lambda: self.function(*self._args), self.device
                )
        self._replay()
        return self._results


def _signature(leaf: Any) -> Any:
    """What a recording fixes of an argument: all but the numbers of a tensor."""
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf


def record(function: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """Record a function without running it on the GPU.

    Returns:
        what runs it, and its results, which are valid after that.

    Raises:
        ValueError: it waits for the GPU, or does what a graph cannot hold.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, stream=_stream(device)):
            results = function()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0].removesuffix(".")
        raise ValueError(
            f"a CUDA graph needs work that never waits for the GPU: {reason}. Take compile=True or "
            "leave compile out to train without graphs."
        ) from error
    return graph.replay, results


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Work on the stream on which graphs are recorded.

    Autograd adds up the gradient of a parameter on the stream on which it was first used, as long
    as any result of that use is there; a recording cannot wait for another stream.
    """
    if device.type != "cuda":
        yield
        return
    current, stream = torch.cuda.current_stream(device), _stream(device)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)


def _stream(device: torch.device) -> torch.cuda.Stream:
    index: int | None = device.index
    return _stream_of(torch.cuda.current_device() if index is None else index)


@cache
def _stream_of(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


def copied(value: Any) -> Any:
    """Results that the next call does not overwrite."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, value)


def can_record(device: torch.device) -> bool:
    """Whether there are CUDA graphs on a device."""
    return device.type == "cuda"
