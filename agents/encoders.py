"""Encoders of observations that Stable-Baselines3 does not have."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import Tensor, nn

from rlgates import kernels
from rlgates.cell import computes_as

NATURE_CNN_MIN_SIZE = 36
"""The smallest side, in pixels, of an image that NatureCNN supports."""


def is_small_image(space: spaces.Space[Any], normalized_image: bool = False) -> bool:
    """Whether these are channels-first images that are too small for NatureCNN.

    Args:
        space: of the observations.
        normalized_image: images may have any numbers, as in SB3's encoders.

    Raises:
        ValueError: images of other numbers than SB3's, with the channels last.
    """
    if not is_image_space(space, normalized_image=normalized_image):
        return False
    first, height, last = space.shape or ()
    # Of images of uint8, SB3 puts the channels first.
    channels_last = last in (1, 3, 4) and last < min(first, height)
    if channels_last and not is_image_space(space):
        raise ValueError(
            "images that are not uint8 from 0 to 255 must have the channels first, got "
            f"{space}: transpose them in a gymnasium.wrappers.TransformObservation."
        )
    return min(height, last) < NATURE_CNN_MIN_SIZE


class GridEncoder(BaseFeaturesExtractor):
    """Features of a small image of a grid world, one pixel per cell.

    The pixels are centred, [0, 1] -> [-1, 1], and each cell is embedded by the same linear layer
    and ReLU (a 1 x 1 convolution). The features are a linear layer with ReLU over all cells (what
    is where) and the maximum over the cells (what is anywhere). From the first step of training,
    the second part shows whether a colour is in view, wherever it is. On a CPU, if there are at
    most 64 colours, native code computes the same and embeds each colour once.

    Args:
        observation_space: images (channels, height, width) of uint8, or of numbers from 0 to 1.
        features_dim: width of the output; the last `cell_dim` features are the maximum.
        cell_dim: width of a cell's embedding; None: 16, or half of features_dim where that is
            at most 16.

    Raises:
        ValueError: cell_dim is not between 1 and features_dim - 1.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        features_dim: int = 64,
        cell_dim: int | None = None,
    ) -> None:
        given: Any = observation_space
        if not isinstance(given, spaces.Box) or len(given.shape) != 3:
            raise ValueError(
                f"GridEncoder is for images (channels, height, width), got {observation_space}."
            )
        super().__init__(observation_space, features_dim)
        if cell_dim is None:
            cell_dim = 16 if features_dim > 16 else max(1, features_dim // 2)
        if not 0 < cell_dim < features_dim:
            raise ValueError(
                f"cell_dim must be between 1 and features_dim - 1 = {features_dim - 1}, "
                f"got {cell_dim}."
            )
        channels, height, width = observation_space.shape
        # On a CPU, a matrix product is twice as fast as a 1 x 1 convolution of a tiny image.
        self.cells = nn.Sequential(nn.Linear(channels, cell_dim), nn.ReLU())
        self.places = nn.Sequential(
            nn.Linear(cell_dim * height * width, features_dim - cell_dim), nn.ReLU()
        )

    def forward(self, observations: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] -> (B, features_dim)."""
        if self._is_as_built():
            layers = self.cells[0], self.places[0]
            weights: Any = [weight for layer in layers for weight in (layer.weight, layer.bias)]
            features = kernels.grid_features(observations.flatten(2), *weights)
            if features is not None:
                return features
        cells = self.cells((2 * observations - 1).flatten(2).transpose(1, 2))
        return torch.cat([self.places(cells.flatten(1)), cells.max(dim=1).values], dim=1)

    def _is_as_built(self) -> bool:
        """Whether its layers compute what native code does with their weights."""
        cells, places = self.cells, self.places
        return (
            len(cells) == len(places) == 2
            and computes_as(nn.Sequential, cells, places)
            and computes_as(nn.Linear, cells[0], places[0])
            and computes_as(nn.ReLU, cells[1], places[1])
        )


class LinearEncoder(BaseFeaturesExtractor):
    """A linear layer with ReLU over the flat observation; discrete ones are one-hot.

    It gives every core inputs of the same width, whatever the environment. The parts of a
    dictionary are concatenated in the order of the space.

    Args:
        observation_space: of one environment.
        features_dim: width of the output.
    """

    def __init__(self, observation_space: spaces.Space[Any], features_dim: int = 64) -> None:
        super().__init__(observation_space, features_dim)
        width = int(get_flattened_obs_dim(observation_space))
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(width, features_dim), nn.ReLU())

    def forward(self, observations: Tensor | dict[str, Tensor]) -> Tensor:
        """(B, ...), or such batches by name -> (B, features_dim)."""
        space = self._observation_space
        if isinstance(observations, dict):
            assert isinstance(space, spaces.Dict)
            parts = [observations[name].flatten(1) for name in space.spaces]
            observations = torch.cat(parts, dim=1)
        features: Tensor = self.layers(observations)
        return features


class MixedEncoder(BaseFeaturesExtractor):
    """Features of a dictionary of observations, concatenated in the order of the space.

    Like SB3's `CombinedExtractor`, with `GridEncoder` for small images. Other images are encoded by
    NatureCNN; everything else is flattened, discrete observations as one-hot vectors.

    Args:
        observation_space: images channels first.
        grid_output_dim, cnn_output_dim: features of each small image and of each other image.
        normalized_image: images may have any numbers, as in SB3's `CombinedExtractor`.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        grid_output_dim: int = 64,
        cnn_output_dim: int = 256,
        normalized_image: bool = False,
    ) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise ValueError(f"MixedEncoder is for Dict observations, got {observation_space}.")
        encoders, width = nn.ModuleDict(), 0
        for name, space in observation_space.spaces.items():
            if isinstance(space, spaces.Box) and is_small_image(space, normalized_image):
                encoders[name] = GridEncoder(space, grid_output_dim)
                width += grid_output_dim
            elif is_image_space(space, normalized_image=normalized_image):
                encoders[name] = NatureCNN(space, cnn_output_dim, normalized_image)
                width += cnn_output_dim
            else:
                encoders[name] = nn.Flatten()
                width += get_flattened_obs_dim(space)
        super().__init__(observation_space, width)
        self.encoders = encoders

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Batches (B, ...) by name -> (B, features_dim)."""
        parts = [encoder(observations[name]) for name, encoder in self.encoders.items()]
        return torch.cat(parts, dim=1)
