"""The memory environments of MiniGrid, with a view so small that memory is needed."""

from __future__ import annotations

import importlib
from functools import wraps
from inspect import signature
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rlgates.envs.adapters.views import split_settings, with_view
from rlgates.envs.engine.settings import check_odd
from rlgates.errors import check_choice, check_flag, check_size, unknown_choice

OBSERVATIONS = ("symbolic", "objects", "rgb")
_OBJECTS = (0, 1, 2, 5, 6)  # codes of what a cell can be here: unseen, empty, wall, key, ball
_LARGEST_CODE = 10  # of MiniGrid's objects; its colours go to 5, its states to 3
_CODES = (11, 6, 3)  # number of MiniGrid's objects, colours and states
_MOVES = 3  # left, right and forward are MiniGrid's first actions, pickup and others follow
_ALL_ACTIONS = 7

IDS: dict[str, dict[str, Any]] = {
    "rlgates/MiniGridMemoryS7-v0": {"size": 7},
    "rlgates/MiniGridMemoryS9-v0": {"size": 9},
    "rlgates/MiniGridMemoryS11-v0": {"size": 11},
    "rlgates/MiniGridMemoryS13-v0": {"size": 13},
    "rlgates/MiniGridMemoryS13Random-v0": {"size": 13, "random_length": True},
    "rlgates/MiniGridMemoryS17Random-v0": {"size": 17, "random_length": True},
}

PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    env_id.replace("rlgates/MiniGrid", "MiniGrid-"): (env_id, {"view_size": 7, "all_actions": True})
    for env_id in IDS
}
"""By MiniGrid's own id: the one here, and the settings with which it is MiniGrid's task."""

BATCHED: dict[str, tuple[str, dict[str, str]]] = {
    env_id: ("rlgates/MiniGridMemory-v0", {"preset": env_id[len("rlgates/MiniGridMemory") : -3]})
    for env_id in IDS
}
"""By id: the game with the same rules that is stepped as a batch, and its settings."""


def register() -> None:
    """Register the ids with gymnasium; MiniGrid is imported when an environment is made."""
    for env_id, settings in IDS.items():
        if env_id not in gymnasium.registry:
            entry_point = "rlgates.envs.adapters.minigrid:make_minigrid"
            gymnasium.register(id=env_id, entry_point=entry_point, kwargs=settings)


