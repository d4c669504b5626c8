"""The identity of a run, which tells apart folders, checkpoints and table rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from inspect import signature
from typing import Any

import torch

from rlgates.experiments.configs.base import RunConfig
from rlgates.experiments.configs.modules import naming_module
from rlgates.gates import Gate
from rlgates.registry import PROBE_INPUTS, core_options, make_core

# Options of a core that choose how it is computed, and not what.
_HOW = ("backend", "debug")
# Settings that earlier versions did not have, by kind of run, and the values of all former runs.
_FORMER: dict[str, dict[str, Any]] = {
    "agent": {"linear_schedule": False, "normalize_advantage": True},
    "task": {"min_delta": 0.0},
}
_FORMER_TASK_SETTINGS = {"pool": 1}


def identity(config: RunConfig) -> dict[str, Any]:
    """Every setting that changes what is learned, as JSON has it.

    Two runs are the same if this and their seeds are equal. Nothing is left out because it has
    its default value, except for settings that earlier versions did not have, with the value that
    all their runs had: the options of the core and the settings of the task are those in effect,
    so that changing a default never makes an old and a new run equal.

    The number of processes that make a run together is no setting, and not part of it, as that of
    threads is not: both change the order of sums alone. All else that is drawn or averaged is the
    same for any number (`rlgates.agents.ranks`), so that a run may start with two and go on with
    four. The manifest has the number of each session.
    """
    config = config.resolved()
    changing = (item.name for item in fields(config) if item.metadata.get("identity", True))
    settings = {name: getattr(config, name) for name in changing}
    if settings.get("auxiliary") == "none":
        settings = {k: value for k, value in settings.items() if not k.startswith("auxiliary")}
    settings = _without(settings, _FORMER.get(config.kind, {}))
    inner = config.full_settings()
    if config.kind == "task":
        inner = _without(inner, _FORMER_TASK_SETTINGS)
    return {
        "kind": config.kind,
        **plain(settings),
        config.settings_field: plain(inner),
        "core_options": full_core_options(config.core, config.hidden_size, config.core_options),
    }


def _without(settings: Mapping[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that have the value of all former runs."""
    return {k: value for k, value in settings.items() if former.get(k, ...) != value}


def comparison(config: RunConfig) -> dict[str, Any]:
    """The `identity` without the core and its options: cores with the same one are comparable."""
    return without_core(identity(config))


def without_core(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An `identity` without the core and its options."""
    return {k: value for k, value in settings.items() if k not in ("core", "core_options")}


def upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An `identity` that an earlier version wrote, with the settings that it did not have yet.

    They have the values of all runs of that version, and not today's defaults.
    """
    if settings.get("kind") != "gym" or "final_episodes" in settings:
        return dict(settings)
    return {
        **settings,
        "wrappers": [],
        "policy": "MlpLstmPolicy",
        "algo_kwargs": {},
        "policy_kwargs": {},
        "eval_deterministic": True,
        "final_episodes": settings["eval_episodes"],
    }


def digest(settings: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that differ when the settings do, whatever their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as JSON has them: tuples become lists."""
    json_values: dict[str, Any] = json.loads(json.dumps(dict(values)))
    return json_values


def full_core_options(core: str, hidden_size: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a core that change what it computes, with defaults filled in.

    Raises:
        ValueError: an unknown core or option, an invalid value, or a core of the user that cannot
            be made.
    """
    return dict(_full_core_options(core, hidden_size, json.dumps(plain(options), sort_keys=True)))


@lru_cache(maxsize=1024)
def _full_core_options(core: str, hidden_size: int, options: str) -> dict[str, Any]:
    overrides: dict[str, Any] = json.loads(options)
    with torch.random.fork_rng(devices=[]), torch.device("meta"), naming_module(core):
        instance = make_core(core, PROBE_INPUTS, hidden_size, **overrides)
    cell: Any = instance.cells[0]
    gates = (getattr(module, "gate", None) for module in instance.modules())
    gate = next((module for module in gates if isinstance(module, Gate)), None)
    common = {name: item.default for name, item in signature(make_core).parameters.items()}
    values = {}
    for name in core_options(core):
        if name in _HOW:
            continue
        if name in common:
            values[name] = overrides.get(name, common[name])
        elif name in type(cell).options:
            values[name] = getattr(cell, name)
        elif name == "tied":
            values[name] = gate is not None and gate.auxiliary == "tied"
        else:
            values[name] = getattr(gate, name)
    return plain(values)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs, such as "gamma was 0.95 and is now 0.9"; empty if nothing does."""
    before, after = dict(_flat(then)), dict(_flat(now))
    return "; ".join(
        f"{name} was {_value(before, name)} and is now {_value(after, name)}"
        for name in sorted({*before, *after})
        if _value(before, name) != _value(after, name)
    )


def _value(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "not there"


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", item) for key, item in value.items())
        else:
            yield name, value
