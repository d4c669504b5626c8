"""RL Baselines3 Zoo with the algorithms of rlgates.

    python -m rlgates.agents.zoo train --algo ppo_lstm_rlgates --env CartPoleNoVel-v1
    python -m rlgates.agents.zoo enjoy --algo ppo_lstm_rlgates --env CartPoleNoVel-v1 -f logs
    python -m rlgates.agents.zoo train --algo a2c_lstm_rlgates --gym-packages rlgates.envs \\
        --env rlgates/RepeatFirst-v0 --hyperparams policy_kwargs:"dict(core='f_lstm')"

The commands `train` (with `-optimize` a search for hyper-parameters), `enjoy` and `record_video`
are those of rl_zoo3, with all of their arguments; `train` reads the hyper-parameters of this
package unless `--conf-file` names others. Agents with masks are left out: rl_zoo3 asks no
environment for them. Needs the extra [zoo].
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
"""What a search for hyper-parameters chooses from."""
HIDDEN_SIZES = (32, 64, 128, 256)


def register() -> None:
    """Make the algorithms known to rl_zoo3, in this process.

    Note that importing rl_zoo3 replaces gymnasium's TimeLimit by its own.

    Raises:
        ModuleNotFoundError: rl_zoo3 is missing.
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
        upstream = name.removesuffix("_lstm_rlgates")
        zoo.ALGOS[name] = algorithm
        search.HYPERPARAMS_SAMPLER[name] = _sampler(search.HYPERPARAMS_SAMPLER[upstream])
        search.HYPERPARAMS_CONVERTER[name] = _convert


def hyperparameters(algorithm: str) -> Path:
    """The file of hyper-parameters that `train` reads for one of `ALGORITHMS`."""
    check_choice("algorithm", algorithm, ALGORITHMS)
    return Path(__file__).parent / "zoo_hyperparams" / f"{algorithm}.yml"


def _sampler(upstream: Any) -> Any:
    def sample(trial: Any, *args: Any) -> dict[str, Any]:
        upstream(trial, *args)
        trial.suggest_categorical("core", CORES)
        trial.suggest_categorical("lstm_hidden_size", HIDDEN_SIZES)
        return _convert(trial.params)

    return sample


def _convert(sampled: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an algorithm from what was sampled."""
    search: Any = importlib.import_module("rl_zoo3.hyperparams_opt")
    own = {name: sampled[name] for name in ("core", "lstm_hidden_size")}
    rest = {name: value for name, value in sampled.items() if name not in own}
    found: dict[str, Any] = search.convert_onpolicy_params(rest)
    found["policy_kwargs"] |= own
    if "batch_size" in found:  # powers of 2, of which the smaller divides the other
        found["batch_size"] = min(found["batch_size"], found["n_steps"])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command of rl_zoo3.

    Args:
        arguments: the command and its own arguments; those of the process if None.

    Raises:
        ValueError: an unknown command. ModuleNotFoundError: rl_zoo3 is missing.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(f"{__doc__}\ncommands: {', '.join(COMMANDS)}")  # noqa: T201
        return
    command, *rest = given
    check_choice("command", command, COMMANDS)
    register()
    before = sys.argv
    sys.argv = [f"rl_zoo3.{command}", *rest, *(_defaults(rest) if command == "train" else [])]
    try:
        runpy.run_module(f"rl_zoo3.{command}", run_name="__main__")
    finally:
        sys.argv = before


def _defaults(arguments: list[str]) -> list[str]:
    """What to add to the arguments of `train`: our file, for our algorithms."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--algo")
    parser.add_argument("-conf", "--conf-file")
    known, _ = parser.parse_known_args(arguments)
    if known.algo not in ALGORITHMS or known.conf_file is not None:
        return []
    return ["--conf-file", str(hyperparameters(known.algo))]


if __name__ == "__main__":
    main()
