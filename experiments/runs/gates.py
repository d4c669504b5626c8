"""The forget gates of finished runs, as rows of a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rlgates.core import GateTrace
from rlgates.experiments.analysis.unit_gates import Growth, unit_means, unit_timescales
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.files import Row

QUANTILES = ("timescale_low", "timescale", "timescale_high")  # 10, 50 and 90 per cent


def unit_rows(
    before: GateTrace, after: GateTrace, biases: tuple[GateTrace, GateTrace] | None = None
) -> list[Row]:
    """A row for each unit: its mean gate and its timescale, before and after training.

    Args:
        before, after: the gates on sequences.
        biases: those of the biases alone, before and after, whose timescales get columns, too.
    """
    if not after.forget:
        return []
    with torch.no_grad():
        columns = {
            f"{kind}_{when}": values(gates)
            for when, gates in (("before", before), ("after", after))
            for kind, values in (("gate", unit_means), ("timescale", unit_timescales))
        }
        if biases is not None:
            for when, gates in zip(("before", "after"), biases, strict=True):
                columns[f"bias_timescale_{when}"] = unit_timescales(gates)
    return [
        {"unit": str(unit), **{name: f"{column[unit]:.5g}" for name, column in columns.items()}}
        for unit in range(len(columns["gate_before"]))
    ]


def growth_columns(folder: Path) -> dict[int, Row]:
    """The quantiles of the gates' timescales in steps that a run recorded, by update."""
    timescales = growth(folder)
    if timescales is None:
        return {}
    return {
        int(step): {name: f"{value:.4g}" for name, value in zip(QUANTILES, values, strict=True)}
        for step, *values in zip(*timescales, strict=True)
    }


def growth(folder: Path) -> Growth | None:
    """The timescales that the run recorded during training; None if it did not."""
    rows = logs.read_rows(folder / "progress.csv")
    tag = "gates/log10_timescale"
    steps, *marks = (
        logs.column(rows, name)
        for name in (logs.STEPS, f"{tag}/q10", f"{tag}/median", f"{tag}/q90")
    )
    recorded = ~np.isnan(marks[0])
    if not recorded.any():
        return None
    low, middle, high = (10 ** mark[recorded] for mark in marks)
    return Growth(steps[recorded], low, middle, high)
