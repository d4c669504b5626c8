"""`rlgates train` in any environment of gymnasium, and what is done with its runs."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
from gymnasium import spaces
from PIL import Image
from stable_baselines3.common.vec_env import VecNormalize

from rlgates.envs import ENVS
from rlgates.experiments.cli.main import main
from rlgates.experiments.cli.train import find_preset
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.gym_env import make_env, wrap
from rlgates.experiments.configs.gym_presets import GYM_PRESETS
from rlgates.experiments.configs.identity import identity
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.agent.callbacks import Boundary
from rlgates.experiments.runs.files import read_json
from rlgates.experiments.runs.folder import read_config
from rlgates.experiments.runs.gym.envs import Replay, SavedEnvs, make_envs
from rlgates.experiments.runs.gym.train import GymResult, train
from rlgates.experiments.runs.load import load_run
from rlgates.experiments.runs.stopping import InterruptedRun
from rlgates.registry import CORES

TINY = GymConfig(
    hidden_size=8,
    total_steps=128,
    n_envs=2,
    n_steps=16,
    batch_size=32,
    n_epochs=1,
    eval_every=32,
    eval_episodes=2,
    final_episodes=2,
)
WORDS = [
    *("--hidden-size", "8", "--total-steps", "64", "--n-envs", "2", "--n-steps", "16"),
    *("--batch-size", "32", "--eval-every", "32", "--eval-episodes", "2", "--final-episodes", "2"),
]
MODULE = """
import gymnasium
import numpy as np
from gymnasium import spaces

class Guess(gymnasium.Env):
    observation_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32)))
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        self.bit = int(self.np_random.integers(2))
        return self.bit, np.full(2, self.bit, np.float32)

    def step(self, action):
        right = bool(action == self.bit)
        return self.observe(), float(right), True, False, {"is_success": right}

gymnasium.register("Guess-v0", entry_point=Guess)
"""


class Frames(gymnasium.Env[Any, Any]):
    """Random images of 100 x 120 pixels, for two steps."""

    observation_space = spaces.Box(0, 255, (100, 120, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.integers(256, size=(100, 120, 3), dtype=np.uint8), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        image = self.np_random.integers(256, size=(100, 120, 3), dtype=np.uint8)
        return image, float(action[0]), self.steps == 2, False, {}


class Unseeded(Frames):
    """As `Frames`, but no seed determines it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None, options=options)


@pytest.fixture(autouse=True)
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registered environments, and a module in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "guess_module.py").write_text(MODULE)
    for name, env in (("Frames-v0", Frames), ("Unseeded-v0", Unseeded)):
        gymnasium.register(name, entry_point=env)
    yield
    for name in ("Frames-v0", "Unseeded-v0", "Guess-v0"):
        gymnasium.registry.pop(name, None)
    sys.modules.pop("guess_module", None)


@pytest.mark.parametrize(
    ("env", "wrappers", "policy", "shape"),
    [
        ("CartPole-v1", (), "MlpLstmPolicy", (4,)),
        ("MiniGrid-MemoryS7-v0", ("minigrid",), "MlpLstmPolicy", (7, 7, 20)),
        ("Frames-v0", ("grayscale", "resize=84"), "CnnLstmPolicy", (84, 84, 1)),
        ("guess_module:Guess-v0", ("flatten",), "MlpLstmPolicy", (5,)),
        ("popgym-RepeatFirstEasy-v0", (), "MlpLstmPolicy", ()),
        ("rlgates/PassiveTMaze-v0", (), "MlpLstmPolicy", None),
    ],
)
def test_wrappers_and_policy_are_chosen_and_part_of_the_identity(
    env: str, wrappers: tuple[str, ...], policy: str, shape: tuple[int, ...] | None
) -> None:
    config = replace(TINY, env=env)
    resolved = config.resolved()
    assert (resolved.wrappers, resolved.policy) == (wrappers, policy)
    if shape is not None:
        with closing(config.make_env()) as made:
            assert made.observation_space.shape == shape
            assert made.observation_space.contains(made.reset(seed=0)[0])
    assert identity(config) == identity(resolved)
    assert identity(config)["wrappers"] == list(wrappers)


