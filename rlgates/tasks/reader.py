"""The network that is trained on a task: encoder, core and decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlgates.core import Core
from rlgates.cores import make_core
from rlgates.errors import check_flag, check_probability, check_size
from rlgates.tasks.task import Task


class Reader(nn.Module):
    """Inputs into a core, and its outputs into predictions.

    Tokens enter as one-hot numbers, or as vectors that are learned; numbers enter as they are.
    The decoder is an affine map, with a ReLU layer before it if one is asked for.

    Args:
        core: reads `input_width(task, embedding_size)` numbers a step.
        task: for its inputs, the number of predictions and their width.
        embedding_size: width of the learned vectors of tokens; None: tokens are one-hot.
        decoder_size: width of the ReLU layer; None: there is none.
        tied: the learned vectors are the weights of the decoder too, and start from
            N(0, 1 / embedding_size). Where their width is not that of the core's output, and
            there is no ReLU layer, a linear map without bias stands between.
        input_dropout: probability with which a number that enters the core is zero while
            training.
        output_dropout: the same for what the decoder's affine map reads: the ReLU layer, or
            else the outputs of the core.

    Raises:
        ValueError: learned vectors for a task without tokens, a core of another width, weights
            that cannot be shared, a probability that is none, a size below 1.
        TypeError: a value of the wrong type.
    """

    def __init__(
        self,
        core: Core,
        task: Task,
        *,
        embedding_size: int | None = None,
        decoder_size: int | None = None,
        tied: bool = False,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = input_width(task, embedding_size)
        if core.input_size != width:
            raise ValueError(f"the core must read {width} numbers a step, got {core.input_size}.")
        self.input_dropout = check_probability("input_dropout", input_dropout)
        self.output_dropout = check_probability("output_dropout", output_dropout)
        self.core, self.scored = core, task.scored
        self.one_hot = task.input_size if task.tokens and embedding_size is None else None
        # The decoder is made next after the core: committed results come from these draws.
        below: list[nn.Module] = []
        last = core.output_size
        if decoder_size is not None:
            below = [nn.Linear(last, check_size("decoder_size", decoder_size)), nn.ReLU()]
            last = decoder_size
        elif check_flag("tied", tied) and embedding_size not in (None, last):
            last = check_size("embedding_size", embedding_size)
            below = [nn.Linear(core.output_size, last, bias=False)]
        self.below = nn.Sequential(*below)
        self.decoder = nn.Linear(last, task.output_size)
        self.embedding: nn.Embedding | None = None
        if embedding_size is not None:
            self.embedding = nn.Embedding(task.input_size, embedding_size)
        if tied:
            self._tie(task)

    def _tie(self, task: Task) -> None:
        if self.embedding is None:
            raise ValueError("tied=True needs an embedding_size.")
        if self.embedding.weight.shape != self.decoder.weight.shape:
            raise ValueError(
                f"tied=True needs as many tokens as predictions, got {task.input_size} and "
                f"{task.output_size}, and a decoder_size of {self.embedding.embedding_dim} or "
                f"None, got {self.decoder.in_features}."
            )
        nn.init.normal_(self.embedding.weight, std=self.embedding.embedding_dim**-0.5)
        self.decoder.weight = self.embedding.weight

    def read(
        self, inputs: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predictions, and the state from which to read on.

        Args:
            inputs: numbers (T, B, input_size), or tokens (T, B), int64.
            state: (B, state_size); the initial state if None.
            starts: (T, B) bool, true where a sequence starts, see `Core.forward`.

        Returns:
            predictions (scored, B, output_size), of all T steps if the task has no `scored`, and
            the state (B, state_size) after the last step.

        Raises:
            ValueError: a shape or dtype that does not fit, or fewer steps than are scored.
        """
        outputs, state = self.core(self.encode(inputs), state, starts)
        if self.scored is not None and len(outputs) < self.scored:
            raise ValueError(f"inputs must have {self.scored} steps or more, got {len(outputs)}.")
        hidden = self.below(outputs[-(self.scored or len(outputs)) :])
        predictions: Tensor = self.decoder(_dropped(hidden, self.output_dropout, self.training))
        return predictions, state

    def encode(self, inputs: Tensor) -> Tensor:
        """What the core reads, (T, B, core.input_size), of numbers or tokens."""
        if self.embedding is not None:
            x: Tensor = self.embedding(inputs)
        elif self.one_hot is not None:
            dtype = self.decoder.weight.dtype
            x = nn.functional.one_hot(inputs, self.one_hot).to(dtype)
        else:
            x = inputs
        return _dropped(x, self.input_dropout, self.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """The predictions of `read` from the initial state."""
        return self.read(inputs)[0]


def _dropped(x: Tensor, probability: float, training: bool) -> Tensor:
    if not (probability and training):
        return x
    return torch.nn.functional.dropout(x, probability)


def input_width(task: Task, embedding_size: int | None = None) -> int:
    """How many numbers a step the core of a `Reader` reads.

    Raises:
        ValueError: an `embedding_size` for a task whose inputs are no tokens.
    """
    if embedding_size is None:
        return task.input_size
    if not task.tokens:
        raise ValueError("embedding_size is for tasks of tokens; this one has numbers.")
    return check_size("embedding_size", embedding_size)


def make_reader(
    task: Task,
    core: str,
    hidden_size: int,
    num_layers: int = 1,
    *,
    core_options: dict[str, Any] | None = None,
    **options: Any,
) -> Reader:
    """The network for a task: a core by name in a `Reader`.

    Args:
        task: what is trained on.
        core, hidden_size, num_layers: see `make_core`.
        core_options: options of the core, zoneout and recurrent dropout among them.
        options: of `Reader`.

    Raises:
        ValueError, TypeError: as `make_core` and `Reader`.
    """
    width = input_width(task, options.get("embedding_size"))
    made = make_core(core, width, hidden_size, num_layers, **(core_options or {}))
    return Reader(made, task, **options)
