"""Export of a trained policy to ONNX; one call of the file is one step."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import (
    MaskableBernoulliDistribution,
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor, nn

import rlgates
from rlgates.agents.sequences.distributions import LogCategorical
from rlgates.agents.sequences.policy import (
    LATENT_METHODS,
    SequencePolicy,
    States,
    evaluating,
    overridden,
)
from rlgates.agents.sequences.rollouts import is_normalized
from rlgates.core import Core
from rlgates.errors import check_flag, check_size

_MASKABLE = (
    MaskableBernoulliDistribution,
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
_CATEGORICAL = (BernoulliDistribution, CategoricalDistribution, MultiCategoricalDistribution)
_NORMAL = (DiagGaussianDistribution, StateDependentNoiseDistribution)
_HEAD_METHODS = ("distribution", "_get_action_dist_from_latent", "get_distribution", "_predict")
_MASKED_LOGIT = -1e8
"""The logit of a masked action, as in sb3-contrib."""


def export_onnx(
    model_or_policy: Any,
    path: str | Path,
    deterministic: bool = True,
    *,
    value: bool = False,
    logits: bool = False,
    opset_version: int | None = None,
) -> Path:
    """Export one step of a policy, with its weights, to an ONNX file.

    Every core of `rlgates.list_cores()` can be exported. For `rma`, the runtime decides which of
    several equally similar memory rows are read.

    Inputs, all with a batch axis of any size B first:
        observation: of the policy's observation space: images as channels-first uint8, float32
            where the space has floats of any size or the model's VecNormalize normalizes it; for a
            Dict, one input for each part, by its name.
        state: (B, state_size) float32, the `state_out` of the previous step. Ignored where an
            episode starts.
        episode_start: (B,) bool, true where an episode starts.
        action_masks: (B, ...) bool, only for maskable policies.
        noise: only with `deterministic=False`, the random numbers that sample the action. For Box
            actions (B, number of actions) standard normal; else uniform in [0, 1): (B, n) for
            Discrete(n) and MultiBinary(n), (B, sum(nvec)) for MultiDiscrete, (B, 2n) for
            MultiBinary(n) with masks.

    Outputs:
        action: (B, ...), within the bounds of the action space, as `model.predict` returns it:
            int64 for Discrete, MultiDiscrete and masked MultiBinary, else a float.
        state_out: (B, state_size) float32.
        value: (B,), with `value=True`. If the critic has its own core, its state follows the
            actor's in `state`.
        logits: (B, ...), with `logits=True`: the inputs of the softmax or sigmoid.

    The file's metadata holds, as JSON: `core`, `core_kwargs`, `state_size`, `actor_state_size`,
    `initial_state` (of one environment), `deterministic`, `policy`, `rlgates_version`. The
    statistics of a VecNormalize are not part of the file; a warning says so.

    Args:
        model_or_policy: a model of rlgates, or its policy. It is not changed.
        path: of the file; its folder must exist.
        deterministic: take the most likely action; else sample it with `noise`.
        value, logits: add them to the outputs.
        opset_version: of ONNX; None for the default of torch's exporter.

    Returns:
        The path.

    Raises:
        TypeError: not a policy of rlgates, or one with a custom distribution or an overridden
            method that the file would not call; `path` is not a file path.
        ValueError: logits of Box actions; `deterministic=False` with gSDE; an opset that is too
            old; a part of a Dict with the name of another input or of an output.
        FileNotFoundError: the folder does not exist.
        ModuleNotFoundError: onnxscript is not installed.
    """
    policy = getattr(model_or_policy, "policy", model_or_policy)
    if not isinstance(policy, SequencePolicy):
        raise TypeError(f"expected a model or a policy of rlgates, got {type(policy).__name__}.")
    if not isinstance(path, str | Path):
        raise TypeError(f"path must be a file path, got {path!r}.")
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {Path(path).parent} for {Path(path).name}.")
    if opset_version is not None:
        check_size("opset_version", opset_version, minimum=15)
    normalize = None if policy is model_or_policy else model_or_policy.get_vec_normalize_env()
    if normalize is not None and normalize.norm_obs:
        warnings.warn(
            "the file takes observations as the model's VecNormalize gives them, whose statistics "
            "are not in it: pass them through model.get_vec_normalize_env().normalize_obs first.",
            stacklevel=2,
        )
    translations: dict[Any, Any] = {torch.ops.aten.sort.stable: _stable_sort()}
    check_flag("deterministic", deterministic)
    outputs = ["action", "state_out"]
    outputs += ["value"] * check_flag("value", value) + ["logits"] * check_flag("logits", logits)
    names = _observation_names(policy, outputs)
    step = PolicyStep(policy, names, deterministic, value, logits)
    examples = step.examples(_example_observations(policy.observation_space, normalize))
    with _exportable(policy, step), _quiet(), torch.no_grad():
        program = torch.onnx.export(
            step,
            tuple(examples.values()),
            input_names=list(examples),
            output_names=outputs,
            dynamic_shapes=(tuple({0: "batch"} for _ in examples),),
            opset_version=opset_version,
            custom_translation_table=translations,
            external_data=False,
            verbose=False,
            dynamo=True,
        )
        initial = step.initial_state()
    assert program is not None
    core = policy.lstm_actor.core
    metadata = {
        "rlgates_version": rlgates.__version__,
        "policy": type(policy).__name__,
        "core": core.name,
        "core_kwargs": getattr(policy, "core_kwargs", {}),
        "state_size": len(initial),
        "actor_state_size": core.state_size,
        "initial_state": initial,
        "deterministic": deterministic,
    }
    program.model.metadata_props.update({k: json.dumps(v) for k, v in metadata.items()})
    program.save(str(path), external_data=False)
    return Path(path)


class PolicyStep(nn.Module):
    """One step of a policy as a function of tensors.

    Args:
        policy: a policy of rlgates.
        names: of the observations, in the order of the inputs.
        deterministic: take the most likely action; else sample it with noise.
        value, logits: add them to the outputs.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        policy: SequencePolicy,
        names: list[str],
        deterministic: bool,
        value: bool,
        logits: bool,
    ) -> None:
        super().__init__()
        dist, space = policy.action_dist, policy.action_space
        if not isinstance(dist, (*_MASKABLE, *_CATEGORICAL, *_NORMAL)):
            raise TypeError(f"cannot export the distribution {type(dist).__name__}.")
        # `forward` computes what these do; with a value it calls `latents`.
        if others := overridden(policy, *_HEAD_METHODS, *(() if value else LATENT_METHODS)):
            raise TypeError(
                f"cannot export {type(policy).__name__}: the file would act without its own "
                f"{', '.join(others)}."
            )
        self.normal = isinstance(dist, _NORMAL)
        if self.normal and logits:
            raise ValueError("actions of a Box have no logits.")
        if isinstance(dist, StateDependentNoiseDistribution) and not deterministic:
            raise ValueError("the noise of gSDE cannot be exported: use deterministic=True.")
        self.policy = policy
        self.names = names
        self.deterministic = deterministic
        self.returns_value, self.returns_logits = value, logits
        self.masked = isinstance(dist, _MASKABLE)
        self.logit_sizes = _logit_sizes(space, self.masked)
        self.has_critic_state = value and policy.lstm_critic is not None
        if isinstance(space, spaces.Box):
            dtype = np.result_type(np.float32, space.dtype)  # of clipped actions in numpy
            for name, bound in (("low", space.low), ("high", space.high)):
                self.register_buffer(
                    name, torch.as_tensor(bound.astype(dtype), device=policy.device)
                )

    def initial_state(self) -> list[float]:
        """The state of one environment at the start of an episode."""
        states = self.policy.initial_states(1)
        pi: list[float] = states.pi[0].tolist()
        return pi + (
            states.vf[0].tolist() if self.has_critic_state and states.vf is not None else []
        )

    def examples(self, observations: list[Tensor]) -> dict[str, Tensor]:
        """All inputs by name, for a batch of two with these observations."""
        inputs = dict(zip(self.names, observations, strict=True))
        inputs["state"] = torch.tensor([self.initial_state()] * 2, dtype=torch.float32)
        inputs["episode_start"] = torch.tensor([True, False])
        width = sum(self.logit_sizes)
        if self.masked:
            inputs["action_masks"] = torch.ones(2, width, dtype=torch.bool)
        if not self.deterministic:
            inputs["noise"] = torch.full((2, width), 0.5)
        return {name: tensor.to(self.policy.device) for name, tensor in inputs.items()}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs in their order, from the inputs in the order of `examples`."""
        count = len(self.names)
        observations: Any = inputs[0]
        if isinstance(self.policy.observation_space, spaces.Dict):
            observations = dict(zip(self.names, inputs[:count], strict=True))
        state, episode_start, *rest = inputs[count:]
        latent, state_out, value = self._latent(observations, state, episode_start)
        logits = self.policy.action_net(latent)
        if self.masked:
            logits = torch.where(rest.pop(0), logits, _MASKED_LOGIT)
        noise = None if self.deterministic else rest.pop(0)
        shape = self.policy.action_space.shape or ()
        action = self._action(logits, noise).reshape(-1, *shape)
        outputs = [action, state_out]
        if value is not None:
            outputs.append(value)
        if self.returns_logits:
            outputs.append(logits)
        return tuple(outputs)

    def _latent(
        self, observations: Any, state: Tensor, episode_start: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The input of the actor's head, the next state, and the value if it is an output."""
        policy, core = self.policy, self.policy.lstm_actor.core
        if self.returns_value:
            pi, vf = state[:, : core.state_size], state[:, core.state_size :]
            states = States(pi, vf if self.has_critic_state else None)
            latents = policy.latents(observations, states, episode_start.unsqueeze(0))
            parts = [part for part in latents.states if part is not None]
            return latents.pi, torch.cat(parts, dim=1), policy.values_of(latents)
        # ActorCriticPolicy.extract_features would compute the features of actor and critic.
        extractor = policy.pi_features_extractor
        features = BasePolicy.extract_features(policy, observations, extractor)
        outputs, state_out = core(features.unsqueeze(0), state, episode_start.unsqueeze(0))
        return policy.mlp_extractor.forward_actor(outputs[0]), state_out, None

    def _action(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        """The action from logits, or from the mean of a normal distribution."""
        policy = self.policy
        if self.normal:
            action = logits
            if noise is not None:
                action = action + policy.log_std.exp() * noise
            action_shape = (-1, *self.low.shape)
            if policy.squash_output:
                share = (0.5 * (action.tanh() + 1)).reshape(action_shape).to(self.low.dtype)
                return self.low + share * (self.high - self.low)
            return action.reshape(action_shape).to(self.low.dtype).clamp(self.low, self.high)
        if isinstance(policy.action_space, spaces.MultiBinary) and not self.masked:
            threshold = 0.5 if noise is None else noise
            return (logits.sigmoid() > threshold).float()
        if noise is not None:
            # The exponential race: the first of the clocks with rates p to ring.
            logits = logits - (-(1 - noise).clamp(min=1e-30).log()).clamp(min=1e-30).log()
        return torch.stack(
            [self._mode(part) for part in logits.split(self.logit_sizes, dim=-1)], dim=-1
        )

    def _mode(self, logits: Tensor) -> Tensor:
        """The most likely choice, with the ties that rounding makes in the policy's own mode."""
        if isinstance(self.policy.action_dist, LogCategorical):
            return logits.log_softmax(dim=-1).argmax(dim=-1)
        log_probs = logits - logits.logsumexp(dim=-1, keepdim=True)
        return log_probs.softmax(dim=-1).argmax(dim=-1)


def _logit_sizes(space: spaces.Space[Any], masked: bool) -> list[int]:
    """The number of outputs of the actor's head for each action."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec]
    count = int(spaces.flatdim(space))
    return [2] * count if masked else [1] * count


def _observation_names(policy: SequencePolicy, outputs: Sequence[str]) -> list[str]:
    """The names of the observation inputs, which differ from those of all else in the file."""
    space = policy.observation_space
    if not isinstance(space, spaces.Dict):
        return ["observation"]
    others = "state", "episode_start", "action_masks", "noise"
    for kind, names in (("other inputs", others), ("outputs", outputs)):
        if taken := space.spaces.keys() & names:
            raise ValueError(f"observations may not have the names of {kind}, got {taken}.")
    return list(space.spaces)


def _example_observations(space: spaces.Space[Any], normalize: VecNormalize | None) -> list[Tensor]:
    """Observations with B = 2; the exporter would specialize batch sizes of 0 and 1."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    return [
        torch.zeros(2, *(part.shape or ()), dtype=_torch_dtype(part, normalize, name))
        for name, part in parts.items()
    ]


