"""Help that fits a screen: the main options of a command, and where the others are."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.base import RunConfig, options_text
from rlgates.experiments.configs.docs import field_docs
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.task import TaskConfig

WIDTH = 100
MAIN: Mapping[str, tuple[str, ...]] = {
    "train": (
        *("env", "env_settings", "wrappers", "normalize", "core", "core_options", "hidden_size"),
        *("algo", "policy_kwargs", "total_steps", "n_envs", "vec_env", "learning_rate"),
        *("eval_every", "seeds", "jobs", "max_minutes", "folder", "device"),
    ),
    "demo": ("env", "core", "total_steps", "seeds", "max_minutes", "folder"),
    "task": (
        *("task_settings", "core", "core_options", "hidden_size", "learning_rate", "batch_size"),
        *("updates", "epochs", "eval_every", "seeds", "jobs", "max_minutes", "folder", "device"),
    ),
}
"""The options of each command that its short help shows."""
USAGE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "train": (
        "Train an agent in any environment of gymnasium, one run for each seed.",
        {
            "--preset NAME": "Defaults, which options override; --help-all has the names.",
            "--config FILE": "Settings from a .toml (rlgates init) or a run's manifest.json.",
        },
    ),
    "demo": ("Train `ur_lstm` on Passive Match for at most ten minutes.", {}),
    "task": (
        "Train a core on a supervised task: rlgates task NAME [OPTIONS].",
        {
            "--list": "List the tasks with their settings and metrics.",
            "--tier NAME": "Settings: smoke takes seconds, laptop minutes, full is as published.",
            "--config FILE": "The settings of a run, from its manifest.json.",
        },
    ),
}


def short_help(command: str, config: RunConfig) -> str:
    """The help of a command in less than a screen.

    Args:
        command: of `MAIN`.
        config: whose values are the defaults.
    """
    words, options = USAGE[command]
    docs = field_docs(type(config))
    types = get_type_hints(type(config))
    known = {item.name for item in fields(config)}
    rows = {option: (text, "") for option, text in options.items()}
    for name in MAIN[command]:
        if name in known:
            default = _shorten(_text(getattr(config, name)), WIDTH // 3)
            option = f"--{name.replace('_', '-')}{_choices(types[name])}"
            rows[option] = _first(docs[name]), f" [{default}]"
    width = max(map(len, rows)) + 4
    lines = [f"usage: rlgates {command} [OPTIONS]", "", words, ""]
    for option, (text, default) in rows.items():
        text = _shorten(text, WIDTH - width - len(default))
        lines.append(f"  {option:<{width - 2}}{text}{default}")
    defaults = "the default"
    if isinstance(config, AgentConfig | GymConfig):
        defaults += f" for {config.env}"
    elif isinstance(config, TaskConfig):  # without a name the settings are those of copy
        defaults += f" for {config.task or 'copy'}"
    everything = f"rlgates {command} --help-all: all {len(known)} settings."
    lines += ["", f"In brackets: {defaults}. {everything}"]
    return "\n".join(lines)


def _choices(kind: Any) -> str:
    """` {ppo,a2c}` for a Literal of words, else nothing."""
    words = get_args(kind) if get_origin(kind) is Literal else ()
    return f" {{{','.join(words)}}}" if words else ""


def _first(doc: str) -> str:
    """The first sentence, without what follows a semicolon."""
    return doc.partition(". ")[0].partition(";")[0].rstrip(".")


def _shorten(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return options_text(value) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value)) or "none"
    return str(value)
