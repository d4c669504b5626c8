"""The encoder and the heads of the Reconstructive Memory Agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import Tensor, nn

from rlgates.agents.encoders import is_small_image
from rlgates.cell import truncated_normal_

IMAGE, ACTION, REWARD = "observation", "previous_action", "previous_reward"


def check_spaces(observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
    """Check that the agent supports these spaces.

    Raises:
        ValueError: actions that are not discrete; observations that lack a part, or have a part
            of another type or shape.
    """
    if not isinstance(action, spaces.Discrete):
        raise ValueError(f"RMAPolicy is for Discrete actions, got {action}.")
    parts = observation.spaces if isinstance(observation, spaces.Dict) else {}
    missing = [name for name in (IMAGE, ACTION, REWARD) if name not in parts]
    if missing:
        raise ValueError(
            f"RMAPolicy needs observations with the parts {IMAGE}, {ACTION} and {REWARD}; "
            f"{', '.join(missing)} not in {observation}. Environments of rlgates add them with "
            "add_previous_action=True, add_previous_reward=True; for others, use "
            "rlgates.envs.wrappers.PreviousActionReward."
        )
    if not is_image_space(parts[IMAGE]):
        raise ValueError(
            f"RMAPolicy needs uint8 images from 0 to 255 as {IMAGE}, got {parts[IMAGE]}: "
            "leave out scale_frames, the policy scales them itself."
        )
    for name, shape in ((ACTION, (int(action.n),)), (REWARD, (1,))):
        if parts[name].shape != shape:
            raise ValueError(f"{name} must be {shape}, got {parts[name]}.")


def previous_action(observations: dict[str, Tensor]) -> Tensor:
    """Previous actions as indices (...); 0 at the start of an episode, as in the authors' code."""
    return observations[ACTION].argmax(dim=-1)


class RMAEncoder(BaseFeaturesExtractor):
    """The encoder of observations for an RMA core (Hung et al. 2019).

        code     = W flatten(C_2 relu(C_1 image)) + b     C_1, C_2: 3 x 3 convolutions to 16
                                                          and 32 channels of the same size
        features = [code ; one-hot of the previous action ; previous reward ; other observations]

    Images of 36 x 36 pixels or more are encoded by NatureCNN instead. At the start of an episode,
    which has no previous action, the one-hot is that of action 0, as in the authors' code.

    Weights are initialized from a truncated normal with standard deviation 1/sqrt(inputs), biases
    with zeros.

    Args:
        observation_space: with the parts that `check_spaces` requires, images channels first.
        code_size: width of the code.
    """

    def __init__(self, observation_space: spaces.Dict, code_size: int = 500) -> None:
        image = observation_space[IMAGE]
        assert isinstance(image, spaces.Box)
        self.other_names = [n for n in observation_space.spaces if n not in (IMAGE, ACTION, REWARD)]
        flat_names = (ACTION, REWARD, *self.other_names)
        flat_size = sum(get_flattened_obs_dim(observation_space[name]) for name in flat_names)
        super().__init__(observation_space, code_size + flat_size)
        # Saved models hold its parameters under the name "picture".
        if is_small_image(image):
            channels, height, width = image.shape
            self.picture: nn.Module = nn.Sequential(
                nn.Conv2d(channels, 16, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.Flatten(),
                nn.Linear(32 * height * width, code_size),
            )
        else:
            self.picture = NatureCNN(image, code_size)
        initialise_weights(self)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Batches (B, ...) by name, images in [0, 1] -> (B, features_dim)."""
        one_hot = nn.functional.one_hot(
            previous_action(observations), observations[ACTION].shape[-1]
        )
        code = self.picture(observations[IMAGE])
        others = [observations[name].flatten(1) for name in self.other_names]
        return torch.cat([code, one_hot.to(code.dtype), observations[REWARD], *others], dim=1)


class HeadOutputs(NamedTuple):
    """Logits (N, num_actions) and values (N, 1)."""

    logits: Tensor
    values: Tensor


class RMAHeads(nn.Module):
    """Policy and value of an RMA agent, from the outputs [z ; y ; m] of its core.

        logits = P_2 tanh(P_1 [z ; y ; m] + a_1) + a_2
        value  = V_2 tanh(V_1 [z ; stop_gradient(logits)] + b_1) + b_2

    The gradients with respect to the logits and to the value are clipped elementwise. Weights are
    initialized from a truncated normal with standard deviation 1/sqrt(inputs), biases with zeros.
    In a policy of SB3 the heads replace `mlp_extractor`, and identities follow them.

    Args:
        output_size, latent_size: widths of the core's output and of its first part z.
        num_actions: number of discrete actions.
        hidden_size: tanh units of each head.
        gradient_limit: the largest absolute gradient of a logit or value.
    """

    def __init__(
        self,
        output_size: int,
        latent_size: int,
        num_actions: int,
        hidden_size: int,
        gradient_limit: float,
    ) -> None:
        super().__init__()
        self.latent_size, self.gradient_limit = latent_size, gradient_limit
        self.latent_dim_pi, self.latent_dim_vf = num_actions, 1  # SB3 reads them
        self.policy = nn.Sequential(
            nn.Linear(output_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, num_actions)
        )
        self.value = nn.Sequential(
            nn.Linear(latent_size + num_actions, hidden_size), nn.Tanh(), nn.Linear(hidden_size, 1)
        )
        initialise_weights(self)

    def forward(self, outputs: Tensor) -> HeadOutputs:
        """Logits and values of outputs (N, output_size)."""
        logits = self.forward_actor(outputs)
        x = torch.cat([outputs[:, : self.latent_size], logits.detach()], dim=1)
        return HeadOutputs(logits, _ClipGradient.apply(self.value(x), self.gradient_limit))  # type: ignore[no-untyped-call]

    def forward_actor(self, outputs: Tensor) -> Tensor:
        """The logits."""
        clipped: Tensor = _ClipGradient.apply(self.policy(outputs), self.gradient_limit)  # type: ignore[no-untyped-call]
        return clipped

    def forward_critic(self, outputs: Tensor) -> Tensor:
        """The values. They depend on the logits, so `forward` computes both at the same cost."""
        return self(outputs).values  # type: ignore[no-any-return]


@torch.no_grad()
def initialise_weights(module: nn.Module) -> None:
    """Initialize all linear layers and convolutions as the authors' code does."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            truncated_normal_(layer.weight, layer.weight[0].numel())
            if layer.bias is not None:
                layer.bias.zero_()


class _ClipGradient(torch.autograd.Function):
    """The identity, with gradients clipped elementwise."""

    @staticmethod
    def forward(context: Any, x: Tensor, limit: float) -> Tensor:
        context.limit = limit
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.clamp(-context.limit, context.limit), None
