"""Front end for gymnasium: one environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from rlgates.envs.arrays import Array
from rlgates.envs.choices import fix, tell_one
from rlgates.envs.engine import Observation, State, own_spaces
from rlgates.envs.philox import MAX_SEED, Key, check_seed
from rlgates.envs.render import FPS, draw_rows
from rlgates.envs.tasks import make_task
from rlgates.envs.window import Window
from rlgates.errors import check_choice, check_flag, check_size


class TaskEnv(gymnasium.Env[Any, np.int64]):
    """One environment of a task; `gymnasium.make(env_id, ...)` makes it.

    It is row `env_index` of a `BatchedEnv` with the same settings and seed, bit for bit.
    `reset(seed=s)` starts episode 0 of seed s, `reset()` the next one; an environment that was
    never given a seed draws one from gymnasium's `np_random`.

    Args:
        env_id: which task, for example "rlgates/PassiveMatch-v0".
        render_mode: None, "rgb_array" or "human".
        env_index: which of the environments of a seed this is, at least 0.
        settings: of the task, with `preset` and those of `View`.

    Raises:
        ValueError: unknown setting (the nearest known one is named), or a value out of range.
        TypeError: a value of the wrong type.
    """

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": FPS}  # noqa: RUF012

    def __init__(
        self, env_id: str, *, render_mode: str | None = None, env_index: int = 0, **settings: Any
    ) -> None:
        self.task = make_task(env_id, **settings)
        if render_mode is not None:
            check_choice("render mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self.env_index = check_size("env_index", env_index, minimum=0)
        if self.env_index >= 2**32:
            raise ValueError(f"env_index must be below 2**32, got {env_index}.")
        self.observation_space, self.action_space = own_spaces(self.task)
        self._seed: int | None = None
        self._episode = -1
        self._state: State | None = None
        self._running = False
        self._reward = 0.0
        self._title = env_id
        self._window: Window | None = None

    @property
    def phase(self) -> int:
        """Which of `task.phase_names` is shown."""
        return int(self.task.phase(self._shown())[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episode 0 of `seed`, or the next episode if there is none.

        Args:
            seed: in [0, 2**64).
            options: choices of the task by name, fixed for this episode; `reveal=True` asks for
                all of them, which are then in the info as `choices`, in the form of options.

        Raises:
            ValueError: an unknown option, or a value out of range. TypeError: of the wrong type.
        """
        given = dict(options or {})
        reveal = check_flag("reveal", given.pop("reveal", False))
        seed = None if seed is None else check_seed(seed)
        super().reset(seed=seed)
        start, episode = (self._seed, self._episode + 1) if seed is None else (seed, 0)
        if start is None:
            start = int(self.np_random.integers(MAX_SEED, endpoint=True, dtype=np.uint64))
        drawn = self.task.draw(Key(start, np.array([self.env_index]), np.array([episode])))
        drawn = fix(self.task.choices, drawn, given)
        self._seed, self._episode = start, episode
        self._state = self.task.start(drawn)
        self._running, self._reward = True, 0.0
        self._show()
        return self._observation(), (
            {"choices": tell_one(self.task.choices, drawn)} if reveal else {}
        )

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One action of `action_space`.

        The info of an episode's last step has the task's metrics, such as `is_success` (bool).

        Raises:
            ResetNeeded: before the first reset and after the end of an episode.
            TypeError, ValueError: unusable action.
        """
        if self._state is None or not self._running:
            raise ResetNeeded("call reset() first: no episode is running.")
        actions = self._check(action)
        self._state, reward, terminated = self.task.step(self._state, actions)
        self._running = not terminated[0]
        self._reward = float(reward[0])
        info = {}
        if terminated[0]:
            info = {name: value[0].item() for name, value in self.task.metrics(self._state).items()}
        self._show()
        return self._observation(), self._reward, bool(terminated[0]), False, info

    def _check(self, action: Any) -> Array:
        """`action` as a batch of one."""
        given, count = np.asarray(action), int(self.task.action_space.n)
        if given.ndim != 0:
            raise ValueError(f"action must be one integer, got shape {given.shape}.")
        if given.dtype.kind not in "iu":
            raise TypeError(f"action must be an integer, got dtype {given.dtype}.")
        if not 0 <= given < count:
            raise ValueError(f"action must be in [0, {count}), got {given}.")
        return given.astype(np.int64)[None]

    def _shown(self) -> State:
        if self._state is None:
            raise ResetNeeded("call reset() first: there is nothing to show yet.")
        return self._state

    def _observation(self) -> Any:
        obs: Observation = self.task.observe(self._shown())
        return {name: part[0] for name, part in obs.items()} if isinstance(obs, dict) else obs[0]

    def render(self) -> Array | None:
        """The present picture, uint8 (height, width, 3), if `render_mode` is "rgb_array"."""
        if self.render_mode == "rgb_array":
            return draw_rows(self.task, self._shown(), [self._reward])[0]
        return None

    def _show(self) -> None:
        """The present picture in a window, if `render_mode` is "human"."""
        if self.render_mode == "human":
            if self._window is None:
                self._window = Window(self._title)
            self._window.show(draw_rows(self.task, self._shown(), [self._reward])[0])

    def close(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None
