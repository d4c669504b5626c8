"""A recurrent policy over sequences (T, B) with flat states and episode starts inside.

`rlgates.RecurrentPPO` and `rlgates.RecurrentA2C` call these methods. The methods of sb3-contrib,
which take pairs of states and concatenated sequences, remain available to its algorithms; the
algorithms of rlgates refuse a subclass that overrides them, since they would not call them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from rlgates import kernels
from rlgates.agents.files import archive
from rlgates.agents.files.models import load_policy, pack_policy, reading, saving
from rlgates.agents.ranks import ALONE, Ranks
from rlgates.agents.sequences.core_module import CoreModule, StatePair
from rlgates.agents.sequences.heads import heads_of
from rlgates.agents.sequences.one_hot import OneHot
from rlgates.core import Core, run_together
from rlgates.kernels import Heads

Observations = Tensor | dict[str, Tensor]


class States(NamedTuple):
    """The states of the cores of a policy.

    Attributes:
        pi: of the actor's core, (B, state_size).
        vf: of the critic's own core; None if it has none.
    """

    pi: Tensor
    vf: Tensor | None

    def select(self, indices: Any) -> States:
        """The states of some elements of the batch."""
        return States(self.pi[indices], None if self.vf is None else self.vf[indices])


class StatePairs:
    """States as the `RNNStates` of sb3-contrib, computed when they are read.

    Attributes:
        pi, vf: two halves (num_layers, B, hidden_size); without a core of the critic, vf is pi.
            They also are items 0 and 1.
    """

    def __init__(self, policy: SequencePolicy, states: States) -> None:
        self._policy, self._states = policy, states

    @property
    def pi(self) -> StatePair:
        return self._policy.lstm_actor.pack(self._states.pi)

    @property
    def vf(self) -> StatePair:
        critic, state = self._policy.lstm_critic, self._states.vf
        return self.pi if critic is None or state is None else critic.pack(state)

    def __iter__(self) -> Iterator[StatePair]:
        return iter((self.pi, self.vf))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> StatePair:
        return (self.pi, self.vf)[index]


class Latents(NamedTuple):
    """The outputs of encoders, cores and the layers behind them, for a batch of sequences.

    Attributes:
        pi, vf: inputs of the actor's and the critic's heads, (T * B, ...).
        states: after the last step.
        features, outputs: input and output of the actor's core, (T, B, ...).
    """

    pi: Tensor
    vf: Tensor
    states: States
    features: Tensor
    outputs: Tensor


class CoreInputs(NamedTuple):
    """What the cores of a policy run over.

    Attributes:
        cores: the actor's core and, if it has one, the critic's, each with its inputs
            (T, B, features) and its states before the first step.
        vf_features: of the critic, (T * B, features).
    """

    cores: list[tuple[Core, Tensor, Tensor]]
    vf_features: Tensor


class CoreOutputs(NamedTuple):
    """The outputs of encoders and cores, for a batch of sequences.

    Attributes:
        pi: what the layers of the actor read, (T * B, ...).
        vf: what those of the critic read; None for the same, which both train.
        states, features, outputs: as in `Latents`.
    """

    pi: Tensor
    vf: Tensor | None
    states: States
    features: Tensor
    outputs: Tensor


class PolicyOutput(NamedTuple):
    """The result of one step of B environments.

    Attributes:
        actions: (B, ...) of the action space, not yet clipped or rescaled to its bounds.
        values, log_probs: (B,).
        states: after the step.
        outputs: of the actor's core, (B, output_size).
    """

    actions: Tensor
    values: Tensor
    log_probs: Tensor
    states: States
    outputs: Tensor


class ActionEvaluation(NamedTuple):
    """Values and likelihoods of the actions of a batch of sequences.

    Attributes:
        values, log_probs: (T, B).
        entropy: (T, B); None where the distribution has no closed form for it.
        auxiliary: the result of `SequencePolicy.auxiliary_losses`.
    """

    values: Tensor
    log_probs: Tensor
    entropy: Tensor | None
    auxiliary: dict[str, Tensor]


def overridden(policy: Any, *methods: str) -> list[str]:
    """Which of these methods a user has written: in a subclass, on the instance or as a patch.

    Args:
        policy: or its class.
        methods: their names.
    """
    kind, own = (policy, {}) if isinstance(policy, type) else (type(policy), vars(policy))

    def is_ours(name: str) -> bool:
        owner = next(base for base in kind.__mro__ if name in vars(base))
        modules = owner.__module__, getattr(vars(owner)[name], "__module__", "")
        return all(module.partition(".")[0] in _LIBRARIES for module in modules)

    return [name for name in methods if name in own or not is_ours(name)]


@contextmanager
def evaluating(policy: BasePolicy) -> Iterator[None]:
    """Put a policy in evaluation mode, and afterwards back in the mode in which it was."""
    training = policy.training
    policy.set_training_mode(False)
    try:
        yield
    finally:
        policy.set_training_mode(training)


def _swapped(x: Observations, size: int) -> Any:
    """The two axes of a flattened batch (size * n, ...) swapped: (n * size, ...)."""
    if isinstance(x, dict):
        return {name: _swapped(part, size) for name, part in x.items()}
    return x.unflatten(0, (size, -1)).transpose(0, 1).flatten(0, 1)


class SequencePolicy(RecurrentActorCriticPolicy):
    """The methods of a policy on whole sequences; `MlpLstmPolicy` builds its modules.

    Attributes:
        takes_masks: whether it supports action masks, which not every algorithm provides.
    """

    takes_masks: ClassVar[bool] = False

    # sb3-contrib declares nn.LSTM, but uses only what CoreModule has.
    lstm_actor: CoreModule  # type: ignore[assignment]
    lstm_critic: CoreModule | None  # type: ignore[assignment]
    shared_gradient: str
    amp: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        space: Any = self.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {None: space}
        images = {name for name, part in parts.items() if is_image_space(part)}
        # Names of the observations to scale; None for one that is no dictionary.
        self._image_names = images if self.normalize_images else set()
        choices = {
            name: np.atleast_1d(getattr(part, "nvec", getattr(part, "n", 0))).tolist()
            for name, part in parts.items()
            if isinstance(part, spaces.Discrete | spaces.MultiDiscrete)
        }
        # A list, since the keys of a `ModuleDict` may not have dots; those of a space may.
        self._one_hots = nn.ModuleList(map(OneHot, choices.values()))
        self._one_hot_of = {name: index for index, name in enumerate(choices)}

    def __deepcopy__(self, memo: dict[int, Any]) -> SequencePolicy:
        # The distribution of the last minibatch holds tensors of a graph; torch copies none.
        for tensor in _nonleaf_tensors(self.action_dist):
            memo[id(tensor)] = tensor.detach().clone()
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new

    def initial_states(self, batch_size: int) -> States:
        """The states at the start of an episode."""
        critic = self.lstm_critic
        return States(
            self.lstm_actor.core.initial_state(batch_size),
            None if critic is None else critic.core.initial_state(batch_size),
        )

    def extract_features(  # type: ignore[override]
        self, obs: Observations, features_extractor: BaseFeaturesExtractor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """As in SB3, without checking in every call which observations are images."""
        if not self.share_features_extractor:
            x = self.preprocess(obs)
            return self.pi_features_extractor(x), self.vf_features_extractor(x)
        extractor: Any = features_extractor or self.features_extractor
        features: Tensor = extractor(self.preprocess(obs))
        return features

    def preprocess(self, obs: Observations) -> Observations:
        """Observations as the encoders read them: floats, images from 0 to 1, choices one-hot."""
        space = self.observation_space
        if isinstance(obs, dict):
            assert isinstance(space, spaces.Dict)
            return {name: self._preprocess(x, name, space[name]) for name, x in obs.items()}
        return self._preprocess(obs, None, space)

    def _preprocess(self, x: Tensor, name: str | None, space: spaces.Space[Any]) -> Tensor:
        if isinstance(space, spaces.Box):
            return x.float() / 255.0 if name in self._image_names else x.float()
        if name in self._one_hot_of:
            return self._one_hots[self._one_hot_of[name]](x)  # type: ignore[no-any-return]
        return preprocess_obs(x, space)  # type: ignore[return-value]

    def latents(
        self, observations: Observations, states: States, episode_starts: Tensor
    ) -> Latents:
        """Run encoders, cores and the layers behind them.

        Args:
            observations: (T * B, ...), time first.
            states: before the first step.
            episode_starts: (T, B) bool, true where an episode starts.
        """
        return self._behind(self.core_outputs(observations, states, episode_starts))

    def _behind(self, core: CoreOutputs) -> Latents:
        """Run the layers behind the cores."""
        extractor: Any = self.mlp_extractor
        with self.autocast():
            if core.vf is None:
                pi, vf = extractor(core.pi)
            else:
                pi, vf = extractor.forward_actor(core.pi), extractor.forward_critic(core.vf)
        if self.amp is not None:  # the heads are not under it
            pi, vf = pi.float(), vf.float()
        return Latents(pi, vf, core.states, core.features, core.outputs)

    def autocast(self) -> AbstractContextManager[object]:
        """The context of `amp`; casts of weights are cached while it is active."""
        if self.amp is None:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def core_outputs(
        self, observations: Observations, states: States, episode_starts: Tensor
    ) -> CoreOutputs:
        """Run encoders and cores; the arguments are those of `latents`."""
        with self.autocast():
            cores = self.core_inputs(observations, states, episode_starts)
            return self.run_cores(cores, episode_starts)

    def core_inputs(
        self, observations: Observations, states: States, episode_starts: Tensor
    ) -> CoreInputs:
        """Run the encoders; the arguments are those of `latents`."""
        features: Any = self.extract_features(observations)
        pi_features, vf_features = (
            (features, features) if self.share_features_extractor else features
        )
        x = pi_features.unflatten(0, episode_starts.shape)
        cores = [(self.lstm_actor.core, x, states.pi)]
        if self.lstm_critic is not None:
            critic_x = vf_features.unflatten(0, episode_starts.shape)
            assert states.vf is not None
            cores.append((self.lstm_critic.core, critic_x, states.vf))
        return CoreInputs(cores, vf_features)

    def run_cores(self, inputs: CoreInputs, episode_starts: Tensor) -> CoreOutputs:
        """Run the cores."""
        (outputs, pi_state), *critic = run_together(inputs.cores, episode_starts)
        latent_pi, vf_state = outputs.flatten(0, 1), None
        latent_vf: Tensor | None
        if critic:
            ((critic_outputs, vf_state),) = critic
            latent_vf = critic_outputs.flatten(0, 1)
        elif self.shared_lstm:
            latent_vf = None if self.shared_gradient == "both" else latent_pi.detach()
        else:
            assert self.critic is not None
            latent_vf = self.critic(inputs.vf_features)
        x = inputs.cores[0][1]
        return CoreOutputs(latent_pi, latent_vf, States(pi_state, vf_state), x, outputs)

    def distribution(self, latents: Latents, action_masks: Tensor | None) -> Distribution:
        """The distributions of T * B actions.

        Args:
            latents: the result of `latents`.
            action_masks: (T * B, ...), true where an action is allowed; only maskable policies
                get them.
        """
        return self._get_action_dist_from_latent(latents.pi)

    def flat_actions(self, actions: Tensor) -> Tensor:
        """Actions (B, ...) as distributions take them: those of a Box (B, number of actions)."""
        is_box = isinstance(self.action_space, spaces.Box)
        return actions.reshape(len(actions), -1) if is_box else actions

    def values_of(self, latents: Latents) -> Tensor:
        """Values (T * B,)."""
        return self.value_net(latents.vf).flatten()  # type: ignore[no-any-return]

    def act(
        self,
        observations: Observations,
        states: States,
        episode_starts: Tensor,
        action_masks: Tensor | None = None,
        deterministic: bool = False,
        ranks: Ranks = ALONE,
    ) -> PolicyOutput:
        """One step of B environments; `episode_starts` is (B,) bool.

        With `ranks`, the B environments are those of this rank, and random numbers are drawn for
        the environments of all ranks.
        """
        starts = episode_starts.unsqueeze(0)
        distribution, values, core = self._step(observations, states, starts, action_masks)
        if ranks.is_alone:
            actions = distribution.get_actions(deterministic)
        elif isinstance(core, Latents):
            # Whole distributions for the other rows: any kind then draws what it would for all.
            masks = None if action_masks is None else ranks.spread(action_masks, fill=1)
            wide = self.distribution(core._replace(pi=ranks.spread(core.pi)), masks)
            actions = ranks.own(wide.get_actions(deterministic))
            distribution = self.distribution(core, action_masks)
        else:
            native: Any = distribution
            local_log_probs = native.log_probs
            native.log_probs = ranks.spread(local_log_probs)
            actions = ranks.own(native.get_actions(deterministic))
            native.log_probs = local_log_probs
        log_probs = distribution.log_prob(actions)
        actions = actions.reshape(-1, *(self.action_space.shape or ()))
        return PolicyOutput(actions, values, log_probs, core.states, core.outputs[0])

    def _step(
        self,
        observations: Observations,
        states: States,
        episode_starts: Tensor,
        action_masks: Tensor | None,
    ) -> tuple[Distribution, Tensor, CoreOutputs | Latents]:
        """Distributions and values (B,) of one step; in native code where this is the same."""
        heads = None if torch.is_grad_enabled() else self.native_heads()
        if heads is None:
            latents = self.latents(observations, states, episode_starts)
        else:
            core = self.core_outputs(observations, states, episode_starts)
            found = kernels.head_outputs(heads, core.pi, core.vf)
            if found is not None:
                distribution: Any = self.action_dist
                distribution.log_probs, values = found
                return distribution, values, core
            latents = self._behind(core)
        return self.distribution(latents, action_masks), self.values_of(latents), latents

    def native_heads(self, *methods: str) -> Heads | None:
        """The layers behind the cores, if native code may run them; None if it may not.

        It may not where a subclass or an instance overrides one of the methods that run them, or
        one of the named ones.
        """
        if torch.compiler.is_compiling() or self.amp is not None:
            return None
        if not self.runs_as_defined(*_HEAD_METHODS, *methods):
            return None
        heads = heads_of(self)
        return heads if heads is not None and kernels.supports_heads(heads) else None

    def runs_as_defined(self, *methods: str) -> bool:
        """Whether neither a subclass nor this instance overrides these methods."""
        own, kind = vars(self), type(self)
        return all(name not in own and getattr(kind, name) is _METHODS[name] for name in methods)

    def value(self, observations: Observations, states: States, episode_starts: Tensor) -> Tensor:
        """Values (B,) before one step; runs only the critic if it has its own core."""
        if self.lstm_critic is None or overridden(self, *LATENT_METHODS, "values_of"):
            return self.values_of(self.latents(observations, states, episode_starts.unsqueeze(0)))
        # ActorCriticPolicy.extract_features would compute the features of actor and critic.
        with self.autocast():
            features = BasePolicy.extract_features(self, observations, self.vf_features_extractor)
            outputs, _ = self.lstm_critic.core(
                features.unsqueeze(0), states.vf, episode_starts.unsqueeze(0)
            )
            latent = self.mlp_extractor.forward_critic(outputs[0])
        if self.amp is not None:
            latent = latent.float()
        return self.value_net(latent).flatten()  # type: ignore[no-any-return]

    def get_distribution(  # type: ignore[override]
        self, obs: Observations, lstm_states: StatePair, episode_starts: Tensor
    ) -> tuple[Distribution, tuple[Tensor, ...]]:
        """As in sb3-contrib; uses a user's override of what `latents` does, if there is one.

        The critic's own core then starts from its initial state, because `predict` keeps no state
        for it.
        """
        if not overridden(self, *LATENT_METHODS, "distribution"):
            return super().get_distribution(obs, lstm_states, episode_starts)  # type: ignore[arg-type]
        count = lstm_states[0].shape[1]
        starts = episode_starts.reshape(count, -1).T > 0.5
        states = self.initial_states(count)._replace(pi=self.lstm_actor.unpack(lstm_states))
        latents = self.latents(_swapped(obs, count), states, starts)
        pi, vf = (_swapped(part, len(starts)) for part in (latents.pi, latents.vf))
        distribution = self.distribution(latents._replace(pi=pi, vf=vf), None)
        return distribution, self.lstm_actor.pack(latents.states.pi)

    def evaluate(
        self,
        observations: Observations,
        actions: Tensor,
        states: States,
        episode_starts: Tensor,
        action_masks: Tensor | None = None,
    ) -> ActionEvaluation:
        """Values, log-probabilities and entropies of actions that were taken.

        Args:
            observations, actions: (T * B, ...), time first.
            states: before the first step.
            episode_starts: (T, B) bool.
            action_masks: as in `distribution`.
        """
        latents = self.latents(observations, states, episode_starts)
        distribution = self.distribution(latents, action_masks)
        log_probs = distribution.log_prob(self.flat_actions(actions))
        entropy = distribution.entropy()
        return ActionEvaluation(
            self.values_of(latents).view(episode_starts.shape),
            log_probs.view(episode_starts.shape),
            None if entropy is None else entropy.view(episode_starts.shape),
            self.auxiliary_losses(observations, latents),
        )

    def auxiliary_losses(self, observations: Observations, latents: Latents) -> dict[str, Tensor]:
        """Further losses by name: scalars that are added to the loss and logged.

        Override this in a policy with further training objectives. It runs for every minibatch, so
        it should compute nothing but losses.

        Each loss is an average over the steps and sequences of a minibatch, like the losses of
        the algorithms: `RecurrentA2C(..., sum_over_time=True)` multiplies all of them by n_steps.

        Args:
            observations: (T * B, ...), time first, as the environment returned them.
            latents: the result of `latents` for them.
        """
        return {}

    def save(self, path: Any, *, format: Literal["sb3", "safe"] | None = None) -> None:
        """Save the policy alone, in a format of `RecurrentPPO.save`.

        Raises:
            ValueError: format "safe" for a policy that holds something that cannot be written as
                data; format "sb3" with the suffix `.rlgates`.
        """
        if archive.chosen_format(path, format) == "sb3":
            super().save(path)
            return
        with saving("the policy"):
            content = pack_policy(self)
        if isinstance(path, str | Path):
            archive.write(path, content)
        else:
            path.write(content)

    @classmethod
    def load(cls, path: Any, device: Any = "auto", *, safe: bool = False) -> Any:
        """As in SB3, for both formats; SB3's format runs code: see `RecurrentPPO.load`.

        Raises:
            ValueError: a file in the safe format that is damaged or holds no policy of this class;
                any other file with `safe=True` or a name that ends in `.rlgates`.
        """
        with archive.opened(path, safe) as (found, file):
            if file is None:
                return super().load(found, device)
            with reading(found):
                return load_policy(cls, file, device)


# As they were defined: what a subclass, an instance or a patch puts in their place must be called.
_HEAD_METHODS = ("latents", "distribution", "values_of", "_get_action_dist_from_latent")
CORE_METHODS = ("core_outputs", "core_inputs", "run_cores")
LATENT_METHODS = ("latents", *CORE_METHODS, "extract_features", "preprocess")
"""All that computes the latents of a policy; what runs only some of it must look for others'."""
CONTRIB_METHODS = (
    *("forward", "evaluate_actions", "predict_values", "get_distribution"),
    "_process_sequence",
)
"""What the algorithms of sb3-contrib call and those of rlgates do not."""
_LIBRARIES = ("rlgates", "sb3_contrib", "stable_baselines3")
_METHODS = {
    name: getattr(SequencePolicy, name)
    for name in (*_HEAD_METHODS, *CORE_METHODS, "evaluate", "flat_actions", "auxiliary_losses")
}


def _nonleaf_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a graph of autograd that a distribution of actions holds."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _nonleaf_tensors(part)
    elif isinstance(value, Distribution | torch.distributions.Distribution):
        for part in vars(value).values():
            yield from _nonleaf_tensors(part)
