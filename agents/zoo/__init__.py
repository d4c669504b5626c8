"""RL Baselines3 Zoo with the algorithms of rlgates.

    python -m rlgates.agents.zoo train --algo ppo_lstm_rlgates --env CartPoleNoVel-v1
    python -m rlgates.agents.zoo enjoy --algo ppo_lstm_rlgates --env CartPoleNoVel-v1 -f logs
    python -m rlgates.agents.zoo train --algo a2c_lstm_rlgates --gym-packages rlgates.envs \\
        --env rlgates/RepeatFirst-v0 --hyperparams policy_kwargs:"dict(core='f_lstm')"

The commands `train` (with `-optimize`, a hyperparameter search), `enjoy` and `record_video` are
those of rl_zoo3, with all their arguments. `train` reads the hyperparameters of this package
unless `--conf-file` names another file. Maskable agents are not available, because rl_zoo3 does
not pass masks. Needs the extra [zoo].
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlgates.agents.a2c import RecurrentA2C
from rlgates.agents.ppo import RecurrentPPO
from rlgates.errors import check_choice

ALGORITHMS = {"ppo_lstm_rlgates": RecurrentPPO, "a2c_lstm_rlgates": RecurrentA2C}
"""By their names in rl_zoo3."""
COMMANDS = ("train", "enjoy", "record_video")
CORES = ("ur_lstm", "f_lstm", "lstm", "ur_gru", "mingru", "lru")
"""The choices of a hyperparameter search."""
HIDDEN_SIZES = (32, 64, 128, 256)


def register() -> None:
    """Register the algorithms with rl_zoo3, in this process.

    Importing rl_zoo3 replaces gymnasium's TimeLimit.

    Raises:
        ModuleNotFoundError: rl_zoo3 is not installed.
    """
    try:
        zoo = importlib.import_module("rl_zoo3")
        search: Any = importlib.import_module("rl_zoo3.hyperparams_opt")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"rlgates.agents.zoo needs {error.name}: install rlgates with its extra [zoo].",
            name=error.name,
        ) from error
    for name, algorithm in ALGORITHMS.items():
        base_name = name.removesuffix("_lstm_rlgates")
        zoo.ALGOS[name] = algorithm
        search.HYPERPARAMS_SAMPLER[name] = _sampler(search.HYPERPARAMS_SAMPLER[base_name])
        search.HYPERPARAMS_CONVERTER[name] = _convert


def hyperparameters(algorithm: str) -> Path:
    """The file of hyperparameters that `train` reads for one of `ALGORITHMS`."""
    check_choice("algorithm", algorithm, ALGORITHMS)
    return Path(__file__).parent / "hyperparams" / f"{algorithm}.yml"


def _sampler(base_sampler: Any) -> Any:
    def sample(trial: Any, *args: Any) -> dict[str, Any]:
        base_sampler(trial, *args)
        trial.suggest_categorical("core", CORES)
        trial.suggest_categorical("lstm_hidden_size", HIDDEN_SIZES)
        return _convert(trial.params)

    return sample


def _convert(sampled: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an algorithm, from sampled hyperparameters."""
    search: Any = importlib.import_module("rl_zoo3.hyperparams_opt")
    core_options = {name: sampled[name] for name in ("core", "lstm_hidden_size")}
    remaining = {name: value for name, value in sampled.items() if name not in core_options}
    arguments: dict[str, Any] = search.convert_onpolicy_params(remaining)
    arguments["policy_kwargs"] |= core_options
    return arguments


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command of rl_zoo3.

    Args:
        arguments: the command and its arguments; None for those of the process.

    Raises:
        ValueError: an unknown command.
        ModuleNotFoundError: rl_zoo3 is not installed.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help"):
        print(f"{__doc__}\ncommands: {', '.join(COMMANDS)}")  # noqa: T201
        return
    command, *rest = argv
    check_choice("command", command, COMMANDS)
    register()
    before = sys.argv
    sys.argv = [f"rl_zoo3.{command}", *rest, *(_default_file(rest) if command == "train" else [])]
    try:
        runpy.run_module(f"rl_zoo3.{command}", run_name="__main__")
    finally:
        sys.argv = before


def _default_file(arguments: list[str]) -> list[str]:
    """The `--conf-file` option to add to `train`: for our algorithms, unless there is one."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--algo")
    parser.add_argument("-conf", "--conf-file")
    known, _ = parser.parse_known_args(arguments)
    if known.algo not in ALGORITHMS or known.conf_file is not None:
        return []
    return ["--conf-file", str(hyperparameters(known.algo))]