def _torch_dtype(
    space: spaces.Space[Any], normalize: VecNormalize | None, name: str
) -> torch.dtype:
    dtype = np.dtype(space.dtype)
    if dtype.kind == "f" or is_normalized(normalize, name):
        return torch.float32
    return torch.from_numpy(np.zeros(1, dtype)).dtype


def _stable_sort() -> Any:
    """A translation of stable `torch.sort`, which torch's exporter does not have."""
    try:
        op: Any = importlib.import_module("onnxscript").opset18
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "export_onnx needs onnxscript: install rlgates with its extra [onnx], in a checkout by "
            'pip install ".[onnx]".'
        ) from error

    def stable_sort(
        self: Any, stable: bool = True, dim: int = -1, descending: bool = False
    ) -> tuple[Any, Any]:
        # TopK keeps equal values in their order, by definition.
        size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
        values_and_indices: tuple[Any, Any]
        values_and_indices = op.TopK(self, size, axis=dim, largest=int(descending))
        return values_and_indices

    return stable_sort


@contextmanager
def _exportable(policy: SequencePolicy, step: nn.Module) -> Iterator[None]:
    """Put the policy in evaluation mode, and its cores in the plain loop without checks."""
    cores = [module for module in policy.modules() if isinstance(module, Core)]
    before = [(core, core.backend, core.debug) for core in cores]
    amp, policy.amp = policy.amp, None  # the runtime may have no products of bfloat16
    for core in cores:
        core.backend, core.debug = "plain", False
    try:
        with evaluating(policy):
            step.eval()
            yield
    finally:
        policy.amp = amp
        for core, backend, debug in before:
            core.backend, core.debug = backend, debug


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about itself, and about the absence of torchvision."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
