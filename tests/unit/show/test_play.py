"""Playing with the keyboard, without a screen and without hands."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlgates.envs import ENVS, make_env_spec
from rlgates.envs.render.frames import BRIGHT
from rlgates.experiments.cli import main as cli
from rlgates.experiments.plots.frames import make_env
from rlgates.experiments.show.play import DIGITS, Game, action_keys, action_names, keys_line, play

pygame = pytest.importorskip("pygame")

MATCH, MAZE = "rlgates/PassiveMatch-v0", "rlgates/PassiveTMaze-v0"
GRID = "rlgates/MiniGridMemoryS7-v0"
IDS = [*ENVS, *([GRID] if importlib.util.find_spec("minigrid") else [])]
SHORT = {"explore_steps": 1, "distractor_steps": 0, "reward_steps": 4}


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame.display.init()
    yield
    pygame.display.quit()


def press(*keys: int) -> None:
    for key in keys:
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))


def game(env_id: str, board: bool = False, **settings: Any) -> Game:
    return Game(env_id, make_env(env_id, settings, board=board), board)


def stands_out(picture: np.ndarray) -> bool:
    """Whether the line above tells of a reward."""
    return bool((picture[:80] == BRIGHT).all(axis=-1).any())


def test_moves_have_arrows_and_letters_and_everything_has_a_number() -> None:
    board = action_keys(action_names(MATCH, 4))
    assert [board[key] for key in ("up", "s", "left", "d", "0", "[3]")] == [0, 1, 2, 3, 0, 3]
    maze = action_keys(action_names(MAZE, 4))
    assert [maze[key] for key in ("right", "w", "a", "down", "2")] == [0, 1, 2, 3, 2]
    grid = action_keys(action_names(GRID, 3))
    assert [grid[key] for key in ("left", "d", "up")] == [0, 1, 2]
    assert "down" not in grid
    assert set(action_keys(action_names("rlgates/New-v0", 2))) == {"0", "1", "[0]", "[1]"}
    assert keys_line(action_names("rlgates/RepeatFirst-v0", 4)).startswith("0 spades  1 diamonds")
    assert keys_line(action_names(GRID, 4)) == "arrows or WASD  3 pickup"
    with pytest.raises(ValueError, match="11 actions cannot be played with 10 number keys"):
        action_keys(action_names("rlgates/New-v0", 11))


@pytest.mark.parametrize(
    ("env_id", "path"),
    [
        # Out of the neck of the hall, onto the pad in the middle.
        (MATCH, ("up", "up", "up", "up", "up")),
        ("rlgates/ActiveMatch-v0", ("up", "up", "up", "up", "up")),
    ],
)
def test_keys_move_as_they_say(env_id: str, path: tuple[str, ...]) -> None:
    played = game(env_id, **SHORT)
    played.reset(0)
    env: Any = played.env
    rows = []
    for key in path:
        rows.append(env.env_spec.render_info(env._state)[0].cell[0])
        played.press(key)
    assert rows[1:] == [5, 4, 3, 2]
    assert played.finished == 1


def test_maze_keys_move_as_they_say() -> None:
    played = game(MAZE, corridor_length=3)
    played.reset(0)
    env: Any = played.env
    cells = []
    assert not stands_out(played.image())
    for key, is_late in (("d", False), ("left", True), ("right", True), ("right", False)):
        played.press(key)
        assert stands_out(played.image()) == is_late  # it costs something; the end does not
        cells.append(env.env_spec.render_info(env._state)[0].cell[1])
    assert np.diff(cells).tolist() == [-1, 1, 1]


def has_keys(env_id: str) -> bool:
    """Whether there are number keys for all actions."""
    space = make_env_spec(env_id).action_space if env_id in ENVS else spaces.Discrete(1)
    return isinstance(space, spaces.Discrete) and int(space.n) <= DIGITS


@pytest.mark.parametrize("env_id", [env_id for env_id in ENVS if not has_keys(env_id)])
def test_games_without_keys_for_all_actions_are_refused(env_id: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be played with (\d+ number )?keys"):
        game(env_id, False)


@pytest.mark.parametrize("board", [False, True])
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if has_keys(env_id)])
def test_every_environment_can_be_played(env_id: str, board: bool) -> None:
    settings = {"max_steps": 9} if env_id == GRID else {}
    if "distractor_steps" in getattr(ENVS.get(env_id), "__dataclass_fields__", {}):
        settings = {"distractor_steps": 4}
    played = game(env_id, board, **settings)
    played.reset(1)
    first = played.image()
    assert (first.dtype, first.ndim) == (np.uint8, 3)
    assert 400 <= first.shape[1] <= 1400
    played.press("x")  # no such key
    np.testing.assert_array_equal(played.image(), first)
    steps = 0
    while not played.finished:
        played.press("0")
        steps += 1
        if steps % 4 == 0:
            assert played.image().shape == first.shape
    end = played.image()
    played.press("0")  # nothing but the next episode is left
    np.testing.assert_array_equal(played.image(), end)
    played.press("r")
    assert (played.image() != end).any()
    played.press("0")
    assert played.finished == 1


def test_one_sees_no_more_than_the_agent() -> None:
    pictures = []
    for board in (False, True):
        for color in (0, 1):
            played = game(MATCH, board, explore_steps=1)
            played.reset(0)
            env: Any = played.env
            played._obs, _ = env.reset(options={"target_color": color})
            played.press("up")  # into the distractor room
            pictures.append(played.image())
    np.testing.assert_array_equal(pictures[0], pictures[1])
    hidden, whole = pictures[0].shape, pictures[2].shape
    assert hidden[1] // 2 < whole[1]  # the board is there when it is asked for

    chain = "rlgates/MemoryChain-v0"
    first, second = (game(chain, num_bits=6) for _ in range(2))
    for one, bit in ((first, 0), (second, 1)):
        one.reset(0)
        one._obs, _ = one.env.reset(options={"context": [bit] * 6, "query": 3})
    assert (first.image() != second.image()).any()
    for _ in range(2):
        first.press("0")
        second.press("0")
    np.testing.assert_array_equal(first.image(), second.image())


def test_codes_of_a_grid_are_shown_as_numbers() -> None:
    pytest.importorskip("minigrid")
    coded, seen = game(GRID, observation="symbolic"), game(GRID)
    for one in (coded, seen):
        one.reset(0)
    assert coded.image().shape[0] < seen.image().shape[0]


def test_a_game_of_a_module_of_ones_own(
    in_tmp_path: None, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "from dataclasses import dataclass",
        "from rlgates.envs import register_env",
        "from rlgates.envs.games.tmaze import PassiveTMaze",
        "@register_env",
        "@dataclass(frozen=True, kw_only=True)",
        "class Mine(PassiveTMaze):",
        "    env_id = 'me/Mine-v0'",
    )
    Path("mine_played.py").write_text("\n".join(lines))
    try:
        press(pygame.K_ESCAPE)
        assert cli.main(["play", "mine_played:me/Mine-v0"]) == 0
        assert capsys.readouterr().out == "arrows or WASD; r: next episode; q: quit\n"
        assert cli.main(["play", "mine_played:me/Yours-v0"]) == 2
        assert "unknown environment id 'mine_played:me/Yours-v0'" in capsys.readouterr().err
    finally:
        ENVS.pop("me/Mine-v0", None)
        gymnasium.registry.pop("me/Mine-v0", None)


def test_an_evening_of_playing(capsys: pytest.CaptureFixture[str]) -> None:
    # What the keys below do, by hand: right, up, and a second episode that goes down.
    env = gymnasium.make(MAZE, corridor_length=1)
    ends = []
    for action, seed in ((1, 3), (3, None)):
        env.reset(seed=seed)
        env.step(0)
        _, reward, _, _, info = env.step(action)
        ends.append(
            f"{'success' if info['is_success'] else 'failure'}, return {reward:g} in 2 steps"
        )

    press(pygame.K_RIGHT, pygame.K_UP, pygame.K_UP, pygame.K_r)
    press(pygame.K_d, pygame.K_s, pygame.K_r, pygame.K_d, pygame.K_ESCAPE, pygame.K_UP)
    assert play(MAZE, {"corridor_length": 1}, seed=3) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "arrows or WASD; r: next episode; q: quit"
    assert lines[1:] == [f"episode {n}: {end}" for n, end in enumerate(ends, 1)]
    assert pygame.display.get_surface() is None


def test_closing_the_window_ends_the_game(capsys: pytest.CaptureFixture[str]) -> None:
    press(*[pygame.K_UP] * 5)
    pygame.event.post(pygame.event.Event(pygame.KEYUP, key=pygame.K_UP))
    shown = []

    class Counted(Game):
        def image(self) -> Any:
            shown.append(self.finished)
            if self.finished:
                pygame.event.post(pygame.event.Event(pygame.QUIT))
            return super().image()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlgates.experiments.show.play.Game", Counted)
        assert play(MATCH, SHORT, seed=0) == 1
    assert shown == [0, 1]
    printed = capsys.readouterr().out
    assert "last phase paid" in printed
    assert "in 5 steps" in printed


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    press(pygame.K_UP, pygame.K_q)
    line = f"play {MATCH} --env-settings crop=7 --preset long --seed 3 --board"
    assert cli.main(line.split()) == 0
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rlgates/PasiveMatch-v0", "Did you mean 'rlgates/PassiveMatch-v0'?"),
        ("CartPole-v1", "unknown environment id 'CartPole-v1'."),
        (f"{MATCH} --env-settings crop=6", "crop must be odd"),
        (f"{MATCH} --env-settings crop=wide", "crop must be an integer, got 'wide' (str).\n"),
        (f"{MATCH} --preset lonh", "Did you mean 'long'"),
        (f"{MATCH} --seed -1", "seed must be in [0, 2**64), got -1."),
        (f"{GRID} --preset short", "has no presets."),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["play", *line.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("rlgates: error: ")
    assert said.count("\n") == 1
    assert message in said


def test_without_a_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER")
    monkeypatch.setattr(pygame.display, "get_driver", lambda: "offscreen")
    assert cli.main(["play", MATCH]) == 2
    assert "is there a screen?" in capsys.readouterr().err
