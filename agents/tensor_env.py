"""Environments of tensors as a VecEnv whose steps never leave the device."""

from __future__ import annotations

import copy
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage
from torch import Tensor


def is_tensor_batch(env: Any) -> bool:
    """Whether it is what `TensorVecEnv` wraps."""
    return isinstance(getattr(env, "device", None), torch.device) and hasattr(env, "task")


class TensorVecEnv(VecEnv):
    """A batch of environments that takes and gives torch tensors, for the agents of rlgates.

    Observations, rewards and dones are tensors on the device of the environments, and `step`
    gives no infos: finished episodes are told at the end of a rollout, by `episodes`. Pictures
    are given channels first, as SB3's `VecTransposeImage` does it. Use it with rlgates' own
    algorithms: those of SB3 want arrays.

    Args:
        env: such as `rlgates.envs.torch.make_torch_env` makes: with `num_envs`, `device`, `task`
            (which has `observation_space` and `action_space`), `reset(seed)` and `step(actions)`
            as a batched gymnasium environment has them, where info has `finished`, and
            `episode_return`, `episode_length` and the metrics of `task.metric_names` where a row
            may have finished.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.render_mode = None
        space = env.task.observation_space
        self._pictures = _pictures(space)
        # Copies: other environments share the task, and agents seed their spaces.
        shown, actions = copy.deepcopy((self._shown_space(space), env.task.action_space))
        super().__init__(env.num_envs, shown, actions)
        self._next_seed: int | None = None
        self._actions: Any = None
        self._finished: list[dict[str, Tensor]] = []

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Let the next reset start the episodes number 0 of `seed`."""
        self._next_seed = seed
        return [seed] * self.num_envs

    def reset(self) -> Any:
        """First observations."""
        seed, self._next_seed = self._next_seed, None
        observations, _ = self.env.reset(seed)
        self._finished = []
        return self._shown(observations)

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        actions = torch.as_tensor(self._actions, device=self.env.device)
        observations, rewards, done, _, info = self.env.step(actions)
        if "episode_return" in info:
            told = {"done": done, "r": info["episode_return"], "l": info["episode_length"]}
            names = getattr(self.env.task, "metric_names", ())
            told |= {name: info[name] for name in names}
            self._finished.append(told)
        return self._shown(observations), rewards, done, []

    def episodes(self, most: int) -> list[dict[str, Any]]:
        """Up to `most` of the episodes finished since the last call, the newest; it waits.

        Each is an info with `episode` (`r`, `l`), `row` and the task's metrics.
        """
        told: list[dict[str, Any]] = []
        for step in reversed(self._finished):
            parts = {name: part.cpu().numpy() for name, part in step.items()}
            for row in np.flatnonzero(parts["done"])[::-1][: most - len(told)]:
                info = {name: part[row].item() for name, part in parts.items()}
                del info["done"]
                info["episode"] = {name: info.pop(name) for name in ("r", "l")}
                told.append({**info, "row": int(row)})
            if len(told) >= most:
                break
        self._finished = []
        return told[::-1]

    def _shown_space(self, space: Any) -> spaces.Space[Any]:
        transpose: Any = VecTransposeImage.transpose_space
        if isinstance(space, spaces.Dict):
            parts = space.spaces.items()
            return spaces.Dict({k: transpose(s) if k in self._pictures else s for k, s in parts})
        shown: spaces.Space[Any] = transpose(space) if self._pictures else space
        return shown

    def _shown(self, observations: Any) -> Any:
        if isinstance(observations, dict):
            return {
                name: part.movedim(-1, 1) if name in self._pictures else part
                for name, part in observations.items()
            }
        return observations.movedim(-1, 1) if None in self._pictures else observations

    def close(self) -> None:
        """Nothing is held open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """`render_mode`, or a setting of the task, for each row asked for."""
        value = None if attr_name == "render_mode" else getattr(self.env.task, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> NoReturn:
        raise AttributeError(f"cannot set {attr_name!r}: the settings of a batch are fixed.")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> NoReturn:
        raise AttributeError(f"cannot call {method_name!r}: the rows of a batch have no methods.")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Not by any wrapper."""
        return [False for _ in self._get_indices(indices)]


def _pictures(space: spaces.Space[Any]) -> set[str | None]:
    """The parts of observations that are pictures with channels last; None for all of it."""
    parts: dict[Any, Any] = dict(space.spaces) if isinstance(space, spaces.Dict) else {None: space}
    return {
        name
        for name, part in parts.items()
        if is_image_space(part) and not is_image_space_channels_first(part)
    }
