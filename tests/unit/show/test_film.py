"""Films of agents: what is recorded, what is drawn below the picture, and the files."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image
from support.tiny import SETTINGS

from rlgates import RecurrentPPO
from rlgates.agents import trace_gates
from rlgates.envs.render.frames import BACKGROUND, BRIGHT
from rlgates.envs.render.lettering import length
from rlgates.envs.sb3 import make_vec_env
from rlgates.experiments.cli import main as cli
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.runs.agent.evaluate import evaluation_seed
from rlgates.experiments.runs.folder import RunFolder
from rlgates.experiments.runs.load import LoadedRun
from rlgates.experiments.show import film_frames
from rlgates.experiments.show.film import film, record, write_gif
from rlgates.experiments.show.film_frames import Episode, frames

MATCH, MAZE = "rlgates/PassiveMatch-v0", "rlgates/PassiveTMaze-v0"


def agent(config: AgentConfig, policy: str = "CnnLstmPolicy", **kwargs: Any) -> RecurrentPPO:
    """An untrained agent of a config."""
    env = make_vec_env(config.env, 1, seed=0, **config.env_settings)
    options = {"core": config.core, "lstm_hidden_size": 5, **kwargs}
    return RecurrentPPO(policy, env, n_steps=8, batch_size=8, policy_kwargs=options, seed=1)


def run(folder: Path, core: str = "ur_lstm", **settings: Any) -> AgentConfig:
    """A folder with all that a film needs of a finished run."""
    config = AgentConfig(env_settings={**SETTINGS, **settings}, core=core, eval_deterministic=False)
    folder.mkdir(parents=True, exist_ok=True)
    begin_run(folder, config, 3)
    agent(config).save(folder / "model.rlgates", format="safe")
    return config


def begin_run(path: Path, config: AgentConfig, seed: int) -> None:
    """Write the manifest of a run into any folder."""
    folder = RunFolder(config, seed)
    folder.path = path
    folder.begin(0)


def episode(steps: int, forget: Any = None, rewards: Any = None) -> Episode:
    pictures = [np.full((40, 500, 3), t % 200, np.uint8) for t in range(steps + 1)]
    phases = ["one"] * (steps // 2) + ["two"] * (steps - steps // 2)
    paid = [0.0] * steps if rewards is None else rewards
    return Episode(pictures, ["up"] * steps, paid, phases, "success", forget)


def test_what_is_recorded_is_what_happened() -> None:
    config = AgentConfig(env_settings=SETTINGS, eval_deterministic=False)
    model = agent(config)
    before = torch.get_rng_state()
    played = record(LoadedRun(config, 4, Path(), model), 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert [one.actions for one in record(LoadedRun(config, 4, Path(), model), 2)] == [
        one.actions for one in played
    ]

    # The same actions in the same environment of another kind: row 0 of a batch.
    seed = evaluation_seed(4, final=True)
    env = make_vec_env(MATCH, 1, seed=seed, render_mode="rgb_array", **SETTINGS)
    names = ["up", "down", "left", "right"]
    obs: Any = env.reset()
    for one in played:
        seen = []
        for t, name in enumerate(one.actions):
            np.testing.assert_array_equal(one.images[t], env.get_images()[0])
            seen.append(obs)
            obs, reward, done, infos = env.step(np.array([names.index(name)]))
            assert reward[0] == one.rewards[t]
            assert done[0] == (t == len(one.actions) - 1)
        assert len(one.images) == len(one.actions) + 1
        assert one.result == ("success" if infos[0]["is_success"] else "failure")
        assert one.phases == (["explore", "distractor"] + ["reward"] * 5)[: len(one.actions)]
        channels_first = np.stack(seen).transpose(0, 1, 4, 2, 3)
        (expected,) = trace_gates(model.policy, channels_first).forget  # type: ignore[arg-type]
        np.testing.assert_allclose(one.forget, expected[:, 0], rtol=1e-5)


def test_without_the_package_that_draws_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def render(_: object) -> None:
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")

    config = AgentConfig(env_settings=SETTINGS)
    env = type(gymnasium.make(config.env).unwrapped)
    monkeypatch.setattr(env, "render", render)
    with pytest.raises(ValueError, match="has no images here: pygame is not installed"):
        record(LoadedRun(config, 4, Path(), agent(config)), 1)


def test_the_agent_remembers_while_it_is_filmed() -> None:
    config = AgentConfig(env_settings={**SETTINGS, "distractor_steps": 30})
    model: Any = agent(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.policy.lstm_actor.parameters():
        parameter.data.normal_(generator=generator)  # what it remembers decides
    (one,) = record(LoadedRun(config, 4, Path(), model), 1)
    seed = evaluation_seed(4, final=True)
    played = []
    for forgets in (False, True):
        env = make_vec_env(MATCH, 1, seed=seed, **config.env_settings)
        obs, state, starts, names = env.reset(), None, np.ones(1, bool), []
        for _ in one.actions:
            action, state = model.predict(obs, state, starts | forgets, deterministic=True)
            names.append(["up", "down", "left", "right"][action[0]])
            obs, _, starts, _ = env.step(action)
        played.append(names)
    assert one.actions == played[0] != played[1]


@pytest.mark.parametrize(
    ("env_id", "settings", "policy", "options", "units"),
    [
        (MATCH, {**SETTINGS, "add_previous_action": True}, "MultiInputLstmPolicy", {}, 5),
        (MAZE, {}, "MlpLstmPolicy", {"n_lstm_layers": 2}, 10),
        ("rlgates/RepeatFirst-v0", {}, "MlpLstmPolicy", {"core": "f_gru"}, 5),
        (MAZE, {}, "MlpLstmPolicy", {"core": "none"}, None),
    ],
)
def test_observations_of_every_kind(
    env_id: str, settings: dict[str, Any], policy: str, options: dict[str, Any], units: int | None
) -> None:
    config = AgentConfig(env=env_id, env_settings=settings)
    (one,) = record(LoadedRun(config, 0, Path(), agent(config, policy, **options)), 1)
    if units is None:
        assert one.forget is None
    else:
        assert one.forget is not None
        assert one.forget.shape == (len(one.actions), units)
    shown = list(frames(one))
    assert len(shown) == len(one.images)
    assert {picture.shape for picture in shown} == {shown[0].shape}


def test_the_strip_shows_the_gates_up_to_now() -> None:
    steps, left = 10, 500 - 14 - 14
    forget = np.array([[0.0] * 5 + [0.5] * 5, [0.999] * 10, [0.9] * 10]).T
    shown = list(frames(episode(steps, forget)))
    plain = list(frames(episode(steps)))
    height = len(plain[0])
    for with_strip, without in zip(shown, plain, strict=True):
        np.testing.assert_array_equal(with_strip[:height], without)

    last, middle = (picture[height:] for picture in (shown[-1], shown[4]))
    dark, bright = ((68, 1, 84), (253, 231, 37))  # the ends of viridis
    assert left > 0
    rows = {color: np.nonzero((last == color).all(-1).sum(1) > 100)[0] for color in (dark, bright)}
    assert rows[bright].max() < rows[dark].min()  # the unit that keeps longest is above
    assert len(rows[bright]) == 128 // 3
    # Half of the steps of the lowest unit are at 0; later ones are another colour.
    line = last[rows[dark].max()]
    columns = np.nonzero((line == dark).all(-1))[0]
    end = np.nonzero((last[rows[bright].min()] == bright).all(-1))[0].max()
    assert columns.max() - columns.min() == pytest.approx((end - columns.min()) / 2, abs=2)
    # After 4 of 10 steps the fifth is being chosen, and the second half is not there yet.
    assert (middle[:, : columns.max() - 2] == last[:, : columns.max() - 2]).all()
    ahead = middle[rows[bright].min(), columns.max() + 4 : end]
    assert len(np.unique(ahead.reshape(-1, 3), axis=0)) == 1
    assert tuple(ahead[0]) not in (dark, bright, BACKGROUND)


@pytest.mark.parametrize(
    ("width", "words"), [(500, "forget gates of 64 units"), (320, "forget gates")]
)
def test_no_text_of_a_narrow_film_lies_on_another(
    width: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(film_frames, "write", lambda _, text, x, y, *__: written.append((text, x)))
    pictures = [np.zeros((40, width, 3), np.uint8)] * 3
    one = Episode(pictures, ["up"] * 2, [0.0] * 2, [""] * 2, "end", np.full((2, 64), 0.5))
    next(frames(one))
    ((text, x),) = (item for item in written if "gates" in item[0])
    assert text == words
    assert x + length(text, 2) < min(left for name, left in written if name == "0")


def test_rewards_are_marked_once_they_are_paid() -> None:
    forget, rewards = np.full((8, 2), 0.5), [0.0, 0, 1, 0, 0, -1, 0, 0]
    shown = list(frames(episode(8, forget, rewards)))
    plain = list(frames(episode(8, forget)))
    assert [(a != b).any() for a, b in zip(shown, plain, strict=True)] == [False] * 3 + [True] * 6
    gained, lost = (np.nonzero((shown[t] != plain[t]).any(-1)) for t in (4, 8))
    assert (shown[4][gained] == BRIGHT).all()
    assert lost[1].max() > gained[1].max()


def test_long_episodes_keep_what_is_paid_and_the_end() -> None:
    rewards = [0.0] * 1000
    rewards[500] = rewards[777] = 1.0
    long = episode(1000, np.full((1000, 300), 0.5), rewards)
    shown = list(frames(long, most=100))
    assert 100 <= len(shown) <= 103
    numbers = {int(picture[0, 0, 0]) for picture in shown}
    assert {501 % 200, 778 % 200, 1000 % 200} <= numbers
    assert len(list(frames(episode(250)))) == 251


def test_a_gif_has_the_colours_of_the_pictures(tmp_path: Path) -> None:
    config = run(tmp_path)
    path = film(tmp_path, episodes=2)
    assert path == tmp_path / "film.gif"
    model = RecurrentPPO.load(tmp_path / "model.rlgates", device="cpu")
    expected, times = [], []
    for n, one in enumerate(record(LoadedRun(config, 3, Path(), model), 2), 1):
        expected += list(frames(one, f"ur_lstm  episode {n} of 2"))
        times += [120] * len(one.actions) + [1500]
    with Image.open(path) as image:
        assert image.info["loop"] == 0
        shown = []
        for k in range(image.n_frames):  # type: ignore[attr-defined]
            image.seek(k)
            shown += [np.array(image.convert("RGB"))] * round(image.info["duration"] / 120)
    # Equal pictures that follow each other are one, shown for longer.
    lengths = [round(time / 120) for time in times]
    wanted = [picture for picture, n in zip(expected, lengths, strict=True) for _ in range(n)]
    assert len(shown) == len(wanted)
    for one_shown, one_wanted in zip(shown, wanted, strict=True):
        np.testing.assert_array_equal(one_shown, one_wanted)


def test_a_film_of_an_episode_is_small(tmp_path: Path) -> None:
    run(tmp_path, distractor_steps=33, end_on_choice=False)
    assert film(tmp_path).stat().st_size < 400_000


def test_more_colours_than_a_gif_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(256, size=(30, 30, 3), dtype=np.uint8) for _ in range(3)]
    write_gif(pictures, [0.1] * 3, tmp_path / "many.gif")
    with Image.open(tmp_path / "many.gif") as image:
        assert image.n_frames == 3  # type: ignore[attr-defined]
        near = np.abs(np.array(image.convert("RGB")).astype(int) - pictures[0]).mean()
    assert near < 40


def fake_ffmpeg(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_an_mp4_is_left_to_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run(tmp_path / "run")
    script = f'echo "$@" > {tmp_path}/words\nfor name; do :; done\ncat > "$name"'
    fake_ffmpeg(tmp_path, script, monkeypatch)
    path = film(tmp_path / "run", tmp_path / "new" / "a.mp4", fps=4)
    model = RecurrentPPO.load(tmp_path / "run" / "model.rlgates", device="cpu")
    (one,) = record(LoadedRun(config, 3, Path(), model), 1)
    shown = list(frames(one, "ur_lstm"))
    raw = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, *shown[0].shape)
    np.testing.assert_array_equal(raw, [*shown, *[shown[-1]] * 5])  # the end for 1.5 seconds
    height, width, _ = shown[0].shape
    assert f"-s {width}x{height} -r 4 " in (tmp_path / "words").read_text()


def test_what_ffmpeg_complains_about_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    fake_ffmpeg(tmp_path, 'echo "no such codec" >&2; exit 3', monkeypatch)
    with pytest.raises(ValueError, match="ffmpeg failed: no such codec"):
        film(tmp_path, tmp_path / "a.mp4")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, core="none")
    out = tmp_path / "other.gif"
    assert cli.main(["film", str(tmp_path), "--out", str(out), "--fps", "10"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    with Image.open(out) as image:
        assert image.info["duration"] == 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "holds no finished run: it has no model.rlgates."),
        (["--out", "a.avi"], "a film is a .gif or an .mp4, got 'a.avi'."),
        (["--out", "a.mp4"], "an .mp4 needs ffmpeg, which is not on the path"),
        (["--episodes", "0"], "episodes must be at least 1, got 0."),
        (["--fps", "0"], "fps must be finite and above 0, got 0.0."),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin_run(tmp_path, AgentConfig(), 0)
    monkeypatch.setenv("PATH", "")
    assert cli.main(["film", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_pickled_agent_of_an_earlier_version_is_not_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    (tmp_path / "model.rlgates").rename(tmp_path / "model.zip")
    assert cli.main(["film", str(tmp_path)]) == 2
    assert f"rlgates convert {tmp_path / 'model.zip'} --trust" in capsys.readouterr().err
    assert not (tmp_path / "film.gif").exists()
    (tmp_path / "model.zip").rename(tmp_path / "model.rlgates")
    config = run(tmp_path / "other")
    agent(config).save(tmp_path / "pickle.zip")  # which gets the name of a safe file
    (tmp_path / "pickle.zip").rename(tmp_path / "model.rlgates")
    assert cli.main(["film", str(tmp_path)]) == 2
    assert "not of the safe format" in capsys.readouterr().err
