"""The search space of a config, and the config of sampled values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from rlgates.errors import check_choice
from rlgates.experiments.configs.base import OPTION
from rlgates.experiments.runs.jobs import Config
from rlgates.experiments.studies.space import Choice, Range, Space, Value
from rlgates.registry import check_options, core_names

# Regularizers for supervised tasks; agents are trained without them.
NOT_FOR_AGENTS = ("dropout", "recurrent_dropout", "zoneout_cell", "zoneout_hidden")


def search_space(space: Space, config: Config, names: Iterable[str] = ()) -> Space:
    """The part of a study's space that applies to a config.

    Args:
        space: of the study; options of a core as "rru.dropout".
        config: of one core.
        names: parameters to search; all by default.

    Returns:
        the space, with options of the config's core as "core.dropout".

    Raises:
        ValueError: a name that the space or the config does not have (the nearest one is named),
            a value other than `Range` or `Choice`, or an empty result.
    """
    applicable: dict[str, tuple[str, Range | Choice]] = {}
    for name, values in space.items():
        if not isinstance(values, Range | Choice):
            raise ValueError(f"{name} must be a Range or a Choice, got {values!r}.")
        core, dot, option = name.rpartition(".")
        if not dot:
            check_choice("setting", name, (field.name for field in fields(config)))
            applicable[name] = name, values
            continue
        check_options(check_choice("core", core, core_names()), {option: None})
        excluded = config.kind != "task" and option in NOT_FOR_AGENTS
        if core == config.core and not excluded:
            applicable[name] = f"{OPTION}{option}", values
    selected = tuple(names) or tuple(applicable)
    for name in selected:
        check_choice("parameter", name, space)
    if not set(selected) & set(applicable):
        raise ValueError(
            f"no parameter can be searched for core {config.core!r}: got {', '.join(selected)}. "
            f"Allowed: {', '.join(applicable) or 'none'}."
        )
    return dict(applicable[name] for name in applicable if name in selected)


def with_values(config: Config, values: Mapping[str, Value]) -> Config:
    """The config with sampled values."""
    settings: dict[str, Any] = {}
    options = dict(config.core_options)
    for name, value in values.items():
        if name.startswith(OPTION):
            options[name.removeprefix(OPTION)] = value
        else:
            settings[name] = value
    return replace(config, **settings, core_options=options)


def boundary_configs(config: Config, space: Space) -> Iterator[Config]:
    """The configs at both ends of each range, and with each value of a choice."""
    for name, values in space.items():
        for value in values.ends:
            yield with_values(config, {name: value})
