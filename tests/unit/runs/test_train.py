"""Training runs: what they leave behind, what they refuse, and that they can be repeated."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from support.tiny import SETTINGS, agent, equal, scalars, table, tiny

from rlgates.agents import RecurrentA2C, RecurrentPPO
from rlgates.envs import BatchedEnv, make_env_spec
from rlgates.envs.engine.players import play
from rlgates.envs.sb3 import make_vec_env
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.identity import identity
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.agent import evaluate as evaluation
from rlgates.experiments.runs.agent import train as training
from rlgates.experiments.runs.agent.build import ScaledReward, build
from rlgates.experiments.runs.agent.train import train
from rlgates.experiments.runs.folder import read_config
from rlgates.experiments.runs.gym.runner import GymRunner
from rlgates.experiments.runs.jobs import Job, describe, run_job, runner_for
from rlgates.experiments.show.film import film
from rlgates.experiments.sweep.workers import run_all


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> AgentConfig:
    """A run that was made, seed 3."""
    config = tiny(tmp_path_factory.mktemp("runs"))
    train(config, 3, bar=False)
    return config


def test_same_seed_same_run(finished: AgentConfig, tmp_path: Path) -> None:
    again, other = tiny(tmp_path / "again"), tiny(tmp_path / "other")
    train(again, 3, bar=False)
    train(other, 4, bar=False)
    assert equal(agent(again, 3), agent(finished, 3))
    assert table(again, 3) == table(finished, 3)
    assert not equal(agent(other, 4)["policy"], agent(finished, 3)["policy"])


def test_an_agent_that_can_no_longer_act_never_succeeds(tmp_path: Path) -> None:
    # One minibatch an update: a second one would have gradients that are not finite.
    config = tiny(tmp_path, learning_rate=1e37, n_minibatches=1, n_epochs=1)
    result = train(config, 3, bar=False)
    assert (result.ended, result.success, result.high) == ("diverged", 0.0, 0.0)
    assert math.isnan(result.last_phase_reward)
    assert result.episodes == config.final_episodes


def test_evaluation_does_not_change_the_training(finished: AgentConfig, tmp_path: Path) -> None:
    config = tiny(tmp_path, eval_every=None)
    train(config, 3, bar=False)
    assert equal(agent(config, 3), agent(finished, 3))


def test_a_finished_run_is_not_made_again(
    finished: AgentConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "_train", None)
    (outcome,) = run_all([Job(finished, 3)])
    assert outcome.cached
    assert outcome.result == train(finished, 3)
    assert outcome.result is not None
    printed = capsys.readouterr().out
    assert printed == "\n".join(describe(outcome)) + "\n"
    assert printed.endswith("curve.png (finished before)\n")
    assert "ur_lstm on PassiveMatch 1/1/5, seed 3: success 0." in printed
    assert "over 20 fresh episodes after 336 steps" in printed


def test_the_manifest(finished: AgentConfig) -> None:
    found = json.loads((finished.run_folder(3) / "manifest.json").read_text())
    assert found["status"] == "finished"
    assert found["identity"] == {**identity(finished), "seed": 3}
    assert found["seed"] == 3
    assert found["config"]["env_settings"] == SETTINGS
    (session,) = found["sessions"]
    assert {"start", "end", "command", "git", "platform", "cpus", "isa", "blas"} <= session.keys()
    assert session["cpu"]
    assert session["device"] == "cpu"
    assert session["from_step"] == 0
    assert session["versions"]["torch"] == torch.__version__
    assert session["versions"].keys() >= {"python", "numpy", "rlgates", "sb3-contrib"}
    assert found["result"]["steps"] == 336
    assert found["result"]["episodes"] == 20
    assert not (finished.run_folder(3) / "checkpoint").exists()


def test_tags_and_columns(finished: AgentConfig) -> None:
    rows, tags = table(finished, 3), scalars(finished, 3)
    assert [int(row["time/total_timesteps"]) for row in rows] == [56 * k for k in range(1, 7)]
    for tag in ("rollout/success_rate", "rollout/ep_rew_mean", "rollout/last_phase_reward"):
        assert [(int(row["time/total_timesteps"]), float(row[tag])) for row in rows] == [
            (step, pytest.approx(value)) for step, value in tags[tag]
        ]
    assert [step for step, _ in tags["eval/success_rate"]] == [168, 336]
    assert [step for step, _ in tags["gates/log10_timescale"]] == [56]
    assert {"train/loss", "train/approx_kl", "rollout/ep_len_mean"} <= tags.keys()
    assert "gates/log10_timescale" not in rows[0]


def test_the_agent_can_be_loaded_by_its_file_alone(finished: AgentConfig) -> None:
    model = RecurrentPPO.load(finished.run_folder(3) / "model.rlgates")
    obs = make_vec_env(finished.env, 2, seed=0, **SETTINGS).reset()
    assert model.predict(obs)[0].shape == (2,)


def test_a2c(tmp_path: Path) -> None:
    # Parts that would not divide the rollout do not matter: there are none.
    config = tiny(tmp_path, algo="a2c", n_minibatches=5)
    result = train(config, 3, bar=False)
    folder = tmp_path / "PassiveMatch-1-1-5-A2C-ur_lstm" / "seed-3"
    assert config.run_folder(3) == folder
    (line,) = runner_for(config).describe(Job(config, 3), result)
    assert line.startswith("ur_lstm on PassiveMatch 1/1/5, A2C, seed 3: ")
    assert read_config(folder) == (config, 3)
    rows = table(config, 3)
    assert [int(row["time/total_timesteps"]) for row in rows] == [56 * k for k in range(1, 7)]
    # Of each update but the last, which comes after the last row.
    assert [int(float(row["train/n_updates"] or 0)) for row in rows] == [0, 1, 2, 3, 4, 5]
    model = RecurrentA2C.load(folder / "model.rlgates")
    assert model._n_updates == 6
    assert isinstance(model.policy.optimizer, torch.optim.Adam)
    assert model.normalize_advantage
    assert "train/approx_kl" not in rows[-1]
    film(folder, fps=50)
    assert (folder / "film.gif").stat().st_size > 1000


def test_a_core_without_gates_has_no_histogram(tmp_path: Path) -> None:
    config = tiny(tmp_path, core="none", critic="none", total_steps=56)
    train(config, 0, bar=False)
    assert "gates/log10_timescale" not in scalars(config, 0)


@pytest.mark.parametrize(
    ("critic", "shared", "separate"),
    [("shared", True, False), ("separate", False, True), ("none", False, False)],
)
def test_critic(critic: str, shared: bool, separate: bool) -> None:
    policy = build(tiny("", critic=critic, net_arch=(5,)), 0)[0].policy
    assert policy.shared_lstm is shared
    assert (policy.lstm_critic is not None) is separate
    assert policy.mlp_extractor.latent_dim_pi == 5


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_the_rate_may_fall_and_advantages_may_stay_as_they_are(tmp_path: Path, algo: Any) -> None:
    plain = tiny(tmp_path, algo=algo)
    config = replace(plain, linear_schedule=True, normalize_advantage=False)
    model, _ = build(config, seed=0)
    assert not model.normalize_advantage
    rates = [model.lr_schedule(left) for left in (1.0, 0.5, 0.0)]
    assert rates == pytest.approx([config.learning_rate, config.learning_rate / 2, 0.0])
    before, _ = build(plain, seed=0)
    assert before.normalize_advantage
    assert before.lr_schedule(0.0) == plain.learning_rate
    # Runs of earlier versions, which had neither setting, are still those of the same config.
    assert not identity(plain).keys() & {"linear_schedule", "normalize_advantage"}
    assert identity(config)["linear_schedule"] is True
    assert identity(config)["normalize_advantage"] is False


def test_training_stops_when_it_succeeds(tmp_path: Path) -> None:
    # One success among the last eight episodes is enough, and drawn moves bring it about.
    config = tiny(
        tmp_path,
        env_settings={**SETTINGS, "reward_steps": 15},
        stop_success=1e-9,
        total_steps=10**6,
        window=8,
        eval_every=None,
        checkpoint_minutes=60.0,
        n_minibatches=1,
        n_epochs=1,
    )
    result = train(config, 0, bar=False)
    assert result.ended == "goal"
    assert result.steps < 10**5


def test_an_agent_is_good_enough_over_a_whole_window(tmp_path: Path) -> None:
    def ends(*successes: float, **changes: Any) -> bool:
        model: Any = SimpleNamespace(ep_success_buffer=successes)
        return training._is_good_enough(model, tiny(tmp_path, window=4, **changes))

    assert not ends(1, 1, 1, stop_success=0.75)
    assert ends(0, 1, 1, 1, stop_success=0.75)
    assert not ends(0, 0, 1, 1, stop_success=0.75)
    assert not ends(1, 1, 1, 1)


def test_the_threshold_is_reached_where_it_is_met_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = logs.column

    def column(rows: Any, name: str) -> Any:
        values = read(rows, name)
        return np.resize([0.5, 0.9, 0.2, 1.0], len(values)) if "success_rate" in name else values

    monkeypatch.setattr(logs, "column", column)
    assert train(tiny(tmp_path), 0, bar=False).steps_to_threshold == 112  # the second rollout


def test_training_stops_when_the_time_is_up(tmp_path: Path) -> None:
    config = tiny(tmp_path, max_minutes=1e-9, total_steps=10**9)
    result = train(config, 0, bar=False)
    assert (result.ended, result.steps) == ("time", 56)
    (line,) = runner_for(config).describe(Job(config, 0), result)
    assert ", ended by its time limit -> " in line


def test_what_the_time_limit_ended_continues_with_more_time(tmp_path: Path) -> None:
    whole = train(tiny(tmp_path / "whole"), 0, bar=False)
    short = tiny(tmp_path, max_minutes=1e-9)
    for limit, steps in ((1e-9, 56), (0.5e-9, 56), (1e-9, 56)):
        assert train(replace(short, max_minutes=limit), 0, bar=False).steps == steps
    longer = train(replace(short, max_minutes=None), 0, bar=False)
    assert replace(longer, seconds=0.0) == replace(whole, seconds=0.0)
    assert train(short, 0, bar=False) == longer


def test_what_diverges_is_a_result_of_the_last_sound_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(tmp_path, learning_rate=1e30, eval_every=None)
    untrained, _ = build(config, 0)
    result = train(config, 0, bar=False)
    assert (result.ended, result.steps) == ("diverged", 56)
    assert "diverged: the gradient of minibatch 1 is not finite" in capsys.readouterr().out
    assert equal(agent(config, 0)["policy"], dict(untrained.policy.state_dict()))
    assert train(config, 0, bar=False) == result  # looked up
    job, kind = Job(config, 0), runner_for(config)
    assert kind.row(job, result)["ended"] == "diverged"
    assert math.isnan(kind.score(job, result))
    assert [point["steps"] for point in kind.curve(job, result)] == ["56"]
    assert "diverged" in kind.describe(job, result)[0]
    assert not (config.run_folder(0) / "checkpoint").exists()


@pytest.mark.parametrize("kind", ["agent", "gym"])
def test_what_diverges_in_its_first_rollout_is_a_result(kind: str, tmp_path: Path) -> None:
    small = GymRunner().smoke(GymConfig(n_envs=1, folder=str(tmp_path)))
    config = tiny(tmp_path) if kind == "agent" else small
    job = Job(replace(config, core_options={"input_scale": 1e39}), 0)
    outcome = run_job(job)
    assert outcome.error == ""
    assert outcome.result.ended == "diverged"
    assert runner_for(job.config).row(job, outcome.result)["ended"] == "diverged"
    assert len(runner_for(job.config).curve(job, outcome.result)) == 1
    assert (job.folder.path / "curve.png").exists()


def test_scaled_rewards_and_unscaled_reports() -> None:
    plain = make_vec_env("rlgates/PassiveMatch-v0", 64, seed=1, **SETTINGS)
    scaled = ScaledReward(make_vec_env("rlgates/PassiveMatch-v0", 64, seed=1, **SETTINGS), 0.1)
    assert np.array_equal(plain.reset(), scaled.reset())
    rng, paid = np.random.default_rng(0), 0
    for _ in range(60):
        actions = rng.choice(4, 64, p=[0.7, 0.1, 0.1, 0.1])
        _, rewards, dones, infos = plain.step(actions)
        _, less, _, reports = scaled.step(actions)
        np.testing.assert_allclose(less, 0.1 * rewards)
        assert less.dtype == np.float32
        for row in np.flatnonzero(dones):
            assert reports[row]["episode"]["r"] == infos[row]["episode"]["r"]
            assert reports[row]["episode"]["last_phase_reward"] == infos[row]["last_phase_reward"]
            paid += infos[row]["last_phase_reward"] == 10
    assert paid


class Fixed(gymnasium.Env[np.ndarray[Any, Any], np.int64]):
    """Episodes of one length and one outcome."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, length: int, success: bool) -> None:
        self.length, self.success = length, success

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, _: Any) -> Any:
        self.t += 1
        info = {"is_success": self.success, "last_phase_reward": 10.0 * self.success}
        return np.zeros(1, np.float32), 0.0, self.t == self.length, False, info


