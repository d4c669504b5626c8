"""Runs of agents in environments of gymnasium, beside agents of sb3-contrib."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_contrib
from gymnasium.envs.classic_control import CartPoleEnv
from matplotlib.image import imread

from rlgates.agents import TVT, RecurrentPPO, RMAPolicy
from rlgates.experiments.cli.main import main
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.identity import identity
from rlgates.experiments.report.rows import returns_of, to_frame, with_best
from rlgates.experiments.report.studies.returns import read_return_curves, return_table
from rlgates.experiments.runs.agent.evaluate import evaluation_seed
from rlgates.experiments.runs.files import read_json, read_table, write_table
from rlgates.experiments.runs.folder import RunFolder, read_config
from rlgates.experiments.runs.gym.train import GymResult, build, make_envs, read_evaluations, train
from rlgates.experiments.runs.jobs import Job, run_job, runner_for
from rlgates.experiments.runs.stopping import SIGNALS
from rlgates.experiments.studies import STUDIES, Arm

ARMS = STUDIES["learning"].arms("laptop")
TITLES = list(dict.fromkeys(arm.config.title for arm in ARMS))
REPEATED = list(zip(TITLES, 2 * ("sb3-contrib", "forget_bias=0"), strict=True))


def tiny(config: Any, folder: Path) -> GymConfig:
    """Two rollouts, with an evaluation after each."""
    small: GymConfig = replace(runner_for(config).smoke(config), folder=str(folder))
    return small


def test_the_threshold_is_that_of_the_environment_unless_one_is_set() -> None:
    assert (
        GymConfig(env="CartPole-v1").reward_threshold
        == gymnasium.spec("CartPole-v1").reward_threshold
    )
    assert GymConfig(env="CartPole-v1", success_return=50.0).reward_threshold == 50
    assert GymConfig(env="Pendulum-v1").reward_threshold is None
    assert GymConfig(env="rlgates/RepeatFirst-v0").reward_threshold is None


class Failing(CartPoleEnv):
    def step(self, action: Any) -> Any:
        raise KeyError("in the environment")


gymnasium.register("Failing-v0", Failing, max_episode_steps=9)


@pytest.fixture
def config(tmp_path: Path) -> GymConfig:
    """CartPole without velocities, in two rollouts."""
    config = ARMS[2].of("ur_lstm")
    assert config.title == "CartPole-v1 without velocities"
    return tiny(config, tmp_path)


@pytest.mark.parametrize(("title", "variant"), REPEATED)
def test_a_run_can_be_repeated(title: str, variant: str, tmp_path: Path) -> None:
    (arm,) = (arm for arm in ARMS if (arm.config.title, arm.variant) == (title, variant))
    config = tiny(arm.of("lstm"), tmp_path / "first")
    result = train(config, 0, bar=False)
    again = train(tiny(config, tmp_path / "second"), 0, bar=False)
    assert replace(result, seconds=0.0) == replace(again, seconds=0.0)
    steps, returns = read_evaluations(config.run_folder(0))
    assert steps.tolist() == [config.total_steps // 2, config.total_steps]
    assert result.low <= result.mean_return <= result.high
    assert np.isfinite(returns).all()
    assert result.best_step in steps
    assert result.steps == config.total_steps


@pytest.mark.filterwarnings("ignore:the agent was trained in a VecNormalize")
def test_what_a_run_leaves(config: GymConfig) -> None:
    result = train(config, 3, bar=False)
    folder = config.run_folder(3)
    for name in ("model", "best"):
        assert RecurrentPPO.load(folder / f"{name}.rlgates").policy is not None
        statistics = read_json(folder / f"{name}.json")
        assert len(statistics["mean"]) == len(statistics["var"]) == 2
    assert "rollout/ep_rew_mean" in (folder / "progress.csv").read_text()
    assert list(folder.glob("events.*"))
    assert RunFolder(config, 3).provenance()["threads"] == 1
    assert RunFolder(config, 3).result(GymResult) == result == train(config, 3)
    assert read_config(folder) == (replace(config, seeds=(0,)), 3)
    with pytest.raises(ValueError, match=r"gamma was 0\.99 and is now 0\.9"):
        RunFolder(replace(config, gamma=0.9), 3).result(GymResult)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"vec_env": "subproc"}, "vec_env must be 'dummy' for rlgates/ActiveTMaze-v0, a batch"),
        ({"wrappers": ("flatten",)}, "wrappers must be empty for rlgates/ActiveTMaze-v0"),
    ],
)
def test_what_a_batch_of_one_process_does_not_take(setting: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymConfig(env="rlgates/ActiveTMaze-v0", **setting).check()


def test_a_goal_that_is_set_after_the_run_is_that_of_its_row(config: GymConfig) -> None:
    config = replace(config, success_return=1e9)
    result = train(config, 3, bar=False)
    assert result.steps_to_goal is None
    lower = replace(config, success_return=0.0)
    assert train(lower, 3) == result  # it is not made again
    row = runner_for(lower).row(Job(lower, 3), result)
    first = read_evaluations(lower.run_folder(3))[0][0]
    assert (row["success_return"], row["steps_to_goal"]) == (0.0, first)


def test_an_agent_that_can_no_longer_act_has_no_return(
    config: GymConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    # One minibatch an update: a second one would have gradients that are not finite.
    size = config.n_envs * config.n_steps
    config = replace(config, learning_rate=1e37, batch_size=size, n_epochs=1)
    config = replace(config, core="nru")
    result = train(config, 0, bar=False)
    assert result.ended == "diverged"
    assert np.isnan([result.mean_return, result.low, result.high]).all()
    assert (result.steps, result.steps_to_goal) == (config.total_steps, None)
    assert "seed 0 diverged: " in capsys.readouterr().out
    assert np.isnan(RunFolder(config, 0).result(GymResult).mean_return)
    job = Job(config, 0)
    (line,) = runner_for(config).describe(job, result)
    assert "its outputs are no longer finite after" in line
    row = runner_for(config).row(job, result)
    read = to_frame([{name: str(value) for name, value in row.items()}])
    assert returns_of(read) == config.worst_return == 0


def test_the_curve_has_one_evaluation_at_a_step(
    config: GymConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "rlgates.experiments.plots.curves.draw_returns", lambda *words: drawn.append(words[0])
    )
    result = train(config, 0, bar=False)
    steps, returns = drawn[0]["evaluations on fresh episodes"]
    known = ~np.isnan(returns)
    assert read_evaluations(config.run_folder(0))[0].tolist()[-1] == result.steps
    assert steps[known].tolist() == sorted(set(steps[known])) == [result.steps / 2, result.steps]
    assert returns[-1] == result.mean_return


@pytest.mark.filterwarnings("ignore:the agent was trained in a VecNormalize")
def test_statistics_of_the_agent_are_those_of_its_environments(config: GymConfig) -> None:
    train(config, 0, bar=False)
    saved = read_json(config.run_folder(0) / "model.json")
    env: Any = make_envs(config, 0, training=True)
    agent = RecurrentPPO.load(config.run_folder(0) / "model.rlgates")
    agent.set_env(env)
    obs = np.array([[0.5, 0.1]] * config.n_envs)
    env.obs_rms.mean[:], env.obs_rms.var[:] = saved["mean"], saved["var"]
    expected = (obs - saved["mean"]) / np.sqrt(np.array(saved["var"]) + saved["epsilon"])
    np.testing.assert_allclose(env.normalize_obs(obs), expected, rtol=1e-6)


@pytest.mark.parametrize("every", [None, 10**9])
def test_without_evaluations_there_is_one_at_the_end(config: GymConfig, every: Any) -> None:
    config = replace(config, eval_every=every)
    result = train(config, 0, bar=False)
    assert not read_evaluations(config.run_folder(0))[0].size
    assert result.best_step is None
    assert result.mean_return > 0
    (point,) = runner_for(config).curve(Job(config, 0), result)
    assert point == {"steps": f"{config.total_steps}", "mean_return": f"{result.mean_return:.3f}"}


def test_runs_of_neighbouring_seeds_have_episodes_of_their_own(config: GymConfig) -> None:
    """SB3 seeds copy k with the agent's seed plus k."""
    seen = []
    for seed in (0, 1):
        model = build(config, seed)
        env: Any = model.get_env()
        seen += env.reset().tolist()
        evaluation: Any = make_envs(config, seed, training=False)
        evaluation.seed(evaluation_seed(seed, final=True))
        seen += evaluation.reset().tolist()
    assert len(seen) > 4
    assert len({str(one) for one in seen}) == len(seen)


