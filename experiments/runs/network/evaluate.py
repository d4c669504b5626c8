"""Evaluate a network on held-out sequences: mean figures, and the forget gates of its core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rlgates.core import GateTrace
from rlgates.experiments.runs.network.optim import Precision
from rlgates.experiments.tasks import Batch, SequenceModel, Task

MAX_OUTPUTS = 2**24  # of the core in one forward pass: 64 MiB


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move a batch to a device."""
    return Batch(*(None if part is None else part.to(device) for part in batch))  # type: ignore[arg-type]


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


def evaluate(
    network: SequenceModel, task: Task, batches: Iterable[Batch], precision: Precision
) -> dict[str, float]:
    """The task's figures from means over all unmasked targets, always with "loss".

    Args:
        network: evaluated in eval mode.
        task: defines the loss, the metrics and the figures.
        batches: in order; the state is carried from one to the next if the task carries it.
        precision: as in training; its device is that of the network.

    Raises:
        ValueError: all targets are masked.
    """
    sums: dict[str, float] = {}
    total, state = 0, None
    with _evaluating(network):
        for batch in (to_device(batch, precision.device) for batch in batches):
            state = initial_state(state, batch)
            with precision.forward():
                predictions, after = network.unroll(batch.inputs, state, batch.episode_starts)
            if task.carries_state:
                state = after
            count = batch.count()
            if not count:
                continue
            predictions = predictions.float()
            means = {"loss": task.loss(predictions, batch), **task.metrics(predictions, batch)}
            for name, value in means.items():
                sums[name] = sums.get(name, 0.0) + float(value) * count
            total += count
    if not total:
        raise ValueError("nothing to evaluate: all targets are masked.")
    averages = {name: value / total for name, value in sums.items()}
    return {"loss": averages["loss"], **task.figures(averages)}


def trace_gates(
    network: SequenceModel, batch: Batch, sequences: int, device: torch.device
) -> GateTrace:
    """The gates of the core on the first sequences of a batch."""
    inputs, starts = batch.inputs[:, :sequences].to(device), batch.episode_starts
    episode_starts = None if starts is None else starts[:, :sequences].to(device)
    with _evaluating(network):
        return network.core.trace_gates(network.encode(inputs), None, episode_starts)
