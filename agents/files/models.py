"""Agents and policies in files of the safe format."""

from __future__ import annotations

import inspect
import platform
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.utils import (
    FloatSchedule,
    check_for_correct_spaces,
    get_device,
    get_system_info,
)
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize
from torch import Tensor, nn

import rlgates
from rlgates.agents.files import archive, tensors
from rlgates.agents.files.normalize import encode_normalize, read_normalize, statistics
from rlgates.agents.files.optimizers import encode_optimizer, read_optimizer
from rlgates.agents.files.probe import build_probe, read_weights, unique
from rlgates.agents.files.values import (
    COMPILE,
    COUNT,
    FLAG,
    NUMBER,
    SCHEDULE,
    VALUE_TRANSPORT,
    Codec,
    choice,
    decode,
    decode_fields,
    decode_options,
    decode_space,
    encode,
    encode_fields,
    encode_options,
    encode_space,
    integer,
    optional,
    short,
    take,
)
from rlgates.agents.ranks import RankLost
from rlgates.errors import unknown_choice
from rlgates.registry import core_modules, core_name

MAX_STATES = 2**28
"""The most numbers of the states of a core, all environments together."""
MAX_ROLLOUT = 2**33
"""The most numbers of a rollout's buffer."""


def _episodes(value: Any) -> list[dict[str, Any]]:
    """The statistics of episodes."""
    return [encode(_without_arrays(row)) for row in value]


def _without_arrays(value: Any) -> Any:
    """What environments report, with arrays at any depth as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _without_arrays(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_arrays, value))
    return value


def _is_one(value: Any) -> bool:
    """Whether it is a number, or a list of one, which goes on with arrays (1,)."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return isinstance(value, int | float)


def _decode_episodes(data: Any) -> list[dict[str, Any]]:
    rows = decode(data)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"it must be a list of tables, got {short(data)}")
    if not all(_is_one(row.get(key)) for row in rows for key in ("r", "l")):
        raise ValueError("an episode needs its return 'r' and length 'l'")
    return rows


def _successes(data: Any) -> list[Any]:
    values = [encode(_without_arrays(x)) for x in data]
    if not all(map(_is_one, values)):
        raise ValueError(f"it must be a list of numbers, got {short(data)}")
    return values


_COMMON: dict[str, Codec] = {
    "learning_rate": SCHEDULE,
    "n_steps": integer(1),
    "n_envs": integer(1),
    "gamma": NUMBER,
    "gae_lambda": NUMBER,
    "ent_coef": NUMBER,
    "vf_coef": NUMBER,
    "max_grad_norm": NUMBER,
    "normalize_advantage": FLAG,
    "use_sde": FLAG,
    "sde_sample_freq": integer(-1),
    "chunk_len": optional(integer(1)),
    "burn_in": integer(0),
    "tvt": optional(VALUE_TRANSPORT),
    "compile": COMPILE,
    "seed": optional(integer(0)),
    "verbose": Codec(int, integer().decode),  # True is 1
    "_stats_window_size": integer(1),
}
_PPO: dict[str, Codec] = {
    **_COMMON,
    "batch_size": optional(integer(1)),
    "n_epochs": integer(),
    "clip_range": SCHEDULE,
    "clip_range_vf": optional(SCHEDULE),
    "target_kl": optional(NUMBER),
    "refresh_states": FLAG,
    "kl_stop": choice("minibatch", "epoch"),
}
ALGORITHMS: dict[str, dict[str, Codec]] = {
    "RecurrentPPO": _PPO,
    "MaskableRecurrentPPO": {**_PPO, "use_masking": FLAG},
    "RecurrentA2C": {**_COMMON, "sum_over_time": FLAG},
}
"""The settings that a file holds, by the name of the algorithm."""

