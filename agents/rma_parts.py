"""The parts of the Reconstructive Memory Agent around its core: what it sees, and its heads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import Tensor, nn

from rlgates.agents.encoders import is_small_image
from rlgates.cores.starts import truncated_normal_

PICTURE, ACTION, REWARD = "observation", "previous_action", "previous_reward"


def check_spaces(observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
    """Refuse spaces that the agent cannot work with.

    Raises:
        ValueError: actions that are not discrete; observations that lack a part, or have one of
            another kind.
    """
    if not isinstance(action, spaces.Discrete):
        raise ValueError(f"RMAPolicy is for Discrete actions, got {action}.")
    parts = observation.spaces if isinstance(observation, spaces.Dict) else {}
    missing = [name for name in (PICTURE, ACTION, REWARD) if name not in parts]
    if missing:
        raise ValueError(
            f"RMAPolicy needs observations with the parts {PICTURE}, {ACTION} and {REWARD}; "
            f"{', '.join(missing)} not in {observation}. An environment of rlgates has them with "
            "add_previous_action=True, add_previous_reward=True; any other by "
            "rlgates.envs.wrappers.PreviousActionReward."
        )
    if not is_image_space(parts[PICTURE]):
        raise ValueError(
            f"RMAPolicy needs pictures of bytes from 0 to 255 as {PICTURE}, got {parts[PICTURE]}: "
            "leave out scale_frames, the policy scales them itself."
        )
    for name, shape in ((ACTION, (int(action.n),)), (REWARD, (1,))):
        if parts[name].shape != shape:
            raise ValueError(f"{name} must be {shape}, got {parts[name]}.")


def previous_action(observations: dict[str, Tensor]) -> Tensor:
    """The numbers (...) of the previous actions; 0 at the start, as in the authors' code."""
    return observations[ACTION].argmax(dim=-1)


class RMAEncoder(BaseFeaturesExtractor):
    """What enters an RMA core (Hung et al. 2019).

        code     = W flatten(C_2 relu(C_1 picture)) + b     C_1, C_2: 3 x 3 convolutions to 16
                                                            and 32 maps of the same size
        features = [code ; one-hot of the previous action ; previous reward ; what else is seen]

    Pictures of 36 x 36 pixels or more are read by NatureCNN instead. At the start of an episode,
    where there was no action, the one-hot is that of action 0, as in the authors' code.

    Weights start truncated normal with standard deviation 1/sqrt(inputs), biases at zero.

    Args:
        observation_space: with the parts that `check_spaces` asks for, pictures channels first.
        code_size: width of the code.
    """

    def __init__(self, observation_space: spaces.Dict, code_size: int = 500) -> None:
        picture = observation_space[PICTURE]
        assert isinstance(picture, spaces.Box)
        self.others = [n for n in observation_space.spaces if n not in (PICTURE, ACTION, REWARD)]
        beside = (ACTION, REWARD, *self.others)
        width = sum(get_flattened_obs_dim(observation_space[name]) for name in beside)
        super().__init__(observation_space, code_size + width)
        if is_small_image(picture):
            maps, height, columns = picture.shape
            self.picture: nn.Module = nn.Sequential(
                nn.Conv2d(maps, 16, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.Flatten(),
                nn.Linear(32 * height * columns, code_size),
            )
        else:
            self.picture = NatureCNN(picture, code_size)
        start_weights(self)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Named batches (B, ...), pictures in [0, 1] -> (B, features_dim)."""
        one_hot = nn.functional.one_hot(
            previous_action(observations), observations[ACTION].shape[-1]
        )
        code = self.picture(observations[PICTURE])
        others = [observations[name].flatten(1) for name in self.others]
        return torch.cat([code, one_hot.to(code.dtype), observations[REWARD], *others], dim=1)


class Judgement(NamedTuple):
    """What the heads make of N outputs: logits (N, num_actions) and values (N, 1)."""

    logits: Tensor
    values: Tensor


class RMAHeads(nn.Module):
    """Policy and value of an RMA agent, from the outputs [z ; y ; m] of its core.

        logits = P_2 tanh(P_1 [z ; y ; m] + a_1) + a_2
        value  = V_2 tanh(V_1 [z ; stop_gradient(logits)] + b_1) + b_2

    The gradients that come back to the logits and to the value are clipped, each number of them.
    Weights start truncated normal with standard deviation 1/sqrt(inputs), biases at zero. In a
    policy of SB3 they stand in the place of `mlp_extractor`, with nothing behind them.

    Args:
        output_size, latent_size: widths of the core's output, and of the z that it begins with.
        num_actions: number of discrete actions.
        hidden_size: tanh units of each head.
        gradient_limit: the largest gradient of a logit or value.
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
        self.latent_dim_pi, self.latent_dim_vf = num_actions, 1  # for what SB3 puts behind them
        self.policy = nn.Sequential(
            nn.Linear(output_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, num_actions)
        )
        self.value = nn.Sequential(
            nn.Linear(latent_size + num_actions, hidden_size), nn.Tanh(), nn.Linear(hidden_size, 1)
        )
        start_weights(self)

    def forward(self, outputs: Tensor) -> Judgement:
        """Both, of outputs (N, output_size)."""
        logits = self.forward_actor(outputs)
        seen = torch.cat([outputs[:, : self.latent_size], logits.detach()], dim=1)
        return Judgement(logits, _ClipGradient.apply(self.value(seen), self.gradient_limit))  # type: ignore[no-untyped-call]

    def forward_actor(self, outputs: Tensor) -> Tensor:
        """The logits."""
        clipped: Tensor = _ClipGradient.apply(self.policy(outputs), self.gradient_limit)  # type: ignore[no-untyped-call]
        return clipped

    def forward_critic(self, outputs: Tensor) -> Tensor:
        """The values; they need the logits, so that `forward` gives both at the same cost."""
        return self(outputs).values  # type: ignore[no-any-return]


@torch.no_grad()
def start_weights(module: nn.Module) -> None:
    """Draw the weights of all linear layers and convolutions, as the authors' code starts them."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            truncated_normal_(layer.weight, layer.weight[0].numel())
            if layer.bias is not None:
                layer.bias.zero_()


class _ClipGradient(torch.autograd.Function):
    """The identity, through which gradients beyond a limit do not go back."""

    @staticmethod
    def forward(context: Any, x: Tensor, limit: float) -> Tensor:
        context.limit = limit
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.clamp(-context.limit, context.limit), None