def test_an_environment_in_a_process_outlives_what_stops_the_run(config: GymConfig) -> None:
    one = replace(config, n_envs=1, vec_env="subproc")
    with closing(make_envs(one, 0, training=True)) as env:
        env.reset()
        base: Any = env.unwrapped
        for number in SIGNALS:
            os.kill(base.processes[0].pid, number)
        env.step(np.array([env.action_space.sample()]))


def test_an_environment_that_fails_in_its_process_is_said(config: GymConfig) -> None:
    failing = replace(config, env="Failing-v0", vec_env="subproc")
    with pytest.raises(RuntimeError, match=r"an environment ended\. What .* --vec-env dummy"):
        train(failing, 0, bar=False)
    with pytest.raises(KeyError, match="in the environment"):
        train(replace(failing, vec_env="dummy"), 0, bar=False)


def test_a_time_limit_ends_the_run(config: GymConfig) -> None:
    config = replace(config, max_minutes=1e-9)
    result = train(config, 0, bar=False)
    assert result.ended == "time"
    assert result.steps < config.total_steps
    assert train(config, 0, bar=False) == result
    longer = train(replace(config, max_minutes=None), 0, bar=False)
    whole = train(replace(config, max_minutes=None, folder=f"{config.folder}/whole"), 0, bar=False)
    assert replace(longer, seconds=0.0) == replace(whole, seconds=0.0)


