"""Length generalization: trained at one length, tested at longer ones.

The weights are those of the run, and so are core options that depend on the training length (the
`t_max` of chrono gates, the slots of a memory).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from rlgates.errors import check_choice
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs.files import Row

FACTORS = (1, 2, 4, 16)

Config = AgentConfig | TaskConfig
ConfigT = TypeVar("ConfigT", bound=Config)


def check_horizon(config: Config, setting: str) -> None:
    """Check that a network or agent can be tested at all `FACTORS`.

    Args:
        config: of the run.
        setting: the setting of its task or environment to stretch.

    Raises:
        ValueError: an unknown setting, one that is not a length, or a task whose loss without
            memory is unknown.
    """
    short = make_task_or_env(config)
    if isinstance(config, TaskConfig) and short.baseline is None:
        raise ValueError(f"horizon: the loss without memory is not known for {config.task!r}.")
    for factor in FACTORS:
        long = make_task_or_env(stretched(config, setting, factor))
        if _interface(long) != _interface(short):
            change = "inputs or outputs change"
        elif getattr(long, "steps", 0) < getattr(short, "steps", 0):
            change = "sequences are shorter"
        else:
            continue
        raise ValueError(
            f"horizon: {setting} is not a length: {change} at {factor} times its value."
        )


def stretched(config: ConfigT, setting: str, factor: int) -> ConfigT:
    """The config with a task or environment that is `factor` times as long.

    Raises:
        ValueError: see `check_horizon`.
    """
    task = make_task_or_env(config)
    names = task.settings if isinstance(config, TaskConfig) else [f.name for f in fields(task)]
    integers = {name: value for name in names if type(value := getattr(task, name)) is int}
    lengths = [name for name, value in integers.items() if value > 0]
    value = factor * integers[check_choice("setting for a horizon", setting, lengths)]
    changes: dict[str, Any] = {config.settings_field: {**config.settings, setting: value}}
    return replace(config, **changes)


def make_task_or_env(config: Config) -> Any:
    """The task, or the definition of the environment, of a config."""
    return config.make_spec() if isinstance(config, AgentConfig) else config.make_task()


def length_columns(task: Any, setting: str, factor: int, steps: int) -> Row:
    """The columns that identify the test of a row."""
    value = getattr(task, setting)
    return {"factor": str(factor), "setting": f"{setting} {value}", "length": str(steps)}


def _interface(task: Any) -> tuple[Any, Any]:
    """Inputs and outputs, which must not depend on the length."""
    if hasattr(task, "observation_space"):
        return task.observation_space, task.action_space
    return task.input_size, task.output_size
