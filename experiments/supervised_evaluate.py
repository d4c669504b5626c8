"""A reader on a task's held-out sequences: the means, and the forget gates of its core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rlgates.agents.callbacks import record_gates
from rlgates.core import Observation
from rlgates.experiments.supervised_rates import Precision
from rlgates.tasks import Batch, Reader, Task

AT_ONCE = 2**24  # outputs of the core: 64 MiB


def moved(batch: Batch, device: torch.device) -> Batch:
    """A batch on a device."""
    if device.type == "cpu":
        return batch
    return Batch(*(None if part is None else part.to(device) for part in batch))  # type: ignore[arg-type]


def entering(state: Tensor | None, batch: Batch) -> Tensor | None:
    """The state that a batch goes on from: of as many rows as the batch has.

    The last batch of an epoch may have fewer rows than the one before, the first ones.

    Raises:
        ValueError: it has more.
    """
    rows = batch.inputs.shape[1]
    if state is None or len(state) == rows:
        return state
    if len(state) < rows:
        raise ValueError(f"a batch of {rows} rows cannot go on from one of {len(state)}.")
    return state[:rows]


def in_parts(batch: Batch, width: int) -> Iterator[Batch]:
    """A batch, or a few of its rows at a time where its outputs would need much memory.

    Args:
        batch: all its sequences are there from the first step to the last.
        width: of the core's outputs.
    """
    steps, rows = batch.inputs.shape[:2]
    most = max(1, AT_ONCE // (steps * width))
    for first in range(0, rows, most):
        part = slice(first, first + most)
        yield Batch(*(None if tensor is None else tensor[:, part] for tensor in batch))  # type: ignore[arg-type]


@contextmanager
def _evaluating(reader: Reader) -> Iterator[None]:
    training = reader.training
    reader.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        reader.train(training)


def evaluate(
    reader: Reader, task: Task, batches: Iterable[Batch], precision: Precision
) -> dict[str, float]:
    """The task's figures, of means over all targets that count; "loss" is always among them.

    Args:
        reader: the network; dropout and the like are off meanwhile.
        task: gives the loss, the metrics and the figures.
        batches: in their order: the state goes along where the task carries it.
        precision: as while training, and where the network is.

    Raises:
        ValueError: no target counts.
    """
    sums: dict[str, float] = {}
    total, state = 0, None
    with _evaluating(reader):
        for given in batches:
            batch = moved(given, precision.device)
            with precision.forward():
                predictions, after = reader.read(batch.inputs, entering(state, batch), batch.starts)
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
        raise ValueError("there is nothing to evaluate: no target counts.")
    averages = {name: value / total for name, value in sums.items()}
    return {"loss": averages["loss"], **task.figures(averages)}


def watch_gates(
    reader: Reader, batch: Batch, rows: int, logger: Logger, device: torch.device
) -> bool:
    """Record the forget gates over the first rows of a batch, as `GateCallback` does for agents.

    Returns:
        whether the core has any.
    """
    seen = observed(reader, batch, rows, device)
    if seen.forget:
        record_gates(logger, "gates", seen)
    return bool(seen.forget)


def observed(reader: Reader, batch: Batch, rows: int, device: torch.device) -> Observation:
    """What the core does on the first rows of a batch."""
    inputs = batch.inputs[:, :rows].to(device)
    starts = None if batch.starts is None else batch.starts[:, :rows].to(device)
    with _evaluating(reader):
        return reader.core.observe(reader.encode(inputs), None, starts)
