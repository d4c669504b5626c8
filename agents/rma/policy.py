"""The Reconstructive Memory Agent as a policy."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rlgates.agents.arguments import explained
from rlgates.agents.policies import MlpLstmPolicy
from rlgates.agents.rma.parts import (
    IMAGE,
    REWARD,
    RMAEncoder,
    RMAHeads,
    check_spaces,
    previous_action,
)
from rlgates.agents.rma.reconstruction import RMAReconstruction
from rlgates.agents.sequences.policy import Latents, Observations
from rlgates.cores import RMA
from rlgates.errors import check_flag, check_nonnegative, check_number, check_size
from rlgates.registry import PROBE_INPUTS, check_options, make_core


class RMAPolicy(MlpLstmPolicy):
    """The Reconstructive Memory Agent (Hung et al. 2019), with any gate in its controller.

        env = make_vec_env(
            "rlgates/ActiveMatch-v0", 16, add_previous_action=True, add_previous_reward=True
        )
        RecurrentA2C("RMAPolicy", env, n_steps=120, policy_kwargs={"core": "ur_rma"})

    `RMAEncoder` encodes the observation, an `rlgates.cores.RMA` remembers it, and `RMAHeads`
    compute action and value. `RMAReconstruction` trains the core's latent to predict the image,
    the previous action and the previous reward of the step. Its losses, and that of the read
    strengths, are averages over steps and environments. They are those of the paper if
    `sum_over_time=True`, as in the presets `A2C_PRESETS["hung2019_rma_..."]`.

    Observations are dictionaries: `observation`, a uint8 image; `previous_action`, one-hot;
    `previous_reward`, (1,), neither scaled nor clipped. Any other part is encoded but not
    reconstructed. Actions are discrete.

    Train it with the algorithms of rlgates: those of sb3-contrib can run it, but ignore its
    auxiliary losses. Nearly all weights of the decoders, and of the encoder of small images, grow
    with height times width: 131 million for 84 x 84 x 3, fewer with smaller `channels`.

    Args:
        core: "rma", or RMA with another gate, such as "ur_rma".
        core_kwargs: options of the core, such as {"num_slots": 200} for short episodes, or
            {"memory": False} for the paper's LSTM agent (with `reconstruction=False`).
        lstm_hidden_size: units of each of the two controller layers.
        code_size: width of the image's code in the encoder.
        head_size: hidden units of each head.
        gradient_limit: the largest absolute gradient of a logit or value, see `RMAHeads`.
        reconstruction: False for the paper's LSTM+Mem agent, without decoders.
        channels, image_weight, action_weight, reward_weight, strength_weight, strength_hinge: of
            `RMAReconstruction`. The last two are for the read strengths, which are kept low even
            without reconstruction.
        use_sde, optimizer_class, optimizer_kwargs: as in SB3.

    The defaults are those of the authors' code (google-deepmind/deepmind-research, tvt).

    Raises:
        ValueError: a core that is not an RMA; unsupported spaces (the message says how to get
            supported ones); a size below 1, a number out of range.
        TypeError: a value of the wrong type.
    """

    reconstruction: RMAReconstruction | None

    @explained
    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        core: str = "rma",
        core_kwargs: dict[str, Any] | None = None,
        lstm_hidden_size: int = 256,
        code_size: int = 500,
        head_size: int = 200,
        gradient_limit: float = 10.0,
        reconstruction: bool = True,
        channels: int = 32,
        image_weight: float = 50.0,
        action_weight: float = 1.0,
        reward_weight: float = 1.0,
        strength_weight: float = 5e-5,
        strength_hinge: float = 2.0,
        use_sde: bool = False,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        check_spaces(observation_space, action_space)
        self._latent_size = _latent_size(core, core_kwargs or {}, lstm_hidden_size)
        self._head_size = check_size("head_size", head_size)
        self._gradient_limit = check_number("gradient_limit", gradient_limit, above=0)
        self._reconstructs = check_flag("reconstruction", reconstruction)
        # Checked here, and not only by the decoders: there may be none.
        self._decoder_options: dict[str, Any] = {
            "channels": check_size("channels", channels),
            "image_weight": check_nonnegative("image_weight", image_weight),
            "action_weight": check_nonnegative("action_weight", action_weight),
            "reward_weight": check_nonnegative("reward_weight", reward_weight),
            "strength_weight": check_nonnegative("strength_weight", strength_weight),
            "strength_hinge": check_number("strength_hinge", strength_hinge),
        }
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            core=core,
            core_kwargs=core_kwargs,
            lstm_hidden_size=lstm_hidden_size,
            shared_lstm=True,
            shared_gradient="both",
            enable_critic_lstm=False,
            ortho_init=False,
            features_extractor_class=RMAEncoder,
            features_extractor_kwargs={"code_size": check_size("code_size", code_size)},
            use_sde=use_sde,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )

    def _build_mlp_extractor(self) -> None:
        actions: Any = self.action_space
        self.mlp_extractor = RMAHeads(  # type: ignore[assignment]
            self.lstm_output_dim,
            self._latent_size,
            int(actions.n),
            self._head_size,
            self._gradient_limit,
        )

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        # The heads already compute logits and values.
        self.action_net, self.value_net = nn.Identity(), nn.Identity()  # type: ignore[assignment]
        self.reconstruction = None
        if self._reconstructs:
            space: Any = self.observation_space
            self.reconstruction = RMAReconstruction(
                self._latent_size,
                space[IMAGE].shape,
                self.mlp_extractor.latent_dim_pi,
                **self._decoder_options,
            )

    def auxiliary_losses(self, observations: Observations, latents: Latents) -> dict[str, Tensor]:
        """The losses of `RMAReconstruction`, divided by the number of steps."""
        assert isinstance(observations, dict)
        steps = latents.outputs.shape[:2]
        cell: Any = self.lstm_actor.core.cells[0]
        strengths = cell.read_strengths(latents.outputs)
        if self.reconstruction is None:
            options = self._decoder_options
            hinged = strengths.clamp(min=options["strength_hinge"])
            return {"strength_loss": options["strength_weight"] * hinged.sum(-1).mean()}
        losses = self.reconstruction(
            cell.split(latents.outputs).latent,
            observations[IMAGE].unflatten(0, steps),
            previous_action(observations).view(steps),
            observations[REWARD].view(steps),
            strengths,
        )
        return {f"{name}_loss": loss / steps[0] for name, loss in losses._asdict().items()}

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        names = (
            "observation_space", "action_space", "lr_schedule", "core", "core_kwargs",
            "lstm_hidden_size", "use_sde", "optimizer_class", "optimizer_kwargs",
        )  # fmt: skip
        return {
            **{name: data[name] for name in names},
            **self.features_extractor_kwargs,
            "head_size": self._head_size,
            "gradient_limit": self._gradient_limit,
            "reconstruction": self._reconstructs,
            **self._decoder_options,
        }


def _latent_size(core: str, options: dict[str, Any], hidden_size: int) -> int:
    """The latent size of an RMA core.

    Raises:
        ValueError: the core is not an RMA.
    """
    check_options(core, options)
    probe = make_core(core, PROBE_INPUTS, hidden_size, generator=torch.Generator(), **options)
    cell = probe.cells[0]
    if not isinstance(cell, RMA):
        raise ValueError(
            f"RMAPolicy needs the core 'rma' or a gate of it, such as 'ur_rma', got {core!r}."
        )
    return cell.latent_size
