"""Any core inside sb3-contrib's recurrent policies.

`rlgates.RecurrentPPO` knows the policies by their string names. The unmodified
`sb3_contrib.RecurrentPPO` takes them as classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rlgates.agents.arguments import explained
from rlgates.agents.encoders import GridEncoder, MixedEncoder, is_small_image
from rlgates.agents.sequences.core_module import CoreModule, StatePair
from rlgates.agents.sequences.distributions import NOT_FINITE, sampling, unchecked
from rlgates.agents.sequences.policy import SequencePolicy
from rlgates.errors import (
    MAX_WIDTH,
    TrainingDiverged,
    check_choice,
    check_flag,
    check_fraction,
    check_number,
    check_size,
)
from rlgates.registry import (
    PROBE_INPUTS,
    CoreFactory,
    check_options,
    core_name,
    core_options,
    make_core,
)


class MlpLstmPolicy(SequencePolicy):
    """Recurrent policy with any core, for flat observations.

    Args:
        core: a name from `rlgates.list_cores()`, such as "ur_lstm"; "none" has no memory. A
            registered class or factory (`rlgates.register_core`) stands for its name, which is what
            files store.
        core_kwargs: options of the core, such as {"input_scale": 4.0}. Dropout and zoneout stay
            off in agents, with a warning, because an update must compute the same as the rollout.
        lstm_hidden_size, n_lstm_layers: units of a layer, and layers of the core. They determine
            the width of the core's output, which the heads read.
        shared_lstm: the critic uses the actor's core.
        shared_gradient: what trains a shared core: "actor" (as in sb3-contrib: the critic's
            gradient stops at the core) or "both".
        amp: "bf16" for bfloat16 matrix products in encoders, cores and the layers behind them
            (`torch.autocast`), which is faster on GPUs with tensor cores; weights, states, action
            logits, values and losses stay in float32. `predict` and the algorithms of sb3-contrib
            compute in float32.
        enable_critic_lstm: the critic has its own core. With neither this nor `shared_lstm`, the
            critic has no memory.
        lstm_kwargs: further options of the core, under the name that sb3-contrib uses. So is a
            `dropout` between LSTM layers, which stays off, too. The other arguments of
            `torch.nn.LSTM` must have their defaults; `bias=False`, for example, is refused.

    All other arguments are those of
    `sb3_contrib.common.recurrent.policies.RecurrentActorCriticPolicy`.

    Raises:
        ValueError: an unknown core or option (the message names the nearest), a size below 1,
            `shared_lstm` together with `enable_critic_lstm`; discrete spaces that do not start at
            0, MultiDiscrete ones of several axes, or observations of a Box without axes.
    """

    default_extractor: ClassVar[type[BaseFeaturesExtractor]] = FlattenExtractor

    @explained
    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        use_sde: bool = False,
        log_std_init: float = 0.0,
        full_std: bool = True,
        use_expln: bool = False,
        squash_output: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        share_features_extractor: bool = True,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        shared_lstm: bool = False,
        enable_critic_lstm: bool = True,
        lstm_kwargs: dict[str, Any] | None = None,
        *,
        core: str | CoreFactory = "lstm",
        core_kwargs: dict[str, Any] | None = None,
        shared_gradient: Literal["actor", "both"] = "actor",
        amp: Literal["bf16"] | None = None,
    ) -> None:
        given: dict[str, Any] = dict(locals())
        for name in _FLAGS:
            # Policies that SB3 saved without gSDE have None for its options.
            if given[name] is not None or name not in ("full_std", "use_expln", "squash_output"):
                check_flag(name, given[name])
        for name in _MAPPINGS:
            if not isinstance(given[name], Mapping | None):
                raise TypeError(f"{name} must be a dictionary or None, got {given[name]!r}.")
        check_number("log_std_init", log_std_init)
        _check_choices("action space", action_space, "Action")
        _check_choices("observation space", observation_space, "Observation")
        _check_net_arch(net_arch)
        _check_classes(activation_fn, features_extractor_class, optimizer_class)
        core = core_name(core)
        lstm_hidden_size = check_size("lstm_hidden_size", lstm_hidden_size)
        check_size("n_lstm_layers", n_lstm_layers)
        check_choice("shared_gradient", shared_gradient, ("actor", "both"))
        if amp is not None:
            check_choice("amp", amp, ("bf16",))
        options = {**_core_options(core, lstm_kwargs or {}), **(core_kwargs or {})}
        check_options(core, options)
        if shared_gradient == "both" and not shared_lstm:
            raise ValueError("shared_gradient='both' needs a shared core: shared_lstm=True.")
        if shared_lstm and enable_critic_lstm:
            raise ValueError(
                "with shared_lstm=True the critic uses the actor's core, with "
                "enable_critic_lstm=True its own: choose one (enable_critic_lstm=False for the "
                "shared core)."
            )
        if features_extractor_class is None:
            features_extractor_class = self._default_extractor(observation_space, normalize_images)
        if features_extractor_class is MixedEncoder and not normalize_images:
            # SB3 does so for its own encoders.
            features_extractor_kwargs = {
                "normalized_image": True,
                **(features_extractor_kwargs or {}),
            }
        if getattr(features_extractor_class, "__module__", "").startswith(_LIBRARIES):
            _check_axes("observation space", observation_space)
        options["num_layers"] = n_lstm_layers
        # sb3-contrib sizes the layers behind the core by its hidden size, not its output size.
        probe = make_core(
            core, PROBE_INPUTS, lstm_hidden_size, generator=torch.Generator(), **options
        )
        _warn_of_noise(options)
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch=net_arch,
            activation_fn=activation_fn,
            ortho_init=ortho_init,
            use_sde=use_sde,
            log_std_init=log_std_init,
            full_std=full_std,
            use_expln=use_expln,
            squash_output=squash_output,
            features_extractor_class=features_extractor_class,
            features_extractor_kwargs=features_extractor_kwargs,
            share_features_extractor=share_features_extractor,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            lstm_hidden_size=probe.output_size,
            n_lstm_layers=n_lstm_layers,
            shared_lstm=shared_lstm,
            enable_critic_lstm=enable_critic_lstm,
        )
        self.core = core
        self.core_kwargs = core_kwargs or {}
        self.shared_gradient, self.amp = shared_gradient, amp
        self.core_hidden_size = lstm_hidden_size
        self.lstm_kwargs = lstm_kwargs or {}
        self.lstm_actor = CoreModule(core, self.features_dim, lstm_hidden_size, **options)
        if enable_critic_lstm:
            self.lstm_critic = CoreModule(core, self.features_dim, lstm_hidden_size, **options)
        self._replace_distribution()
        self.lstm_hidden_state_shape = (
            self.lstm_actor.num_layers,
            1,
            self.lstm_actor.hidden_size,
        )
        # The optimizer of the base class was built before the cores.
        make_optimizer: Callable[..., torch.optim.Optimizer] = self.optimizer_class
        options = dict(self.optimizer_kwargs)
        if self.optimizer_class is torch.optim.Adam and "foreach" not in options:
            options.setdefault("fused", True)  # one kernel for all parameters
        self.optimizer = make_optimizer(self.parameters(), lr=lr_schedule(1), **options)

    def _replace_distribution(self) -> None:
        """Replace the action distribution that SB3 has chosen."""
        self.action_dist = unchecked(self.action_dist)

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """As in SB3, with an int as width (SB3's is a NumPy integer for MultiDiscrete)."""
        extractor = super().make_features_extractor()
        if isinstance(extractor, BaseFeaturesExtractor):  # any module with features_dim will do
            extractor._features_dim = int(extractor._features_dim)
        return extractor

    def _default_extractor(
        self, space: spaces.Space[Any], normalize_images: bool
    ) -> type[BaseFeaturesExtractor]:
        if isinstance(space, spaces.Dict) and self.default_extractor in (
            FlattenExtractor,
            NatureCNN,
        ):
            raise ValueError(
                f"{type(self).__name__} has no encoder of Dict observations: use "
                "MultiInputLstmPolicy."
            )
        return self.default_extractor

    @staticmethod
    def _process_sequence(  # type: ignore[override]
        features: Tensor, lstm_states: StatePair, episode_starts: Tensor, lstm: CoreModule
    ) -> tuple[Tensor, StatePair]:
        """Run the core once over a batch of sequences.

        Args:
            features: (n_seq * T, features_dim), sequence after sequence.
            lstm_states: two halves (num_layers, n_seq, hidden_size).
            episode_starts: (n_seq * T,), 1 where an episode starts.
            lstm: the core.

        Returns:
            Outputs (n_seq * T, output_size), and the states after the last step.
        """
        n_seq = lstm_states[0].shape[1]
        x = features.reshape(n_seq, -1, lstm.input_size).transpose(0, 1)
        starts = episode_starts.reshape(n_seq, -1).transpose(0, 1) > 0.5
        outputs, states = lstm(x, lstm_states, starts)
        return outputs.transpose(0, 1).flatten(0, 1), states

    def evaluate_actions(  # type: ignore[override]
        self, obs: Tensor, actions: Tensor, lstm_states: RNNStates, episode_starts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As in sb3-contrib; with `shared_gradient="both"` the critic also trains the core."""
        actions = self.flat_actions(actions)
        if isinstance(self.action_space, spaces.MultiBinary):
            actions = actions.float()  # sb3-contrib stores int8, which log_prob refuses
        if not self.shared_lstm or self.shared_gradient == "actor":
            return super().evaluate_actions(obs, actions, lstm_states, episode_starts)
        features = self.extract_features(obs)
        assert isinstance(features, Tensor), "a shared core implies a shared features extractor"
        h, c = lstm_states.pi
        latent, _ = self._process_sequence(features, (h, c), episode_starts, self.lstm_actor)
        latent_pi, latent_vf = self.mlp_extractor(latent)
        distribution = self._get_action_dist_from_latent(latent_pi)
        return self.value_net(latent_vf), distribution.log_prob(actions), distribution.entropy()

    def predict(
        self,
        observation: np.ndarray[Any, Any] | dict[str, np.ndarray[Any, Any]],
        state: tuple[np.ndarray[Any, Any], ...] | None = None,
        episode_start: np.ndarray[Any, Any] | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray[Any, Any], tuple[np.ndarray[Any, Any], ...] | None]:
        """As in sb3-contrib; without a `state`, start from the core's initial state.

        The two arrays of a state may also be one, (2, num_layers, n_envs, hidden_size).

        Raises:
            TrainingDiverged: a state or the weights are not finite.
            ValueError: an observation that is not finite; a state of another form or number of
                environments; a pair of observation and info.
        """
        if isinstance(observation, tuple):
            if len(observation) == 2 and isinstance(observation[1], dict):
                raise ValueError(
                    "predict needs an observation, got a tuple of it and infos: with "
                    "`obs, info = env.reset()` of a gymnasium environment, pass obs."
                )
            observation = np.asarray(observation)
        parts = observation if isinstance(observation, dict) else {"observation": observation}
        for name, part in parts.items():
            _check_finite(name, part)
        if isinstance(state, np.ndarray) and state.ndim == 4:
            state = tuple(state)
        if not isinstance(state, tuple | list | None):
            raise TypeError(f"state must be a tuple of arrays or None, got {state!r}.")
        for half in state or ():
            _check_finite("state", half, TrainingDiverged)  # where the policy itself gave it
        if state is None:
            tensors = self.obs_to_tensor(observation)[0]
            first = next(iter(tensors.values())) if isinstance(tensors, dict) else tensors
            if not len(first):
                raise ValueError("the observation is empty: it must be of one environment or more.")
            with torch.no_grad():
                pair = self.lstm_actor.initial_state(len(first))
            state = tuple(half.cpu().numpy() for half in pair)
        self._check_state(state, _count(observation, self.observation_space))
        if episode_start is not None:
            _check_starts(episode_start, np.shape(state[0])[1:2])
        return super().predict(observation, state, episode_start, deterministic)

    def _check_state(self, state: Any, count: int | None) -> None:
        """Raise unless it is a pair of arrays of this policy's core, of `count` environments."""
        shapes = [np.shape(half) for half in state]
        num_layers, hidden_size = self.lstm_actor.num_layers, self.lstm_actor.hidden_size
        if count is None:
            count = next((shape[1] for shape in shapes if len(shape) > 1), 1)
        if shapes != [(num_layers, count, hidden_size)] * 2:
            raise ValueError(
                "state must be two arrays, (num_layers, n_envs, hidden_size) = "
                f"{(num_layers, count, hidden_size)} as predict returns them, got "
                f"{', '.join(map(str, shapes)) or repr(state)}."
            )

    def _predict(  # type: ignore[override]
        self,
        observation: Tensor,
        lstm_states: StatePair,
        episode_starts: Tensor,
        deterministic: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        distribution, states = self.get_distribution(observation, lstm_states, episode_starts)
        with sampling():
            actions = distribution.get_actions(deterministic)
        if not distribution.log_prob(actions).isfinite().all():
            raise TrainingDiverged(NOT_FINITE)
        return actions, states

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(
            core=self.core,
            core_kwargs=self.core_kwargs,
            lstm_hidden_size=self.core_hidden_size,
            n_lstm_layers=self.lstm_actor.core.num_layers,
            shared_lstm=self.shared_lstm,
            shared_gradient=self.shared_gradient,
            amp=self.amp,
            enable_critic_lstm=self.enable_critic_lstm,
            lstm_kwargs=self.lstm_kwargs,
            share_features_extractor=self.share_features_extractor,
        )
        return data


def _core_options(core: str, lstm_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Options of a core from those of `torch.nn.LSTM`."""
    ours = core_options(core)
    options = {
        name: value
        for name, value in lstm_kwargs.items()
        if name in ours or name not in _LSTM_DEFAULTS or value != _LSTM_DEFAULTS[name]
    }
    if "dropout" in options and "dropout" not in ours:
        dropout = check_fraction("dropout", options.pop("dropout"))
        if dropout:
            warnings.warn(
                f"dropout={dropout} between LSTM layers is off. sb3-contrib drops units in "
                "updates but not in rollouts, whose probabilities an update compares with its own.",
                stacklevel=2,
            )
    return options


def _warn_of_noise(options: Mapping[str, Any]) -> None:
    """Warn of dropout and zoneout, which `CoreModule` turns off."""
    noise = [
        f"{name}={value}"
        for name, value in options.items()
        if value and ("dropout" in name or "zoneout" in name)
    ]
    if noise:
        warnings.warn(
            f"{', '.join(noise)} of the core is off: an update must compute the same as the "
            "rollout, whose probabilities it compares with its own.",
            stacklevel=2,
        )


_LSTM_DEFAULTS = {"bias": True, "batch_first": False, "bidirectional": False, "proj_size": 0}
"""What the cores of agents do as `torch.nn.LSTM` does by default, and not otherwise."""
_LIBRARIES = ("rlgates.", "stable_baselines3.")
_FLAGS = (
    *("ortho_init", "use_sde", "full_std", "use_expln", "squash_output", "shared_lstm"),
    *("enable_critic_lstm", "share_features_extractor", "normalize_images"),
)
_MAPPINGS = ("core_kwargs", "lstm_kwargs", "features_extractor_kwargs", "optimizer_kwargs")


def _check_net_arch(net_arch: Any) -> None:
    """Raise unless it is widths of layers, or such of "pi" and "vf"."""
    if isinstance(net_arch, list) and len(net_arch) == 1 and isinstance(net_arch[0], Mapping):
        net_arch = net_arch[0]  # as SB3 takes it, with a warning
    parts = net_arch if isinstance(net_arch, Mapping) else {"pi": net_arch or []}
    for name, widths in parts.items():
        check_choice("part of net_arch", name, ("pi", "vf"))
        if not isinstance(widths, list | tuple):
            raise TypeError(f"net_arch must be a list of widths, got {widths!r}.")
        for width in widths:
            check_size("net_arch", width, maximum=MAX_WIDTH)


def _check_classes(activation_fn: Any, extractor: Any, optimizer: Any) -> None:
    """Raise TypeError unless these make what SB3 takes them to make."""
    try:
        made = activation_fn()
    except TypeError:
        made = None
    if not isinstance(made, nn.Module):
        raise TypeError(
            f"activation_fn must make a module, as torch.nn.Tanh does, got {activation_fn!r}."
        )
    for name, maker in (("features_extractor_class", extractor), ("optimizer_class", optimizer)):
        if not (maker is None or callable(maker)):
            raise TypeError(f"{name} must be a class, got {maker!r}.")
    if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer_class must step without a closure, which LBFGS needs.")


def _check_choices(name: str, space: Any, kind: str) -> None:
    """Raise ValueError for choices that do not start at 0, or are not in one row."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            _check_choices(f"{name} {key!r}", part, kind)
    wrapper = f"gymnasium.wrappers.Transform{kind}"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        raise ValueError(f"the {name} must start at 0, got {space}: shift it in a {wrapper}.")
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) != 1:
        shape = space.shape
        raise ValueError(f"the {name} must have one axis, got {shape}: flatten it in a {wrapper}.")


def _check_axes(name: str, space: Any) -> None:
    """Raise ValueError for a Box without axes, which no encoder of SB3 or rlgates reads."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            _check_axes(f"{name} {key!r}", part)
    if isinstance(space, spaces.Box) and not space.shape:
        raise ValueError(
            f"the {name} must have an axis, got {space}: reshape it to (1,) in a "
            "gymnasium.wrappers.TransformObservation."
        )


def _check_starts(episode_start: Any, shape: tuple[int, ...]) -> None:
    """Raise unless it says of each environment whether an episode starts."""
    starts = np.asarray(episode_start)
    if starts.dtype.kind not in "biuf" or not np.isfinite(starts).all():
        raise TypeError(f"episode_start must be true or false, got {episode_start!r}.")
    if shape and starts.size != shape[0]:
        raise ValueError(f"episode_start must be {shape}, got {starts.shape}.")


def _count(observation: Any, space: spaces.Space[Any]) -> int | None:
    """Of how many environments an observation is; None where it does not fit the space."""
    if isinstance(observation, dict) and isinstance(space, spaces.Dict):
        name, observation = next(iter(observation.items()))
        space = space.spaces.get(name, space)
    shape, axes = np.shape(observation), len(space.shape or ())
    return {axes: 1, axes + 1: (shape or (1,))[0]}.get(len(shape))


def _check_finite(name: str, values: Any, error: type[ValueError] = ValueError) -> None:
    if (
        isinstance(values, np.ndarray)
        and values.dtype.kind == "f"
        and not np.isfinite(values).all()
    ):
        raise error(f"the {name} is not finite: {values}.")


class CnnLstmPolicy(MlpLstmPolicy):
    """Recurrent policy with any core, for images.

    The default `features_extractor_class` is NatureCNN for images of at least 36 x 36 pixels, and
    `GridEncoder` for smaller ones, which NatureCNN does not support. With
    `normalize_images=False`, images may be floats, from 0 to 1 and with the channels first.
    """

    default_extractor: ClassVar[type[BaseFeaturesExtractor]] = NatureCNN

    def _default_extractor(
        self, space: spaces.Space[Any], normalize_images: bool
    ) -> type[BaseFeaturesExtractor]:
        if isinstance(space, spaces.Box) and len(space.shape) != 3:
            raise ValueError(
                f"{type(self).__name__} is for images, (height, width, channels) or the channels "
                f"first, got {space}: use MlpLstmPolicy."
            )
        if isinstance(space, spaces.Box) and normalize_images and not is_image_space(space):
            raise ValueError(
                f"{type(self).__name__} reads images of uint8 from 0 to 255, got {space}. Others, "
                "such as floats from 0 to 1, need the channels first and "
                "policy_kwargs={'normalize_images': False}."
            )
        if is_small_image(space, normalized_image=not normalize_images):
            return GridEncoder
        return super()._default_extractor(space, normalize_images)


class MultiInputLstmPolicy(MlpLstmPolicy):
    """Recurrent policy with any core, for dictionary observations.

    The default `features_extractor_class` is SB3's `CombinedExtractor`, or `MixedEncoder` if one
    of the observations is an image smaller than 36 x 36 pixels.
    """

    def _default_extractor(
        self, space: spaces.Space[Any], normalize_images: bool
    ) -> type[BaseFeaturesExtractor]:
        if not isinstance(space, spaces.Dict):
            raise ValueError(
                f"{type(self).__name__} is for Dict observations, got {space}: use MlpLstmPolicy, "
                "or CnnLstmPolicy for images."
            )
        taken = dir(nn.ModuleDict())
        for key in space.spaces:
            if not key or "." in key or key in taken:
                raise ValueError(
                    f"an encoder cannot have the name of the observation {key!r}: rename it in a "
                    "gymnasium.wrappers.TransformObservation, or pass a features_extractor_class."
                )
        small = [is_small_image(part, not normalize_images) for part in space.spaces.values()]
        return MixedEncoder if any(small) else CombinedExtractor
