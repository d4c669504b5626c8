"""The unsupervised loss of predicting the inputs before or after a state (Trinh et al. 2018)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rlgates.core import Core
from rlgates.errors import check_choice, check_size
from rlgates.experiments.tasks.model import SequenceModel

AuxiliaryKind = Literal["reconstruct", "predict"]


class AuxiliaryLoss(nn.Module):
    """Trinh et al. 2018, sections 3.1 and 3.2: r-LSTM and p-LSTM, with any core.

    A step of the sequences, the anchor, is drawn for each batch. From the state of the network at
    the anchor, a second network follows the `steps` inputs before it ("reconstruct") or after it
    ("predict") in their order: it gets each of them, and must predict the next one. It is two
    layers and an affine map: the lower layer is a core like that of the network, and starts from
    its state at the anchor; the upper one starts from its own initial state.

    Tokens have the cross-entropy of the next token in nats, as in the paper. Numbers, which the
    paper turns into tokens, have the mean squared error here. Gradients go back to the start of the
    sequences (the paper's "full BP").

    Args:
        lower: a core with the sizes and options of the network's.
        upper: a core whose inputs are the lower one's outputs.
        width: numbers of an input, or of tokens.
        kind: "reconstruct" or "predict".
        steps: inputs to follow, or all but one of a shorter sequence.

    Raises:
        ValueError: an unknown kind, or fewer than two steps.
    """

    def __init__(
        self, lower: Core, upper: Core, width: int, kind: AuxiliaryKind, steps: int
    ) -> None:
        super().__init__()
        self.kind = check_choice("auxiliary", kind, get_args(AuxiliaryKind))
        self.steps = check_size("auxiliary_steps", steps, minimum=2)
        self.lower, self.upper = lower, upper
        self.decoder = nn.Linear(upper.output_size, width)

    def draw_segment(self, length: int) -> tuple[int, int, int]:
        """The anchor and the inputs to follow, of sequences of so many steps.

        Returns:
            the number of steps before the anchor, which is drawn from torch's global generator, the
            first of the inputs, and the step after the last; of sequences that are too short for
            `steps` inputs, all but one.

        Raises:
            ValueError: sequences of fewer than 3 steps.
        """
        steps = min(self.steps, check_size("steps of a sequence", length, minimum=3) - 1)
        least = 0 if self.kind == "reconstruct" else 1  # the state has seen something
        first = int(torch.randint(least, length - steps + 1, ()))
        if self.kind == "reconstruct":
            return first + steps, first, first + steps
        return first, first, first + steps

    def forward(self, network: SequenceModel, inputs: Tensor) -> Tensor:
        """The mean loss over the inputs to follow.

        Args:
            network: whose state is asked.
            inputs: numbers (T, B, input_size), or tokens (T, B), int64.

        Raises:
            ValueError: as `draw_segment`.
        """
        anchor, first, end = self.draw_segment(len(inputs))
        x = network.encode(inputs)
        _, state = network.core(x[:anchor])
        outputs, _ = self.upper(self.lower(x[first : end - 1], state)[0])
        predictions = self.decoder(outputs).flatten(0, 1)
        targets = inputs[first + 1 : end].flatten(0, 1)
        if network.num_tokens is not None:
            return nn.functional.cross_entropy(predictions, targets)
        return nn.functional.mse_loss(predictions, targets)
