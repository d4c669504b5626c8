"""Checkpoints that a run is continued from as if it had never stopped, bit for bit.

One is taken between an update and the next rollout. It holds all that decides the future:
weights, optimizer, the state of every source of random numbers, the environments and the
states of the core.
"""

from __future__ import annotations

import hashlib
import io
import random
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlgates.agents import RecurrentA2C, RecurrentPPO
from rlgates.agents.sequences import States
from rlgates.envs.sb3 import BatchedVecEnv
from rlgates.experiments.files import write_atomically

FORMAT = 2
_COUNTERS = ("num_timesteps", "_n_updates", "_episode_num", "_current_progress_remaining")
_DIGEST = hashlib.sha256().digest_size


def snapshot(model: RecurrentPPO | RecurrentA2C, env: BatchedVecEnv) -> dict[str, Any]:
    """All that decides the future of `model` in `env` between two rollouts, as plain data."""
    states = model._last_lstm_states
    assert states is not None
    return {
        "format": FORMAT,
        "parameters": model.get_parameters(),
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "episodes": list(model.ep_info_buffer or ()),
        "successes": list(model.ep_success_buffer or ()),
        "obs": _packed(model._last_obs),
        "starts": _packed(model._last_episode_starts),
        "states": list(states),
        "env": _packed(env.get_state()),
        "random": {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "numpy": _packed(np.random.get_state(legacy=False)),  # noqa: NPY002
            "python": random.getstate(),
            "actions": model.action_space.np_random.bit_generator.state,
        },
    }


def restore(model: RecurrentPPO | RecurrentA2C, env: BatchedVecEnv, saved: dict[str, Any]) -> None:
    """Put `snapshot` back into a model and environments that were built in the same way.

    Raises:
        ValueError: it was taken from another environment or core.
    """
    env.set_state(_arrays(saved["env"]))
    model.set_parameters(saved["parameters"], device=model.device)
    for name, value in saved["counters"].items():
        setattr(model, name, value)
    size = model._stats_window_size
    model.ep_info_buffer = deque(saved["episodes"], maxlen=size)
    model.ep_success_buffer = deque(saved["successes"], maxlen=size)
    model._last_obs = _arrays(saved["obs"])
    model._last_episode_starts = _arrays(saved["starts"])
    pi, vf = saved["states"]
    model._last_lstm_states = States(
        pi.to(model.device), None if vf is None else vf.to(model.device)
    )
    # Last of all, because building the model drew from these.
    sources = saved["random"]
    torch.set_rng_state(sources["torch"])
    if sources["cuda"]:
        torch.cuda.set_rng_state_all(sources["cuda"])
    np.random.set_state(_arrays(sources["numpy"]))  # noqa: NPY002
    random.setstate(sources["python"])
    model.action_space.np_random.bit_generator.state = sources["actions"]


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Save plain data and tensors; whatever happens, the file is the old or the new one."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    write_atomically(path, hashlib.sha256(payload).digest() + payload)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` saved.

    Raises:
        ValueError: the file is damaged, or of another version of this format.
    """
    content = path.read_bytes()
    digest, payload = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        raise ValueError(
            f"the checkpoint {path} is damaged: its checksum does not fit. "
            "Put back a copy of it, or remove its folder to start again."
        )
    saved: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    if saved.get("format") != FORMAT:
        raise ValueError(
            f"the checkpoint {path} has format {saved.get('format')}, expected {FORMAT}: "
            "it was written by another version of rlgates."
        )
    return saved


def _packed(value: Any) -> Any:
    """Arrays as tensors, memory order included, so that loading needs no pickled code."""
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return str(value) if value.dtype.kind == "U" else torch.from_numpy(value)
    return value


def _arrays(value: Any) -> Any:
    """The arrays that `_packed` was given."""
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value
