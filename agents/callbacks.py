"""The gates of an agent: for any observations, and recorded during training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn

from rlgates.agents.ranks import ALONE
from rlgates.agents.sequences.buffers import RolloutArrays, map_tensors
from rlgates.agents.sequences.core_module import CoreModule
from rlgates.agents.sequences.policy import SequencePolicy, evaluating
from rlgates.core import Core, GateTrace
from rlgates.deprecation import warn_renamed
from rlgates.errors import check_choice, check_flag, check_size
from rlgates.gates import Decay
from rlgates.registry import make_core

QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}
_FORMATS_WITHOUT_HISTOGRAMS = ("stdout", "log", "csv", "json")  # they would print every value

_logger = logging.getLogger(__name__)


@torch.no_grad()
def trace_gates(
    policy: RecurrentActorCriticPolicy,
    observations: Any,
    episode_starts: Any = None,
    state: Tensor | tuple[Tensor, Tensor] | None = None,
    *,
    critic: bool = False,
    starts: Any = None,
) -> GateTrace:
    """Run the core of a policy over observations and return its gates.

    Meanwhile the policy is in evaluation mode, and no random numbers are drawn. See
    `rlgates.Core.trace_gates`.

    Args:
        policy: of rlgates, or an LSTM policy of sb3-contrib.
        observations: (T, B, ...), time first, as the policy gets them: an array, a tensor, or a
            mapping of them.
        episode_starts: (T, B), true (or 1) where an episode starts; by default only at step 0.
        state: (B, state_size), or the two halves (num_layers, B, hidden_size) of sb3-contrib,
            such as `_last_lstm_states.pi` of its algorithm (`.vf` for the critic); by default the
            initial state.
        critic: trace the critic's own core instead of the actor's.
        starts: deprecated name of `episode_starts`.

    Raises:
        TypeError: the policy has no core.
        ValueError: the critic has no core of its own; shapes that do not match.
    """
    if starts is not None:
        warn_renamed("trace_gates(starts=...)", "episode_starts")
        episode_starts = starts
    module: Any = _recurrent_module(policy, critic)
    with evaluating(policy):
        obs, shape = _flatten_time(observations, policy.device)
        if episode_starts is not None:
            episode_starts = torch.as_tensor(episode_starts, device=policy.device) > 0.5
            if episode_starts.shape != shape:
                raise ValueError(
                    f"episode_starts must be (T, B) = {shape}, got {tuple(episode_starts.shape)}."
                )
        if isinstance(state, tuple):
            state = _flat_state(module, state)
        if isinstance(policy, SequencePolicy):
            none = torch.zeros(shape, dtype=torch.bool, device=policy.device)
            states = policy.initial_states(shape[1])
            if state is not None:
                states = states._replace(**{"vf" if critic else "pi": state})
            core, x, state = policy.core_inputs(
                obs, states, none if episode_starts is None else episode_starts
            ).cores[critic]
        else:
            extractor = policy.vf_features_extractor if critic else policy.pi_features_extractor
            # ActorCriticPolicy.extract_features would compute the features of actor and critic.
            features = BasePolicy.extract_features(policy, obs, extractor)
            core, x = _core_of_lstm(module), features.unflatten(0, shape)
        return core.trace_gates(x, state, episode_starts)


def _recurrent_module(policy: Any, critic: bool) -> CoreModule | nn.LSTM:
    if not isinstance(policy, RecurrentActorCriticPolicy):
        raise TypeError(
            "gates are traced in a recurrent policy of rlgates or sb3-contrib, "
            f"got {type(policy).__name__}."
        )
    module: Any = policy.lstm_critic if critic else policy.lstm_actor
    if module is None:
        raise ValueError(
            "critic=True needs a critic with its own core: a policy with enable_critic_lstm=True."
        )
    return module  # type: ignore[no-any-return]


def _flatten_time(observations: Any, device: torch.device) -> tuple[Any, tuple[int, int]]:
    """(T, B, ...) -> tensors (T * B, ...), and T and B."""
    if isinstance(observations, Mapping):
        parts = {key: _flatten_time(value, device) for key, value in observations.items()}
        return {key: flat for key, (flat, _) in parts.items()}, next(iter(parts.values()))[1]
    tensor = torch.as_tensor(observations, device=device)
    if tensor.ndim < 2:
        raise ValueError(f"observations must be (T, B, ...), got {tuple(tensor.shape)}.")
    return tensor.flatten(0, 1), (tensor.shape[0], tensor.shape[1])


def _core_of_lstm(lstm: nn.LSTM) -> Core:
    """A core that computes the same as the LSTM of an sb3-contrib policy."""
    like = next(lstm.parameters())
    core = make_core(
        "lstm",
        lstm.input_size,
        lstm.hidden_size,
        lstm.num_layers,
        device=like.device,
        dtype=like.dtype,
        generator=torch.Generator(),
    )
    for parameter in core.parameters():
        parameter.zero_()  # the biases stay zero if the LSTM has none
    core.load_state_dict(lstm.state_dict(), strict=lstm.bias)
    return core


def _flat_state(module: CoreModule | nn.LSTM, pair: tuple[Tensor, Tensor]) -> Tensor:
    """The state of a core (B, state_size), from the pair that sb3-contrib stores."""
    if isinstance(module, CoreModule):
        return module.unpack(pair)
    return torch.cat([half for layer in zip(*pair, strict=True) for half in layer], dim=-1)


def _rollout(buffer: Any, critic: bool) -> tuple[Any, Any, Any]:
    """Observations, episode starts and first state of a buffer of rlgates or sb3-contrib."""
    if isinstance(buffer, RolloutArrays):
        buffer = buffer.sequences
        first = buffer.states[0]
        return buffer.observations, buffer.episode_starts, first.vf if critic else first.pi
    names = (f"{part}_states_{'vf' if critic else 'pi'}" for part in ("hidden", "cell"))
    state = tuple(buffer.to_torch(getattr(buffer, name)[0]) for name in names)
    return buffer.observations, buffer.episode_starts, state


def record_gates(logger: Logger, prefix: str, trace: GateTrace, decay: Decay = "linear") -> None:
    """Record gates in a logger of SB3, under the names that `GateCallback` documents.

    Args:
        logger: receives, for each layer, a histogram and three quantiles of the gates and of their
            timescales; `dump` is not called.
        prefix: replaces "gates" in the names.
        trace: the result of `trace_gates` or `Core.trace_gates`.
        decay: see `rlgates.timescale`.
    """
    layers = zip(trace.timescales(decay), trace.forget, strict=True)
    for layer, (timescales, forget) in enumerate(layers):
        suffix = f"_{layer}" if len(trace.forget) > 1 else ""
        for name, values in (("log10_timescale", timescales.log10()), ("forget", forget)):
            tag, flat = f"{prefix}/{name}{suffix}", values.flatten().cpu().numpy()
            logger.record(tag, flat, exclude=_FORMATS_WITHOUT_HISTOGRAMS)
            quantiles = np.quantile(flat, list(QUANTILES.values()))
            for quantile_name, value in zip(QUANTILES, quantiles, strict=True):
                logger.record(f"{tag}/{quantile_name}", float(value))


class GateCallback(BaseCallback):
    """Records the forget gates of an agent during training.

        RecurrentPPO(..., tensorboard_log="runs").learn(100_000, callback=GateCallback())

    For `rlgates.RecurrentPPO` and `sb3_contrib.RecurrentPPO`, with policies of either. After the
    first rollout and every `every` rollouts, before the update, it runs the actor's core over the
    rollout again and records in the logger

    - `gates/log10_timescale`: a histogram (TensorBoard) of log10 of the gates' timescales in
      steps, one value for each step, environment and unit;
    - `gates/forget`: the same for the effective forget gates;
    - `gates/log10_timescale/median`, `/q10` and `/q90`, and the same under `gates/forget`: the
      median and the 10 and 90 per cent quantiles of these values, as scalars.

    Cores of several layers have `gates/forget_0`, `gates/forget_1` and so on; the critic's own
    core is under `gates_critic/`. Training does not change. For a core without forget gates, a
    warning is logged once and nothing is recorded.

    Args:
        every: rollouts between two records. They are counted by `num_timesteps`, so that resumed
            training records the same rollouts as uninterrupted training.
        envs: record only the first `envs` environments; None: all. The core runs over them in plain
            PyTorch, and the gates of all of them are in memory at once.
        critic: record the critic's own core, too.
        decay: "linear" for the timescale 1 / (1 - f), "exponential" for -1 / log f, see
            `rlgates.timescale`.
        keep: keep the first and the last trace of the actor as `first` and `last`.
        verbose: as in every callback of SB3; unused.

    Attributes:
        first, last: `rlgates.GateTrace` of the first and the last record, if `keep`.

    Raises:
        TypeError: a model without a recurrent policy; an option of the wrong type.
        ValueError: `critic` with a critic that has no core of its own; an unknown decay (the
            message names the nearest), a number below 1.
    """

    first: GateTrace | None = None
    last: GateTrace | None = None

    def __init__(
        self,
        every: int = 10,
        *,
        envs: int | None = 8,
        critic: bool = False,
        decay: Decay = "linear",
        keep: bool = False,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.every = check_size("every", every)
        self.envs = None if envs is None else check_size("envs", envs)
        self.critic = check_flag("critic", critic)
        self.decay = check_choice("decay", decay, ("linear", "exponential"))
        self.keep = check_flag("keep", keep)
        self.gated = True  # until a trace has no gates

    def _init_callback(self) -> None:
        _recurrent_module(self.model.policy, critic=False)
        if self.critic:
            _recurrent_module(self.model.policy, critic=True)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if not (self.gated and self._is_due()):
            return
        trace = self._trace(critic=False)
        if not trace.forget:
            self.gated = False
            module: Any = self.model.policy.lstm_actor
            _logger.warning("core %r has no forget gates to record.", module.core.name)
            return
        if self.keep:
            self.first, self.last = self.first or trace, trace
        record_gates(self.logger, "gates", trace, self.decay)
        if self.critic:
            record_gates(self.logger, "gates_critic", self._trace(critic=True), self.decay)

    def _is_due(self) -> bool:
        model: Any = self.model
        rollout: int = model.n_steps * (getattr(model, "ranks", ALONE).total or model.n_envs)
        now: int = model.num_timesteps
        before, period = now - rollout, self.every * rollout
        return before <= 0 or now // period > before // period

    def _trace(self, critic: bool) -> GateTrace:
        """The gates in the last rollout, from the state it started from."""
        model: Any = self.model
        observations, episode_starts, state = _rollout(model.rollout_buffer, critic)
        envs = slice(self.envs)
        return trace_gates(
            model.policy,
            map_tensors(lambda x: x[:, envs], observations),
            episode_starts[:, envs],
            state[envs]
            if isinstance(state, Tensor)
            else tuple(half[:, envs].contiguous() for half in state),
            critic=critic,
        )
