"""What is measured on the best network of a finished run: its gates, and longer sequences."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from rlgates.core import Core, GateTrace
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.folder import RunFolder
from rlgates.experiments.runs.horizon import FACTORS, length_columns, stretched
from rlgates.experiments.runs.network.train import TaskResult, TaskRun, load_best

GATE_SEQUENCES = 32


class NetworkGates(NamedTuple):
    """The forget gates of a network.

    Attributes:
        on_sequences: on held-out sequences.
        of_biases: of the biases alone, in float64; see `trace_biases`.
    """

    on_sequences: GateTrace
    of_biases: GateTrace


def trace_biases(core: Core) -> GateTrace:
    """The gates of a step in which all weights and the input are zero, in float64.

    Their timescales are those of Ohno et al. 2022, figure 5: -1 / log of the gate of b_f.
    """
    biases = copy.deepcopy(core).double().eval()
    with torch.no_grad():
        for parameter in biases.parameters():
            if parameter.ndim > 1:
                parameter.zero_()
    return biases.trace_gates(torch.zeros(1, 1, core.input_size, dtype=torch.float64))


def gates_before_and_after(config: TaskConfig, seed: int) -> tuple[NetworkGates, NetworkGates]:
    """The gates of the untrained and of the best network, on the same held-out sequences.

    Raises:
        ValueError: the run's best weights are missing, damaged, or of another run.
    """
    run = TaskRun(config, seed)
    batch = next(run.held_out("valid"))

    def gates() -> NetworkGates:
        return NetworkGates(run.trace_gates(batch, GATE_SEQUENCES), trace_biases(run.network.core))

    before = gates()
    run.network.load_state_dict(load_best(run.folder))
    return before, gates()


def network_rows(config: TaskConfig, seed: int, setting: str, result: TaskResult) -> list[Row]:
    """Test the best weights of a finished run on fresh held-out sequences of longer tasks.

    The score is the accuracy or, of tasks without one, the share of the loss without memory that
    is saved. A prediction that is not finite is wrong.

    Args:
        config, seed: of the run.
        setting: the setting that is stretched.
        result: of the run.

    Returns:
        a row for each of `FACTORS`: length in steps, number of sequences, score, loss, and the
        score without memory.

    Raises:
        ValueError: the weights are missing, damaged, or of another run.
    """
    weights = None if result.best_step is None else load_best(RunFolder(config, seed))
    rows = []
    for factor in FACTORS:
        run = TaskRun(stretched(config, setting, factor), seed)
        if weights is None:  # no evaluation of the run was finite
            for parameter in run.network.parameters():
                torch.nn.init.constant_(parameter, math.nan)
        else:
            run.network.load_state_dict(weights)
        batches = list(run.held_out("test"))
        figures = run.evaluate(batches)
        score, floor = _score(figures, run.task.baseline)
        rows.append(
            {
                **length_columns(run.task, setting, factor, len(batches[0].inputs)),
                "count": str(sum(batch.inputs.shape[1] for batch in batches)),
                "score": f"{score:.6g}",
                "loss": f"{figures['loss']:.6g}",
                "floor": f"{floor:.6g}",
            }
        )
    return rows


def _score(figures: Mapping[str, float], baseline: float | None) -> tuple[float, float]:
    """The score of a network, and the score without memory."""
    assert baseline is not None
    if "accuracy" in figures:  # the baseline is that of guessing among equally likely answers
        return figures["accuracy"], math.exp(-baseline)
    loss = figures["loss"]
    return max(0.0, 1 - loss / baseline) if math.isfinite(loss) else 0.0, 0.0
