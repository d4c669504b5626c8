"""A batch of environments on a device as a VecEnv of tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.lib.mixins import NDArrayOperatorsMixin
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage
from torch import Tensor

from rlgates.agents.compilation import Compiled, CompileMode


def is_tensor_env(env: Any) -> bool:
    """Whether `TensorVecEnv` can wrap this environment."""
    if isinstance(env, gym.Env | VecEnv):  # which may have a device for their own use
        return False
    return isinstance(getattr(env, "device", None), torch.device) and hasattr(env, "spec")


def check_environment(env: Any) -> None:
    """Raise TypeError for what SB3 would take for an environment of OpenAI Gym."""
    if isinstance(env, gym.Env | VecEnv):
        return
    if isinstance(env, type) or not hasattr(env, "step"):
        raise TypeError(f"env must be an environment, such as gymnasium.make(id), got {env!r}.")
    if hasattr(env, "num_envs") and not is_tensor_env(env):
        raise TypeError(
            f"env must be one environment or a VecEnv, got {type(env).__name__}: make a VecEnv "
            "with rlgates.envs.sb3.make_vec_env or stable_baselines3.common.env_util.make_vec_env."
        )


class TensorVecEnv(VecEnv):
    """A batch of environments that takes and returns torch tensors, for the agents of rlgates.

    Observations, rewards and dones are tensors on the device of the environments. `step` returns
    no infos: `episodes` reports finished episodes at the end of a rollout. Images are transposed
    to channels first, as SB3's `VecTransposeImage` does. The algorithms of SB3 and sb3-contrib
    need arrays and cannot use it.

    Args:
        env: such as `rlgates.envs.torch.make_torch_env` makes. It has `num_envs`, `device`,
            `spec` (with `observation_space` and `action_space`), `reset(seed)`, also with options
            if `set_options` is used, and `step(actions)` as a batched gymnasium environment has
            them. Its infos have `episode_return`, `episode_length` and the metrics of
            `spec.metric_names` in every step that may end an episode; they count where done is
            true. So does `final_obs`, which environments that truncate episodes must have: the
            value of these observations is added to the rewards. With `truncates = False`,
            environments on a GPU say that they never do, which saves computing it.

    Attributes:
        device: of the environments, with its index.
        truncation: which episodes the last step truncated (N,), and the last observations of all
            environments; None if it truncated none, or none has such observations.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.device = torch.empty(0, device=env.device).device
        self.render_mode = None
        space = env.spec.observation_space
        self._image_keys = _channels_last_images(space)
        # Copies: the environments of a process share these spaces, and agents seed theirs.
        observation_space, action_space = copy.deepcopy(
            (self._transposed_space(space), env.spec.action_space)
        )
        super().__init__(env.num_envs, observation_space, action_space)
        self._next_seed: int | None = None
        self._actions: Any = None
        self._finished: list[dict[str, Tensor]] = []
        self.truncation: tuple[Tensor, Any] | None = None
        self._unknown_ends: list[Tensor] = []  # truncations without last observations

    def check_device(self, device: torch.device) -> None:
        """Raise ValueError unless this device, that of a model, is that of the environments."""
        if device != self.device:
            raise ValueError(
                f"the environments are on {self.device}, the model is on {device}: both must be on "
                "one device. Pass device to the model and to make_torch_env."
            )

    def compile(self, mode: bool | CompileMode) -> None:
        """Run the steps of the environments as a graph of torch.compile, where they have `advance`.

        Args:
            mode: as in `rlgates.RecurrentPPO`; False: without a graph, as before.
        """
        advance = getattr(self.env, "advance", None)
        if isinstance(advance, Compiled):
            if advance.mode == mode:
                return
            advance = self.env.advance = advance.function
        if mode is not False and advance is not None:
            # In their first step games compute tables, which torch.compile cannot follow.
            self.env.advance = Compiled(advance, mode, warm_up=True)

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Let the next reset start episode 0 of `seed` in each environment."""
        self._next_seed = seed
        return [seed] * self.num_envs

    def reset(self) -> Any:
        """Start new episodes and return their first observations.

        If `set_options` asked to reveal the parameters of the episodes, `reset_infos` has those of
        each environment.

        Raises:
            ValueError: `set_options` with different options for some of the environments.
        """
        seed, self._next_seed = self._next_seed, None
        options, *others = self._options
        if any(other != options for other in others):
            raise ValueError(
                "the environments of a batch take the same reset options, got different ones."
            )
        self._reset_options()
        observations, info = self.env.reset(seed, options) if options else self.env.reset(seed)
        parameters = {name: x.tolist() for name, x in info.get("parameters", {}).items()}
        self.reset_infos = [
            {"parameters": {name: x[index] for name, x in parameters.items()}} if parameters else {}
            for index in range(self.num_envs)
        ]
        self._finished, self._unknown_ends, self.truncation = [], [], None
        return self._transposed(observations)

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        actions = torch.as_tensor(self._actions, device=self.env.device)
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        done = self._done(terminated, truncated, info)
        self.add_episodes(done, info)
        return self._transposed(observations), rewards, done, []

    def _done(self, terminated: Tensor, truncated: Tensor, info: dict[str, Any]) -> Tensor:
        """Which episodes ended, and what `truncation` holds of them."""
        self.truncation = None
        # On a GPU, looking would wait for it.
        on_cpu = self.device.type == "cpu"
        if not (truncated.any() if on_cpu else getattr(self.env, "truncates", True)):
            return terminated
        only_truncated = truncated & ~terminated
        if "final_obs" in info:
            self.truncation = only_truncated, self._transposed(info["final_obs"])
        else:
            self._unknown_ends.append(only_truncated)
        return terminated | truncated

    def check_truncations(self) -> None:
        """Raise ValueError if episodes were truncated without their last observations.

        Such an end is not worth 0, but its value is not known. Call this once for each rollout: it
        may synchronize.
        """
        unknown, self._unknown_ends = self._unknown_ends, []
        if unknown and (count := int(torch.stack(unknown).sum())):
            raise ValueError(
                f"the environments truncated {count} episodes without `final_obs` in the info: "
                "their last observations are needed, because rewards would follow them."
            )

    @property
    def can_step_in_place(self) -> bool:
        """Whether the environments have what `step_in_place` needs."""
        return getattr(self.env, "can_step_in_place", False)

    def step_in_place(
        self, actions: Tensor, may_end: bool
    ) -> tuple[Any, Tensor, Tensor, dict[str, Tensor]]:
        """`TorchEnv.step_in_place`, with images transposed."""
        observations, rewards, done, results = self.env.step_in_place(actions, may_end)
        return self._transposed(observations), rewards, done, results

    def add_episodes(self, done: Tensor, info: dict[str, Tensor]) -> None:
        """Keep what a step says of the episodes that ended, for `episodes`; every step calls it."""
        episode: dict[str, Tensor] = {}
        if "episode_return" in info:
            episode = {"done": done, "r": info["episode_return"], "l": info["episode_length"]}
            names = getattr(self.env.spec, "metric_names", ())
            episode |= {name: info[name] for name in names}
        self._finished.append(episode)

    def episodes(self, most: int) -> list[tuple[int, dict[str, Any]]]:
        """The last `most` episodes that finished since the previous call; synchronizes.

        Each with its step since then, and an info with `episode` (`r`, `l`), `env_index` and the
        metrics.
        """
        infos: list[tuple[int, dict[str, Any]]] = []
        for step, tensors in reversed([*enumerate(self._finished)]):
            if not tensors:
                continue
            arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
            for index in np.flatnonzero(arrays["done"])[::-1][: most - len(infos)]:
                info = {name: array[index].item() for name, array in arrays.items()}
                del info["done"]
                info["episode"] = {name: info.pop(name) for name in ("r", "l")}
                infos.append((step, {**info, "env_index": int(index)}))
            if len(infos) >= most:
                break
        self._finished = []
        return infos[::-1]

    def _transposed_space(self, space: Any) -> spaces.Space[Any]:
        transpose: Any = VecTransposeImage.transpose_space
        if isinstance(space, spaces.Dict):
            parts = space.spaces.items()
            return spaces.Dict({k: transpose(s) if k in self._image_keys else s for k, s in parts})
        return transpose(space) if self._image_keys else space  # type: ignore[no-any-return]

    def _transposed(self, observations: Any) -> Any:
        if isinstance(observations, dict):
            return {
                name: part.movedim(-1, 1) if name in self._image_keys else part
                for name, part in observations.items()
            }
        return observations.movedim(-1, 1) if None in self._image_keys else observations

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """`render_mode`, or a setting of the environments, once for each index."""
        value = None if attr_name == "render_mode" else getattr(self.env.spec, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> NoReturn:
        raise AttributeError(f"cannot set {attr_name!r}: the settings of a batch are fixed.")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> NoReturn:
        raise AttributeError(
            f"cannot call {method_name!r}: the environments of a batch have no methods."
        )

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """False: a batch has no wrappers."""
        return [False for _ in self._get_indices(indices)]


class LazyArray(NDArrayOperatorsMixin):
    """A tensor as callbacks see it: the NumPy array, copied from a GPU when it is read.

    What a callback writes into it is written to the tensor.

    Attributes:
        tensor: on its device.
        writable: False where nothing reads the tensor any more.
    """

    def __init__(self, tensor: Tensor, writable: bool = True) -> None:
        self.tensor, self.writable = tensor, writable

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.tensor.cpu().numpy(), dtype, copy=copy)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        def arrays(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(np.asarray(x) if isinstance(x, LazyArray) else x for x in values)

        if not out:
            return getattr(ufunc, method)(*arrays(inputs), **options)
        results = arrays(out)
        getattr(ufunc, method)(*arrays(inputs), out=results, **options)
        for x, result in zip(out, results, strict=True):
            if isinstance(x, LazyArray):
                x[...] = result
        return out[0] if len(out) == 1 else out

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self.writable:
            raise TypeError(
                "rewards and dones of recorded steps cannot be changed: the rollout has them "
                "already. Change them in the environments, or pass compile=True."
            )
        array = np.asarray(self)
        array[index] = value
        self.tensor.copy_(torch.from_numpy(array))

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))


def _channels_last_images(space: spaces.Space[Any]) -> set[str | None]:
    """Keys of the images with channels last; None stands for the whole observation."""
    parts: dict[Any, Any] = dict(space.spaces) if isinstance(space, spaces.Dict) else {None: space}
    return {
        key
        for key, part in parts.items()
        if is_image_space(part) and not is_image_space_channels_first(part)
    }
