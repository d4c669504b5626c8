"""The HParams tab of TensorBoard: the settings and final metrics of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.logger import HParam, Logger, TensorBoardOutputFormat

from rlgates.experiments.configs.base import OPTION, SETTING, RunConfig
from rlgates.experiments.configs.identity import identity
from rlgates.registry import CORES, core_and_gate

Value = bool | float | str
PREFIX = "final/"


def hyperparameters(config: RunConfig, seed: int) -> dict[str, Value]:
    """The settings of a run by name: "core.forget_bias", "task.delay"; without None."""
    core, gate = core_and_gate(config.core)
    values: dict[str, Any] = identity(config)
    del values["core_options"], values[config.settings_field]
    values |= {"gate": gate or ("plain" if CORES[core].gates else "none"), "seed": seed}
    values |= {f"{OPTION}{name}": value for name, value in config.core_options.items()}
    values |= {f"{SETTING}{name}": value for name, value in config.settings.items()}
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in values.items()
        if value is not None
    }


def write_hparams(
    logger: Logger,
    config: RunConfig,
    seed: int,
    metrics: Mapping[str, float | None],
    steps: int,
) -> None:
    """Write the settings and the metrics of a finished run to its event file.

    Args:
        logger: of the run.
        config, seed: of the run.
        metrics: final metrics by name, written below "final/"; None and non-finite numbers are
            skipped.
        steps: training steps or updates.
    """
    scalars = {
        f"{PREFIX}{name}": float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    }
    values = {"hparams": HParam(hyperparameters(config, seed), scalars), **scalars}
    for output in logger.output_formats:
        if isinstance(output, TensorBoardOutputFormat):
            output.write(values, dict.fromkeys(values, ()), steps)