_PROGRESS: dict[str, Codec] = {
    **{
        name: integer(0)
        for name in (
            "num_timesteps",
            "_num_timesteps_at_start",
            "_episode_num",
            "_n_updates",
        )
    },
    "_total_timesteps": COUNT,
    "_current_progress_remaining": NUMBER,
    "start_time": NUMBER,
    "ep_info_buffer": optional(Codec(_episodes, _decode_episodes)),
    "ep_success_buffer": optional(Codec(_successes, _successes)),
}
_ARRAYS = ("_last_obs", "_last_episode_starts")
_WRITTEN_APART = ("policy_class", "policy_kwargs", "observation_space", "action_space")
# Made again from the others by `_setup_model`, or of no use to these algorithms; or a path, which
# the one who loads a file must choose.
_LEFT_OUT = (
    *("lr_schedule", "rollout_buffer_class", "rollout_buffer_kwargs", "action_noise"),
    *("_last_original_obs", "tensorboard_log", "core_modules"),
)


class Content(NamedTuple):
    """What a file holds, checked: nothing of its size has been built yet.

    Attributes:
        policy, options: the class of the policy, and its arguments.
        spaces: of observations and actions.
        attributes: of the agent, by name.
        weights, optimizer: state dictionaries; no optimizer in the file of a policy.
    """

    policy: type[Any]
    options: dict[str, Any]
    spaces: tuple[spaces.Space[Any], spaces.Space[Any]]
    attributes: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None


# -- writing


def pack_model(
    model: Any, exclude: tuple[str, ...] = (), vec_normalize: VecNormalize | None = None
) -> bytes:
    """An agent as the content of a file, with the statistics of its VecNormalize.

    Args:
        model: an agent of an algorithm in `ALGORITHMS`.
        exclude: attributes of the user's own to leave out.
        vec_normalize: the statistics; None for those of the model's environment, if any.

    Raises:
        ValueError: something that is not data; the message names it.
    """
    algorithm, policy = type(model), model.policy_class
    _check_ours(algorithm, ALGORITHMS, "algorithm")
    policy_name = _policy_name(policy, algorithm.policy_aliases)
    header: dict[str, Any] = {
        **_begin("model"),
        "algorithm": algorithm.__name__,
        "policy": policy_name,
        **_encode_policy(model.policy, policy, model.policy_kwargs),
    }
    _check_attributes(model, exclude)
    header["settings"] = encode_fields(model, ALGORITHMS[algorithm.__name__])
    header["progress"] = encode_fields(model, _PROGRESS)
    arrays = {name: getattr(model, name) for name in _ARRAYS}
    header["arrays"] = {name: _array_kind(value) for name, value in arrays.items()}
    header["optimizer"], moments = encode_optimizer(model.policy.optimizer)
    normalize = vec_normalize or model.get_vec_normalize_env()
    header["vec_normalize"] = None if normalize is None else encode_normalize(normalize)
    parts = {
        "policy.safetensors": tensors.pack(unique(model.policy)),
        "optimizer.safetensors": tensors.pack(moments),
        "state.safetensors": tensors.pack(_array_tensors(arrays)),
    }
    if normalize is not None:
        parts["vec_normalize.safetensors"] = tensors.pack(statistics(normalize))
    content = archive.pack(header, parts)
    read_model(algorithm, header, parts)  # what cannot be read is never written
    return content


def pack_policy(policy: Any) -> bytes:
    """A policy as the content of a file.

    Raises:
        ValueError: something that is not data; the message names it.
    """
    arguments = policy._get_constructor_parameters()
    options = {
        name: value
        for name, value in arguments.items()
        if name not in ("observation_space", "action_space", "lr_schedule")
    }
    header = {
        **_begin("policy"),
        "policy": _policy_name(type(policy), {type(policy).__name__: type(policy)}),
        **_encode_policy(policy, type(policy), options),
    }
    parts = {"policy.safetensors": tensors.pack(unique(policy))}
    content = archive.pack(header, parts)
    read_policy(type(policy), header, parts)
    return content