class MiniGridMemory(gymnasium.Env[NDArray[Any], np.int64]):
    """MiniGrid Memory, `rlgates/MiniGridMemoryS7-v0` and the other sizes.

    ## Description
    The game of `rlgates.envs.MiniGridMemory`, whose docstring describes it, played by MiniGrid
    itself, with its random numbers and images, one environment at a time.

    ## Actions
    `Discrete(3)`; with `all_actions` `Discrete(7)`, the other four of which do nothing here.

    | number | move |
    |--------|------|
    | 0 | turn left |
    | 1 | turn right |
    | 2 | forward; objects and walls block |
    | 3 to 6 | pickup, drop, toggle, done |

    ## Observations
    `"symbolic"`: `Box(0, 10, (view_size, view_size, 3), uint8)`, indexed [column, row, channel]
    from the far left cell of the view; the player is at [view_size // 2, view_size - 1], looks
    towards row 0, and is not drawn. SB3 treats these codes as numbers, as it should, not as an
    image, since their bound is not 255.

    | channel | codes |
    |---------|-------|
    | 0, object | 0 unseen, 1 empty, 2 wall, 5 key, 6 ball |
    | 1, colour | 1 green (objects), 5 grey (walls), 0 elsewhere |
    | 2, state | 0 |

    `"objects"`: `Box(0, 1, (view_size, view_size, 5), float32)`, the same cells with only the
    object's code, one-hot: unseen, empty, wall, key, ball. A network learns much sooner from this
    than from codes, since those of key and ball are adjacent.

    `"rgb"`: `Box(0, 255, (view_size * tile_size, view_size * tile_size, 3), uint8)`, the same
    cells as an image, indexed [row, column, channel], with the player drawn and the seen cells
    lighter. There is no text, no compass and no timer.

    ## Rewards
    1 - 0.9 * steps / max_steps at the right end, 0 otherwise. The number to report is
    `is_success`, in the info of the last step: the right end was reached.

    ## Start
    Facing right, in the middle row, column uniform in [1, h]: with the small view the room's object
    is behind the player, who must look for it (except in column 1, where it is visible at once). A
    reset takes no options.

    ## End
    `terminated` at either end of the fork; `truncated` after `max_steps` actions without that.
    The limit is many times what is needed, and reveals nothing about the object.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `size` | 7 | side of the square map with its walls, odd, at least 7; part of the id |
    | `random_length` | False | draw the length of the hallway; part of the id |
    | `view_size` | 3 | side of the view in cells, odd, at least 3 |
    | `observation` | "symbolic" | or "objects" or "rgb" |
    | `tile_size` | 12 | pixels of a cell in "rgb"; 3 x 12 = 36 is the least of SB3's NatureCNN |
    | `all_actions` | False | all seven actions of MiniGrid |
    | `max_steps` | None | time limit, at least 1; None: 5 * size ** 2; also scales the reward |
    | `render_mode` | None | "rgb_array" or "human": the whole map |

    Created by its id, it also takes the settings of `rlgates.envs.View`.

    ## Version history
    * v0: first version.

    ## Sources and differences
    The map, the draws and the rewards are those of MiniGrid's `MemoryEnv`, which does the work,
    with its random numbers: a seed gives the same map (Chevalier-Boisvert et al., "Minigrid &
    Miniworld: Modular & Customizable Reinforcement Learning Environments for Goal-Oriented
    Tasks", 2023; github.com/Farama-Foundation/Minigrid, minigrid/envs/memory.py, version 3.2).
    Different here: the view is 3 cells (there 7), the observation is one array (there a
    dictionary with a compass and a text), three actions (there 7), `is_success`, `truncated`
    is never true together with `terminated`, and a finished episode cannot go on.

    Raises:
        ImportError: MiniGrid is not installed. ValueError: a setting out of range.
        TypeError: a setting of the wrong type.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        size: int = 7,
        *,
        random_length: bool = False,
        view_size: int = 3,
        observation: Literal["symbolic", "objects", "rgb"] = "symbolic",
        tile_size: int = 12,
        all_actions: bool = False,
        max_steps: int | None = None,
        render_mode: Literal["rgb_array", "human"] | None = None,
    ) -> None:
        self.size = check_odd("size", check_size("size", size, 7))
        self.random_length = check_flag("random_length", random_length)
        self.view_size = check_odd("view_size", check_size("view_size", view_size, 3))
        self.observation = check_choice("observation", observation, OBSERVATIONS)
        self.tile_size = check_size("tile_size", tile_size)
        if render_mode is not None:
            check_choice("render mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self._num_actions = _ALL_ACTIONS if check_flag("all_actions", all_actions) else _MOVES
        if max_steps is not None:
            max_steps = check_size("max_steps", max_steps)
        self._inner = _memory_env()(
            size=self.size,
            random_length=self.random_length,
            max_steps=max_steps,
            agent_view_size=self.view_size,
            render_mode=render_mode,
        )
        self._running = False

        self.action_space = spaces.Discrete(self._num_actions)
        if observation == "rgb":
            side = self.view_size * self.tile_size
            self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)
        elif observation == "objects":
            shape = (self.view_size, self.view_size, len(_OBJECTS))
            self.observation_space = spaces.Box(0, 1, shape, np.float32)
        else:
            shape = (self.view_size, self.view_size, 3)
            self.observation_space = spaces.Box(0, _LARGEST_CODE, shape, np.uint8)

    @property
    def max_episode_length(self) -> int:
        """The time limit, in steps."""
        return int(self._inner.max_steps)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode, with a new generator if there is a `seed`.

        Raises:
            ValueError: `options` is not empty.
        """
        for name in options or {}:
            raise unknown_choice("reset option", name, ())
        super().reset(seed=seed)
        self._inner.np_random = self.np_random
        symbols, _ = self._inner.reset()
        self._running = True
        return self._observation(symbols), {}

    def step(self, action: np.int64) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """One action; the info of an episode's last step has `is_success` (bool).

        Raises:
            ResetNeeded: before the first reset and after the end of an episode.
            ValueError: unusable action.
        """
        if not self._running:
            raise ResetNeeded("call reset() first: no episode is running.")
        if not self.action_space.contains(action):
            raise ValueError(
                f"action must be one integer in [0, {self._num_actions}), got {action!r}."
            )
        symbols, reward, terminated, truncated, _ = self._inner.step(int(action))
        self._running = not (terminated or truncated)
        info = {} if self._running else {"is_success": bool(reward > 0)}
        truncated = truncated and not terminated
        return self._observation(symbols), float(reward), terminated, truncated, info

    def _observation(self, symbols: dict[str, Any]) -> NDArray[Any]:
        if self.observation == "rgb":
            image: NDArray[np.uint8] = self._inner.get_frame(
                tile_size=self.tile_size, agent_pov=True
            )
            return image
        grid: NDArray[np.uint8] = symbols["image"]
        if self.observation == "objects":
            objects: NDArray[np.float32] = (grid[..., :1] == _OBJECTS).astype(np.float32)
            return objects
        return grid

    def render(self) -> NDArray[np.uint8] | None:
        """The whole map, uint8 (height, width, 3), if `render_mode` is "rgb_array"."""
        if self.render_mode is None:
            return None
        if self._inner.agent_pos is None:
            raise ResetNeeded("call reset() first: there is nothing to render yet.")
        image: NDArray[np.uint8] | None = self._inner.render()
        return image

    def close(self) -> None:
        self._inner.close()


