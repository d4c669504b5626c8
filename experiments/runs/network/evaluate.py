"""Evaluate a network on held-out sequences: mean figures, and the forget gates of its core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rlgates.core import GateTrace
from rlgates.experiments.runs.network.optim import Precision
from rlgates.experiments.tasks import Batch, SequenceModel, Task

FiguresOf = Callable[[Batch, Tensor | None], tuple[dict[str, Tensor] | None, Tensor]]
MAX_OUTPUTS = 2**24  # of the core in one forward pass: 64 MiB


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move a batch to a device."""
    return Batch(*(None if part is None else part.to(device) for part in batch))  # type: ignore[arg-type]


def read(numbers: Tensor) -> list[float]:
    """The numbers of a tensor; until a GPU has computed them the thread sleeps, and does not poll.

    Runs that share a GPU would else take a processor each.
    """
    on_host = numbers.to("cpu", non_blocking=True)
    if numbers.is_cuda:
        copied = torch.cuda.Event(blocking=True)
        copied.record()
        copied.synchronize()
    values: list[float] = on_host.tolist()
    return values


def initial_state(state: Tensor | None, batch: Batch) -> Tensor | None:
    """The state from which a batch continues, cut to its batch size.

    The last batch of an epoch may hold fewer sequences, the first ones of the batch before.

    Raises:
        ValueError: it holds more.
    """
    size = batch.inputs.shape[1]
    if state is None:
        return None
    if len(state) < size:
        raise ValueError(f"a batch of {size} sequences cannot continue one of {len(state)}.")
    return state[:size]


def split_batch(batch: Batch, output_size: int) -> Iterator[Batch]:
    """Split a batch so that the outputs of each part fit in `MAX_OUTPUTS`.

    Args:
        batch: with whole sequences.
        output_size: of the core.
    """
    steps, batch_size = batch.inputs.shape[:2]
    most = max(1, MAX_OUTPUTS // (steps * output_size))
    for first in range(0, batch_size, most):
        part = slice(first, first + most)
        yield Batch(*(None if tensor is None else tensor[:, part] for tensor in batch))  # type: ignore[arg-type]


@contextmanager
def _evaluating(network: SequenceModel) -> Iterator[None]:
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)


def batch_figures(
    network: SequenceModel, task: Task, precision: Precision, batch: Batch, state: Tensor | None
) -> tuple[dict[str, Tensor] | None, Tensor]:
    """The means of a batch, with "loss", or None if no target counts; and the state after it."""
    with precision.forward():
        predictions, after = network.unroll(batch.inputs, state, batch.episode_starts)
    if batch.mask is not None and not batch.mask.any():
        return None, after
    predictions = predictions.float()
    return {"loss": task.loss(predictions, batch), **task.metrics(predictions, batch)}, after


def evaluate(
    network: SequenceModel, task: Task, batches: Iterable[Batch], figures_of: FiguresOf
) -> dict[str, float]:
    """The task's figures from means over all unmasked targets, always with "loss".

    Args:
        network: evaluated in eval mode.
        task: defines the loss, the metrics and the figures.
        batches: on the device of the network, in order; the state is carried from one to the next
            if the task carries it.
        figures_of: `batch_figures` of this network and task, or a recording of it.

    Raises:
        ValueError: all targets are masked.
    """
    sums: dict[str, float] = {}
    total, state = 0, None
    with _evaluating(network):
        for batch in batches:
            means, after = figures_of(batch, initial_state(state, batch))
            if task.carries_state:
                state = after
            if means is None:
                continue
            count = batch.count()
            for name, value in means.items():
                sums[name] = sums.get(name, 0.0) + float(value) * count
            total += count
    if not total:
        raise ValueError("nothing to evaluate: all targets are masked.")
    averages = {name: value / total for name, value in sums.items()}
    return {"loss": averages["loss"], **task.figures(averages)}


def trace_gates(network: SequenceModel, inputs: Tensor, episode_starts: Tensor | None) -> GateTrace:
    """The gates of the core on sequences from the initial state, in eval mode."""
    with _evaluating(network):
        return network.core.trace_gates(network.encode(inputs), None, episode_starts)
