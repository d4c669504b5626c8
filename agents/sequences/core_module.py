"""A core in place of the LSTM of sb3-contrib's policies."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rlgates.registry import make_core

StatePair = tuple[Tensor, Tensor]


class CoreModule(nn.Module):
    """A core behind the interface that sb3-contrib expects of an LSTM.

    sb3-contrib stores a state as a pair of arrays (num_layers, n_envs, hidden_size). A core has
    one flat state (B, S), layer by layer: the part of each layer is padded to an even size and
    split into two halves of `hidden_size`. For LSTMs they are the hidden and the cell state, as in
    sb3-contrib. The algorithms of rlgates call `core` directly.
    """

    def __init__(self, name: str, input_size: int, hidden_size: int, **options: Any) -> None:
        super().__init__()
        self.core = make_core(name, input_size, hidden_size, **options)
        self.input_size = input_size
        cells: Any = self.core.cells
        sizes = {sum(math.prod(shape) for shape in cell.state_shapes.values()) for cell in cells}
        # Layers with states of different sizes are one layer to sb3-contrib.
        self.num_layers = len(cells) if len(sizes) == 1 else 1
        self._layer_size = self.core.state_size // self.num_layers
        self.hidden_size = max(1, -(-self._layer_size // 2))
        self.register_load_state_dict_pre_hook(_rename_lstm_parameters)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> CoreModule:
        """As in `nn.Module`, except that the core stays in evaluation mode.

        An update compares its probabilities with those of the rollout. With dropout or zoneout
        in only one of them, the two would differ before any weight has changed.
        """
        super().train(mode)
        self.core.eval()
        return self

    def pack(self, state: Tensor) -> StatePair:
        """(B, S) -> two halves (num_layers, B, hidden_size), float32 as in sb3-contrib."""
        layers = state.float().reshape(len(state), self.num_layers, self._layer_size)
        padding = 2 * self.hidden_size - self._layer_size
        first, second = nn.functional.pad(layers, (0, padding)).transpose(0, 1).chunk(2, -1)
        return first.contiguous(), second.contiguous()

    def unpack(self, pair: StatePair) -> Tensor:
        """Two halves (num_layers, B, hidden_size) -> (B, S)."""
        return torch.cat(pair, dim=-1)[..., : self._layer_size].transpose(0, 1).flatten(1)

    def initial_state(self, batch_size: int) -> StatePair:
        """The state at the start of an episode."""
        return self.pack(self.core.initial_state(batch_size))

    def forward(
        self, x: Tensor, pair: StatePair | None = None, episode_starts: Tensor | None = None
    ) -> tuple[Tensor, StatePair]:
        """Run the core over a batch of sequences; like `nn.LSTM` without `episode_starts`.

        Args:
            x: (T, B, input_size).
            pair: the state before the first step; None for the initial state.
            episode_starts: (T, B) bool, true where an episode starts.
        """
        outputs, state = self.core(x, None if pair is None else self.unpack(pair), episode_starts)
        return outputs, self.pack(state)


def _rename_lstm_parameters(
    _: nn.Module, state_dict: dict[str, Any], prefix: str, *__: Any
) -> None:
    """Accept the parameters of the nn.LSTM that sb3-contrib saves under this prefix."""
    for key in [key for key in state_dict if key.startswith((f"{prefix}weight", f"{prefix}bias"))]:
        state_dict[f"{prefix}core.{key.removeprefix(prefix)}"] = state_dict.pop(key)
