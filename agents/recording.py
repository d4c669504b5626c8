"""What training computes again and again on a GPU, as CUDA graphs.

A launch of a small kernel from Python takes longer than the kernel. A graph is one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from rlgates.kernels.recording import recording

_WARM_UPS = 2
"""Calls before the recording: in the first ones kernels are compiled, and libraries set up."""


@dataclass(eq=False)
class _Recording:
    """A function with arguments of one signature.

    Attributes:
        signature: what is fixed of the arguments.
        inputs, args: copies of the arguments, as leaves and in their structure.
        calls: number of calls so far.
        replay, results: what runs the graph, and what it writes; None before it is recorded.
    """

    signature: Any
    inputs: list[Any]
    args: Any
    calls: int = 0
    replay: Callable[[], None] | None = None
    results: Any = None


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
        remedy: how to do without graphs, for the message of the error.
        most: recordings to keep, those used last; they share their memory. With more than one, the
            function must add to gradients in place.

    Raises:
        ValueError: when called, where the function cannot be recorded.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        device: torch.device,
        remedy: str = "Take compile=True or leave compile out to train without graphs.",
        most: int = 1,
    ) -> None:
        self.function, self.device, self.remedy, self.most = function, device, remedy, most
        self._recordings: list[_Recording] = []
        self._pool: Any = None

    @property
    def replays(self) -> bool:
        """Whether there is any graph yet."""
        return any(kept.replay is not None for kept in self._recordings)

    def __call__(self, *args: Any) -> Any:
        of = self._recording(args)
        of.calls += 1
        if of.calls <= _WARM_UPS:
            with recording(), aside(self.device):
                return self.function(*of.args)
        if of.replay is None:
            with recording():
                of.replay, of.results, self._pool = record(
                    lambda: self.function(*of.args),
                    self.device,
                    self.remedy,
                    self._pool if self.replays else None,
                )
        of.replay()
        return of.results

    def _recording(self, args: Any) -> _Recording:
        """That of such arguments, which it takes over."""
        leaves, structure = tree_flatten(args)
        signature = structure, [_signature(leaf) for leaf in leaves]
        kept = next((kept for kept in self._recordings if kept.signature == signature), None)
        if kept is None:
            if len(self._recordings) == self.most:
                del self._recordings[0]
            inputs = copied(leaves)
            kept = _Recording(signature, inputs, tree_unflatten(inputs, structure))
        else:
            self._recordings.remove(kept)
            for own, given in zip(kept.inputs, leaves, strict=True):
                if isinstance(own, Tensor):
                    own.copy_(given)
        self._recordings.append(kept)
        return kept


def _signature(leaf: Any) -> Any:
    """What a recording fixes of an argument: all but the numbers of a tensor."""
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf


def record(
    function: Callable[[], Any], device: torch.device, remedy: str, pool: Any = None
) -> tuple[Callable[[], None], Any, Any]:
    """Record a function without running it on the GPU.

    Args:
        function: to record.
        device: of its tensors.
        remedy: as in `Recorded`.
        pool: memory of another graph that never runs at the same time; None for new memory.

    Returns:
        what runs it; its results, which are valid after that; and the pool of its memory.

    Raises:
        ValueError: it waits for the GPU, or does what a graph cannot hold.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        stream = _stream(device)
        # `torch.cuda.graph` does not leave its stream where the end of the capture fails.
        with (
            torch.cuda.device(device),
            torch.cuda.stream(stream),
            torch.cuda.graph(graph, pool, stream=stream),
        ):
            results = function()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0].removesuffix(".")
        raise ValueError(
            f"a CUDA graph needs work that never waits for the GPU: {reason}. {remedy}"
        ) from error
    return graph.replay, results, graph.pool()


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
