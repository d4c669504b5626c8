"""A core in the place of the LSTM that sb3-contrib's policies have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlgates.cores import make_core

StatePair = tuple[Tensor, Tensor]


class CoreModule(nn.Module):
    """A core behind the interface that sb3-contrib expects of an LSTM.

    Upstream keeps a pair of arrays (num_layers, n_envs, hidden_size) a state. The one flat
    state (B, S) of a core is padded to an even number and cut into two halves:
    `num_layers = 1`, `hidden_size = ceil(S / 2)`. rlgates' own algorithms call `core` itself.
    """

    num_layers = 1

    def __init__(self, name: str, input_size: int, hidden_size: int, **options: Any) -> None:
        super().__init__()
        self.core = make_core(name, input_size, hidden_size, **options)
        self.input_size = input_size
        self.hidden_size = max(1, -(-self.core.state_size // 2))
        self.register_load_state_dict_pre_hook(_import_lstm)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> CoreModule:
        """As upstream, but the core stays in evaluation.

        An update compares its probabilities with those of the rollout: with dropout or zoneout
        in one and not in the other they differ before any weight has changed.
        """
        super().train(mode)
        self.core.eval()
        return self

    def pack(self, state: Tensor) -> StatePair:
        """(B, S) -> two halves (1, B, hidden_size), in float32 as upstream stores them."""
        padding = 2 * self.hidden_size - state.shape[1]
        first, second = nn.functional.pad(state.float(), (0, padding)).unsqueeze(0).chunk(2, -1)
        return first.contiguous(), second.contiguous()

    def unpack(self, pair: StatePair) -> Tensor:
        """Two halves (1, B, hidden_size) -> (B, S)."""
        return torch.cat(pair, dim=-1)[0, :, : self.core.state_size]

    def initial_state(self, batch_size: int) -> StatePair:
        """The state at the start of an episode."""
        return self.pack(self.core.initial_state(batch_size))

    def forward(self, x: Tensor, pair: StatePair, starts: Tensor) -> tuple[Tensor, StatePair]:
        """Run over (T, B, input_size); `starts` (T, B) is true where an episode starts."""
        outputs, state = self.core(x, self.unpack(pair), starts)
        return outputs, self.pack(state)


def _import_lstm(_: nn.Module, state_dict: dict[str, Any], prefix: str, *__: Any) -> None:
    """Take the parameters of an nn.LSTM that upstream saved in this place."""
    for key in [key for key in state_dict if key.startswith((f"{prefix}weight", f"{prefix}bias"))]:
        state_dict[f"{prefix}core.{key.removeprefix(prefix)}"] = state_dict.pop(key)
