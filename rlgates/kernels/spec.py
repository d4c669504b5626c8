"""What a layer tells the kernels about itself: plain data, and the protocols they rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor


class CellSpec(NamedTuple):
    """A cell that a kernel runs step by step: its name, sizes and weights.

    Attributes:
        cell: one of `rlgates.kernels.layout.CELLS`.
        sizes: its sizes and flags, see `rlgates.kernels.layout`.
        weights: a weight that an option leaves out is a tensor without elements. Those of
            "lstm", "gru_after", "gru_before" (where the reset gate acts) and "janet" are
            `weight_ih`, `bias_ih`, `weight_hh` and `bias_hh`, stacked as in
            `rlgates.cores.stacked.Stacked`.
        gate: activation, auxiliary and chunk size of the gate, if the cell has one: see
            `rlgates.gates`. The chunk size is how many units share one master value.
        dropout: probability with which units are dropped; 0 also in evaluation.
        zoneout: probability for each part of the state that a unit keeps its old value; empty
            without zoneout.
        training: whether zoneout is random; in evaluation it is the expectation.
        constant: of "janet", how far it lowers the forget pre-activation for its input gate; of
            "gato", the decay rate of its state; of "dnc", its clip, 0 for none; of "lem", dt.
    """

    cell: str
    sizes: tuple[int, ...]
    weights: tuple[Tensor, ...]
    gate: tuple[str, str, int] | None = None
    dropout: float = 0.0
    zoneout: tuple[float, ...] = ()
    training: bool = False
    constant: float = 0.0


class LinearStep(NamedTuple):
    """The coefficients of h' = a * h + b for all steps, computed from the input alone.

    Numbers are real, with S = d, or complex, with S = 2 d: real parts, then imaginary parts.

    Attributes:
        a: (T, B, S); (S,) if it is the same at every step and in every batch entry.
        b: (T, B, S).
        extra: what the output reads besides h, (T, B, R); None if it reads h alone.
    """

    a: Tensor
    b: Tensor
    extra: Tensor | None = None


class Channels(NamedTuple):
    """Linear systems of E channels for all steps, whose states are read as they come.

        H' = A * H + w b,   y = sum over N of c * H' + skip * u

    Fixed systems are complex: A, b and c are (2 E N), all real parts before all imaginary ones, w
    is u, and the product with c is that of two pairs of real numbers. Selective ones are real:

        step = softplus(step + step_bias),   A = exp(step a),   w = step u,   y * silu(gate)

    Attributes:
        u: (T, B, E).
        step, step_bias, gate: (T, B, E), (E) and (T, B, E); None for fixed systems.
        a: (2 E N), or rates that are not above 0, (E N) or (E).
        b, c: (2 E N), or (T, B, N) for all channels.
        skip: (E).
    """

    u: Tensor
    step: Tensor | None
    step_bias: Tensor | None
    gate: Tensor | None
    a: Tensor
    b: Tensor
    c: Tensor
    skip: Tensor


class LinearScan(NamedTuple):
    """A cell that is linear in its state, see `rlgates.cell.LinearCell`.

    Attributes:
        linear: gives the coefficients of all steps from x (T, B, I).
        read: gives the outputs from the states and `LinearStep.extra`.
        is_complex: whether the state is the real and imaginary parts of complex numbers.
        window: how many numbers before h in the state are inputs that `before` needs again.
        before: if the coefficients read earlier inputs too: from x (T, B, I), the window (B, W)
            before the first step and the episode starts, where the window is zero, what `linear`
            reads in place of x, and the window after the last step.
        channels: if the state is that of channels: what kernels read in place of `linear` and
            `before`, from what `before` reads, and the window after the last step.
        behind: in that case the outputs from the y of `Channels`.
        cell: a cell that does the same; native code runs it instead.
    """

    linear: Callable[[Tensor], LinearStep]
    read: Callable[[Tensor, Tensor | None], Tensor]
    is_complex: bool = False
    window: int = 0
    before: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]] | None = None
    channels: Callable[[Tensor, Tensor, Tensor | None], tuple[Channels, Tensor]] | None = None
    behind: Callable[[Tensor], Tensor] = lambda y: y
    cell: CellSpec | None = None


class MemorySteps(NamedTuple):
    """What steps read from memories of keys and values and write to them, for each head:

        S' = S diag(decay) - (S removal) rate^T + v k^T,   y = S' q

    with a row of S for each number of a value.

    Attributes:
        q, k: query and key, (T, B, heads, key_size).
        v: value, (T, B, heads, value_size).
        decay: (T, B, heads) or (T, B, heads, key_size); None for 1.
        removal: the key whose value is removed, as k; None for nothing.
        rate: how much of it each number of a key loses, as k.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None = None
    removal: Tensor | None = None
    rate: Tensor | None = None


RunMemories = Callable[[MemorySteps, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]
"""y of all steps (T, B, heads, value_size) and the memories after the last one, from the steps, the
memories before the first one and at episode starts (None for zeros), both (B, heads, value_size,
key_size), and the episode starts (T, B) or None."""


class Memories(NamedTuple):
    """A cell whose state is memories of keys and values, with their sums and last inputs, if any.

    Attributes:
        run: as that of `AllSteps`, with what runs the memories as its last argument.
    """

    run: Callable[
        [Tensor, Tensor, Tensor | None, Tensor | None, RunMemories], tuple[Tensor, Tensor]
    ]


class AllSteps(NamedTuple):
    """A cell whose steps need no loop: a few operations of PyTorch compute all of them.

    Attributes:
        run: gives the outputs (T, B, O) and the final state (B, S) from x (T, B, I), the state
            before the first step (B, S), `episode_starts` (T, B) or None, and the state at
            episode starts (B, S), or None for zeros.
        native: what native code runs instead, and Triton too if it is a `LinearScan`; None if
            neither has anything faster.
    """

    run: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]
    native: LinearScan | Memories | None = None


class NoKernel(NamedTuple):
    """A layer of a kind that kernels run, but not as it is, and why."""

    reason: str


LayerSpec = CellSpec | LinearScan | AllSteps | NoKernel


class Layer(Protocol):
    """What `rlgates.kernels.run` needs of a cell."""

    def recurrence(self) -> LayerSpec | None:
        """The specification of the layer; None if no kernel knows such layers."""
