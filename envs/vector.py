"""Front end for gymnasium's vector environments: `gymnasium.make_vec(env_id, num_envs=...)`."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlgates.deprecation import renamed
from rlgates.envs.engine.arrays import Array, row_of
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.engine.philox import check_seed
from rlgates.envs.engine.spec import Observation, copy_spaces
from rlgates.envs.registration import make_env_spec
from rlgates.envs.render.frames import FPS, render_batch
from rlgates.errors import check_choice

__getattr__ = renamed(__name__, {"TaskVectorEnv": "GymVectorEnv"})


class GymVectorEnv(VectorEnv[Any, Array, Array]):
    """A `BatchedEnv` as a gymnasium vector environment.

    A finished environment starts its next episode in the same step (`AutoresetMode.SAME_STEP`):
    info then has `final_obs` and `final_info` (the metrics of the spec, and `episode` with return
    `r` and length `l`), each with a mask `_...` of the environments for which it is valid.

    Gymnasium's wrappers of vector observations (`NormalizeObservation` and all others of
    `gymnasium.wrappers.vector` that change observations) refuse this mode with a ValueError. The
    settings of `View` need no wrapper; for others wrap the single environments, which are then
    stepped one by one: `make_vec(env_id, num_envs=..., vectorization_mode="sync", wrappers=[...])`.

    Args:
        num_envs: at least 1.
        env_id: for example "rlgates/PassiveMatch-v0".
        render_mode: None or "rgb_array", one image per environment, in a tuple.
        settings: of the game, with `preset` and those of `View`.

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
        self,
        num_envs: int,
        env_id: str,
        *,
        render_mode: Literal["rgb_array"] | None = None,
        **settings: Any,
    ) -> None:
        self.env = BatchedEnv(make_env_spec(env_id, **settings), num_envs)
        if render_mode is not None:
            check_choice("render mode", render_mode, self.metadata["render_modes"])
        self.num_envs, self.render_mode = self.env.num_envs, render_mode
        self.single_observation_space, self.single_action_space = copy_spaces(self.env.spec)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._rewards = np.zeros(self.num_envs, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment; see `BatchedEnv.reset` for `options`."""
        super().reset(seed=None if seed is None else check_seed(seed))
        self._rewards = np.zeros_like(self._rewards)
        return self.env.reset(seed, options)

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take actions (num_envs,); see `BatchedEnv.step`."""
        obs, rewards, terminated, truncated, batch_info = self.env.step(actions)
        self._rewards = np.where(terminated, 0, rewards)  # the rewards of what is rendered now
        info: dict[str, Any] = {}
        if "final_obs" in batch_info:
            finished = terminated.copy()
            final = {name: batch_info[name] for name in self.env.spec.metric_names}
            final["episode"] = {
                "r": batch_info["episode_return"],
                "l": batch_info["episode_length"],
                "_r": finished,
                "_l": finished,
            }
            masks = {f"_{name}": finished for name in final}
            final_obs = _each(batch_info["final_obs"], finished)
            info = {"final_obs": final_obs, "final_info": {**final, **masks}}
            info |= {"_final_obs": finished, "_final_info": finished}
        return obs, rewards, terminated, truncated, info

    def render(self) -> tuple[Array, ...] | None:
        """One image of each environment, if `render_mode` is "rgb_array"."""
        if self.render_mode is None:
            return None
        return tuple(render_batch(self.env.spec, self.env.state, self._rewards.tolist()))


def _each(observations: Observation, finished: Array) -> Array:
    """Observations by environment: a dict of them becomes one for each, as in gymnasium."""
    if not isinstance(observations, dict):
        return observations
    each = np.full(len(finished), None)
    for row in np.flatnonzero(finished).tolist():
        each[row] = row_of(observations, row)
    return each