def test_short_episodes_do_not_count_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Still:
        def get_env(self) -> None:
            return None

        def predict(self, obs: Any, **_: Any) -> Any:
            return np.zeros(len(obs), np.int64), None

    def make(_: str, rows: int, **__: Any) -> DummyVecEnv:
        # Failures are over at once, successes take their time.
        lengths = [(1, False), (1, False), (1, False), (50, True)] * (rows // 4)
        return DummyVecEnv([lambda pair=pair: Monitor(Fixed(*pair)) for pair in lengths])

    monkeypatch.setattr(evaluation, "make_vec_env", make)
    monkeypatch.setattr(evaluation, "MAX_ENVS", 8)
    seen = evaluation.evaluate(Still(), tiny(""), 24, seed=0)  # type: ignore[arg-type]
    assert (seen.episodes, seen.success, seen.last_phase_reward) == (24, 0.25, 2.5)
    # Wilson's interval for 6 of 24, by hand.
    z, n, p = 1.959964, 24, 0.25
    middle = (p + z**2 / 2 / n) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (p * (1 - p) / n + z**2 / 4 / n**2) ** 0.5
    assert (seen.low, seen.high) == pytest.approx((middle - half, middle + half), abs=1e-5)


def test_an_evaluation_has_its_own_random_numbers() -> None:
    config = tiny("", env_settings={**SETTINGS, "reward_steps": 15})
    model, _ = build(config, 0)
    before = torch.get_rng_state()

    def seen(seed: int) -> evaluation.Evaluation:
        return evaluation.evaluate(model, config, 300, seed)

    assert seen(2**32) == seen(2**32)
    assert len({seen(2**32 + k) for k in range(4)}) > 1
    assert torch.equal(torch.get_rng_state(), before)
    seeds = {evaluation.evaluation_seed(seed, final) for seed in (0, 2**32 - 1) for final in (0, 1)}
    assert len(seeds) == 4
    assert min(seeds) >= 2**32


def test_chance_and_ceiling_are_what_scripted_players_reach() -> None:
    config = tiny("")
    spec = make_env_spec(config.env, explore_steps=2, distractor_steps=4)
    env = BatchedEnv(spec, 300)
    assert play(env, spec.memory_player(), 300)["is_success"] == 1
    assert play(env, spec.reactive_player(), 3000)["is_success"] == pytest.approx(
        config.chance, abs=0.04
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_sense(name: str) -> None:
    PRESETS[name].check()
    assert PRESETS[name].env_title.partition(" ")[0] in PRESETS[name].env


# Others are among the commands of `bad_inputs.txt`.
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"core": "ur_lsmt"}, "unknown core 'ur_lsmt'. Did you mean 'ur_lstm'"),
        ({"env": "rlgates/PasiveMatch-v0"}, "Did you mean 'rlgates/PassiveMatch-v0'"),
        ({"env_settings": {"reward_step": 5}}, "Did you mean 'reward_steps'"),
        ({"env_settings": {"reward_steps": 0}}, "reward_steps must be at least 1, got 0"),
        ({"env_settings": {"reward_steps": "x"}}, "reward_steps must be an integer, got 'x'"),
        ({"algo": "a3c"}, "unknown algo 'a3c'"),
        ({"critic": "shard"}, "unknown critic 'shard'. Did you mean 'shared'"),
        ({"n_minibatches": 5}, "7 steps in 8 environments = 56; got 5"),
        ({"n_minibatches": 56}, "leaves one step in each"),
        ({"reward_scale": float("nan")}, "reward_scale must be finite and above 0, got nan"),
        ({"max_minutes": 0.0}, "max_minutes must be finite and above 0, got 0.0"),
        ({"seeds": ()}, "seeds must be one or more different numbers"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
    ],
)
def test_a_wrong_config_is_refused_before_any_work(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    good, bad = tiny(tmp_path), tiny(tmp_path / "bad", **changes)
    with pytest.raises(ValueError, match=message):
        run_all([Job(good, 0), Job(bad, 0)])
    assert not list(tmp_path.iterdir())


def test_another_config_in_the_same_folder_is_refused(finished: AgentConfig) -> None:
    other = tiny(finished.folder, gamma=0.9, hidden_size=5, threads=2, checkpoint_minutes=9.0)
    message = r"gamma was 0.95 and is now 0.9; hidden_size was 4 and is now 5\. Choose another"
    with pytest.raises(ValueError, match=message):
        train(other, 3)
