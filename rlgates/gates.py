"""The gates, as two independent axes (Gu et al. 2020, table 1; Ohno et al. 2022).

Axis A is how the raw gate is computed from its pre-activation and how its bias is initialized:
`ACTIVATIONS` and `INITS`. Axis B turns the raw gate into the effective pair (forget, input):
`AUXILIARIES`. A row of `GATES` is one choice on each axis; every gated core takes every row.

Gates and their gradients are finite for every finite pre-activation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from rlgates.errors import (
    MAX_WIDTH,
    check_choice,
    check_flag,
    check_number,
    check_size,
    check_text,
    nearest,
    suggestion,
    unknown_choice,
)

# Beyond +-8 a fast gate is 0 or 1 to the last bit of float64 (sinh 8 = 1490), so the clamp
# changes no value; it keeps sinh and cosh finite, which a backward pass multiplies by zero.
_SATURATED = 8.0


class Activation(NamedTuple):
    """One way to compute a raw gate.

    Attributes:
        forget, input: the gates from their pre-activations. An untied input gate is a sigmoid,
            except with cumax: the functions of Ohno et al. are for the forget gate only.
        from_logit: maps a logit to the z with forget(z) = sigmoid(logit), without first rounding
            the gate to 0 or 1; None if there is no such z, for example because a unit's gate
            depends on the other units. Then only the initializations "zero" and "chrono" are
            possible.
    """

    forget: Callable[[Tensor], Tensor]
    input: Callable[[Tensor], Tensor] = torch.sigmoid
    from_logit: Callable[[Tensor], Tensor] | None = None


def fast(z: Tensor) -> Tensor:
    """sigmoid(sinh z), the fast gate (Ohno et al. 2022, equation 20)."""
    return torch.sigmoid(torch.sinh(z.clamp(-_SATURATED, _SATURATED)))


def iterated_fast(z: Tensor) -> Tensor:
    """sigmoid(sinh(sinh z)), sinh applied twice (Ohno et al. 2022, appendix D)."""
    return fast(torch.sinh(z.clamp(-_SATURATED, _SATURATED)))


def softsign(z: Tensor) -> Tensor:
    """(softsign(z / 2) + 1) / 2 with softsign(y) = y / (1 + |y|): saturates slowly."""
    return (torch.nn.functional.softsign(z / 2) + 1) / 2


def _softsign_from_logit(y: Tensor) -> Tensor:
    # Beyond +-40 the gate is 0 or 1 to the last bit of float64, and exp(89) no longer finite.
    return y.sign() * y.abs().clamp(max=40).expm1()


def cumax(z: Tensor) -> Tensor:
    """cumsum(softmax(z)) over the units: rises from 0 to 1 (Shen et al. 2018, section 4.1)."""
    # The running sum may exceed 1 by rounding; its last unit is exactly 1 by definition.
    return torch.cumsum(torch.softmax(z, dim=-1), dim=-1).clamp(max=1.0)


ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": Activation(torch.sigmoid, torch.sigmoid, lambda y: y),
    "fast": Activation(fast, torch.sigmoid, torch.asinh),
    "iterated_fast": Activation(
        iterated_fast, torch.sigmoid, lambda y: torch.asinh(torch.asinh(y))
    ),
    "softsign": Activation(softsign, torch.sigmoid, _softsign_from_logit),
    "cumax": Activation(cumax, lambda z: 1 - cumax(z), None),
}

Init = Literal["constant", "chrono", "uniform", "zero"]
Decay = Literal["linear", "exponential"]

# How the biases are initialized: the option that a row takes, and what it means. phi is the
# activation of the gate.
INITS: dict[Init, str | None] = {
    "constant": "forget_bias",  # phi(b_f) = sigmoid(forget_bias), b_i = 0
    "chrono": "t_max",  # b_f ~ log U[1, t_max - 1], b_i = -b_f
    "uniform": None,  # phi(b_f) ~ U[1/d, 1 - 1/d] (UGI), b_i = -b_f
    "zero": None,  # b_f = b_i = 0
}


class Auxiliary(NamedTuple):
    """One way to make the effective gates.

    Attributes:
        maps: the maps it needs, in stacking order. "f" is the forget gate, "i" the input gate; maps
            whose names begin with m have one unit per chunk.
        effective: forget and input gate, each (..., d), from the activation, the chunk size, and
            the pre-activations of the maps.
    """

    maps: tuple[str, ...]
    effective: Callable[..., tuple[Tensor, Tensor]]


def _untied(phi: Activation, chunk_size: int, i: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    return phi.forget(f), phi.input(i)


def _tied(phi: Activation, chunk_size: int, z: Tensor) -> tuple[Tensor, Tensor]:
    f = phi.forget(z)
    return f, 1 - f


def _refined(phi: Activation, chunk_size: int, r: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    g = refine(phi.forget(f), torch.sigmoid(r))
    return g, 1 - g


def _mastered(
    phi: Activation, chunk_size: int, i: Tensor, f: Tensor, mi: Tensor, mf: Tensor
) -> tuple[Tensor, Tensor]:
    master_i, master_f = phi.input(mi), phi.forget(mf)
    if chunk_size > 1:
        master_i = master_i.repeat_interleave(chunk_size, dim=-1)
        master_f = master_f.repeat_interleave(chunk_size, dim=-1)
    return master(torch.sigmoid(f), torch.sigmoid(i), master_f, master_i)


AUXILIARIES: dict[str, Auxiliary] = {
    "untied": Auxiliary(("i", "f"), _untied),
    "tied": Auxiliary(("f",), _tied),
    "refine": Auxiliary(("r", "f"), _refined),
    "master": Auxiliary(("i", "f", "mi", "mf"), _mastered),
}


@dataclass(frozen=True)
class Row:
    """One named gate: a choice on each axis, its title, its paper and its defining module."""

    activation: str
    init: Init
    auxiliary: str
    title: str
    source: str
    module: str = field(default=__name__, compare=False)

    @property
    def options(self) -> tuple[str, ...]:
        """The options this gate takes."""
        extra = {"master": ("chunk_size",), "untied": ("tied",), "tied": ("tied",)}
        names = extra.get(self.auxiliary, ())
        if self.auxiliary == "refine" and self.init == "uniform":
            names = ("refine_bias",)
        option = INITS[self.init]
        return names if option is None else (option, *names)


_GU, _OHNO = "Gu et al. 2020", "Ohno et al. 2022"

GATES: dict[str, Row] = {
    "": Row("sigmoid", "constant", "untied", "forget bias 1", "Gers et al. 2000"),
    "c": Row("sigmoid", "chrono", "untied", "chrono", "Tallec and Ollivier 2018"),
    "u": Row("sigmoid", "uniform", "untied", "uniform (UGI)", _GU),
    "r": Row("sigmoid", "constant", "refine", "refine", _GU),
    "ur": Row("sigmoid", "uniform", "refine", "uniform refine", _GU),
    "o": Row("cumax", "zero", "untied", "ordered", _GU),
    "om": Row("cumax", "zero", "master", "ordered master (ON-LSTM)", "Shen et al. 2018"),
    "or": Row("cumax", "zero", "refine", "ordered refine", _GU),
    "um": Row("sigmoid", "uniform", "master", "uniform master", _GU),
    "f": Row("fast", "constant", "tied", "fast", _OHNO),
    "uf": Row("fast", "uniform", "tied", "uniform fast", _OHNO),
    "ff": Row("iterated_fast", "constant", "tied", "iterated fast", _OHNO),
    "s": Row("softsign", "constant", "tied", "softsign", _OHNO),
}


# The names on each axis that are the library's own, which nobody may define anew.
_BUILT_IN: dict[str, frozenset[str]] = {
    "activation": frozenset(ACTIVATIONS),
    "auxiliary": frozenset(AUXILIARIES),
}

# What else refuses a gate by its prefix: `rlgates.registry`, whose names begin with it.
PREFIX_CHECKS: list[Callable[[str, Row], None]] = []


def register_gate(
    prefix: str,
    *,
    activation: str | Activation = "sigmoid",
    init: Init = "constant",
    auxiliary: str | Auxiliary = "untied",
    title: str = "",
    source: str = "",
) -> Row:
    """Add a gate to `GATES`: every gated core takes it, as `<prefix>_<core>`.

    The plain loop runs a new activation or auxiliary gate, and autograd computes its gradients; the
    kernels do not support it, and say so.

    Args:
        prefix: of the names of cores; lower-case letters and digits.
        activation: how raw gates are computed: a key of `ACTIVATIONS`, or a new `Activation`.
        init: a key of `INITS`.
        auxiliary: how the effective gates are made: a key of `AUXILIARIES`, or a new `Auxiliary`.
        title, source: for tables.

    Raises:
        ValueError: a prefix that is taken, that would give two cores the same name, that is not of
            this form, or that names a part of the library where a new one is given; an unknown name
            on an axis; an initialization for which the activation
            needs a `from_logit`; or an auxiliary gate without a forget map. Registering the same
            gate again is allowed.
        TypeError: an axis is given something else.
    """
    if not re.fullmatch("[a-z][a-z0-9]*", check_text("prefix", prefix)):
        raise ValueError(f"prefix must be lower-case letters and digits, got {prefix!r}.")
    known = GATES.get(prefix)
    phi = _from_table("activation", prefix, activation, ACTIVATIONS, Activation)
    made = _from_table("auxiliary", prefix, auxiliary, AUXILIARIES, Auxiliary)
    row = Row(
        activation if isinstance(activation, str) else prefix,
        check_choice("init", init, INITS),
        auxiliary if isinstance(auxiliary, str) else prefix,
        title or prefix,
        source,
        sys._getframe(1).f_globals.get("__name__", "__main__"),
    )
    if known is not None and known != row:
        raise ValueError(f"the prefix {prefix!r} is taken: {known.title}. Choose another.")
    for check in PREFIX_CHECKS:
        check(prefix, row)
    _check_init(init, phi)
    if not {"f", "mf"} & {*made.maps}:
        raise ValueError(f"an auxiliary gate needs a map 'f' or 'mf', got {made.maps}.")
    if not isinstance(activation, str):
        ACTIVATIONS[prefix] = activation
    if not isinstance(auxiliary, str):
        AUXILIARIES[prefix] = auxiliary
    GATES[prefix] = row
    return row


def _check_init(init: Init, phi: Activation) -> None:
    if phi.from_logit is None and init not in ("zero", "chrono"):
        raise ValueError(
            f"init {init!r} needs an activation with from_logit; without one, init is 'zero' or "
            "'chrono'."
        )


_Axis = TypeVar("_Axis", Activation, Auxiliary)


def _from_table(
    kind: str, prefix: str, value: Any, table: dict[str, _Axis], wanted: type[_Axis]
) -> _Axis:
    """The row of the table for a name, or a new row, which the prefix will name."""
    if isinstance(value, str):
        return table[check_choice(kind, value, table)]
    if not isinstance(value, wanted):
        raise TypeError(f"{kind} must be a name or an {wanted.__name__}, got {value!r}.")
    if prefix in _BUILT_IN[kind]:
        raise ValueError(
            f"the prefix {prefix!r} is taken: it names an {kind} of the library. Choose another."
        )
    return value


class Gate:
    """A row of `GATES` for `size` units: its maps, initial biases and arithmetic.

    Args:
        gate: a key of `GATES`, or a row.
        size: number of gated units d.
        forget_bias: for constant initialization, phi(b_f) = sigmoid(forget_bias); 1.0 by
            default. All other biases are initialized to zero.
        t_max: for chrono initialization, b_f ~ log U[1, t_max - 1] and b_i = -b_f: the longest
            expected dependency in steps; d by default.
        tied: input gate 1 - forget gate (one map) or a separate map (two maps). By default
            fast and softsign gates are tied and the others are not; in GRU, JANET, minGRU and
            GILR all are.
        refine_bias: for a uniform refine gate, the initial refine bias: "minus_forget"
            (-b_f, the paper's listing 2; the default) or "zero" (its equation 11). Uniform
            initialization samples phi(b_f) from U[1/d, 1 - 1/d], with b_i = -b_f if there is a
            b_i; for a single unit this interval is the point 1/2.
        chunk_size: for master gates, the number C of units that share one master value, 1 by
            default; Gu et al. use 16 (d = 256 and 512) and 32 (larger d). With a single chunk,
            a uniform master gate samples one timescale for all units.

    Raises:
        ValueError: a row with an unknown name on an axis, or with an initialization for which its
            activation needs a `from_logit`; an option that this gate does not take (the message
            names the gates that do), a value out of range, or a cumax over a single unit or chunk,
            which is always 1, so the state would never change.
        TypeError: a size that is not an integer, another option that is not a number, a `tied` that
            is not a bool.
    """

    def __init__(self, gate: str | Row, size: int, **options: Any) -> None:
        if isinstance(gate, Row):
            key = gate_key(gate)
            row, name = gate, gate.title if key is None else key
            check_choice("auxiliary", row.auxiliary, AUXILIARIES)
            check_choice("init", row.init, INITS)
            _check_init(
                row.init, ACTIVATIONS[check_choice("activation", row.activation, ACTIVATIONS)]
            )
        else:
            row, name = GATES[check_gate("gate", gate, GATES)], gate
        for option in options:
            if option not in row.options:
                owners = [repr(other) for other, its in GATES.items() if option in its.options]
                raise unknown_choice(f"option for gate {name!r}", option, row.options, owners)
        self.name = name
        self.size = check_size("hidden_size", size, maximum=MAX_WIDTH)
        self.row = row
        self.options = options
        self.forget_bias = check_number("forget_bias", options.get("forget_bias", 1.0))
        t_max = options.get("t_max")
        self.t_max = check_number("t_max", max(self.size, 2) if t_max is None else t_max)
        if self.t_max < 2:
            raise ValueError(f"t_max must be at least 2 steps, got {self.t_max:g}.")
        self.refine_bias = check_choice(
            "refine_bias", options.get("refine_bias", "minus_forget"), ("minus_forget", "zero")
        )
        self.chunk_size = check_size("chunk_size", options.get("chunk_size", 1))
        ordered = row.activation == "cumax"
        if size % self.chunk_size:
            divisors = ", ".join(str(n) for n in range(1, size + 1 - ordered) if size % n == 0)
            raise ValueError(
                f"chunk_size must divide hidden_size {size}, got {self.chunk_size}. "
                f"Allowed: {divisors}."
            )
        if ordered and size == self.chunk_size:
            raise ValueError(
                f"gate {name!r} orders its units, or chunks of them, and needs at least two: a "
                f"single one would keep everything and write nothing. Got hidden_size {size}, "
                f"chunk_size {self.chunk_size}."
            )
        self.auxiliary = row.auxiliary
        tied = options.get("tied")
        if tied is not None:
            self.auxiliary = "tied" if check_flag("tied", tied) else "untied"
        self.key = row.activation, self.auxiliary, self.chunk_size
        self.maps: dict[str, int] = {
            key: size // self.chunk_size if key.startswith("m") else size
            for key in AUXILIARIES[self.auxiliary].maps
        }

    def initial_biases(
        self,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """The initial bias of each map; random ones are sampled from `generator`, in `dtype`."""
        biases = {
            key: torch.zeros(width, device=device, dtype=dtype) for key, width in self.maps.items()
        }
        forget, opposite = ("mf", "mi") if "mf" in self.maps else ("f", "i")
        forget_bias = self._initial_forget_bias(biases[forget], generator)
        biases[forget] = forget_bias
        if opposite in biases and self.row.init != "constant":
            biases[opposite] = -forget_bias
        if "refine_bias" in self.row.options and self.refine_bias == "minus_forget":
            biases["r"] = -forget_bias
        return biases

    def _initial_forget_bias(self, zeros: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.row.init == "zero":
            return zeros
        if self.row.init == "chrono":
            return torch.log(1 + (self.t_max - 2) * _rand_like(zeros, generator))
        from_logit = ACTIVATIONS[self.row.activation].from_logit
        assert from_logit is not None, "`_check_init` refuses such a row"
        if self.row.init == "constant":
            return from_logit(torch.full_like(zeros, self.forget_bias))
        uniform = _rand_like(zeros, generator)
        low = 1 / max(self.size, 2)
        return from_logit(torch.logit(low + (1 - 2 * low) * uniform))

    def __call__(self, *pre: Tensor) -> tuple[Tensor, Tensor]:
        """The effective gates from the pre-activations of `maps`, in that order.

        Args:
            pre: one tensor (..., width) per map, biases included, float32 or float64.

        Returns:
            forget and input gate, each (..., size), in [0, 1].
        """
        auxiliary = AUXILIARIES[self.auxiliary]
        return auxiliary.effective(ACTIVATIONS[self.row.activation], self.chunk_size, *pre)

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"Gate({self.name!r}, {self.size}{options})"


def gate_key(row: Row) -> str | None:
    """The key of a row of `GATES`; None if the row is not in it."""
    return next((key for key, other in GATES.items() if other == row), None)


def gate_of_title(title: str, keys: Iterable[str]) -> str | None:
    """The gate among `keys` of `GATES` whose title is near, such as "c" for "chrono"."""
    names = {
        name.replace(" ", "_"): key
        for key in keys
        for name in re.split(r" \(|\)", GATES[key].title)
        if name
    }
    near = nearest(str(title).replace(" ", "_"), names)
    return names[near[0]] if near else None


def check_gate(kind: str, gate: str, keys: Iterable[str]) -> str:
    """`gate`, if it is one of `keys` of `GATES`; else raise a ValueError that explains them."""
    allowed = list(keys)
    if gate in allowed:
        return gate
    key = gate_of_title(gate, allowed)
    meant = suggestion(gate, allowed) if key is None else f" Did you mean {key!r}?"
    listed = ", ".join(f"{key or repr(key)} ({GATES[key].title})" for key in allowed)
    raise ValueError(f"unknown {kind} {gate!r}.{meant} Allowed: {listed}.")


GateLike = str | Row | Gate


def as_gate(gate: GateLike, size: int, *, tied: bool = False) -> Gate:
    """The gate of `size` units for a key of `GATES`, a row, or a gate.

    Args:
        gate: the gate; a `Gate` is returned as it is.
        size: number of gated units.
        tied: whether keys and rows without an auxiliary gate are tied, i = 1 - f.

    Raises:
        ValueError: an unknown key (the message names the nearest), or a gate of another size.
        TypeError: something else.
    """
    if not isinstance(gate, str | Row | Gate):
        raise TypeError(f"gate must be a name, a Row of GATES or a Gate, got {gate!r}.")
    if not isinstance(gate, Gate):
        made = Gate(gate, size)
        return Gate(gate, size, tied=True) if tied and made.auxiliary == "untied" else made
    if gate.size != size:
        raise ValueError(f"the gate must have {size} units, got {gate}.")
    return gate


def _rand_like(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def refine(f: Tensor, r: Tensor) -> Tensor:
    """r (1 - (1 - f)^2) + (1 - r) f^2, the refine gate (Gu et al. 2020, equation 12)."""
    return f * torch.addcmul(f, r, 1 - f, value=2)


def master(f: Tensor, i: Tensor, master_f: Tensor, master_i: Tensor) -> tuple[Tensor, Tensor]:
    """Master gates over plain ones (Shen et al. 2018, equations 11 to 13)."""
    overlap = master_f * master_i
    return f * overlap + (master_f - overlap), i * overlap + (master_i - overlap)


def timescale(forget: Tensor, decay: Decay = "linear") -> Tensor:
    """Characteristic timescale, in steps, of an effective forget gate f.

    The result is finite: a gate that is exactly 1 gets the longest timescale that its dtype
    can represent.

    Args:
        forget: gates in [0, 1], of any shape.
        decay: "linear" for 1 / (1 - f) (Gu et al. 2020), "exponential" for -1 / log f, the
            steps in which f^t falls to 1/e (Ohno et al. 2022).

    Raises:
        ValueError: an unknown decay. TypeError: `forget` is not a tensor.
    """
    check_choice("decay", decay, ("linear", "exponential"))
    if not isinstance(forget, Tensor):
        raise TypeError(f"forget must be one tensor, got {type(forget).__name__}.")
    lost = (1 - forget).clamp(min=torch.finfo(forget.dtype).eps / 2)
    return 1 / lost if decay == "linear" else -1 / torch.log1p(-lost)