def test_one_hot_cells_are_those_of_the_view() -> None:
    plain, env = (make_env("MiniGrid-MemoryS7-v0", {"agent_view_size": 3}) for _ in range(2))
    cells = plain.reset(seed=5)[0]["image"]
    observation, _ = wrap(env, ("minigrid",)).reset(seed=5)
    parts = np.split(observation, (11, 17), axis=-1)
    for channel, part in enumerate(parts):
        assert (part.sum(-1) == 1).all()
        np.testing.assert_array_equal(part.argmax(-1), cells[..., channel])


def test_frames_are_made_grey_small_and_stacked() -> None:
    env = wrap(make_env("Frames-v0", {}), ("grayscale", "resize=50", "stack=3"))
    assert env.observation_space.shape == (50, 50, 3)
    first, _ = env.reset(seed=0)
    second, *_ = env.step(np.zeros(2, np.float32))
    assert env.observation_space.contains(second)
    np.testing.assert_array_equal(first[..., 2], second[..., 1])
    assert (second[..., 2] != second[..., 1]).any()
    plain = wrap(make_env("Frames-v0", {}), ("grayscale",)).reset(seed=0)[0][..., 0]
    np.testing.assert_allclose(  # an image of 100 x 120 in boxes of 2 x 2.4
        first[..., 2].mean(), plain.mean(), atol=1
    )


def interrupted_at(count: int) -> Any:
    """A stop function that is true at the call of that number."""
    calls = iter(range(count))
    return lambda: next(calls, None) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"env": "CartPole-v1", "wrappers": ("stack=2", "previous"), "normalize": True},
        pytest.param(
            {"env": "CartPole-v1", "algo": "a2c", "linear_schedule": True, "vec_env": "subproc"},
            marks=pytest.mark.slow,
        ),
        {"env": "CartPole-v1", "algo": "sb3-contrib", "core": "lstm"},
        {"env": "MiniGrid-MemoryS7-v0", "env_settings": {"max_steps": 10}},
        {"env": "Frames-v0", "algo_kwargs": {"use_sde": True}, "wrappers": ("resize=20",)},
        {"env": "rlgates/PassiveTMaze-v0", "normalize": True},
        {"env": "rlgates/PassiveMatch-v0", "env_settings": {"preset": "short"}, "normalize": True},
    ],
)
def test_a_stopped_run_continues_bit_for_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    config = replace(TINY, **changes)
    if config.algo == "sb3-contrib":
        config = replace(config, core_options={"forget_bias": 0.0})
    whole = replace(config, folder=str(tmp_path / "whole"))
    parts = replace(config, folder=str(tmp_path / "parts"))
    expected = train(whole, 3, bar=False)
    for _ in range(2):
        with pytest.raises(InterruptedRun, match="saved in"):
            train(parts, 3, stop=interrupted_at(1), bar=False)
    assert read_json(parts.run_folder(3) / "manifest.json")["status"] == "interrupted"
    result = train(parts, 3, bar=False)
    assert replace(result, seconds=0.0) == replace(expected, seconds=0.0)
    rows = [logs.read_rows(c.run_folder(3) / "progress.csv") for c in (whole, parts)]
    for one, other in zip(*rows, strict=True):
        for name in one.keys() - {"time/seconds", "time/fps"}:
            assert one[name] == other[name], name
    assert len(read_json(parts.run_folder(3) / "manifest.json")["sessions"]) == 3


def test_an_environment_that_does_not_repeat_itself_is_noticed() -> None:
    for env_id in ("Frames-v0", "Unseeded-v0"):
        env = Replay(gymnasium.make(env_id))
        env.reset(seed=1)
        env.step(np.zeros(2, np.float32))
        state = env.get_state()
        if env_id == "Frames-v0":
            env.set_state(state)
            assert env.get_state()["sum"] == state["sum"]
        else:
            with pytest.raises(ValueError, match="does not repeat an episode from its seed"):
                env.set_state(state)


