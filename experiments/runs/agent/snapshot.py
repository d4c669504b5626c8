"""The state of an agent in training: a run that continues from it ends bit for bit the same.

It is taken between an update and the next rollout, and holds all that decides the future:
weights, optimizer, the state of every source of random numbers, the environments and the
states of the core. Of several ranks it is one, that of a process with all environments, so that
any number of ranks can go on from it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from sb3_contrib.common.recurrent.type_aliases import RNNStates

from rlgates.agents.ranks import Ranks
from rlgates.agents.sequences.policy import States
from rlgates.agents.sequences.updates import SequenceAlgorithm

_COUNTERS = ("num_timesteps", "_n_updates", "_episode_num", "_current_progress_remaining")

_NOISE = ("exploration_mat", "exploration_matrices")  # of gSDE

_PER_ENV = ("obs", "episode_starts", "states", "env")


class Saveable(Protocol):
    """Environments whose state can be saved and put back, as plain data and arrays."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, saved: dict[str, Any]) -> Any: ...


def snapshot(model: Any, env: Saveable) -> dict[str, Any]:
    """All that decides the future of `model` in `env` between two rollouts, as plain data.

    Args:
        model: recurrent PPO or A2C of rlgates, or recurrent PPO of sb3-contrib.
        env: its environments.
    """
    states = model._last_lstm_states
    assert states is not None
    return {
        "parameters": model.get_parameters(),
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "episodes": list(model.ep_info_buffer or ()),
        "successes": [float(success) for success in model.ep_success_buffer or ()],
        "obs": _packed(model._last_obs),
        "episode_starts": _packed(model._last_episode_starts),
        "states": list(states),
        "env": _packed(env.get_state()),
        "noise": [getattr(model.policy.action_dist, name, None) for name in _NOISE],
        "random": {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "numpy": _packed(np.random.get_state(legacy=False)),  # noqa: NPY002
            "python": random.getstate(),
            "actions": model.action_space.np_random.bit_generator.state,
        },
    }


def of_all(own: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """The snapshots of all ranks as one; `own` is that of this rank."""
    if ranks.is_alone:
        return own
    parts = ranks.gather({name: own[name] for name in _PER_ENV})
    return {**own, **_per_env(parts, _joined)}


def part_of(saved: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """The part of a snapshot of all environments that a rank continues from.

    Args:
        saved: a snapshot of all.
        ranks: with the environments of this one, of which `saved` has `total`.
    """
    return {**saved, **_per_env([saved], lambda values: ranks.own(values[0]))}


def _joined(values: Sequence[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    return torch.cat(list(values))


def _per_env(
    parts: Sequence[dict[str, Any]], function: Callable[[Sequence[Any]], Any]
) -> dict[str, Any]:
    """The entries `_PER_ENV` of snapshots, of whose rows `function` makes one value.

    Args:
        parts: of which each has the rows of some environments.
        function: takes their lists, or tensors (rows, ...).
    """

    def rows(values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, dict):
            return {name: rows([value[name] for value in values]) for name in first}
        if isinstance(first, list) or (isinstance(first, torch.Tensor) and first.ndim):
            return function(values)
        return first

    envs = [part["env"] for part in parts]
    if "normalize" in envs[0]:  # whose moments are the same on all ranks
        returns = [env["normalize"]["returns"] for env in envs]
        normalize = {**envs[0]["normalize"], "returns": rows(returns)}
        env = {"envs": rows([env["envs"] for env in envs]), "normalize": normalize}
    else:
        env = rows(envs)
    states = zip(*(part["states"] for part in parts), strict=True)
    return {
        "obs": rows([part["obs"] for part in parts]),
        "episode_starts": rows([part["episode_starts"] for part in parts]),
        "states": [rows(state) for state in states],
        "env": env,
    }


def restore(model: Any, env: Saveable, saved: dict[str, Any]) -> None:
    """Put a `snapshot` back into a model and environments that were built in the same way."""
    env.set_state(_arrays(saved["env"]))
    model.set_parameters(saved["parameters"], device=model.device)
    for name, value in saved["counters"].items():
        setattr(model, name, value)
    size = model._stats_window_size
    model.ep_info_buffer = deque(saved["episodes"], maxlen=size)
    model.ep_success_buffer = deque(saved["successes"], maxlen=size)
    model._last_obs = _arrays(saved["obs"])
    model._last_episode_starts = _arrays(saved["episode_starts"])
    kind = States if isinstance(model, SequenceAlgorithm) else RNNStates
    model._last_lstm_states = kind(*(_on(part, model.device) for part in saved["states"]))
    restore_random(model, saved)


def restore_random(model: Any, saved: dict[str, Any]) -> None:
    """Put back the sources of random numbers, as they were when the next rollout started.

    To be called when it does, because building the model and the noise of gSDE draw from them.
    """
    distribution = model.policy.action_dist
    for name, noise in zip(_NOISE, saved["noise"], strict=True):
        if noise is not None:
            setattr(distribution, name, noise.to(model.device))
    sources = saved["random"]
    torch.set_rng_state(sources["torch"])
    if sources["cuda"] and getattr(model, "distributed", False):
        torch.cuda.set_rng_state(sources["cuda"][0])  # of rank 0, on the device of this one
    elif sources["cuda"]:
        torch.cuda.set_rng_state_all(sources["cuda"])
    np.random.set_state(_arrays(sources["numpy"]))  # noqa: NPY002
    random.setstate(sources["python"])
    model.action_space.np_random.bit_generator.state = sources["actions"]


def _on(states: Any, device: torch.device) -> Any:
    """Tensors, alone or in pairs, on a device."""
    if isinstance(states, tuple | list):
        return tuple(_on(part, device) for part in states)
    return None if states is None else states.to(device)


def _packed(value: Any) -> Any:
    """Arrays as tensors, memory order included, so that loading needs no pickled code."""
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_packed(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return str(value) if value.dtype.kind == "U" else torch.from_numpy(value)
    return value


def _arrays(value: Any) -> Any:
    """The inverse of `_packed`."""
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_arrays(item) for item in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value
