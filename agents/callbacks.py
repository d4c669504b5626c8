"""Watching the gates of an agent: at any time, and while it trains."""

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

from rlgates.agents.buffers import SequenceBuffer
from rlgates.agents.core_module import CoreModule
from rlgates.core import Core, Observation
from rlgates.cores import make_core
from rlgates.errors import check_choice, check_flag, check_size

QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}
NOT_FOR_PEOPLE = ("stdout", "log", "csv", "json")  # formats that would print all of a histogram

_logger = logging.getLogger(__name__)


@torch.no_grad()
def observe_gates(
    policy: RecurrentActorCriticPolicy,
    observations: Any,
    starts: Any = None,
    state: Tensor | tuple[Tensor, Tensor] | None = None,
    *,
    critic: bool = False,
) -> Observation:
    """What `Core.observe` sees in the core of a policy, as the policy acts on observations.

    Dropout and the like are off meanwhile, and no random number is drawn.

    Args:
        policy: of rlgates, or an LSTM policy of sb3-contrib.
        observations: (T, B, ...) as the policy gets them, time first: an array, a tensor, or a
            mapping of them.
        starts: (T, B), true (or 1) where an episode starts; by default only before step 0.
        state: (B, state_size), or the two halves (num_layers, B, hidden_size) that sb3-contrib
            keeps, as the algorithm has them in its `_last_lstm_states.pi` (or `.vf` of the
            critic); by default the initial state.
        critic: look at the critic's own core instead of the actor's.

    Raises:
        TypeError: the policy has no core.
        ValueError: the critic has no core of its own; shapes that do not fit.
    """
    module = _module(policy, critic)
    extractor = policy.vf_features_extractor if critic else policy.pi_features_extractor
    training = policy.training
    policy.set_training_mode(False)
    try:
        obs, (steps, rows) = _flat(observations, policy.device)
        # The override in SB3's actor-critic policies gives two results or one.
        features = BasePolicy.extract_features(policy, obs, extractor)
        x = features.reshape(steps, rows, -1)
        if starts is not None:
            starts = torch.as_tensor(starts, device=policy.device) > 0.5
        core = module.core if isinstance(module, CoreModule) else _as_core(module)
        if isinstance(state, tuple):
            state = _packed(module, state)
        return core.observe(x, state, starts)
    finally:
        policy.set_training_mode(training)


def _module(policy: Any, critic: bool) -> CoreModule | nn.LSTM:
    if not isinstance(policy, RecurrentActorCriticPolicy):
        raise TypeError(
            "gates are observed in a recurrent policy of rlgates or sb3-contrib, "
            f"got {type(policy).__name__}."
        )
    module: Any = policy.lstm_critic if critic else policy.lstm_actor
    if module is None:
        raise ValueError(
            "critic=True needs a critic with a core of its own: a policy with "
            "enable_critic_lstm=True."
        )
    return module  # type: ignore[no-any-return]


def _flat(observations: Any, device: torch.device) -> tuple[Any, tuple[int, int]]:
    """(T, B, ...) -> tensors (T * B, ...), and T and B."""
    if isinstance(observations, Mapping):
        parts = {key: _flat(value, device) for key, value in observations.items()}
        return {key: flat for key, (flat, _) in parts.items()}, next(iter(parts.values()))[1]
    tensor = torch.as_tensor(observations, device=device)
    if tensor.ndim < 2:
        raise ValueError(f"observations must be (T, B, ...), got {tuple(tensor.shape)}.")
    return tensor.flatten(0, 1), (tensor.shape[0], tensor.shape[1])


def _as_core(lstm: nn.LSTM) -> Core:
    """The core that computes what the LSTM of an sb3-contrib policy does."""
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
        parameter.zero_()  # what remains where the LSTM has no biases
    core.load_state_dict(lstm.state_dict(), strict=lstm.bias)
    return core


def _packed(module: CoreModule | nn.LSTM, pair: tuple[Tensor, Tensor]) -> Tensor:
    """The algorithm's pair of states as the one of a core."""
    if isinstance(module, CoreModule):
        return module.unpack(pair)
    return torch.cat([half for layer in zip(*pair, strict=True) for half in layer], dim=-1)


def _rollout(buffer: Any, critic: bool) -> tuple[Any, Any, Any]:
    """Observations, starts and first state, of a buffer of rlgates or of sb3-contrib."""
    if isinstance(buffer, SequenceBuffer):
        first = buffer.states[0]
        return buffer.observations, buffer.starts, first.vf if critic else first.pi
    halves = (f"{part}_states_{'vf' if critic else 'pi'}" for part in ("hidden", "cell"))
    state = tuple(buffer.to_torch(getattr(buffer, half)[0]) for half in halves)
    return buffer.observations, buffer.episode_starts, state


