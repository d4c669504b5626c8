"""Front end for Stable-Baselines3: a batch of environments as one `VecEnv`.

This is the only file of the environments that needs stable-baselines3.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import numpy as np
from stable_baselines3.common.env_util import make_vec_env as several
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from rlgates.deprecation import warn_renamed
from rlgates.envs.engine.arrays import Array, row_of
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.engine.parameters import reset_info
from rlgates.envs.engine.philox import check_seed, random_seed
from rlgates.envs.engine.spec import copy_spaces
from rlgates.envs.registration import find_adapter, make_env_spec
from rlgates.envs.render.frames import FPS, render_batch
from rlgates.errors import check_choice, check_size


def make_vec_env(
    env_id: str,
    n_envs: int,
    seed: int | None = None,
    *,
    render_mode: Literal["rgb_array"] | None = None,
    first_index: int = 0,
    **settings: Any,
) -> VecEnv:
    """`n_envs` environments `env_id` with `settings`, stepped together as one `VecEnv`.

    Those of MiniGrid and POPGym, which are not batched, are stepped one after the other in a
    `DummyVecEnv`, each in a `Monitor`; environment k has the seed `seed + first_index + k`.

    An id registered by MiniGrid or POPGym is always played by that package, through its adapter,
    and never by the batched game with the same rules, which has other random numbers and partly
    other spaces. "popgym-RepeatFirstEasy-v0" is "rlgates/popgym-RepeatFirstEasy-v0".
    "MiniGrid-MemoryS7-v0" is "rlgates/MiniGridMemoryS7-v0" with MiniGrid's own settings,
    `view_size=7` and `all_actions=True`; at sizes 7 and 9 this view shows the object of the room
    from the fork, so the task needs no memory. The batched games are "rlgates/RepeatFirst-v0" with
    `preset="easy"` and "rlgates/MiniGridMemory-v0" with `preset="S7"`.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0"; also "MiniGrid-MemoryS7-v0" and the other
            memory tasks of MiniGrid, and "popgym-RepeatFirstEasy-v0" and the others that POPGym
            registers.
        n_envs: at least 1.
        seed: in [0, 2**64); None takes one from the operating system at the first reset.
        render_mode: None or "rgb_array".
        first_index: of the first environment: several batches with one seed and consecutive
            indices are parts of one larger batch.
        settings: of the game, with `preset` and those of `View`.

    Raises:
        ValueError: unknown id or setting (the nearest known one is named), or a value out of
            range. TypeError: a value of the wrong type. ImportError: the package of MiniGrid or
            POPGym is not installed.
    """
    if (adapter := find_adapter(env_id)) is not None:
        env_id, published = adapter
        settings = {"render_mode": render_mode, **published, **settings}
        return _one_by_one(env_id, n_envs, seed, first_index, **settings)
    spec, n_envs = make_env_spec(env_id, **settings), check_size("n_envs", n_envs)
    return BatchedVecEnv(BatchedEnv(spec, n_envs, seed, first_index), render_mode)


def _one_by_one(
    env_id: str, n_envs: int, seed: int | None, first_index: int, **settings: Any
) -> VecEnv:
    if settings["render_mode"] is None:
        del settings["render_mode"]
    n_envs, first_index = check_size("n_envs", n_envs), check_size("first_index", first_index, 0)
    # Without a seed Stable-Baselines3 takes one from NumPy's global generator.
    first_seed = (random_seed() if seed is None else check_seed(seed)) + first_index
    return several(env_id, n_envs, first_seed, env_kwargs=settings)


class BatchedVecEnv(VecEnv):
    """A `BatchedEnv` as a `VecEnv`.

    Only environments that finish cost Python time. Their info has `terminal_observation`,
    `episode` as SB3's `Monitor` writes it, `TimeLimit.truncated` (False: episodes are not cut
    off) and the metrics of the spec; that of the others is empty. All environments share one seed
    and differ by their index.

    Args:
        env: the batch; step it only through this object.
        render_mode: None or "rgb_array".
    """

    def __init__(self, env: BatchedEnv, render_mode: Literal["rgb_array"] | None = None) -> None:
        if render_mode is not None:
            check_choice("render mode", render_mode, ("rgb_array",))
        self.env = env
        self.render_mode = render_mode  # before super().__init__, which asks get_attr for it
        super().__init__(env.num_envs, *copy_spaces(env.spec))
        self.metadata: dict[str, Any] = {**self.metadata, "render_fps": FPS}
        self._next_seed: int | None = None
        self._actions: Any = None
        self._rewards = np.zeros(env.num_envs, dtype=np.float32)
        self._infos: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
        self._start_time = time.time()

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Let the next reset start episode 0 of `seed` everywhere; None takes a random seed."""
        self._next_seed = random_seed() if seed is None else check_seed(seed)
        return [self._next_seed] * self.num_envs

    def reset(self) -> Any:
        """First observations: of the seed set before, or of the next episodes.

        `set_options` overrides parameters of these episodes, the same in every environment; with
        `reveal=True` the parameters of each environment are in `reset_infos`.
        """
        options, *others = self._options
        if not all(_equal(other, options) for other in others):
            raise ValueError(
                "the environments of a batch take the same reset options, got different ones."
            )
        obs, info = self.env.reset(self._next_seed, options)
        self._next_seed = None
        self._reset_options()
        self._rewards = np.zeros_like(self._rewards)
        self._clear_infos()
        parameters = info.get("parameters", {})
        self.reset_infos = [
            reset_info({name: values[row].tolist() for name, values in parameters.items()})
            if parameters
            else {}
            for row in range(self.num_envs)
        ]
        return obs

    def step_async(self, actions: Array) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        obs, rewards, done, _, info = self.env.step(self._actions)
        self._clear_infos()
        if done.any():
            elapsed = round(time.time() - self._start_time, 6)
            names = self.env.spec.metric_names
            for row in np.flatnonzero(done).tolist():
                self._infos[row] = {
                    "TimeLimit.truncated": False,
                    "terminal_observation": row_of(info["final_obs"], row),
                    "episode": {
                        "r": round(float(info["episode_return"][row]), 6),
                        "l": int(info["episode_length"][row]),
                        "t": elapsed,
                    },
                    **{name: info[name][row].item() for name in names},
                }
        self._rewards = np.where(done, 0, rewards)  # the rewards of what is rendered now
        return obs, rewards, done, self._infos.copy()

    def _clear_infos(self) -> None:
        # New dicts, not cleared ones: the caller may have kept the old list of infos. It may also
        # have written into any of them, so not only those of finished environments count.
        self._infos = [{} if info else info for info in self._infos]

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    def get_images(self) -> list[Array]:
        """One image of each environment, uint8 (height, width, 3)."""
        return render_batch(self.env.spec, self.env.state, self._rewards.tolist())

    def get_state(self) -> dict[str, Array]:
        """Everything that determines the future of the environments; see `BatchedEnv.get_state`."""
        return self.env.get_state()

    def set_state(self, saved: dict[str, Array]) -> Any:
        """Restore what `get_state` returned, and return the current observations."""
        self._rewards = np.zeros_like(self._rewards)
        self._clear_infos()
        return self.env.set_state(saved)

    # The environments are not objects: they share fixed attributes and have no methods.

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """A setting or property of the spec, `env_spec`, `render_mode` or `env_index`."""
        rows = self._rows(indices)
        if attr_name == "env_index":
            return [self.env.first_index + row for row in rows]
        if attr_name == "task":
            warn_renamed("the attribute 'task'", "'env_spec'")
            attr_name = "env_spec"
        attributes = {"render_mode": self.render_mode, "env_spec": self.env.spec}
        if attr_name in attributes:
            return [attributes[attr_name]] * len(rows)
        value = getattr(self.env.spec, attr_name)
        return [value] * len(rows)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> NoReturn:
        raise AttributeError(
            f"cannot set {attr_name!r}: settings are fixed, make a new environment with others."
        )

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> NoReturn:
        raise AttributeError(
            f"cannot call {method_name!r}: the environments of a batch have no methods."
        )

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """True for `Monitor`, whose `episode` records are written here; else False."""
        wrapped = issubclass(wrapper_class, Monitor)
        return [wrapped for _ in self._rows(indices)]

    def _rows(self, indices: Any) -> list[int]:
        """The numbers of environments, which `indices` may count from the end."""
        return [range(self.num_envs)[row] for row in self._get_indices(indices)]


def _equal(options: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether reset options, which may be arrays, are the same."""
    return options.keys() == others.keys() and all(
        np.array_equal(value, others[name]) for name, value in options.items()
    )
