"""The network that is trained on a task: encoder, core and decoder."""

from __future__ import annotations

from torch import Tensor, nn

from rlgates.core import Core
from rlgates.tasks.task import Task


class Reader(nn.Module):
    """A core, and an affine map of its outputs to predictions.

    Args:
        core: the core.
        task: for the number of predictions and their width.
    """

    def __init__(self, core: Core, task: Task) -> None:
        super().__init__()
        self.core = core
        self.decoder = nn.Linear(core.output_size, task.output_size)
        self.scored = task.scored

    def forward(self, inputs: Tensor) -> Tensor:
        """Predictions (scored, B, output_size) from the inputs (T, B, input_size)."""
        outputs, _ = self.core(inputs)
        predictions: Tensor = self.decoder(outputs[-(self.scored or len(outputs)) :])
        return predictions
