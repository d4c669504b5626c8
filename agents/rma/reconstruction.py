"""The decoders of the RMA: its latents must reconstruct what was observed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlgates.cell import check_dtype, check_tensor, truncated_normal_, widened
from rlgates.errors import check_flag, check_nonnegative, check_number, check_size


class Reconstruction(NamedTuple):
    """The predictions of `RMAReconstruction.decode` from latents (..., latent_size).

    Attributes:
        image: logits of the pixels (..., C, H, W).
        action: logits of the actions (..., num_actions).
        reward: the predicted reward (...).
    """

    image: Tensor
    action: Tensor
    reward: Tensor


class RMALosses(NamedTuple):
    """The losses, each a scalar: weighted, summed over time, averaged over the batch."""

    image: Tensor
    action: Tensor
    reward: Tensor
    strength: Tensor

    @property
    def total(self) -> Tensor:
        """The sum of the four."""
        return self.image + self.action + self.reward + self.strength


class RMAReconstruction(nn.Module):
    """Decoders from the latents of an RMA core, and its auxiliary losses (Hung et al. 2019).

    Each latent z must predict what the core observed in its step: the image, the previous action
    and the previous reward.

        image    sigmoid(C_2 relu(C_1 reshape(relu(D z))))   D: to (channels, H, W)
                                                             C_1, C_2: transposed 3x3
                                                             convolutions to 16 and C channels
        action   softmax(A z)
        reward   R z

    All layers have a bias. The losses of a step, and their default weights:

        image     image_weight * mean cross-entropy of pixels and channels          50
        action    action_weight * cross-entropy                                     1
        reward    reward_weight * (R z - reward)^2 / 2                              1
        strength  strength_weight * sum over heads of max(hinge, strength)          5e-5, hinge 2

    The last loss penalizes read strengths above `hinge`; its gradient is zero below. Every loss
    is summed over time and averaged over the batch.

    With `cell = core.cells[0]`, `z = cell.split(outputs).latent` and
    `strengths = cell.read_strengths(outputs)`; both pass gradients to the core.

    Weights are initialized from a truncated normal with standard deviation 1/sqrt(inputs) (of a
    convolution: 9 * channels), biases with zeros.

    Args:
        latent_size: width of z.
        image_shape: (C, H, W) of the images.
        num_actions: number of discrete actions.
        channels: channels between D and C_1.
        image_weight, action_weight, reward_weight, strength_weight, strength_hinge: as above.
        debug: check the range of pixels and actions on every device, which synchronizes with a
            GPU; else only on the CPU.

    The defaults are those of the authors' code (google-deepmind/deepmind-research, tvt).

    Raises:
        ValueError: a size below 1, an image shape that is not (C, H, W), a weight that is
            negative or not finite.
        TypeError: a value of another type.
    """

    def __init__(
        self,
        latent_size: int,
        image_shape: Sequence[int],
        num_actions: int,
        *,
        channels: int = 32,
        image_weight: float = 50.0,
        action_weight: float = 1.0,
        reward_weight: float = 1.0,
        strength_weight: float = 5e-5,
        strength_hinge: float = 2.0,
        debug: bool = False,
    ) -> None:
        super().__init__()
        self.latent_size = check_size("latent_size", latent_size)
        self.image_shape = image_channels, height, width = _check_image_shape(image_shape)
        self.num_actions = check_size("num_actions", num_actions)
        check_size("channels", channels)
        self.image_weight = check_nonnegative("image_weight", image_weight)
        self.action_weight = check_nonnegative("action_weight", action_weight)
        self.reward_weight = check_nonnegative("reward_weight", reward_weight)
        self.strength_weight = check_nonnegative("strength_weight", strength_weight)
        self.strength_hinge = check_number("strength_hinge", strength_hinge)
        self.debug = check_flag("debug", debug)
        self.image = nn.Sequential(
            nn.Linear(latent_size, channels * height * width),
            nn.ReLU(),
            nn.Unflatten(1, (channels, height, width)),
            nn.ConvTranspose2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, image_channels, 3, padding=1),
        )
        self.action = nn.Linear(latent_size, num_actions)
        self.reward = nn.Linear(latent_size, 1)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialize the parameters with `generator` (the global one by default)."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                fan_in = layer.in_features
            elif isinstance(layer, nn.ConvTranspose2d):
                fan_in = 9 * layer.in_channels
            else:
                continue
            truncated_normal_(layer.weight, fan_in, generator)
            if layer.bias is not None:
                layer.bias.zero_()

    def decode(self, latent: Tensor) -> Reconstruction:
        """Predict image, action and reward from latents (..., latent_size).

        Raises:
            ValueError: another width or dtype.
            TypeError: not a tensor.
        """
        if check_tensor("latent", latent).shape[-1:] != (self.latent_size,):
            raise ValueError(
                f"latent must be (..., {self.latent_size}), got {tuple(latent.shape)}."
            )
        check_dtype("latent", latent, self.reward.weight.dtype)
        leading = latent.shape[:-1]
        image = self.image(latent.reshape(math.prod(leading), self.latent_size))
        return Reconstruction(
            widened(image).view(*leading, *self.image_shape),
            widened(self.action(latent)),
            widened(self.reward(latent)).squeeze(-1),
        )

    def forward(
        self, latent: Tensor, image: Tensor, action: Tensor, reward: Tensor, strengths: Tensor
    ) -> RMALosses:
        """The losses over T steps of B episodes.

        Args:
            latent: (T, B, latent_size).
            image: the image of each step (T, B, C, H, W), floats in [0, 1] or uint8.
            action: the action before it (T, B), integers from 0 to num_actions - 1.
            reward: the reward before it (T, B).
            strengths: the read strengths (T, B, num_heads); num_heads is 0 without memory.

        Raises:
            ValueError: shapes that do not match, images of integers other than uint8, an empty
                batch; pixels or actions out of range (see `debug`).
            TypeError: an argument that is not a tensor.
        """
        self._check(latent, image, action, reward, strengths)
        predicted = self.decode(latent)
        dtype = predicted.image.dtype
        pixels = image.to(dtype) / 255 if image.dtype == torch.uint8 else image.to(dtype)
        functional, batch = nn.functional, latent.shape[1]
        image_loss = functional.binary_cross_entropy_with_logits(
            predicted.image, pixels, reduction="sum"
        )
        action_loss = functional.cross_entropy(
            predicted.action.flatten(0, 1), action.flatten().long(), reduction="sum"
        )
        squared_error = (predicted.reward - reward.to(dtype)).square().sum()
        hinged = strengths.clamp(min=self.strength_hinge).sum()
        return RMALosses(
            self.image_weight / math.prod(self.image_shape) / batch * image_loss,
            self.action_weight / batch * action_loss,
            self.reward_weight / (2 * batch) * squared_error,
            self.strength_weight / batch * hinged,
        )

    def _check(
        self, latent: Tensor, image: Tensor, action: Tensor, reward: Tensor, strengths: Tensor
    ) -> None:
        if check_tensor("latent", latent).ndim != 3 or not latent.shape[1]:
            raise ValueError(
                f"latent must be (T, B, {self.latent_size}), B >= 1, got {tuple(latent.shape)}."
            )
        steps = tuple(latent.shape[:2])
        check_tensor("strengths", strengths)
        heads = strengths.shape[2:] if strengths.ndim == 3 else (1,)
        for name, tensor, shape in (
            ("image", image, (*steps, *self.image_shape)),
            ("action", action, steps),
            ("reward", reward, steps),
            ("strengths", strengths, (*steps, *heads)),
        ):
            if check_tensor(name, tensor).shape != shape:
                raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}.")
        if not (image.is_floating_point() or image.dtype == torch.uint8):
            raise ValueError(f"image must be floats in [0, 1] or uint8, got {image.dtype}.")
        if action.is_floating_point() or action.dtype == torch.bool:
            raise ValueError(f"action must be integers, got {action.dtype}.")
        if self.debug or (image.is_cpu and not torch.compiler.is_compiling()):
            _check_range("action", action.long(), self.num_actions - 1)
            if image.is_floating_point():
                _check_range("image", image, 1)


def _check_range(name: str, values: Tensor, largest: int) -> None:
    if not ((values >= 0) & (values <= largest)).all():
        low, high = values.min().item(), values.max().item()
        raise ValueError(f"{name} must be from 0 to {largest}, got {low:g} to {high:g}.")


def _check_image_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    try:
        image_channels, height, width = image_shape
    except (TypeError, ValueError) as error:
        raise type(error)(f"image_shape must be (C, H, W), got {image_shape!r}.") from None
    return (
        check_size("image_shape", image_channels),
        check_size("image_shape", height),
        check_size("image_shape", width),
    )
