"""The network that is trained on a task: encoder, core and decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlgates.cell import check_tensor
from rlgates.core import Core
from rlgates.deprecation import warn_renamed
from rlgates.errors import check_flag, check_probability, check_size
from rlgates.experiments.tasks.task import Task
from rlgates.registry import make_core


class SequenceModel(nn.Module):
    """Encoder, core and decoder: inputs of a task to predictions.

    Tokens are encoded as one-hot vectors or as learned embeddings; numbers enter the core as they
    are. The decoder is an affine map, optionally with a ReLU layer before it.

    Args:
        core: its input size must be `core_input_size(task, embedding_size)`.
        task: determines the inputs, the number of predictions and their width.
        embedding_size: width of the learned embeddings; None for one-hot tokens.
        decoder_size: width of the ReLU layer; None for no such layer.
        tied: share the weights of embedding and decoder, initialized from
            N(0, 1 / embedding_size). If the embedding is not as wide as the core's output, and
            there is no ReLU layer, a linear map without bias stands between.
        input_dropout: dropout of the core's inputs.
        output_dropout: dropout of the affine decoder's inputs, which are the ReLU layer or else
            the core's outputs.

    Raises:
        ValueError: embeddings for a task without tokens, a core of another input size, weights
            that cannot be shared, an invalid probability, a size below 1.
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
        width = core_input_size(task, embedding_size)
        if core.input_size != width:
            raise ValueError(f"the core must have input_size {width}, got {core.input_size}.")
        self.input_dropout = check_probability("input_dropout", input_dropout)
        self.output_dropout = check_probability("output_dropout", output_dropout)
        self.core, self.scored = core, task.scored
        self.num_tokens = task.input_size if task.tokens else None
        self.one_hot = task.input_size if task.tokens and embedding_size is None else None
        # The decoder is built before the embedding: committed results hang on this order of
        # random numbers.
        below: list[nn.Module] = []
        width = core.output_size
        if decoder_size is not None:
            below = [nn.Linear(width, check_size("decoder_size", decoder_size)), nn.ReLU()]
            width = decoder_size
        elif check_flag("tied", tied) and embedding_size not in (None, width):
            width = check_size("embedding_size", embedding_size)
            below = [nn.Linear(core.output_size, width, bias=False)]
        self.below = nn.Sequential(*below)
        self.decoder = nn.Linear(width, task.output_size)
        self.embedding: nn.Embedding | None = None
        if embedding_size is not None:
            self.embedding = nn.Embedding(task.input_size, embedding_size)
        if tied:
            self._tie_weights(task)

    def _tie_weights(self, task: Task) -> None:
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

    def unroll(
        self, inputs: Tensor, state: Tensor | None = None, episode_starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predictions from a state, and the state after the last step.

        Args:
            inputs: numbers (T, B, input_size), or tokens (T, B), int64.
            state: (B, state_size); the initial state if None.
            episode_starts: (T, B) bool, true where a sequence starts, see `Core.forward`.

        Returns:
            predictions (scored, B, output_size), of all T steps if the task has no `scored`, and
            the state (B, state_size) after the last step.

        Raises:
            ValueError: a shape or dtype that does not fit, or fewer steps than are scored.
        """
        hidden, state = self.unroll_hidden(inputs, state, episode_starts)
        predictions: Tensor = self.decoder(hidden)
        return predictions, state

    def unroll_hidden(
        self, inputs: Tensor, state: Tensor | None = None, episode_starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `unroll`, with the inputs of the decoder, (scored, B, ...), for the predictions."""
        outputs, state = self.core(self.encode(inputs), state, episode_starts)
        if self.scored is not None:
            if len(outputs) < self.scored:
                raise ValueError(
                    f"inputs must have {self.scored} steps or more, got {len(outputs)}."
                )
            outputs = outputs[-self.scored :]
        hidden = self.below(outputs)
        return nn.functional.dropout(hidden, self.output_dropout, self.training), state

    def read(
        self, inputs: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The former name of `unroll`."""
        warn_renamed("Reader.read", "SequenceModel.unroll")
        return self.unroll(inputs, state, starts)

    def encode(self, inputs: Tensor) -> Tensor:
        """The core's inputs, (T, B, core.input_size), from numbers or tokens.

        Raises:
            TypeError: tokens that are not int64. ValueError: tokens out of range, or of another
                shape than (T, B).
        """
        if self.num_tokens is not None:
            _check_tokens(inputs, self.num_tokens)
        if self.embedding is not None:
            x: Tensor = self.embedding(inputs)
        elif self.one_hot is not None:
            dtype = self.decoder.weight.dtype
            x = nn.functional.one_hot(inputs, self.one_hot).to(dtype)
        else:
            x = inputs
        return nn.functional.dropout(x, self.input_dropout, self.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """The predictions of `unroll` from the initial state."""
        return self.unroll(inputs)[0]


def _check_tokens(tokens: Tensor, count: int) -> None:
    if check_tensor("tokens", tokens).dtype != torch.int64:
        raise TypeError(f"tokens must be int64, got {tokens.dtype}.")
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"tokens must be (T, B), not empty, got {tuple(tokens.shape)}.")
    if tokens.device.type != "cpu":  # a look at them would wait for the device
        return
    least, most = tokens.aminmax()
    if least < 0 or most >= count:
        wrong = int(least if least < 0 else most)
        raise ValueError(f"tokens must be from 0 to {count - 1}, got {wrong}.")


def core_input_size(task: Task, embedding_size: int | None = None) -> int:
    """The input size of the core of a `SequenceModel`.

    Raises:
        ValueError: an `embedding_size` for a task whose inputs are not tokens.
    """
    if not isinstance(task, Task):
        raise TypeError(f"task must be a Task, as make_task makes it, got {task!r}.")
    if embedding_size is None:
        return task.input_size
    if not task.tokens:
        raise ValueError(
            "embedding_size is for tasks of tokens; the inputs of this one are numbers."
        )
    return check_size("embedding_size", embedding_size)


def make_sequence_model(
    task: Task,
    core: str,
    hidden_size: int,
    num_layers: int = 1,
    *,
    core_options: dict[str, Any] | None = None,
    **options: Any,
) -> SequenceModel:
    """A `SequenceModel` for a task, with a core by name.

    Args:
        task: the task to train on.
        core, hidden_size, num_layers: see `make_core`.
        core_options: options of the core, such as zoneout and recurrent dropout.
        options: of `SequenceModel`.

    Raises:
        ValueError, TypeError: as `make_core` and `SequenceModel`.
    """
    width = core_input_size(task, options.get("embedding_size"))
    return SequenceModel(
        make_core(core, width, hidden_size, num_layers, **(core_options or {})), task, **options
    )
