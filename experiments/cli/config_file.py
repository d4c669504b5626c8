"""Config files of `rlgates train`: TOML, or the manifest of a run."""

from __future__ import annotations

import ast
import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tyro

from rlgates.envs.engine.views import VIEW_SETTINGS
from rlgates.errors import check_choice
from rlgates.experiments.cli.rules import RULES
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.base import (
    RunConfig,
    override_from_command_line,
    supported_options,
)
from rlgates.experiments.configs.docs import field_docs
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.modules import import_here, without_module
from rlgates.experiments.runs.folder import read_config, read_modules

TrainConfig = AgentConfig | GymConfig
_MERGED = ("algo_kwargs", "policy_kwargs")
_OF_ENV = (
    *("env_title", "observation_indices", "wrappers", "policy"),
    *("success_return", "best_return", "worst_return", "published"),
)
"""Fields of `GymConfig` that say something about its environment, besides `env_settings`."""


def for_env(config: TrainConfig, env_id: str) -> TrainConfig:
    """`config` with another environment, without what it says about its own."""
    if env_id == config.env:
        return config
    defaults: dict[str, Any] = {
        item.name: item.default for item in fields(config) if item.name in _OF_ENV
    }
    changed: TrainConfig = replace(config, env=env_id, env_settings={}, **defaults)
    return changed


def over_base(base: TrainConfig, config: TrainConfig) -> TrainConfig:
    """`config` with its named settings from the command line laid over those of `base`.

    A preset of the environment replaces its settings in `base`, which would override it.
    """
    settings = for_env(base, config.env).env_settings
    given = override_from_command_line({}, config.env_settings)
    if isinstance(config, AgentConfig) and "preset" in given:
        settings = {name: settings[name] for name in settings if name in VIEW_SETTINGS}
    options = supported_options(base.core_options, config.core)
    merged: dict[str, Any] = {
        name: override_from_command_line(getattr(base, name), getattr(config, name))
        for name in _MERGED
        if hasattr(config, name)
    }
    changed: TrainConfig = replace(
        config,
        env_settings=override_from_command_line(settings, config.env_settings),
        core_options=override_from_command_line(options, config.core_options),
        **merged,
    )
    return changed


def read_config_file(path: Path) -> RunConfig:
    """The config in a TOML file, or of the run of a manifest.json.

    A TOML file has the fields of `AgentConfig` for an environment of rlgates, and else those of
    `GymConfig`; what is missing has its default, and "None" stands for None.

    Raises:
        ValueError: another type of file, invalid TOML, an unknown field (the nearest is named), an
            invalid value, no manifest of this version.
        FileNotFoundError: there is no such file.
    """
    if path.suffix not in (".toml", ".json"):
        raise ValueError(f"a config is a .toml or a run's manifest.json, got {str(path)!r}.")
    if not path.is_file():
        hint = "; `rlgates init` writes one" if path.suffix == ".toml" else ""
        raise FileNotFoundError(f"there is no file {path}{hint}.")
    if path.suffix == ".json":
        if path.name != "manifest.json":
            raise ValueError(f"a .json config must be a run's manifest.json, got {str(path)!r}.")
        run, seed = read_config(path.parent)
        for module in read_modules(path.parent):  # they register its core
            import_here(module)
        return replace(run, seeds=(seed,))
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    base = default_config(values.get("env", AgentConfig.env))
    known = [item.name for item in fields(base)]
    for name in values:
        check_choice(f"field of {path}", name, known)
    if isinstance(values.get("core"), str):
        values["core"] = without_module(values["core"])
    words = [word for name, value in values.items() for word in _words(name, value)]
    try:
        with RULES:
            config: TrainConfig = tyro.cli(
                type(base), args=words, default=base, prog="rlgates train"
            )
    except SystemExit as end:  # tyro has said what is wrong
        raise ValueError(f"{path} has an invalid value: see above.") from end
    return over_base(base, config)


def default_config(env_id: Any) -> TrainConfig:
    """The default config for an environment: of a batch if it is one of rlgates."""
    if not isinstance(env_id, str):
        raise ValueError(f"env must be the id of an environment, got {env_id!r}.")
    if GymConfig.takes(env_id):
        return GymConfig(env=env_id)
    return for_env(AgentConfig(), env_id)


def config_text(config: TrainConfig) -> str:
    """The config as TOML, with what each field means."""
    docs = field_docs(type(config))
    lines = ["# rlgates train --config FILE; options of the command line override it."]
    tables = []
    for item in fields(config):
        value = getattr(config, item.name)
        comment = textwrap.wrap(docs[item.name], 96, initial_indent="# ", subsequent_indent="# ")
        if isinstance(value, Mapping):
            entries = [f"{name} = {_toml(part)}" for name, part in value.items()]
            tables += ["", *comment, f"[{item.name}]", *entries]
        else:
            lines += ["", *comment, f"{item.name} = {_toml(value)}"]
    return "\n".join([*lines, *tables, ""])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(part)}" for name, part in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(str(value), ensure_ascii=False)


def _words(name: str, value: Any) -> Iterator[str]:
    """A field of a file as words of the command line, which has the one parser."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{option}" if value else f"--no-{option}"
        return
    yield f"--{option}"
    if isinstance(value, Mapping):
        yield from (f"{key}={_literal(part)}" for key, part in value.items())
    elif isinstance(value, list):
        yield from map(str, value)
    else:
        yield str(value)


def _literal(value: Any) -> str:
    """A value as `parse_pairs` reads it back."""
    if value == "None" or not isinstance(value, str):
        return str(value)
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    return repr(value)
