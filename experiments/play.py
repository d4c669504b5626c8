"""Play an environment with the keyboard: how hard is it to remember?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlgates.envs import TASKS
from rlgates.envs.lettering import length, write
from rlgates.envs.render import BACKGROUND, BRIGHT, FAINT, MARGIN, draw
from rlgates.envs.window import Window, WindowClosed
from rlgates.errors import did_you_mean

QUIT, NEXT = ("escape", "q"), "r"
DIGITS = 10
_LARGEST = 1200  # width of a window that is still made larger

_BOARD = ("up", "down", "left", "right")
_MAZE = ("right", "up", "left", "down")
_SUITS = ("spades", "diamonds", "clubs", "hearts")
_MINIGRID = ("turn left", "turn right", "forward", "pickup", "drop", "toggle", "done")
# The beginnings of ids, and the names of the actions there.
_ACTIONS: dict[str, tuple[str, ...]] = {
    "rlgates/PassiveMatch": _BOARD,
    "rlgates/ActiveMatch": _BOARD,
    "rlgates/KeyToDoor": _BOARD,
    "rlgates/PassiveTMaze": _MAZE,
    "rlgates/ActiveTMaze": _MAZE,
    "rlgates/RepeatFirst": _SUITS,
    "rlgates/RepeatPrevious": _SUITS,
    "rlgates/MiniGrid": _MINIGRID,
}
_KEYS = {
    "up": ("up", "w"),
    "down": ("down", "s"),
    "left": ("left", "a"),
    "right": ("right", "d"),
    "turn left": ("left", "a"),
    "turn right": ("right", "d"),
    "forward": ("up", "w"),
}


def action_names(env_id: str, count: int) -> tuple[str, ...]:
    """What the `count` actions of an environment are called, or else their numbers."""
    names = next((names for start, names in _ACTIONS.items() if env_id.startswith(start)), ())
    return (*names, *map(str, range(len(names), count)))[:count]


def action_keys(names: Sequence[str]) -> dict[str, int]:
    """The keys of actions with these names: the number keys, and arrows and WASD for moves.

    Raises:
        ValueError: there are more actions than number keys.
    """
    if len(names) > DIGITS:
        raise ValueError(f"{len(names)} actions cannot be played with {DIGITS} number keys.")
    keys = {key: n for n in range(len(names)) for key in (f"{n}", f"[{n}]")}  # [n]: on a keypad
    for n, name in enumerate(names):
        keys.update(dict.fromkeys(_KEYS.get(name, ()), n))
    return keys


def keys_line(names: Sequence[str]) -> str:
    """Which keys there are, in words."""
    named = [f"{n} {name}" for n, name in enumerate(names) if name not in _KEYS and name != f"{n}"]
    plain = [name for n, name in enumerate(names) if name == f"{n}"]
    arrows = ["arrows or WASD"] if set(names) & set(_KEYS) else []
    return "  ".join([*arrows, *named, *plain])


def make_env(
    env_id: str, settings: Mapping[str, Any], preset: str | None = None, board: bool = False
) -> gymnasium.Env[Any, Any]:
    """The environment to be played, with pictures of the whole board if they are asked for.

    Raises:
        ValueError: unknown id, preset or setting, a value that makes no sense, or actions that
            are no numbers. ImportError: the environment needs a package that is not there.
    """
    known = [name for name in gymnasium.registry if name.startswith("rlgates/")]
    if env_id not in known:
        listed = ", ".join(name for name in known if "popgym" not in name)
        raise ValueError(
            f"unknown environment id {env_id!r}.{did_you_mean(env_id, known)} Allowed: {listed}, "
            "and those of POPGym."
        )
    given = dict(settings)
    if env_id.startswith("rlgates/MiniGrid"):
        given = {"observation": "rgb", "tile_size": 32, **given}  # what a person can read
    if preset is not None:
        if env_id not in TASKS:
            raise ValueError(f"{env_id} has no presets.")
        given["preset"] = preset
    if board:
        given["render_mode"] = "rgb_array"
    try:
        env = gymnasium.make(env_id, **given).unwrapped
    except TypeError as error:
        raise ValueError(str(error).partition(" was raised from")[0]) from error
    if not isinstance(env.action_space, spaces.Discrete):
        raise ValueError(f"{env_id} cannot be played with keys: its actions are no numbers.")
    return env


class Game:
    """An environment that is stepped by keys; finished episodes are printed.

    Args:
        env_id: its id.
        env: with `Discrete` actions, and `render_mode="rgb_array"` if `board` is true.
        board: show the whole board beside what the agent sees.

    Attributes:
        finished: how many episodes came to their end.

    Raises:
        ValueError: too many actions for the number keys.
    """

    def __init__(self, env_id: str, env: gymnasium.Env[Any, Any], board: bool = False) -> None:
        space: Any = env.action_space
        self.env, self.board = env, board
        self.name = env_id.rpartition("/")[2].rpartition("-v")[0]
        self.names = action_names(env_id, int(space.n))
        self.finished = 0
        self._keys = action_keys(self.names)

    def reset(self, seed: int | None = None) -> None:
        """Start an episode."""
        self._obs, _ = self.env.reset(seed=seed)
        self._reward, self._return, self._steps = 0.0, 0.0, 0
        self._result: str | None = None

    def press(self, key: str) -> None:
        """Do what a key says: an action, or the next episode. Other keys do nothing."""
        if key == NEXT:
            self.reset()
        elif key in self._keys and self._result is None:
            action = np.int64(self._keys[key])
            self._obs, reward, terminated, truncated, info = self.env.step(action)
            self._reward = float(reward)
            self._return += self._reward
            self._steps += 1
            if terminated or truncated:
                self._finish(info)

    def _finish(self, info: Mapping[str, Any]) -> None:
        self.finished += 1
        self._result = "end"
        parts = []
        if "is_success" in info:
            self._result = "success" if info["is_success"] else "failure"
            parts.append(self._result)
        if "last_phase_reward" in info:
            parts.append(f"last phase paid {info['last_phase_reward']:g}")
        parts.append(f"return {self._return:.4g} in {self._steps} steps")
        print(f"episode {self.finished}: {', '.join(parts)}")

    def picture(self) -> np.ndarray[Any, Any]:
        """What the player sees now, uint8 (height, width, 3), with the keys below."""
        shown = picture(self.env, self._obs, self._reward, self.name, self.board)
        footer = np.full((2 * (MARGIN + 10), shown.shape[1], 3), BACKGROUND, dtype=np.uint8)
        first, color = (keys_line(self.names), FAINT)
        if self._result is not None:
            first, color = (self._result, BRIGHT)
        for line, (text, ink) in enumerate(((first, color), ("r next  q quit", FAINT))):
            write(footer, text, MARGIN, line * (MARGIN + 6), ink, 2)
        count = f"step {self._steps}"  # or nobody would know that anything happened
        right = footer.shape[1] - MARGIN - length(count, 2)
        write(footer, count, right, MARGIN + 6, FAINT, 2)
        whole = np.concatenate([shown, footer])
        scale = max(1, _LARGEST // whole.shape[1])
        return whole.repeat(scale, axis=0).repeat(scale, axis=1)


def picture(
    env: gymnasium.Env[Any, Any], obs: Any, reward: float, name: str, board: bool
) -> np.ndarray[Any, Any]:
    """What is seen of an environment that `make_env` made, uint8 (height, width, 3).

    Args:
        env: the environment.
        obs, reward: what the last step gave.
        name: for the line above, where the environment has no better one.
        board: show the whole board, too.
    """
    whole = np.asarray(env.render()) if board else None
    if whole is not None and hasattr(env, "task"):
        return whole  # it has the agent's view beside the board
    space = env.observation_space
    if isinstance(space, spaces.Box) and space.high.max() not in (1, 255):
        obs = np.ravel(obs)  # codes for the things in a grid are no picture
    return draw(obs, whole, (name, ""), reward)


def play(
    env_id: str,
    settings: Mapping[str, Any],
    *,
    preset: str | None = None,
    seed: int | None = None,
    board: bool = False,
) -> int:
    """Play episodes in a window until it is closed, and print how each of them ended.

    Args:
        env_id: any id that begins with "rlgates/".
        settings: of the environment.
        preset: named settings of the environment that these are laid over.
        seed: of the first episode; None draws one.
        board: show the whole board beside what the agent sees.

    Returns:
        how many episodes came to their end.

    Raises:
        ValueError, ImportError: as `make_env`; too many actions, no pygame.
        RuntimeError: there is no screen.
    """
    env = make_env(env_id, settings, preset, board)
    game, window = Game(env_id, env, board), Window(env_id, fps=None)
    game.reset(seed)
    print(f"{keys_line(game.names)}; r: next episode; q: quit")
    try:
        while True:
            window.show(game.picture())
            for key in window.pressed():
                if key in QUIT:
                    return game.finished
                game.press(key)
    except WindowClosed:
        return game.finished
    finally:
        window.close()
        env.close()
