"""Front end for gymnasium: one environment."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from rlgates.deprecation import renamed, warn_renamed
from rlgates.envs.engine.actions import check_actions
from rlgates.envs.engine.arrays import Array, row_of
from rlgates.envs.engine.parameters import override, report_single, reset_info
from rlgates.envs.engine.philox import MAX_SEED, Key, check_seed
from rlgates.envs.engine.spec import EnvSpec, State, copy_spaces
from rlgates.envs.registration import make_env_spec
from rlgates.envs.render.frames import FPS, render_batch
from rlgates.envs.render.window import Window
from rlgates.errors import check_choice, check_flag, check_size

__getattr__ = renamed(__name__, {"TaskEnv": "GymEnv"})


class GymEnv(gymnasium.Env[Any, Any]):
    """One environment; `gymnasium.make(env_id, ...)` creates it.

    It equals environment `env_index` of a `BatchedEnv` with the same settings and seed, bit for
    bit.
    `reset(seed=s)` starts episode 0 of seed s, `reset()` the next one; without any
    seed so far, one is sampled from gymnasium's `np_random`. The definition is `env_spec`, since
    `spec` is gymnasium's own.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0".
        render_mode: None, "rgb_array" or "human".
        env_index: number of the environment among those with the same seed, at least 0.
        settings: of the game, with `preset` and those of `View`.

    Raises:
        ValueError: unknown setting (the nearest known one is named), or a value out of range.
        TypeError: a value of the wrong type.
    """

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": FPS}  # noqa: RUF012

    def __init__(
        self,
        env_id: str,
        *,
        render_mode: Literal["rgb_array", "human"] | None = None,
        env_index: int = 0,
        **settings: Any,
    ) -> None:
        self.env_spec = make_env_spec(env_id, **settings)
        if render_mode is not None:
            check_choice("render mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self.env_index = check_size("env_index", env_index, minimum=0)
        if self.env_index >= 2**32:
            raise ValueError(f"env_index must be below 2**32, got {env_index}.")
        self.observation_space, self.action_space = copy_spaces(self.env_spec)
        self._seed: int | None = None
        self._episode = -1
        self._state: State | None = None
        self._running = False
        self._reward = 0.0
        self._title = env_id
        self._window: Window | None = None

    @property
    def task(self) -> EnvSpec:
        """Deprecated: the old name of `env_spec`."""
        warn_renamed("task", "env_spec")
        return self.env_spec

    @property
    def max_episode_length(self) -> int:
        """The largest number of steps in an episode."""
        return self.env_spec.max_episode_length

    @property
    def phase_names(self) -> tuple[str, ...]:
        """The phases of an episode in order; empty if it is not divided."""
        return self.env_spec.phase_names

    @property
    def phase(self) -> int:
        """The index in `phase_names` of the current phase."""
        return int(self.env_spec.phase(self._current_state())[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episode 0 of `seed`, or the next episode if there is none.

        Args:
            seed: in [0, 2**64).
            options: values for parameters of this episode, by name; `reveal=True` reports all of
                them in the info as `parameters`, in the form that options take (also as `choices`,
                the old name of this key).

        Raises:
            ValueError: an unknown option, or a value out of range. TypeError: of the wrong type.
        """
        overrides = dict(options or {})
        reveal = check_flag("reveal", overrides.pop("reveal", False))
        seed = None if seed is None else check_seed(seed)
        super().reset(seed=seed)
        seed, episode = (self._seed, self._episode + 1) if seed is None else (seed, 0)
        if seed is None:
            seed = int(self.np_random.integers(MAX_SEED, endpoint=True, dtype=np.uint64))
        spec = self.env_spec
        parameters = spec.sample(Key(seed, np.array([self.env_index]), np.array([episode])))
        parameters = override(spec.parameters, parameters, overrides)
        self._seed, self._episode = seed, episode
        self._state = spec.initial_state(parameters)
        self._running, self._reward = True, 0.0
        self._show()
        info = reset_info(report_single(spec.parameters, parameters)) if reveal else {}
        return self._observation(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One action of `action_space`.

        The info of an episode's last step has the metrics of the spec, such as `is_success` (bool).

        Raises:
            ResetNeeded: before the first reset and after the end of an episode.
            TypeError, ValueError: unusable action.
        """
        if self._state is None or not self._running:
            raise ResetNeeded("call reset() first: no episode is running.")
        actions = self._check(action)
        self._state, reward, terminated = self.env_spec.step(self._state, actions)
        self._running = not terminated[0]
        self._reward = float(reward[0])
        info = {}
        if terminated[0]:
            metrics = self.env_spec.metrics(self._state)
            info = {name: value[0].item() for name, value in metrics.items()}
        self._show()
        return self._observation(), self._reward, bool(terminated[0]), False, info

    def _check(self, action: Any) -> Array:
        """`action` as a batch of one."""
        return check_actions(self.env_spec.action_space, action, np, None, (), values=True)[None]

    def _current_state(self) -> State:
        if self._state is None:
            raise ResetNeeded("call reset() first: there is nothing to render yet.")
        return self._state

    def _observation(self) -> Any:
        return row_of(self.env_spec.observe(self._current_state()), 0)

    def render(self) -> Array | None:
        """The current image, uint8 (height, width, 3), if `render_mode` is "rgb_array"."""
        if self.render_mode == "rgb_array":
            return render_batch(self.env_spec, self._current_state(), [self._reward])[0]
        return None

    def _show(self) -> None:
        """Show the current image in a window, if `render_mode` is "human"."""
        if self.render_mode == "human":
            if self._window is None:
                self._window = Window(self._title)
            self._window.show(render_batch(self.env_spec, self._current_state(), [self._reward])[0])

    def close(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None