def test_sb3_contrib_has_the_agent_of_sb3_contrib(
    config: GymConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    init = sb3_contrib.RecurrentPPO.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(type(self))
        init(self, *args, **kwargs)

    monkeypatch.setattr(sb3_contrib.RecurrentPPO, "__init__", noted)
    torch_lstm = replace(config, core="lstm", core_options={"forget_bias": 0.0})
    assert run_job(Job(replace(torch_lstm, algo="sb3-contrib"), 0), bar=False).result
    assert run_job(Job(torch_lstm, 0), bar=False).result
    assert set(made[:1]) == {sb3_contrib.RecurrentPPO}
    assert made[-1] is RecurrentPPO


def test_agents_of_an_environment_differ_in_core_and_algorithm_alone() -> None:
    for title in TITLES:
        arms = [arm for arm in ARMS if arm.config.title == title]
        every = [identity(arm.of(core)) for arm in arms for core in arm.cores]
        same = [
            {k: v for k, v in one.items() if k not in ("core", "core_options", "algo")}
            for one in every
        ]
        assert all(one == same[0] for one in same)
        assert len(every) == len({str(one) for one in every}) >= 4


def test_settings_that_were_not_given_are_in_the_identity() -> None:
    config = GymConfig(env="rlgates/MiniGridMemoryS7-v0")
    assert identity(config)["env_settings"]["size"] == 7
    assert identity(config)["env_settings"]["observation"] == "symbolic"
    assert GymConfig(env="CartPole-v1").full_settings()["sutton_barto_reward"] is False


def test_a_study_makes_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "learning", "--tier", "smoke", "--seeds", "0", "--jobs", "1"]
    words += ["--tasks", "CartPole", "--cores", "lstm", "none", "--folder", str(tmp_path)]
    assert main(words) == 0
    folder = tmp_path / "learning_smoke"
    rows = read_table(folder / "learning_smoke.csv")
    assert len(rows) == 4
    assert {row["measured"] for row in rows} == {"result"}
    assert len(read_table(folder / "learning_smoke_curves.csv")) == 2 * len(rows)
    assert "0 of 1" in (folder / "learning_smoke.md").read_text()
    assert imread(folder / "learning_smoke.png").std() > 0.01
    capsys.readouterr()
    assert main(words) == 0
    assert "4 of 4 runs are in" in capsys.readouterr().out
    assert read_table(folder / "learning_smoke.csv") == rows
    assert main(["figures", "--results", str(folder), "--readme", str(tmp_path / "none")]) == 0


def rows_with_returns(**columns: str) -> list[dict[str, str]]:
    """Rows of three runs that reached 449, 450 and 500."""
    return [
        {
            "title": "CartPole-v1",
            "core": "lstm",
            "seed": str(seed),
            "mean_return": str(value),
            "success_return": "450.0",
            "steps_to_goal": "100" if value >= 450.0 else "",
            "episodes": "20",
            "seconds": "60",
            "commit": "abcdefghij",
            "command": "rlgates sweep learning",
            **columns,
        }
        for seed, value in enumerate((449.0, 450.0, 500.0))
    ]


def test_the_table_tells_who_learned() -> None:
    head, _, line, *_ = return_table(to_frame(rows_with_returns())).splitlines()
    assert "published" not in head
    assert "| `lstm` | 466 [" in line
    assert "] | 2 of 3 | 100 (2) | 1 min 0 s |" in line


