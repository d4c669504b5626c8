"""Which settings of a run are searched, and the run that a choice of them means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rlgates.cores import check_options, core_names
from rlgates.errors import check_choice
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.hparams import OPTION
from rlgates.experiments.jobs import Config
from rlgates.experiments.studies.space import Choice, Range, Space, Value

# In an agent these are off.
NOT_IN_AGENTS = ("dropout", "recurrent_dropout", "zoneout_cell", "zoneout_hidden")


def search_space(space: Space, config: Config, names: Iterable[str] = ()) -> Space:
    """The part of a study's space that is meant for a config.

    Args:
        space: of the study.
        config: of one core.
        names: what is searched; everything if nothing is named.

    Returns:
        settings by name, and options of the core as "core.dropout".

    Raises:
        ValueError: a name that neither the space nor the config has (the nearest is named),
            something else than a `Range` or a `Choice`, or nothing is left.
    """
    found: dict[str, tuple[str, Range | Choice]] = {}
    for name, values in space.items():
        if not isinstance(values, Range | Choice):
            raise ValueError(f"{name} must be a Range or a Choice, got {values!r}.")
        core, dot, option = name.rpartition(".")
        if not dot:
            check_choice("setting", name, (field.name for field in fields(config)))
            found[name] = name, values
            continue
        check_options(check_choice("core", core, core_names()), {option: None})
        off = isinstance(config, TrainConfig) and option in NOT_IN_AGENTS
        if core == config.core and not off:
            found[name] = f"{OPTION}{option}", values
    chosen = tuple(names) or tuple(found)
    for name in chosen:
        check_choice("parameter", name, space)
    if not set(chosen) & set(found):
        raise ValueError(
            f"nothing is left to be searched for core {config.core!r}: got {', '.join(chosen)}. "
            f"Allowed: {', '.join(found) or 'none'}."
        )
    return dict(found[name] for name in found if name in chosen)


def with_values(config: Config, values: Mapping[str, Value]) -> Config:
    """A config with what was chosen for it."""
    settings: dict[str, Any] = {}
    options = dict(config.core_options)
    for name, value in values.items():
        if name.startswith(OPTION):
            options[name.removeprefix(OPTION)] = value
        else:
            settings[name] = value
    return replace(config, **settings, core_options=options)


def ends(config: Config, space: Space) -> Iterator[Config]:
    """The configs at the ends of each range, and with each value of a choice."""
    for name, values in space.items():
        for value in values.ends:
            yield with_values(config, {name: value})


def words(values: Mapping[str, Value]) -> str:
    """ "learning_rate 0.001, core.dropout 0.5"."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def trial_folder(folder: Path, text: str) -> Path:
    """Where the runs of a trial are."""
    return folder / re.sub(r"[^\w.=+-]+", "_", text)
