"""Every core with the interface of `torch.nn.LSTM`: (x, hx) -> (output, hx).

    lstm = rlgates.nn.LSTM(32, 64, gate="ur", batch_first=True)
    output, (h, c) = lstm(x)                # x (B, T, 32), or (T, 32), or a PackedSequence

`rlgates.make_core` is the library's own interface, with one packed state and episode starts inside
the sequence; these modules are for code written for torch's layers.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from rlgates.cell import Cell, check_tensor
from rlgates.core import Core
from rlgates.cores.gru import GRU as GRUCell
from rlgates.cores.lstm import LSTM as LSTMCell
from rlgates.errors import MAX_DEPTH, check_flag, check_probability, check_size
from rlgates.gates import GateLike
from rlgates.registry import core_options, make_core

__all__ = ["GRU", "LSTM", "Recurrent"]

_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_NOT_OF_TORCH = ("zoneout_cell", "zoneout_hidden", "recurrent_dropout")

Hidden = Tensor | tuple[Tensor, ...]


class Recurrent(nn.Module):
    """Any core as a module of torch.nn.

    Args:
        core: a name from `rlgates.list_cores()`.
        input_size: width of the input I.
        hidden_size: number of units of a layer; the class of the core says what it counts.
        num_layers: number of layers L.
        batch_first: input and output are (B, T, ...) instead of (T, B, ...); states never are.
        dropout: dropout probability, during training, of the outputs of all layers but the last.
        bidirectional: each layer also runs backwards (D = 2 directions), and its output is that of
            both directions, concatenated.
        device, dtype: of the parameters; float32 or float64.
        options: of the core, its gate and its state, as in `rlgates.make_core`.

    Attributes:
        cores: one core for each layer and direction, in the order of torch's states.
        parts: names of the parts of the state, in their order.

    With a core that has the parameters of a torch.nn layer, such as "lstm" or "gru",
    `load_state_dict` also takes the state dict of that layer.

    Raises:
        ValueError: an unknown core or option, a size below 1, a probability outside [0, 1);
            torch.nn's `bias=False` or `proj_size`; `skip_connections`, or a custom core whose
            layers have different states.
        TypeError: a size that is not an integer, a flag that is not a bool.
    """

    cores: nn.ModuleList

    def __init__(
        self,
        core: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.num_layers = check_size("num_layers", num_layers, maximum=MAX_DEPTH)
        self.batch_first = check_flag("batch_first", batch_first)
        self.dropout = check_probability("dropout", dropout)
        self.bidirectional = check_flag("bidirectional", bidirectional)
        _check_torch_options(core, options)
        if self.dropout and num_layers == 1:
            warnings.warn(
                "dropout acts on the outputs of all layers but the last, so dropout="
                f"{dropout} does nothing with num_layers=1.",
                stacklevel=2 if type(self) is Recurrent else 3,
            )
        if options.get("skip_connections"):
            raise ValueError("skip_connections is for rlgates.make_core: torch's layers have none.")
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.num_directions = 2 if bidirectional else 1
        self.cores = nn.ModuleList()
        cells: list[Cell] = []
        width = input_size
        for _ in range(num_layers):
            for _ in range(self.num_directions):
                made = make_core(core, width, hidden_size, device=device, dtype=dtype, **options)
                self.cores.append(made)
            width = made.output_size * self.num_directions
            cells += made._layers()
            for name in cells[0].first_layer_options:
                options.pop(name, None)
        if any(other.state_shapes != cells[0].state_shapes for other in cells):
            raise ValueError(f"the layers of core {core!r} have different states: use make_core.")
        self.output_size = width
        self.parts = tuple(cells[0].state_shapes)
        self.register_load_state_dict_pre_hook(_rename_torch_keys)  # type: ignore[no-untyped-call]

    def forward(
        self,
        x: Tensor | PackedSequence,
        hx: Hidden | None = None,
        *,
        episode_starts: Tensor | None = None,
    ) -> tuple[Any, Hidden]:
        """Run over sequences.

        Args:
            x: (T, B, I), (B, T, I) with `batch_first`, one sequence (T, I), or a PackedSequence.
            hx: the state: a tuple of its parts (`parts`), or the only part itself, each
                (L * D, B, *shape), without B for one sequence; the core's initial state if None.
                A custom core of several layers counts as that many layers.
            episode_starts: bool, (T, B), or in the layout of x; true where an episode starts: the
                state that enters the step is the initial one. Not with a PackedSequence or with two
                directions.

        Returns:
            the output, in the layout of x and of width `output_size`; and the state after the last
            step of each sequence, in the layout of hx.

        Raises:
            ValueError: a shape or dtype that does not fit, with what is expected.
            TypeError: x, episode_starts or a part of hx is not a tensor.
        """
        if isinstance(x, PackedSequence):
            if episode_starts is not None:
                raise ValueError("episode_starts need padded sequences, got a PackedSequence.")
            return self._run_packed(x, hx)
        if check_tensor("x", x).ndim not in (2, 3):
            raise ValueError(f"x must have 2 or 3 dimensions, got shape {tuple(x.shape)}.")
        single, swapped = x.ndim == 2, self.batch_first and x.ndim == 3
        if x.shape[-1] != self.input_size or not x.shape[1 if swapped else 0]:
            axes = "T" if single else "B, T" if swapped else "T, B"
            raise ValueError(
                f"x must be ({axes}, {self.input_size}) with T >= 1, got {tuple(x.shape)}."
            )
        if episode_starts is not None:
            if self.bidirectional:
                raise ValueError("episode_starts are for one direction, this has two.")
            if check_tensor("episode_starts", episode_starts).shape != x.shape[:-1]:
                raise ValueError(
                    f"episode_starts must be {tuple(x.shape[:-1])} as x is, "
                    f"got {tuple(episode_starts.shape)}."
                )
            episode_starts = episode_starts.unsqueeze(1) if single else episode_starts
            episode_starts = episode_starts.t() if swapped else episode_starts
        x = x.unsqueeze(1) if single else x.transpose(0, 1) if swapped else x
        output, final = self._run(x, self._states(hx, x.shape[1], single), None, episode_starts)
        output = output.squeeze(1) if single else output.transpose(0, 1) if swapped else output
        return output, self._hidden(final, single)

    def _run_packed(
        self, packed: PackedSequence, hx: Hidden | None
    ) -> tuple[PackedSequence, Hidden]:
        # Its rows are sorted: the longest first.
        sorted_rows = PackedSequence(packed.data, packed.batch_sizes)
        x, lengths = pad_packed_sequence(sorted_rows)
        states = self._states(hx, x.shape[1], single=False)
        if packed.sorted_indices is not None:
            states = [None if s is None else s[packed.sorted_indices] for s in states]
        output, final = self._run(x, states, lengths, None)
        data = pack_padded_sequence(output, lengths)
        if packed.unsorted_indices is not None:
            final = [state[packed.unsorted_indices] for state in final]
        result = PackedSequence(
            data.data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
        )
        return result, self._hidden(final, single=False)

    def _run(
        self,
        x: Tensor,
        states: list[Tensor | None],
        lengths: Tensor | None,
        episode_starts: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """All layers over x (T, B, I), sequences of falling lengths or all of T steps."""
        final = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            outputs = []
            for direction in range(self.num_directions):
                index = layer * self.num_directions + direction
                below = _reversed(x, lengths) if direction else x
                output, state = _run_core(
                    self._core(index), below, states[index], lengths, episode_starts
                )
                outputs.append(_reversed(output, lengths) if direction else output)
                final.append(state)
            x = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
        return x, final

    def _core(self, index: int) -> Core:
        core = self.cores[index]
        assert isinstance(core, Core)
        return core

    def _states(self, hx: Hidden | None, batch_size: int, single: bool) -> list[Tensor | None]:
        """The packed state of each core; None for its initial state."""
        if hx is None:
            return [None] * len(self.cores)
        if not isinstance(hx, Tensor | tuple | list):
            raise TypeError(f"hx must be a tuple of tensors or None, got {hx!r}.")
        given = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if len(given) != len(self.parts):
            raise ValueError(
                f"hx must have the parts {', '.join(self.parts) or '(none)'}, got {len(given)}."
            )
        shapes = self._core(0)._layers()[0].state_shapes
        layers = [self._core(index).num_layers for index in range(len(self.cores))]
        for name, part in zip(self.parts, given, strict=True):
            batch = () if single else (batch_size,)
            shape = (sum(layers), *batch, *shapes[name])
            if check_tensor(name, part).shape != shape:
                raise ValueError(f"{name} must be {shape}, got {tuple(part.shape)}.")
        if not given:
            return [None] * len(self.cores)
        batched = [part.unsqueeze(1) if single else part for part in given]
        return [
            self._core(index).pack(dict(zip(self.parts, parts, strict=True)))
            for index, parts in enumerate(
                zip(*(part.split(layers) for part in batched), strict=True)
            )
        ]

    def _hidden(self, states: list[Tensor], single: bool) -> Hidden:
        layers = [self._core(index).unpack(state) for index, state in enumerate(states)]
        parts = [torch.cat([layer[name] for layer in layers]) for name in self.parts]
        parts = [part.squeeze(1) for part in parts] if single else parts
        return parts[0] if len(parts) == 1 else tuple(parts)

    def reset_parameters(self) -> None:
        """Sample the initial parameters of all cores again."""
        for index in range(len(self.cores)):
            self._core(index).reset_parameters()

    def flatten_parameters(self) -> None:
        """Do nothing; kept because code for torch's layers calls it (there it is for cuDNN)."""

    @classmethod
    def from_torch(cls, module: nn.LSTM | nn.GRU) -> Recurrent:
        """The same layers with the same weights, as an `LSTM` or `GRU` of this module.

        Raises:
            ValueError: projections (`proj_size`), which no core has.
            TypeError: another module.
        """
        if not isinstance(module, nn.LSTM | nn.GRU):
            raise TypeError(f"module must be a torch.nn.LSTM or GRU, got {type(module).__name__}.")
        if module.proj_size:
            raise ValueError(f"proj_size must be 0: no core projects, got {module.proj_size}.")
        weight = module.get_parameter("weight_ih_l0")
        made = (LSTM if isinstance(module, nn.LSTM) else GRU)(
            module.input_size,
            module.hidden_size,
            module.num_layers,
            batch_first=module.batch_first,
            dropout=module.dropout,
            bidirectional=module.bidirectional,
            device=weight.device,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            for index, suffix in enumerate(made._suffixes()):
                cell = made._core(index).cells[0]
                for name in _PARAMETERS:
                    source = getattr(module, name + suffix, None)  # without biases they are zero
                    parameter = getattr(cell, name)
                    parameter.zero_() if source is None else parameter.copy_(source)
                    parameter.requires_grad_(source is None or source.requires_grad)
        return made.train(module.training)

    def to_torch(self) -> nn.LSTM | nn.GRU:
        """The same layers with the same weights in torch.nn.

        Raises:
            ValueError: torch has no such layer.
        """
        cell = self._core(0).cells[0]
        kinds: dict[type, type[nn.LSTM] | type[nn.GRU]] = {LSTMCell: nn.LSTM, GRUCell: nn.GRU}
        if not cell.torch_layout or type(cell) not in kinds:
            raise ValueError(f"torch.nn has no layer like {self._core(0).name!r}.")
        ours = [name for name in _NOT_OF_TORCH if getattr(cell, name, 0)]
        if self._core(0).learned is not None:
            ours.append("learned_state")
        if ours:
            raise ValueError(f"layers of torch.nn have no {', '.join(ours)}.")
        module = kinds[type(cell)](
            self.input_size,
            self.hidden_size,
            self.num_layers,
            batch_first=self.batch_first,
            dropout=self.dropout,
            bidirectional=self.bidirectional,
            device=cell.weight_ih.device,
            dtype=cell.weight_ih.dtype,
        )
        with torch.no_grad():
            for index, suffix in enumerate(self._suffixes()):
                for name in _PARAMETERS:
                    source = getattr(self._core(index).cells[0], name)
                    parameter = getattr(module, name + suffix)
                    parameter.copy_(source).requires_grad_(source.requires_grad)
        return module.train(self.training)

    def _suffixes(self) -> list[str]:
        """How torch ends the names of the parameters of each layer and direction."""
        return [
            f"_l{layer}{reverse}"
            for layer in range(self.num_layers)
            for reverse in ("", "_reverse")[: self.num_directions]
        ]

    def extra_repr(self) -> str:
        flags = ("batch_first", "bidirectional", "dropout")
        given = "".join(f", {name}={value}" for name in flags if (value := getattr(self, name)))
        sizes = f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        return f"{self._core(0).name!r}, {sizes}{given}"


def _check_torch_options(core: str, options: dict[str, Any]) -> None:
    """Take the defaults of options of torch.nn, which no core has, from `options`.

    Raises:
        ValueError: they have other values.
    """
    known = core_options(core)
    if "bias" not in known and not options.pop("bias", True):
        raise ValueError("bias=False is not supported: the cores of rlgates have their biases.")
    if "proj_size" not in known and options.pop("proj_size", 0):
        raise ValueError("proj_size is not supported: no core projects its output.")


def _rename_torch_keys(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let `load_state_dict` take the state dict of a torch.nn layer (`weight_ih_l0`, ...)."""
    assert isinstance(module, Recurrent)
    for index, suffix in enumerate(module._suffixes()):
        core = module._core(index)
        if not core.cells[0].torch_layout:
            return
        found = [name for name in _PARAMETERS if f"{prefix}{name}{suffix}" in state_dict]
        for name in found:
            key = f"{prefix}cores.{index}.cells.0.{name}"
            state_dict[key] = state_dict.pop(f"{prefix}{name}{suffix}")
        if found and core.learned:  # which a layer of torch.nn does not have
            for name, value in core._learnable_parts().items():
                state_dict.setdefault(f"{prefix}cores.{index}.learned.{name}", value)


class _Gated(Recurrent):
    """The arguments that `LSTM` and `GRU` have in common."""

    _name: ClassVar[str]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        gate: GateLike = "",
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            self._name,
            input_size,
            hidden_size,
            num_layers,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
            dtype=dtype,
            gate=gate,
            **options,
        )


class LSTM(_Gated):
    """The LSTM with any gate, to replace `torch.nn.LSTM`; hx is (h, c).

    With the plain gate it computes the same as torch's, but its initial forget bias is 1
    (`forget_bias`). Takes the arguments of `Recurrent`, and `gate`: a key of `rlgates.GATES`, such
    as "ur", a row, or a `Gate` of `hidden_size` units.
    """

    _name = "lstm"


class GRU(_Gated):
    """The GRU with any gate, to replace `torch.nn.GRU`; hx is h. Otherwise like `LSTM`."""

    _name = "gru"


def _run_core(
    core: Core,
    x: Tensor,
    state: Tensor | None,
    lengths: Tensor | None,
    episode_starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """A core over x (T, B, I); with falling lengths, the state is that after the last step of each
    sequence, and outputs after it are zero."""
    if lengths is None:
        return core(x, state, episode_starts)  # type: ignore[no-any-return]
    if state is None:
        state = core.initial_state(x.shape[1])
    outputs: list[Tensor] = []
    finished: list[Tensor] = []
    begin = 0
    # All sequences that are as long as this run on together; then the shortest of them end.
    for end in torch.unique(lengths).tolist():
        rows = int((lengths >= end).sum())
        output, state = core(x[begin:end, :rows], state[:rows])
        outputs.append(nn.functional.pad(output, (0, 0, 0, x.shape[1] - rows)))
        going_on = int((lengths > end).sum())
        finished.insert(0, state[going_on:])
        begin = end
    return torch.cat(outputs), torch.cat(finished)


def _reversed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sequence of x (T, B, ...) in reverse order; what lies behind its end stays."""
    if lengths is None:
        return x.flip(0)
    steps = torch.arange(len(x), device=lengths.device).unsqueeze(1)
    index = torch.where(steps < lengths, lengths - 1 - steps, steps).to(x.device)
    return x.gather(0, index.unsqueeze(-1).expand_as(x))
