"""Front end for Stable-Baselines3: a batch of environments as one `VecEnv`.

This is the only file of the environments that needs stable-baselines3.
"""

from __future__ import annotations

import time
from typing import Any, NoReturn

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from rlgates.envs.arrays import Array
from rlgates.envs.engine import BatchedEnv, Observation, own_spaces
from rlgates.envs.philox import check_seed, random_seed
from rlgates.envs.render import FPS, draw_rows
from rlgates.envs.tasks import make_task
from rlgates.errors import check_choice, check_size


def make_vec_env(
    env_id: str,
    n_envs: int,
    seed: int | None = None,
    *,
    render_mode: str | None = None,
    **settings: Any,
) -> BatchedVecEnv:
    """`n_envs` environments `env_id` with `settings`, stepped together as one `VecEnv`.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0".
        n_envs: at least 1.
        seed: in [0, 2**64); None draws one at the first reset.
        render_mode: None or "rgb_array".
        settings: of the task, with `preset` and those of `View`.

    Raises:
        ValueError: unknown id or setting (the nearest known one is named), or a value out of
            range. TypeError: a value of the wrong type.
    """
    task, rows = make_task(env_id, **settings), check_size("n_envs", n_envs)
    return BatchedVecEnv(BatchedEnv(task, rows, seed), render_mode)


class BatchedVecEnv(VecEnv):
    """A `BatchedEnv` as a `VecEnv`.

    Only rows that finish cost Python time. Their info has `terminal_observation`, `episode` as
    SB3's `Monitor` writes it, `TimeLimit.truncated` (False: episodes end by themselves) and the
    task's metrics; the others' is empty. All rows share one seed and differ by their index.

    Args:
        env: the batch; step it only through this object.
        render_mode: None or "rgb_array".
    """

    def __init__(self, env: BatchedEnv, render_mode: str | None = None) -> None:
        if render_mode is not None:
            check_choice("render mode", render_mode, ("rgb_array",))
        self.env = env
        self.render_mode = render_mode  # before super().__init__, which asks get_attr for it
        super().__init__(env.num_envs, *own_spaces(env.task))
        self.metadata: dict[str, Any] = {**self.metadata, "render_fps": FPS}
        self._next_seed: int | None = None
        self._actions: Any = None
        self._rewards = np.zeros(env.num_envs, dtype=np.float32)
        self._infos: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
        self._filled: list[int] = []  # rows whose info is not empty
        self._start_time = time.time()

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Let the next reset start the episodes number 0 of `seed`; None draws a seed."""
        self._next_seed = random_seed() if seed is None else check_seed(seed)
        return [self._next_seed] * self.num_envs

    def reset(self) -> Any:
        """First observations: of the seed given before, or of each row's next episode.

        `set_options` fixes choices of these episodes, the same in every row; with `reveal=True`
        the choices of each row are in `reset_infos`.
        """
        seed, self._next_seed = self._next_seed, None
        options, *others = self._options
        if any(other != options for other in others):
            raise ValueError("the rows of a batch take the same reset options, got different ones.")
        obs, info = self.env.reset(seed, options)
        self._reset_options()
        self._rewards = np.zeros_like(self._rewards)
        self._clear_infos()
        told = info.get("choices", {})
        self.reset_infos = [
            {"choices": {name: values[row].tolist() for name, values in told.items()}}
            if told
            else {}
            for row in range(self.num_envs)
        ]
        return obs

    def step_async(self, actions: Array) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        obs, rewards, done, _, info = self.env.step(self._actions)
        self._clear_infos()
        self._filled = np.flatnonzero(done).tolist()
        if self._filled:
            elapsed = round(time.time() - self._start_time, 6)
            names = self.env.task.metric_names
            for row in self._filled:
                self._infos[row] = {
                    "TimeLimit.truncated": False,
                    "terminal_observation": _row(info["final_obs"], row),
                    "episode": {
                        "r": round(float(info["episode_return"][row]), 6),
                        "l": int(info["episode_length"][row]),
                        "t": elapsed,
                    },
                    **{name: info[name][row].item() for name in names},
                }
        self._rewards = np.where(done, 0, rewards)  # what the picture now shown was paid
        return obs, rewards, done, self._infos.copy()

    def _clear_infos(self) -> None:
        # New dicts instead of emptied ones: who kept an old list of infos still has them.
        for row in self._filled:
            self._infos[row] = {}
        self._filled = []

    def close(self) -> None:
        """Nothing is held open."""

    def get_images(self) -> list[Array]:
        """One picture of each environment, uint8 (height, width, 3)."""
        return draw_rows(self.env.task, self.env.state, self._rewards.tolist())

    def get_state(self) -> dict[str, Array]:
        """All that decides the future of the environments; see `BatchedEnv.get_state`."""
        return self.env.get_state()

    def set_state(self, saved: dict[str, Array]) -> Any:
        """Go on from what `get_state` gave, and return the current observations."""
        self._rewards = np.zeros_like(self._rewards)
        self._clear_infos()
        return self.env.set_state(saved)

    # The rows are no objects: all have the same attributes, fixed, and no methods.

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """A setting of the task, `render_mode`, `task` or `env_index`, for each row asked for."""
        rows = list(self._get_indices(indices))
        if attr_name == "env_index":
            return [self.env.first_index + row for row in rows]
        own = {"render_mode": self.render_mode, "task": self.env.task}
        value = own[attr_name] if attr_name in own else getattr(self.env.task, attr_name)
        return [value] * len(rows)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> NoReturn:
        raise AttributeError(
            f"cannot set {attr_name!r}: settings are fixed, make a new environment with others."
        )

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> NoReturn:
        raise AttributeError(f"cannot call {method_name!r}: the rows of a batch have no methods.")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Whether the rows act as if wrapped: by `Monitor`, whose `episode` records they write."""
        wrapped = issubclass(wrapper_class, Monitor)
        return [wrapped for _ in self._get_indices(indices)]


def _row(values: Observation, row: int) -> Any:
    if isinstance(values, dict):
        return {name: part[row] for name, part in values.items()}
    return values[row]
