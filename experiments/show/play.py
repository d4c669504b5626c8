"""Play an environment with the keyboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlgates.envs import ENVS
from rlgates.envs.adapters import minigrid
from rlgates.envs.render.frames import BACKGROUND, BRIGHT, FAINT, MARGIN
from rlgates.envs.render.lettering import length, write
from rlgates.envs.render.window import Window, WindowClosed
from rlgates.experiments.configs.modules import without_module
from rlgates.experiments.plots.frames import Image, env_image, make_env, short_name

QUIT, NEXT = ("escape", "q"), "r"
DIGITS = 10
_LARGEST = 1200  # width in pixels up to which the image is enlarged

_MINIGRID = ("turn left", "turn right", "forward", "pickup", "drop", "toggle", "done")
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
    """Names of the `count` actions of an environment; unnamed ones are numbered."""
    names: tuple[str, ...] = ()
    if env_id in (*minigrid.IDS, *minigrid.PUBLISHED):
        names = _MINIGRID
    if env_id in ENVS:
        names = ENVS[env_id].action_names
    return (*names, *map(str, range(len(names), count)))[:count]


def action_keys(names: Sequence[str]) -> dict[str, int]:
    """Map keys to actions: the number keys, and arrows and WASD for moves.

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
    """Describe the keys in a line."""
    named = [f"{n} {name}" for n, name in enumerate(names) if name not in _KEYS and name != f"{n}"]
    unnamed = [name for n, name in enumerate(names) if name == f"{n}"]
    arrows = ["arrows or WASD"] if set(names) & set(_KEYS) else []
    return "  ".join([*arrows, *named, *unnamed])


class Game:
    """Steps an environment by keys and prints finished episodes.

    Args:
        env_id: environment id.
        env: with `render_mode="rgb_array"` if `board` is true.
        board: show the whole board beside the observation.

    Attributes:
        finished: number of finished episodes.

    Raises:
        ValueError: actions that are not discrete, or too many for the number keys.
    """

    def __init__(self, env_id: str, env: gymnasium.Env[Any, Any], board: bool = False) -> None:
        space: Any = env.action_space
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"{env_id} cannot be played with keys: its actions are not numbers.")
        self.env, self.board = env, board
        self.name = short_name(env_id)
        self.names = action_names(env_id, int(space.n))
        self.finished = 0
        self._keys = action_keys(self.names)

    def reset(self, seed: int | None = None) -> None:
        """Start an episode."""
        self._obs, _ = self.env.reset(seed=seed)
        self._reward, self._return, self._steps = 0.0, 0.0, 0
        self._result: str | None = None

    def press(self, key: str) -> None:
        """Take the action of a key, or start the next episode. Other keys do nothing."""
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

    def image(self) -> Image:
        """Draw the observation, uint8 (height, width, 3), with the keys or the result below."""
        view = env_image(self.env, self._obs, self._reward, self.name, self.board)
        footer = np.full((2 * (MARGIN + 10), view.shape[1], 3), BACKGROUND, dtype=np.uint8)
        first, color = (keys_line(self.names), FAINT)
        if self._result is not None:
            first, color = (self._result, BRIGHT)
        for line, (text, ink) in enumerate(((first, color), ("r next  q quit", FAINT))):
            write(footer, text, MARGIN, line * (MARGIN + 6), ink, 2)
        count = f"step {self._steps}"  # the only visible change of some steps
        right = footer.shape[1] - MARGIN - length(count, 2)
        write(footer, count, right, MARGIN + 6, FAINT, 2)
        image = np.concatenate([view, footer])
        scale = max(1, _LARGEST // image.shape[1])
        return image.repeat(scale, axis=0).repeat(scale, axis=1)


def play(
    env_id: str,
    settings: Mapping[str, Any],
    *,
    preset: str | None = None,
    seed: int | None = None,
    board: bool = False,
) -> int:
    """Play episodes in a window until it is closed, and print how each one ended.

    Args:
        env_id, settings: as for `make_env`.
        preset: named settings of the environment, which `settings` override.
        seed: of the first episode; None: a random one.
        board: show the whole board beside the observation.

    Returns:
        the number of finished episodes.

    Raises:
        ValueError, ImportError: as `make_env`; too many actions, no pygame.
        RuntimeError: no screen.
    """
    env = make_env(env_id, settings, preset, board)
    env_id = without_module(env_id)
    game, window = Game(env_id, env, board), Window(env_id, fps=None)
    game.reset(seed)
    print(f"{keys_line(game.names)}; r: next episode; q: quit")
    try:
        while True:
            window.show(game.image())
            for key in window.pressed():
                if key in QUIT:
                    return game.finished
                game.press(key)
    except WindowClosed:
        return game.finished
    finally:
        window.close()
        env.close()