def _begin(kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "libraries": {
            "rlgates": rlgates.__version__,
            "torch": torch.__version__,
            "stable_baselines3": stable_baselines3.__version__,
            "sb3_contrib": sb3_contrib.__version__,
            "gymnasium": gymnasium.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _encode_policy(policy: Any, kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "policy_kwargs": encode_options(kind, options),
        "core_modules": core_modules(core_name(options["core"])) if options.get("core") else [],
        "observation_space": encode_space(policy.observation_space),
        "action_space": encode_space(policy.action_space),
        "states": _encode_states(policy),
    }


def _encode_states(policy: Any) -> list[dict[str, Any]]:
    """The states of the cores for one environment: names, shapes and dtypes."""
    states = policy.initial_states(1)._asdict()
    return [
        {"name": name, "shape": list(x.shape[1:]), "dtype": tensors.dtype_name(x)}
        for name, x in states.items()
        if x is not None
    ]


def _check_ours(cls: type[Any], names: Mapping[str, Any], kind: str) -> None:
    if cls.__name__ not in names or not cls.__module__.startswith("rlgates.agents."):
        raise ValueError(
            f"the {kind} {cls.__module__}.{cls.__qualname__} is not in a file's table of them: "
            f"{', '.join(names)}"
        )


def _policy_name(policy: type[Any], aliases: Mapping[str, type[Any]]) -> str:
    for name, cls in aliases.items():
        if cls is policy and cls.__module__.startswith("rlgates.agents."):
            return name
    raise ValueError(
        f"the policy {policy.__module__}.{policy.__qualname__} is not in a file's table of them: "
        f"{', '.join(aliases)}"
    )


def _check_attributes(model: Any, exclude: tuple[str, ...]) -> None:
    """Raise ValueError for attributes that a file has no place for."""
    fields = {*ALGORITHMS[type(model).__name__], *_PROGRESS, *_ARRAYS, *_WRITTEN_APART, *_LEFT_OUT}
    if kept := sorted(fields.intersection(exclude)):
        raise ValueError(f"{kept[0]} belongs to every file, exclude={list(exclude)} names it")
    names = set(model.__dict__) - set(model._excluded_save_params()) - set(exclude)
    if foreign := sorted(names - fields):
        for name, settings in ALGORITHMS.items():
            if settings.keys() >= {*foreign}:
                raise ValueError(
                    f"the attribute {foreign[0]!r} belongs to a {name}: load or convert the agent "
                    "as one"
                )
        raise ValueError(
            f"the attribute {foreign[0]!r} of the agent has no place in the file: leave it out "
            f"with exclude={foreign}"
        )
    if model.action_noise is not None:
        raise ValueError("action_noise must be None")
    if getattr(model, "rollout_buffer_kwargs", None):
        raise ValueError("rollout_buffer_kwargs must be empty")
    buffer = getattr(model, "rollout_buffer_class", None)
    if buffer not in (None, buffers.RolloutBuffer, buffers.DictRolloutBuffer):
        raise ValueError(f"rollout_buffer_class must be that of the algorithm, got {short(buffer)}")


def _array_kind(value: Any) -> str | None:
    """How to make an observation again."""
    first = next(iter(value.values())) if isinstance(value, dict) else value
    if first is None:
        return None
    return "torch" if isinstance(first, Tensor) else "numpy"


def _array_tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays by name; those of a dictionary as `name/key`."""
    flat: dict[str, Tensor] = {}
    for name, value in arrays.items():
        if isinstance(value, dict):
            flat |= {f"{name}/{key}": torch.as_tensor(part) for key, part in value.items()}
        elif value is not None:
            flat[name] = torch.as_tensor(value)
    return flat


# -- reading


_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, KeyError, MemoryError),
    *(RecursionError, RuntimeError, TypeError, ValueError),
)

NO_DAMAGE = torch.OutOfMemoryError, RankLost
"""The RuntimeErrors of which a file is innocent."""


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """Every error of a damaged or hostile file as a ValueError that names the file."""
    try:
        yield
    except NO_DAMAGE:
        raise
    except _ERRORS as error:
        name = path if isinstance(path, str | Path) else "the file"
        text = str(error).removesuffix(".") or type(error).__name__
        raise ValueError(f"{name} cannot be loaded: {text}.") from error


@contextmanager
def saving(kind: str) -> Iterator[None]:
    """What cannot be written as a ValueError that says what remains."""
    try:
        yield
    except ValueError as error:
        text = str(error).removesuffix(".")
        raise ValueError(
            f"{kind} cannot be saved in the safe format: {text}. format='sb3' remains for a .zip, "
            "which runs code when it is loaded."
        ) from error


_KEYS = (
    *("format", "version", "kind", "libraries", "policy"),
    *("policy_kwargs", "core_modules", "observation_space", "action_space", "states"),
)
_MODEL_KEYS = ("algorithm", "settings", "progress", "arrays", "optimizer", "vec_normalize")


def read_model(cls: type[Any], header: Mapping[str, Any], parts: Mapping[str, bytes]) -> Content:
    """The agent in a file, with every size and shape checked before it is built.

    Raises:
        ValueError: the file holds something else.
    """
    kind = header.get("kind")
    if kind != "model":
        raise ValueError(f"it holds a {short(kind)}, not an agent")
    take(header, *_KEYS[2:], *_MODEL_KEYS, extra=_KEYS[:2])
    if header["algorithm"] != cls.__name__:
        held = header["algorithm"]
        if not isinstance(held, str) or held not in ALGORITHMS:
            raise unknown_choice("algorithm", held, ALGORITHMS)
        raise ValueError(f"it holds a {held}: load it with {held}.load, not {cls.__name__}.load")
    _check_ours(cls, ALGORITHMS, "algorithm")
    expected = {"policy.safetensors", "optimizer.safetensors", "state.safetensors"}
    if header["vec_normalize"] is not None:
        expected.add("vec_normalize.safetensors")
    _check_parts(parts, expected)
    if header["vec_normalize"] is not None:
        read_normalize(header["vec_normalize"], parts["vec_normalize.safetensors"])
    fields = ALGORITHMS[cls.__name__]
    attributes = {
        **decode_fields(_with_defaults(header["settings"]), fields),
        **decode_fields(header["progress"], _PROGRESS),
    }
    window = attributes["_stats_window_size"]
    for name in ("ep_info_buffer", "ep_success_buffer"):
        if attributes[name] is not None:
            attributes[name] = deque(attributes[name], maxlen=window)
    content, probe = _read_policy(header, parts, cls.policy_aliases, use_sde=attributes["use_sde"])
    _check_rollout(probe, content.spaces, attributes)
    attributes |= _read_arrays(
        header["arrays"], parts["state.safetensors"], content.spaces[0], attributes["n_envs"]
    )
    default = inspect.signature(content.policy).parameters["optimizer_class"].default
    optimizer = read_optimizer(
        header["optimizer"],
        parts["optimizer.safetensors"],
        probe,
        content.options.get("optimizer_class", default),
    )
    return content._replace(attributes=attributes, optimizer=optimizer)


def read_policy(cls: type[Any], header: Mapping[str, Any], parts: Mapping[str, bytes]) -> Content:
    """The policy in a file, checked as `read_model` does.

    Raises:
        ValueError: the file holds something else.
    """
    if header.get("kind") != "policy":
        raise ValueError(f"it holds a {short(header.get('kind'))}, not a policy")
    take(header, *_KEYS[2:], extra=_KEYS[:2])
    if header["policy"] != cls.__name__:
        raise ValueError(f"it holds a {short(header['policy'])}, not a {cls.__name__}")
    _policy_name(cls, {cls.__name__: cls})
    _check_parts(parts, {"policy.safetensors"})
    return _read_policy(header, parts, {cls.__name__: cls})[0]


def read_parameters(
    model: Any, header: Mapping[str, Any], parts: Mapping[str, bytes]
) -> dict[str, Any]:
    """The parameters in a file as `set_parameters` takes them, for an agent that exists.

    Raises:
        ValueError: they do not fit the agent.
    """
    if header.get("kind") != "model" or "optimizer" not in header:
        raise ValueError(f"it holds a {short(header.get('kind'))}, not an agent")
    weights = read_weights(model.policy, parts.get("policy.safetensors", b""))
    moments = parts.get("optimizer.safetensors", b"")
    optimizer = read_optimizer(
        header["optimizer"], moments, model.policy, type(model.policy.optimizer)
    )
    return {"policy": weights, "policy.optimizer": optimizer}


def _with_defaults(settings: Any) -> Any:
    """Settings with those that files of earlier versions do not have."""
    return {"compile": False, **settings} if isinstance(settings, dict) else settings


def _check_parts(parts: Mapping[str, bytes], expected: set[str]) -> None:
    if different := sorted(expected ^ parts.keys()):
        state = "missing" if different[0] in expected else "not expected"
        raise ValueError(f"the part {different[0]} is {state}")


def _read_policy(
    header: Mapping[str, Any],
    parts: Mapping[str, bytes],
    policies: Mapping[str, type[Any]],
    **given: Any,
) -> tuple[Content, nn.Module]:
    """The policy in a file, and the same on the meta device."""
    name = header["policy"]
    if not isinstance(name, str) or name not in policies:
        raise unknown_choice("policy", name, policies)
    _check_core(header["policy_kwargs"], header["core_modules"])
    options = decode_options(policies[name], header["policy_kwargs"])
    both = decode_space(header["observation_space"]), decode_space(header["action_space"])
    probe = build_probe(policies[name], *both, {**given, **options})
    if header["states"] != (states := _encode_states(probe)):
        raise ValueError(f"its states are {short(header['states'])}, those of the core {states}")
    weights = read_weights(probe, parts["policy.safetensors"])
    return Content(policies[name], options, both, {}, weights, None), probe


def _check_core(options: Any, modules: Any) -> None:
    """A core that is not registered here is an error that names who did so; nothing is imported."""
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        raise ValueError(f"core_modules must be a list of names, got {short(modules)}")
    core = options.get("core") if isinstance(options, dict) else None
    if not modules or not isinstance(core, str):
        return
    try:
        core_name(core)
    except ValueError as error:
        raise ValueError(
            f"{error} When it was saved, it was registered by {', '.join(modules)[:200]}"
        ) from error


def _check_rollout(
    probe: Any, both: tuple[spaces.Space[Any], ...], attributes: Mapping[str, Any]
) -> None:
    """Raise ValueError for states or a rollout of too many numbers."""
    states = sum(x.numel() for x in probe.initial_states(1) if x is not None)
    if states * attributes["n_envs"] > MAX_STATES:
        raise ValueError(
            f"the states of {attributes['n_envs']} environments, {states} numbers each, are more "
            f"than {MAX_STATES:,} numbers"
        )
    step = sum(_numbers(space) for space in both)
    if step * attributes["n_envs"] * attributes["n_steps"] > MAX_ROLLOUT:
        raise ValueError(
            f"a rollout of n_steps = {attributes['n_steps']} is more than {MAX_ROLLOUT:,} numbers"
        )


def _numbers(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Dict):
        return sum(map(_numbers, space.spaces.values()))
    return int(np.prod(space.shape or ()))


def _read_arrays(data: Any, part: bytes, space: spaces.Space[Any], n_envs: int) -> dict[str, Any]:
    """The last observations and episode starts, or None for each."""
    take(data, *_ARRAYS)
    keys: dict[str, spaces.Space[Any]] = {"": space}
    if isinstance(space, spaces.Dict):
        keys = {f"/{key}": inner for key, inner in space.spaces.items()}
    shapes = {"_last_obs": {key: (n_envs, *(inner.shape or ())) for key, inner in keys.items()}}
    shapes["_last_episode_starts"] = {"": (n_envs,)}
    found = tensors.unpack_all(part)
    arrays: dict[str, Any] = dict.fromkeys(_ARRAYS)
    for name, kind in data.items():
        if kind is None:
            continue
        if kind not in ("numpy", "torch"):
            raise unknown_choice(f"kind of {name}", kind, ("numpy", "torch"))
        made: dict[str, Any] = {}
        for key, shape in shapes[name].items():
            x = found.pop(f"{name}{key}", None)
            if x is None or x.shape != shape:
                got = "none" if x is None else tuple(x.shape)
                raise ValueError(f"{name}{key} must be of the shape {shape}, got {got}")
            made[key[1:]] = x.numpy() if kind == "numpy" else x
        arrays[name] = made if shapes[name].keys() != {""} else made[""]
    if found:
        raise ValueError(f"the tensor {min(found)!r} is not expected")
    return arrays


# -- building


def load_model(
    cls: type[Any],
    file: BinaryIO,
    env: Any = None,
    device: Any = "auto",
    custom_objects: Mapping[str, Any] | None = None,
    print_system_info: bool = False,
    force_reset: bool = True,
    **kwargs: Any,
) -> Any:
    """The agent of a file; the arguments are those of `load` in SB3."""
    header, parts = archive.unpack(file)
    content = read_model(cls, header, parts)
    if print_system_info:
        get_system_info()
        print(f"== SAVED WITH ==\n{header['libraries']}")  # noqa: T201
    observation, action = content.spaces
    attributes = {
        **content.attributes,
        "policy_class": content.policy,
        "policy_kwargs": content.options,
        "observation_space": observation,
        "action_space": action,
    }
    attributes |= {name: x for name, x in (custom_objects or {}).items() if name in attributes}
    if kwargs.get("policy_kwargs", content.options) != content.options:
        raise ValueError(
            f"policy_kwargs must be those of the file, {content.options}, got "
            f"{kwargs['policy_kwargs']}"
        )
    if env is not None:
        env = cls._wrap_env(env, attributes["verbose"])
        check_for_correct_spaces(env, observation, action)
        attributes["n_envs"] = env.num_envs
        if force_reset:
            attributes["_last_obs"] = None
    is_normalized = env is not None and unwrap_vec_normalize(env) is not None
    if header["vec_normalize"] is not None and not is_normalized:
        warnings.warn(
            "the agent was trained in a VecNormalize, whose statistics are in the file but not "
            "part of the agent: wrap its environments with rlgates.agents.load_vec_normalize.",
            stacklevel=3,
        )
    model = cls(attributes["policy_class"], env, device=device, _init_setup_model=False)
    model.__dict__.update(attributes)
    model.__dict__.update(kwargs)
    model._setup_model()
    parameters = {"policy": content.weights, "policy.optimizer": content.optimizer}
    model.set_parameters(parameters, exact_match=True, device=device)
    for name in _ARRAYS:
        setattr(model, name, _on(model.device, getattr(model, name)))
    if model.use_sde:
        model.policy.reset_noise()
    model._reset_states()
    return model


def _on(device: torch.device, value: Any) -> Any:
    """Observations as tensors on a device; arrays as they are."""
    if isinstance(value, dict):
        return {name: _on(device, part) for name, part in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def load_policy(cls: type[Any], file: BinaryIO, device: Any = "auto") -> Any:
    """The policy of a file."""
    content = read_policy(cls, *archive.unpack(file))
    policy = cls(*content.spaces, FloatSchedule(0.0), **content.options)
    policy.load_state_dict(content.weights)
    return policy.to(get_device(device))