def test_every_episode_has_a_seed_of_its_own() -> None:
    env = Replay(gymnasium.make("CartPole-v1"))
    first = [env.reset(seed=s)[0].tolist() for s in (0, None, None, 0, 1)]
    assert first[0] == first[3]
    assert len({str(one) for one in first}) == 4


@pytest.mark.parametrize("normalize", [False, True])
def test_state_of_environments(normalize: bool) -> None:
    config = replace(TINY, normalize=normalize)
    actions = np.zeros((20, 2), dtype=np.int64)
    with closing(make_envs(config, 0, training=True)) as env:
        env.reset()
        for action in actions[:7]:
            env.step(action)
        state = SavedEnvs(env).get_state()
        expected = [env.step(action)[:3] for action in actions[7:]]
    with closing(make_envs(config, 9, training=True)) as env:
        SavedEnvs(env).set_state(state)
        for action, step in zip(actions[7:], expected, strict=True):
            for one, other in zip(env.step(action)[:3], step, strict=True):
                np.testing.assert_array_equal(one, other)


def test_rewards_are_normalized_by_the_discount_of_the_agent() -> None:
    config = replace(TINY, normalize=True, gamma=0.5)
    with closing(make_envs(config, 0, training=True)) as env:
        assert isinstance(env, VecNormalize)
        env.reset()
        for _ in range(3):
            env.step(np.zeros(2, dtype=np.int64))
        assert env.returns.tolist() == [1.75, 1.75]  # 1 + 0.5 + 0.25


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--env", "CartPole-v1", *WORDS, "--normalize", "--seeds", "1", "2"]
    assert main([*words, "--policy-kwargs", "activation_fn=relu"]) == 0
    printed = capsys.readouterr().out
    assert "CartPole-v1: actions Discrete(2)" in printed
    assert "MlpLstmPolicy, core ur_lstm, 8 units; 2 environments (dummy), with Vec" in printed
    folder = Path("runs/CartPole-v1-ppo-ur_lstm/seed-1")
    for name in ("model.rlgates", "best.rlgates", "curve.png", "progress.csv"):
        assert (folder / name).exists()
    assert list(folder.glob("events.*"))

    # The evaluation at the end of the run can be repeated.
    assert main(["eval", str(folder), "--episodes", "2"]) == 0
    result = GymResult(**read_json(folder / "manifest.json")["result"])
    evaluation = load_run(folder).evaluate(2)
    assert evaluation.estimate("return").mean == result.mean_return
    assert str(evaluation) in capsys.readouterr().out

    # The film, and the file for ONNX, have the agent and its normalized observations.
    assert main(["film", str(folder), "--best"]) == 0
    with Image.open(folder / "film.gif") as film:
        assert film.n_frames > 5  # type: ignore[attr-defined]
    assert main(["export", str(folder), "--out", "agent.onnx"]) == 0
    assert "with runs/CartPole-v1-ppo-ur_lstm/seed-1/model.json" in capsys.readouterr().out
    session = onnxruntime.InferenceSession("agent.onnx")
    assert {"observation", "state", "episode_start"} == {one.name for one in session.get_inputs()}

    # A manifest repeats the run.
    again = ["train", "--config", str(folder / "manifest.json"), "--folder", "again"]
    assert main(again) == 0
    repeated = read_json(Path("again/CartPole-v1-ppo-ur_lstm/seed-1/manifest.json"))["result"]
    assert repeated | {"seconds": 0} == asdict(result) | {"seconds": 0}


@pytest.mark.parametrize("env", ["CartPole-v1", "rlgates/StatelessCartPole-v0"])
def test_the_last_evaluation_is_repeated_with_as_many_copies(env: str, tmp_path: Path) -> None:
    changes = {"eval_episodes": 2, "final_episodes": 5, "eval_deterministic": False}
    config = replace(TINY, env=env, total_steps=64, folder=str(tmp_path), **changes)
    result = train(config, 0, bar=False)
    evaluation = load_run(config.run_folder(0)).evaluate(5)
    assert evaluation.estimate("return")[:3] == (result.mean_return, result.low, result.high)