def test_the_table_has_the_best_evaluation_beside_the_last() -> None:
    rows = to_frame(rows_with_returns())
    curves = to_frame(
        {**row, "mean_return": value}
        for row in rows_with_returns()
        for value in ("12.0", "480.0", row["mean_return"])
    )
    head, _, line, *_ = return_table(with_best(rows, curves)).splitlines()
    assert "| return at the end | best | learned |" in head
    assert "] | 487 | 2 of 3 |" in line  # of 480, 480 and 500


def test_thousands_have_no_exponent() -> None:
    (row,) = rows_with_returns()[:1]
    table = return_table(to_frame([{**row, "mean_return": "-1121.4"}]))
    assert "| `lstm` | -1,121 | 0 of 1 |" in table


def test_a_published_return_stands_beside_the_plain_mean() -> None:
    rows = rows_with_returns(published="480 (one run)")
    head, _, line, *_ = return_table(to_frame(rows)).splitlines()
    assert "| return at the end | plain mean | published | learned |" in head
    assert "] | 466.3 | 480 (one run) | 2 of 3 |" in line


def test_figures_draw_returns_from_the_worst_to_the_best(tmp_path: Path) -> None:
    rows = to_frame(rows_with_returns(best_return="0.0", worst_return="-200.0"))
    points = [{**row, "steps": "10", "mean_return": "-50"} for row in rows_with_returns()]
    write_table(tmp_path / "curves.csv", points, list(points[0]))
    curves = read_return_curves(rows, tmp_path / "curves.csv")["CartPole-v1"]
    assert [curve.success.tolist() for curve in curves] == [[0.75]] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "CartPol-v1"}, "CartPol-v1 cannot be made"),
        ({"env_settings": {"colour": 1}}, "CartPole-v1 cannot be made"),
        ({"core": "ur_lstn"}, "Did you mean 'ur_lstm'"),
        ({"algo": "sb3_contrib"}, "Did you mean 'sb3-contrib'"),
        ({"algo": "sb3-contrib"}, r"core must be 'lstm' with forget_bias=0\.0, got 'ur_lstm'"),
        ({"algo": "sb3-contrib", "core": "lstm"}, "got 'lstm' with no options"),
        ({"observation_indices": (0, 4)}, r"from 0 to 3, got \(0, 4\)"),
        ({"env": "rlgates/PassiveTMaze-v0"}, "observation_indices must be empty"),
        ({"n_envs": 0}, "n_envs must be"),
        ({"eval_every": 0}, "eval_every must be"),
        ({"worst_return": 500.0}, "worst_return must be below best_return, 500, got 500"),
        ({"best_return": -200.0}, "worst_return must be below best_return, -200, got 0"),
        ({"worst_return": float("nan")}, "worst_return must be"),
        ({"best_return": None, "worst_return": -200.0}, "worst_return=-200 needs best_return"),
    ],
)
def test_bad_input(config: GymConfig, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(config, **changes).check()


@pytest.fixture
def transport(tmp_path: Path) -> GymConfig:
    """The RMA agent with value transport, in two rollouts."""
    (arm, *_) = STUDIES["value_transport"].arms("laptop")
    return replace(tiny(arm.of("ur_rma"), tmp_path), n_envs=4, batch_size=120, total_steps=480)


def test_agents_with_value_transport(transport: GymConfig) -> None:
    result = train(transport, 0, bar=False)
    agent = RecurrentPPO.load(transport.run_folder(0) / "model.rlgates")
    assert type(agent.policy) is RMAPolicy
    assert agent.tvt == TVT(alpha=0.9, threshold=2.0)
    assert result.steps == 480
    assert "rollout/tvt_reward" in (transport.run_folder(0) / "progress.csv").read_text()


def test_settings_of_value_transport_are_checked(transport: GymConfig) -> None:
    for tvt, message in (
        ({"treshold": 1.0}, "unknown setting of tvt 'treshold'.*'threshold'"),
        ({"threshold": -1.0}, "threshold must be at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            runner_for(transport).check(replace(transport, algo_kwargs={"tvt": tvt}))


def test_gates_and_horizon_are_refused(config: GymConfig) -> None:
    for what in ({"gates": ("ur_lstm",)}, {"horizon": "length"}):
        with pytest.raises(ValueError, match="not for CartPole-v1"):
            Arm(config, ("ur_lstm",), **what)  # type: ignore[arg-type]


def test_compare_is_the_old_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--tasks", "CartPol", "--jobs", "0"]) == 2
    assert "compare is now sweep learning" in capsys.readouterr().err
