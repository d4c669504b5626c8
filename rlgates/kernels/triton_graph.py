"""Launches recorded in CUDA graphs, so that many small ones cost a GPU's host hardly anything.

A launch costs the host several microseconds, a replayed one a fraction of that: where a step is
some launches and the device is soon done with each, this is most of the time. A function that is
called again with tensors of the same sizes is recorded by itself, and replayed from then on. It
gives what it gave before, in tensors of its own: nobody sees the buffers of the graph.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch import Tensor

from rlgates.kernels import triton_launch

Tensors = tuple[Tensor | None, ...]

# The fewest steps whose launches are worth two copies of all numbers, and the most numbers that
# go in and come out: with more, the device is busy longer than the host anyway. Estimates.
FEWEST, MOST = 4, 2**25
KEPT = 16  # recordings, each with its buffers

_logger = logging.getLogger(__name__)
_recordings: OrderedDict[Hashable, Recording | None] = OrderedDict()
_lock = threading.Lock()
_failed = False


class Recording:
    """A function of tensors, recorded on buffers of its own.

    Args:
        function: what is recorded: it takes and gives tensors or None, waits for nothing, and
            leaves what it is given as it is.
        tensors: what it is called with first; later ones are of the same sizes.
    """

    def __init__(self, function: Callable[..., Tensors], tensors: Tensors) -> None:
        self._given = _copies(tensors)
        self._found: Tensors = ()

        def play() -> None:
            self._found = function(*self._given)

        self._play: Callable[[], None] = play
        if triton_launch.INTERPRETED:
            return
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            play()  # compiles the kernels, which cannot be recorded
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Others may allocate meanwhile, in threads of their own.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            play()
        self._play = graph.replay

    def __call__(self, tensors: Tensors) -> Tensors:
        for mine, given in zip(self._given, tensors, strict=True):
            if mine is not None and given is not None:
                mine.copy_(given)
        self._play()
        return _copies(self._found)


def _copies(tensors: Tensors) -> Tensors:
    dense = torch.contiguous_format
    return tuple(None if t is None else t.clone(memory_format=dense) for t in tensors)


def replayed(function: partial[Tensors], tensors: Tensors) -> Tensors:
    """`function(*tensors)`, from a recording where there is one or it is worth one.

    Args:
        function: as a `Recording` takes it, with all that it depends on beside the tensors given
            already, a `Problem` first.
        tensors: what it is called with.
    """
    if not _worth_it(function.args[0], tensors):
        return function(*tensors)
    key = _key(function, tensors)
    with _lock:
        recording = _recordings.get(key)
        if recording is None and key in _recordings:  # the second time
            recording = _record(function, tensors)
        _recordings[key] = recording
        _recordings.move_to_end(key)
        while len(_recordings) > KEPT:
            _recordings.popitem(last=False)
        if recording is not None:
            return recording(tensors)
    return function(*tensors)


def forget() -> None:
    """Let go of all recordings and their memory."""
    with _lock:
        _recordings.clear()


def _worth_it(problem: triton_launch.Problem, tensors: Tensors) -> bool:
    if _failed or problem.walks or problem.steps < FEWEST or not problem.rows:
        return False
    if sum(tensor.numel() for tensor in tensors if tensor is not None) > MOST:
        return False
    # Who records a graph of their own gets the launches in it.
    return triton_launch.INTERPRETED or not torch.cuda.is_current_stream_capturing()


def _key(function: partial[Tensors], tensors: Tensors) -> Hashable:
    sizes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in tensors)
    stream = 0 if triton_launch.INTERPRETED else torch.cuda.current_stream().cuda_stream
    return function.func, function.args, sizes, stream


def _record(function: Callable[..., Tensors], tensors: Tensors) -> Recording | None:
    global _failed
    try:
        # In inference mode the buffers would be of no use outside of it.
        with torch.inference_mode(False), torch.no_grad():
            return Recording(function, tensors)
    except RuntimeError as error:
        _failed = True
        _logger.warning("no CUDA graph can be recorded, launches go one by one: %s.", error)
        return None