def test_success_is_reported_where_the_environment_tells_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--env", "guess_module:Guess-v0", *WORDS]) == 0
    printed = capsys.readouterr().out
    assert "wrapper flatten" in printed
    folder = Path("runs/guess_module-Guess-v0-ppo-ur_lstm/seed-0")
    result = read_json(folder / "manifest.json")["result"]
    assert result["success"] == result["mean_return"]
    assert f"success {result['success']:.2f}" in printed
    assert "eval/success_rate" in (folder / "progress.csv").read_text()
    assert main(["film", str(folder)]) == 2
    assert "Guess-v0 renders no images: it has no mode 'rgb_array'" in capsys.readouterr().err


def test_a_core_that_the_module_of_the_environment_registers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = "\nfrom rlgates import register_core\nfrom rlgates.cores import GRU\n"
    Path("guess_module.py").write_text(MODULE + row + 'register_core("my_gru", GRU)\n')
    words = ["--env", "guess_module:Guess-v0", "--core", "my_gru"]
    folder = "runs/guess_module-Guess-v0-ppo-my_gru/seed-0"
    try:
        assert main(["train", *words, *WORDS]) == 0
        # As in a new process: nobody has imported the module yet.
        del CORES["my_gru"], sys.modules["guess_module"]
        gymnasium.registry.pop("Guess-v0")
        assert main(["eval", folder, "--episodes", "2"]) == 0
        assert "2 episodes" in capsys.readouterr().out
    finally:
        CORES.pop("my_gru", None)


def test_a_core_with_its_module_in_front(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = "from rlgates import register_core\nfrom rlgates.cores import GRU\n"
    Path("guess_core.py").write_text(row + 'register_core("my_gru", GRU)\n')
    Path("mine.toml").write_text('env = "CartPole-v1"\ncore = "guess_core:my_gru"\n')
    folder = "runs/CartPole-v1-ppo-my_gru/seed-0"

    def forget() -> None:
        """As in a new process: nobody has imported the module yet."""
        CORES.pop("my_gru", None)
        sys.modules.pop("guess_core", None)

    try:
        assert main(["train", "--env", "CartPole-v1", "--core", "guess_core:my_gru", *WORDS]) == 0
        forget()
        assert main(["train", "--config", "mine.toml", *WORDS]) == 0  # the same run
        forget()
        assert main(["train", "--config", f"{folder}/manifest.json"]) == 0
        forget()
        assert main(["eval", folder, "--episodes", "2"]) == 0
        assert "2 episodes" in capsys.readouterr().out
        seen: list[Any] = []
        monkeypatch.setattr(
            "rlgates.experiments.sweep.workers.run_all", lambda jobs, _: seen.extend(jobs) or []
        )
        forget()
        assert main(["task", "copy", "--core=guess_core:my_gru"]) == 0
        assert [(job.config.core, job.modules) for job in seen] == [("my_gru", ("guess_core",))]
    finally:
        forget()
    for command in ("train", "demo", "task copy", "tune music --cores"):
        words = command.split() if "--cores" in command else [*command.split(), "--core"]
        assert main([*words, "no_module:my_gru"]) == 2
        assert "no_module cannot be imported" in capsys.readouterr().err
    assert main(["train", "--core", "zzz"]) == 2
    assert capsys.readouterr().err == (
        "rlgates: error: unknown core 'zzz'. `rlgates cores` lists them; for your own core, put "
        "the module that registers it in front: my_module:my_core.\n"
    )


def test_what_a_folder_of_a_run_is_mistaken_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "guess_module:Guess-v0", *WORDS]) == 0
    folder = Path("runs/guess_module-Guess-v0-ppo-ur_lstm")
    assert main(["eval", str(folder)]) == 2
    assert f"Did you mean {folder / 'seed-0'}?" in capsys.readouterr().err
    assert main(["gates", str(folder / "seed-0")]) == 2
    assert "holds a run in guess_module:Guess-v0, but this is only for" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--env", "CartPole-v1"],
        ["--preset", "pendulum_novel"],
        ["--preset", "cartpole_novel", "--env", "Acrobot-v1"],
        ["--preset", "tmaze", "--env", "rlgates/MemoryChain-v0"],
        [],
    ],
)
def test_init_writes_what_train_reads(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "rlgates.experiments.sweep.workers.run_all", lambda jobs, _: seen.extend(jobs) or []
    )
    assert main(["init", *words]) == 0
    text = Path("rlgates.toml").read_text()
    assert "# Discount factor.\ngamma = " in text
    assert tomllib.loads(text)
    assert main(["train", "--config", "rlgates.toml"]) == 0
    assert main(["train", *words]) == 0
    assert identity(seen[0].config) == identity(seen[1].config)
    assert seen[0].config.folder == seen[1].config.folder
    assert main(["train", "--config", "rlgates.toml", "--gamma", "0.5", "--seeds", "4"]) == 0
    assert (seen[2].config.gamma, seen[2].seed) == (0.5, 4)


