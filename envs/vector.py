"""Front end for gymnasium's vector environments: `gymnasium.make_vec(env_id, num_envs=...)`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlgates.envs.arrays import Array
from rlgates.envs.engine import BatchedEnv, own_spaces
from rlgates.envs.render import FPS, draw_rows
from rlgates.envs.tasks import make_task
from rlgates.errors import check_choice


class TaskVectorEnv(VectorEnv[Any, Array, Array]):
    """A `BatchedEnv` as a gymnasium vector environment.

    A finished row starts its next episode in the same step (`AutoresetMode.SAME_STEP`): info
    then has `final_obs` and `final_info` (the task's metrics, and `episode` with return `r` and
    length `l`), each with a mask `_...` of the rows it holds for.

    Gymnasium's wrappers of vector observations (`NormalizeObservation` and all others of
    `gymnasium.wrappers.vector` that change what is seen) refuse this mode with a ValueError. The
    settings of `View` need none; for others wrap the single environments, which gymnasium then
    steps one by one: `make_vec(env_id, num_envs=..., vectorization_mode="sync", wrappers=[...])`.

    Args:
        num_envs: at least 1. env_id: which task.
        render_mode: None or "rgb_array", a tuple of one picture a row.
        settings: of the task, with `preset` and those of `View`.

    Raises:
        ValueError: unknown setting (the nearest known one is named), or a value out of range.
        TypeError: a value of the wrong type.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": FPS,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self, num_envs: int, env_id: str, *, render_mode: str | None = None, **settings: Any
    ) -> None:
        self.env = BatchedEnv(make_task(env_id, **settings), num_envs)
        if render_mode is not None:
            check_choice("render mode", render_mode, self.metadata["render_modes"])
        self.num_envs, self.render_mode = self.env.num_envs, render_mode
        self.single_observation_space, self.single_action_space = own_spaces(self.env.task)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._rewards = np.zeros(self.num_envs, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every row; see `BatchedEnv.reset` for options and `reveal`."""
        self._rewards = np.zeros_like(self._rewards)
        return self.env.reset(seed, options)

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """One action (num_envs,) in every row; see `BatchedEnv.step`."""
        obs, rewards, terminated, truncated, seen = self.env.step(actions)
        self._rewards = np.where(terminated, 0, rewards)  # what the picture now shown was paid
        info: dict[str, Any] = {}
        if "final_obs" in seen:
            rows = terminated.copy()
            final = {name: seen[name] for name in self.env.task.metric_names}
            final["episode"] = {
                "r": seen["episode_return"],
                "l": seen["episode_length"],
                "_r": rows,
                "_l": rows,
            }
            masks = {f"_{name}": rows for name in final}
            info = {"final_obs": seen["final_obs"], "final_info": {**final, **masks}}
            info |= {"_final_obs": rows, "_final_info": rows}
        return obs, rewards, terminated, truncated, info

    def render(self) -> tuple[Array, ...] | None:
        """One picture of each row, if `render_mode` is "rgb_array"."""
        if self.render_mode is None:
            return None
        return tuple(draw_rows(self.env.task, self.env.state, self._rewards.tolist()))
