"""The settings and running statistics of a VecNormalize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import Tensor

from rlgates.agents.files import tensors
from rlgates.agents.files.values import (
    FLAG,
    NUMBER,
    Codec,
    decode,
    decode_fields,
    encode,
    encode_fields,
    optional,
    short,
)

_FIELDS = ("mean", "var", "count")
_NORMALIZE: dict[str, Codec] = {
    "norm_obs": FLAG,
    "norm_obs_keys": optional(Codec(encode, decode)),
    "norm_reward": FLAG,
    "clip_obs": NUMBER,
    "clip_reward": NUMBER,
    "gamma": NUMBER,
    "epsilon": NUMBER,
    "training": FLAG,
}


def encode_normalize(env: VecNormalize) -> dict[str, Any]:
    """The settings as JSON data."""
    return encode_fields(env, _NORMALIZE)


def statistics(env: VecNormalize) -> dict[str, Tensor]:
    """Mean, variance and count of observations (by key) and returns, as float64."""
    found = {"returns": env.ret_rms}
    if env.norm_obs:
        obs: Any = env.obs_rms
        found |= {f"obs/{k}": x for k, x in obs.items()} if isinstance(obs, dict) else {"obs": obs}
    return {
        f"{name}.{field}": torch.as_tensor(getattr(rms, field), dtype=torch.float64)
        for name, rms in found.items()
        for field in _FIELDS
    }


def read_normalize(data: Any, part: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and statistics of a file; whether they fit an environment shows only there.

    Raises:
        ValueError: they are none.
    """
    settings, found = decode_fields(data, _NORMALIZE), tensors.unpack_all(part)
    for name, x in found.items():
        field = name.rpartition(".")[2]
        if x.dtype != torch.float64 or field not in _FIELDS or (field == "count" and x.ndim):
            raise ValueError(f"{short(name)} is not a statistic of a VecNormalize")
    return settings, found


def restore_normalize(
    header: Mapping[str, Any], parts: Mapping[str, bytes], env: VecEnv
) -> VecNormalize:
    """`env` in a VecNormalize with the settings and statistics of a file.

    Raises:
        ValueError: the file has none, or they do not fit.
    """
    part = parts.get("vec_normalize.safetensors")
    if header.get("vec_normalize") is None or part is None:
        raise ValueError("it holds no statistics of a VecNormalize")
    settings, found = read_normalize(header["vec_normalize"], part)
    try:
        wrapped = VecNormalize(env, **settings)
    except (AssertionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its VecNormalize does not fit {env.observation_space}") from error
    tensors.check(found, tensors.spec_of(statistics(wrapped)))
    for name, x in found.items():
        owner, _, field = name.rpartition(".")
        rms: Any = wrapped.ret_rms if owner == "returns" else wrapped.obs_rms
        if owner.startswith("obs/"):
            rms = rms[owner.removeprefix("obs/")]
        setattr(rms, field, float(x) if field == "count" else x.numpy())
    return wrapped