@pytest.mark.parametrize("words", [["--preset", "cartpole_novel"], ["--config", "rlgates.toml"]])
def test_what_a_config_says_of_its_environment_is_not_said_of_another(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "rlgates.experiments.sweep.workers.run_all", lambda jobs, _: seen.extend(jobs) or []
    )
    assert main(["init", "--preset", "cartpole_novel"]) == 0
    returns = ["--worst-return", "-500", "--best-return", "0"]
    assert main(["train", *words, "--env", "Acrobot-v1", *returns]) == 0
    config = seen[0].config
    assert (config.title, config.observation_indices) == ("Acrobot-v1", ())
    assert (config.success_return, config.reward_threshold) == (None, -100.0)
    assert (config.best_return, config.published) == (0.0, "")
    assert config.gamma == find_preset("cartpole_novel").gamma


def test_a_file_of_a_few_lines_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "rlgates.experiments.sweep.workers.run_all", lambda jobs, _: seen.extend(jobs) or []
    )
    Path("a.toml").write_text(
        'env = "Pendulum-v1"\neval_every = "None"\nnormalize = true\nseeds = [1, 2]\n'
        "observation_indices = []\ntotal_steps = 2e5\n[env_settings]\ng = 9.0\n"
        '[policy_kwargs]\nnet_arch = [16, 8]\nactivation_fn = "elu"\n'
    )
    words = ["--env-settings", "render_mode=None", "--eval-episodes", "1e1", "--n-envs", "1_0"]
    assert main(["train", "--config", "a.toml", *words]) == 0
    config = seen[0].config
    assert [job.seed for job in seen] == [1, 2]
    integers = config.total_steps, config.eval_episodes, config.n_envs
    assert [*map(repr, integers)] == ["200000", "10", "10"]
    assert (config.eval_every, config.normalize) == (None, True)
    assert config.env_settings == {"g": 9.0, "render_mode": None}
    assert config.policy_kwargs == {"net_arch": [16, 8], "activation_fn": "elu"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train --env ALE/Pong-v5", "ALE/Pong-v5 needs ale_py, which cannot be imported"),
        ("train --env no_module:Env-v0", "no_module cannot be imported"),
        ("train --env CartPol-v1", "CartPol-v1 cannot be made"),
        ("train --env CartPole-v1 --wrappers stak=2", "Did you mean 'stack'?"),
        ("train --env CartPole-v1 --wrappers stack", "is written stack=NUMBER, at least 1"),
        ("train --env CartPole-v1 --wrappers resize=84", "'resize' needs images"),
        ("train --env Blackjack-v1 --wrappers", "agents cannot use observations Tuple("),
        ("train --env CartPole-v1 --wrappers minigrid", "needs an environment of MiniGrid"),
        ("train --env CartPole-v1 --policy MlpPolicy", "Did you mean 'MlpLstmPolicy'?"),
        ("train --env CartPole-v1 --policy-kwargs activation_fn=rel", "Did you mean 'relu'?"),
        ("train --env CartPole-v1 --n-envs 0", "n_envs must be at least 1, got 0."),
        ("train --env rlgates/PassiveMach-v0", "Did you mean 'rlgates/PassiveMatch-v0'?"),
        ("train --preset cartpole_nove", "Did you mean 'cartpole_novel'?"),
        ("train --config none.toml", "there is no file none.toml; `rlgates init` writes one."),
        ("train --config guess_module.py", "a config is a .toml or a run's manifest.json"),
        ("train --config bad.toml", "unknown field of bad.toml 'gama'. Did you mean 'gamma'?"),
        ("train --config worse.toml", "worse.toml is not valid TOML"),
        ("train --config bad.toml --preset demo", "--config and --preset exclude each other"),
        ("init --env CartPole-v1 --preset demo", "the preset 'demo' is for"),
        (
            "train --preset tmaze --env CartPole-v1",
            "the preset 'tmaze' is for rlgates/PassiveTMaze-v0, but CartPole-v1 has other settings",
        ),
        (
            "train --env rlgates/PassiveMatch-v0 --preset cartpole_novel",
            "the preset 'cartpole_novel' is for CartPole-v1, but rlgates/PassiveMatch-v0 has other",
        ),
        ("train --config good.toml --env CartPole-v1", "good.toml is for rlgates/PassiveMatch-v0"),
        (
            "train --env CartPole-v1 --n-minibatches 5",
            "--n-minibatches is only for the environments of rlgates",
        ),
        ("train --batch-size=5", "--batch-size is only for environments of other packages"),
        ("train --no-normalize", "--no-normalize is only for environments of other packages"),
        ("init bad.toml", "bad.toml already exists"),
        ("eval .", ". holds no run"),
        ("export .", ". holds no run"),
        ("film .", ". holds no run"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    line: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Path("bad.toml").write_text("gama = 0.9\n")
    Path("good.toml").write_text("gamma = 0.9\n")
    Path("worse.toml").write_text("gamma 0.9\n")
    before = sorted(tmp_path.iterdir())
    assert main(line.split()) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rlgates: error: ")
    assert message in printed
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


def test_a_bad_value_in_a_file_names_the_file_and_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("text.toml").write_text('gamma = "high"\n')
    assert main(["train", "--config", "text.toml"]) == 2
    printed = capsys.readouterr().err
    assert "could not convert string to float: 'high'" in printed
    assert "see rlgates train --help" in printed
    assert printed.endswith("rlgates: error: text.toml has an invalid value: see above.\n")


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        ("--preset lunarlander_novel", "Box2D", "box2d"),
        ("--env BipedalWalker-v3", "Box2D", "box2d"),
        ("--env MiniGrid-MemoryS7-v0", "minigrid", "minigrid"),
        ("--env popgym-RepeatFirstEasy-v0", "popgym", "popgym"),
    ],
)
def test_the_extra_that_is_missing_is_named(
    words: str,
    module: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["train", *words.split()]) == 2
    printed = capsys.readouterr().err
    assert f"needs {module}, which cannot be imported" in printed
    assert f'pip install "rlgates[{extra}]"' in printed


@pytest.mark.parametrize("name", GYM_PRESETS)
def test_presets_train(name: str, tmp_path: Path) -> None:
    config = GYM_PRESETS[name]
    config.check()
    assert config.n_steps * config.n_envs % config.batch_size == 0
    small = replace(
        config, n_steps=128, batch_size=config.n_envs * 128, n_epochs=1, total_steps=1,
        eval_every=None, final_episodes=1, folder=str(tmp_path),
    )  # fmt: skip
    result = train(small, 0, bar=False)
    assert result.steps == 128 * config.n_envs
    assert read_config(small.run_folder(0))[0].env == config.env


def test_every_environment_of_rlgates_has_a_preset() -> None:
    assert {config.env for config in PRESETS.values()} >= set(ENVS)


def test_a_time_limit_and_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Path] = []
    monkeypatch.setattr(Boundary, "is_due", lambda self: True)
    write = Boundary.save

    def noted(self: Boundary) -> None:
        saved.append(self.folder.checkpoint)
        write(self)

    monkeypatch.setattr(Boundary, "save", noted)
    train(TINY, 0, bar=False)
    assert len(saved) == 4  # before each further rollout, and at the end
