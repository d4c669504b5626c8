"""Front end for gymnasium: one environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from rlgates.envs.engine import State, check_actions
from rlgates.envs.philox import MAX_SEED, Array, Key, check_seed
from rlgates.envs.render import FPS, draw_rows
from rlgates.envs.tasks import make_task
from rlgates.errors import check_choice, check_size


class TaskEnv(gymnasium.Env[Array, np.int64]):
    """One environment of a task; `gymnasium.make(env_id, ...)` makes it.

    It is row `env_index` of a `BatchedEnv` with the same settings and seed, bit for bit.
    `reset(seed=s)` starts episode 0 of seed s, `reset()` the next one; an environment that was
    never given a seed draws one from gymnasium's `np_random`.

    Args:
        env_id: which task, for example "rlgates/PassiveMatch-v0".
        render_mode: None or "rgb_array".
        env_index: which of the environments of a seed this is, at least 0.
        settings: of the task.

    Raises:
        ValueError: unknown setting (the nearest known one is named), or a value out of range.
        TypeError: a value of the wrong type.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012

    def __init__(
        self, env_id: str, *, render_mode: str | None = None, env_index: int = 0, **settings: Any
    ) -> None:
        self.task = make_task(env_id, **settings)
        if render_mode is not None:
            check_choice("render mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self.env_index = check_size("env_index", env_index, minimum=0)
        if env_index >= 2**32:
            raise ValueError(f"env_index must be below 2**32, got {env_index}.")
        self.observation_space = spaces.Box(0, 255, self.task.observation_shape, np.uint8)
        self.action_space = spaces.Discrete(self.task.num_actions)
        self._seed: int | None = None
        self._episode = -1
        self._state: State | None = None
        self._running = False
        self._reward = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start episode 0 of `seed`, or the next episode if there is none; no options."""
        if seed is not None:
            self._seed, self._episode = check_seed(seed), -1
        super().reset(seed=seed)
        if self._seed is None:
            self._seed = int(self.np_random.integers(MAX_SEED, endpoint=True, dtype=np.uint64))
        self._episode += 1
        key = Key(self._seed, np.array([self.env_index]), np.array([self._episode]))
        self._state = self.task.reset(key)
        self._running, self._reward = True, 0.0
        return self.task.observe(self._state)[0], {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One action, an integer in [0, 4).

        The info of an episode's last step has the task's metrics: `is_success` (bool) and
        `last_phase_reward` (float).

        Raises:
            ResetNeeded: before the first reset and after the end of an episode.
            TypeError, ValueError: unusable action.
        """
        if self._state is None or not self._running:
            raise ResetNeeded("call reset() first: no episode is running.")
        if np.ndim(action) != 0:
            raise ValueError(f"action must be one integer, got shape {np.shape(action)}.")
        actions = check_actions(np.asarray(action)[None], 1, self.task.num_actions)
        self._state, reward, terminated = self.task.step(self._state, actions)
        self._running = not terminated[0]
        self._reward = float(reward[0])
        info = {}
        if terminated[0]:
            info = {name: value[0].item() for name, value in self.task.metrics(self._state).items()}
        return self.task.observe(self._state)[0], self._reward, bool(terminated[0]), False, info

    def render(self) -> Array | None:
        """The present picture, uint8 (height, width, 3), if `render_mode` is "rgb_array"."""
        if self.render_mode is None:
            return None
        if self._state is None:
            raise ResetNeeded("call reset() first: there is nothing to render yet.")
        return draw_rows(self.task, self._state, [self._reward])[0]
