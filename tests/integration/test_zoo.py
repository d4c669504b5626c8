"""rl_zoo3 with agents of rlgates; in subprocesses, because it patches gymnasium."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import rlgates.envs
from rlgates import RecurrentA2C, RecurrentPPO
from rlgates.agents import zoo
from rlgates.envs.sb3 import make_vec_env

needs_zoo = pytest.mark.skipif(
    importlib.util.find_spec("rl_zoo3") is None, reason="needs the extra [zoo]"
)
SHORT = ("explore_steps:1", "distractor_steps:1", "reward_steps:5", "end_on_choice:True")


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(folder: Path, *arguments: str) -> str:
    return run(folder, "-m", "rlgates.agents.zoo", *arguments)


@needs_zoo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "kind"), [("ppo_lstm_rlgates", RecurrentPPO), ("a2c_lstm_rlgates", RecurrentA2C)]
)
def test_train_and_enjoy_cartpole(algorithm: str, kind: Any, tmp_path: Path) -> None:
    which = ("--algo", algorithm, "--env", "CartPole-v1", "--device", "cpu")
    output = command(tmp_path, "train", *which, "-n", "300", "--eval-freq", "200", "--seed", "1")
    assert str(zoo.hyperparameters(algorithm)) in output
    folder = tmp_path / "logs" / algorithm / "CartPole-v1_1"
    model = kind.load(folder / "CartPole-v1.zip")
    assert model.policy.core == "ur_lstm"
    assert (folder / "CartPole-v1" / "vecnormalize.pkl").exists()
    output = command(tmp_path, "enjoy", *which, "-f", "logs", "-n", "300", "--no-render")
    assert "Mean episode length" in output


@needs_zoo
@pytest.mark.slow
def test_an_environment_of_rlgates(tmp_path: Path) -> None:
    name = "rlgates/PassiveMatch-v0"
    which = ("--algo", "ppo_lstm_rlgates", "--env", name, "--gym-packages", "rlgates.envs")
    more = ("--hyperparams", "n_envs:2", "n_steps:8", "batch_size:16", "--env-kwargs", *SHORT)
    command(tmp_path, "train", *which, "-n", "32", "--eval-freq", "-1", "--device", "cpu", *more)
    output = command(tmp_path, "enjoy", *which, "-f", "logs", "-n", "50", "--no-render")
    assert "Success rate" in output


@pytest.mark.slow
@needs_zoo
def test_the_command_of_rl_zoo3_and_its_plots_start(tmp_path: Path) -> None:
    pytest.importorskip("seaborn", reason="needs the extra [zoo]")
    for command_name in ("plot_train", "plot_from_file", "all_plots"):
        assert "usage" in run(tmp_path, "-m", "rl_zoo3.cli", command_name, "--help")


@needs_zoo
@pytest.mark.slow
def test_a_search_samples_valid_arguments(tmp_path: Path) -> None:
    code = """
import optuna, sys
from rlgates.agents import zoo
zoo.register()
from rl_zoo3 import ALGOS
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
sizes = set()
for name in zoo.ALGORITHMS:
    assert ALGOS[name] is zoo.ALGORITHMS[name]
    cores = set()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(40):
        trial = study.ask()
        arguments = HYPERPARAMS_SAMPLER[name](trial, 2, 3, {})
        assert arguments == HYPERPARAMS_CONVERTER[name](trial.params)
        if "ppo" in name:
            sizes.add(arguments["batch_size"] > arguments["n_steps"])
        core_options = {"core", "lstm_hidden_size"}
        assert set(arguments["policy_kwargs"]) == core_options | {"net_arch", "activation_fn"}
        cores.add(arguments["policy_kwargs"]["core"])
    assert cores == set(zoo.CORES)
    kwargs = {**arguments, "n_steps": 8, **({"batch_size": 8} if "ppo" in name else {})}
    kwargs["policy_kwargs"]["lstm_hidden_size"] = 8
    ALGOS[name]("MlpLstmPolicy", "CartPole-v1", device="cpu", **kwargs).learn(16)
assert sizes == {False, True}  # minibatches of several sequences, too
"""
    run(tmp_path, "-c", code)


@pytest.mark.parametrize("name", zoo.ALGORITHMS)
def test_hyperparameters_make_models(name: str) -> None:
    """The sizes for each environment divide each other."""
    yaml = pytest.importorskip("yaml", reason="needs the extra [zoo]")
    for env_id, settings in yaml.safe_load(zoo.hyperparameters(name).read_text()).items():
        known = env_id.startswith("rlgates/")
        env: Any = "CartPole-v1"
        if known:
            env = make_vec_env(env_id, settings["n_envs"], 0, **settings["env_kwargs"])
        steps, batch = settings["n_steps"], settings.get("batch_size", settings["n_steps"])
        assert steps * settings["n_envs"] % batch == 0
        assert batch % steps == 0
        policy_kwargs = eval(settings["policy_kwargs"])
        sizes = {"n_steps": steps, **({"batch_size": batch} if "ppo" in name else {})}
        if not known:
            sizes = dict.fromkeys(sizes, steps)
        zoo.ALGORITHMS[name](settings["policy"], env, policy_kwargs=policy_kwargs, **sizes)


def test_environments_have_ids_that_rl_zoo3_finds() -> None:
    assert rlgates.envs.__name__ == "rlgates.envs"
    assert "rlgates/PassiveMatch-v0" in gym.registry


def test_hyperparameters_of_the_package_are_the_default() -> None:
    ours = ["--conf-file", str(zoo.hyperparameters("ppo_lstm_rlgates"))]
    assert zoo._default_file(["--algo", "ppo_lstm_rlgates", "--env", "CartPole-v1"]) == ours
    assert zoo._default_file(["--algo", "ppo_lstm_rlgates", "-conf", "mine.yml"]) == []
    assert zoo._default_file(["--algo", "ppo"]) == []


def test_help_and_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.main([])
    assert "commands: train, enjoy, record_video" in capsys.readouterr().out
    with pytest.raises(ValueError, match="Did you mean 'train'"):
        zoo.main(["trian"])
    with pytest.raises(ValueError, match="unknown algorithm"):
        zoo.hyperparameters("ppo")
    monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    with pytest.raises(ModuleNotFoundError, match=r"install rlgates with its extra \[zoo\]"):
        zoo.main(["train"])