def record_gates(logger: Logger, prefix: str, seen: Observation, decay: str = "linear") -> None:
    """Record gates in a logger of SB3, by the names that `GateCallback` explains.

    Args:
        logger: gets a histogram and three quantiles of the gates, and of their timescales, of
            each layer; nothing is dumped.
        prefix: in place of "gates" in the names.
        seen: what `Core.observe` saw.
        decay: see `rlgates.timescale`.
    """
    layers = zip(seen.timescales(decay), seen.forget, strict=True)
    for layer, (timescales, forget) in enumerate(layers):
        end = f"_{layer}" if len(seen.forget) > 1 else ""
        for name, values in (("log10_timescale", timescales.log10()), ("forget", forget)):
            tag, flat = f"{prefix}/{name}{end}", values.flatten().cpu().numpy()
            logger.record(tag, flat, exclude=NOT_FOR_PEOPLE)
            marks = np.quantile(flat, list(QUANTILES.values()))
            for mark, value in zip(QUANTILES, marks, strict=True):
                logger.record(f"{tag}/{mark}", float(value))


class GateCallback(BaseCallback):
    """Writes down what the forget gates of an agent do while it learns.

        RecurrentPPO(..., tensorboard_log="runs").learn(100_000, callback=GateCallback())

    For `rlgates.RecurrentPPO` and `sb3_contrib.RecurrentPPO`, with policies of either. After
    the first rollout and every `every` rollouts, before the update, it runs the actor's core
    over the rollout once more and records in the logger

    - `gates/log10_timescale`: a histogram (TensorBoard) of log10 of the gates' timescales in
      steps, one value for each step, environment and unit;
    - `gates/forget`: the same of the effective forget gates themselves;
    - `gates/log10_timescale/median`, `/q10` and `/q90`, and the same below `gates/forget`:
      the median and the 10 and 90 per cent quantiles of those values, as scalars.

    Cores of several layers have `gates/forget_0`, `gates/forget_1` and so on; the critic's own
    core stands below `gates_critic/`. Training is not changed by it. A core without forget
    gates is said to have none, once in the log of Python, and nothing else is done.

    Args:
        every: rollouts between two looks; the rollouts are counted by `num_timesteps`, so that
            a continued training looks when an uninterrupted one does.
        envs: environments that are looked at, the first ones; None: all. The core runs over
            them in plain PyTorch, and their gates are in memory together.
        critic: look at the critic's own core, too.
        decay: "linear" for the timescale 1 / (1 - f), "exponential" for -1 / log f, see
            `rlgates.timescale`.
        keep: keep the first and the last look at the actor as `first` and `last`.
        verbose: as in every callback of SB3; unused.

    Attributes:
        first, last: `rlgates.Observation` of the first and the last look, if `keep`.

    Raises:
        TypeError: a model without a recurrent policy; an option of the wrong type.
        ValueError: `critic` with a critic that has no core of its own; an unknown decay (the
            nearest is named), a number below 1.
    """

    first: Observation | None = None
    last: Observation | None = None

    def __init__(
        self,
        every: int = 10,
        *,
        envs: int | None = 8,
        critic: bool = False,
        decay: str = "linear",
        keep: bool = False,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.every = check_size("every", every)
        self.envs = None if envs is None else check_size("envs", envs)
        self.critic = check_flag("critic", critic)
        self.decay = check_choice("decay", decay, ("linear", "exponential"))
        self.keep = check_flag("keep", keep)
        self.gated = True  # until it is known better

    def _init_callback(self) -> None:
        _module(self.model.policy, critic=False)
        if self.critic:
            _module(self.model.policy, critic=True)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if not (self.gated and self._due()):
            return
        seen = self._look(critic=False)
        if not seen.forget:
            self.gated = False
            module: Any = self.model.policy.lstm_actor
            _logger.warning("core %r has no forget gates to observe.", module.core.name)
            return
        if self.keep:
            self.first, self.last = self.first or seen, seen
        record_gates(self.logger, "gates", seen, self.decay)
        if self.critic:
            record_gates(self.logger, "gates_critic", self._look(critic=True), self.decay)

    def _due(self) -> bool:
        model: Any = self.model
        rollout: int = model.n_steps * model.n_envs
        now: int = model.num_timesteps
        before, period = now - rollout, self.every * rollout
        return before <= 0 or now // period > before // period

    def _look(self, critic: bool) -> Observation:
        """The core in the rollout that has just ended, from the state it began in."""
        model: Any = self.model
        buffer, rows = model.rollout_buffer, self.envs
        observations, starts, state = _rollout(buffer, critic)
        return observe_gates(
            model.policy,
            {key: value[:, :rows] for key, value in observations.items()}
            if isinstance(observations, dict)
            else observations[:, :rows],
            starts[:, :rows],
            state[:rows]
            if isinstance(state, Tensor)
            else tuple(half[:, :rows].contiguous() for half in state),
            critic=critic,
        )