# The settings and their defaults, and the render modes, are read from what gymnasium calls.
@wraps(MiniGridMemory, assigned=("metadata",), updated=())
def make_minigrid(**settings: Any) -> gymnasium.Env[Any, Any]:
    """A `MiniGridMemory`, with the settings of `View` applied.

    Args:
        settings: of `MiniGridMemory` and of `View`.

    Raises:
        ImportError: MiniGrid is not installed. ValueError: unknown setting (the nearest known one
            is named), or a value out of range. TypeError: a value of the wrong type.
    """
    name = "MiniGridMemory"
    own, view = split_settings(name, settings, signature(MiniGridMemory).parameters)
    return with_view(MiniGridMemory(**own), name, **view)


class OneHotCells(gymnasium.ObservationWrapper[NDArray[np.float32], Any, Any]):
    """The view of any environment of MiniGrid as one-hot cells, without mission and direction.

    `Box(0, 1, (view, view, 20), float32)`: 11 channels for the object, 6 for the colour and 3 for
    the state of a cell. By MiniGrid's own codes a key is almost a ball.

    Args:
        env: of MiniGrid.

    Raises:
        ValueError: the observation has no entry "image" of cells.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        image = space.spaces.get("image") if isinstance(space, spaces.Dict) else None
        if image is None or image.shape is None or image.shape[2:] != (len(_CODES),):
            raise ValueError(f"OneHotCells needs an environment of MiniGrid, got {space}.")
        self.observation_space = spaces.Box(0, 1, (*image.shape[:2], sum(_CODES)), np.float32)

    def observation(self, observation: dict[str, Any]) -> NDArray[np.float32]:
        cells = observation["image"]
        one_hot = [
            cells[..., channel, None] == np.arange(codes) for channel, codes in enumerate(_CODES)
        ]
        return np.concatenate(one_hot, axis=-1).astype(np.float32)


def _memory_env() -> Any:
    """MiniGrid's class `MemoryEnv`."""
    try:
        return importlib.import_module("minigrid.envs").MemoryEnv
    except ImportError as error:
        raise ImportError(
            f'MiniGrid cannot be imported ({error}): pip install "rlgates[minigrid]"'
        ) from error
