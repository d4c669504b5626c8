"""Tests that need no training: what can be computed, or was timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlgates.cores import make_core
from rlgates.experiments.claims.claim import OPEN, Finding, Results, Test, seen
from rlgates.gates import Gate, master, refine
from rlgates.tasks import gate_analysis

Computed = Callable[[], tuple[bool, str]]


@dataclass(frozen=True)
class Exact(Test):
    """Something that is true or false.

    Attributes:
        text: what is computed.
        compute: whether it is so, and the numbers.
    """

    text: str
    compute: Computed

    @property
    def parts(self) -> tuple[str, str]:
        return self.text, ""

    def judge(self, results: Results) -> Finding:
        true, found = self.compute()
        return Finding(seen(true, not true), found, "`rlgates ledger`")


@dataclass(frozen=True)
class Cost(Test):
    """A core takes more, or at most, some multiple of another one's time.

    Attributes:
        core, than: names of cores of as many units, with options as in "lstm:tied=True".
        least, most: bounds of the ratio.
    """

    core: str
    than: str
    least: float = 0.0
    most: float = math.inf

    @property
    def parts(self) -> tuple[str, str]:
        bound = f"at most {self.most:g}" if self.most < math.inf else f"at least {self.least:g}"
        return (
            f"forward and backward of `{self.core}` take {bound} times those of",
            f"`{self.than}`",
        )

    def judge(self, results: Results) -> Finding:
        costs = {row["core"]: row for row in results.table("core_costs")}
        if not {self.core, self.than} <= costs.keys():
            return Finding(OPEN, "not timed yet", "`rlgates bench cores`")
        ours, theirs = (float(costs[name]["relative_time"]) for name in (self.core, self.than))
        ratio = ours / theirs
        commit = costs[self.core]["commit"][:7]
        true = self.least <= ratio <= self.most
        return Finding(
            seen(true, not true),
            f"{self.core} / {self.than} = {ratio:.2f}",
            f"`rlgates bench cores`, commit {commit}",
        )


def reach_of_refine() -> tuple[bool, str]:
    """Gu et al. 2020, section 2.3: where a refine gate can move a gate and its timescale."""
    f = torch.tensor([0.9], dtype=torch.float64)
    highest = float(gate_analysis.bounds(f)[1])
    lengths = torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64)
    short, long = (1 / (1 - gate) for gate in gate_analysis.bounds(1 - 1 / lengths))
    right = abs(highest - 0.99) < 1e-12 and bool((long / lengths**2 - 1).abs().max() < 1e-9)
    below = (short / lengths).tolist()
    right &= all(0.5 < share < 0.53 for share in below)
    return right, (
        f"0.9 becomes {highest:.2f} at most; timescales D = 10, 100, 1,000 become D^2 at most, "
        f"{', '.join(f'{share:.3f} D' for share in below)} at least"
    )


def first_timescales() -> tuple[bool, str]:
    """Gu et al. 2020, proposition 1: how timescales are spread at the start."""
    generator, units = torch.Generator().manual_seed(0), 200_000
    uniform = Gate("u", units).start_biases(generator)["f"].double()
    lengths = 1 / (1 - uniform.sigmoid())
    marks = torch.tensor([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], dtype=torch.float64)
    tails = torch.stack([(lengths > mark).double().mean() for mark in marks])
    slope = _slope(marks.log(), tails.log())
    chrono = Gate("c", units, t_max=1_000).start_biases(generator)["f"].double()
    flat = (1 / (1 - chrono.sigmoid())).quantile(torch.tensor([0.25, 0.5, 0.75]).double())
    right = abs(slope + 1) < 0.03 and bool(
        (flat / torch.tensor([251, 501, 750]) - 1).abs().max() < 0.02
    )
    return right, (
        f"share of timescales above x falls as x^{slope:.2f}; chrono gates of T_max 1,000: "
        f"quartiles {', '.join(f'{x:.0f}' for x in flat.tolist())}"
    )


def ordered_start() -> tuple[bool, str]:
    """Gu et al. 2020, appendix B.4: master gates at the start, and what they are when tied."""
    gate = Gate("om", 4_000)
    forget, enter = gate(*(torch.zeros(1, width).double() for width in gate.maps.values()))
    total = float((forget + enter).mean())
    f, r = torch.rand(2, 10_000, generator=torch.Generator().manual_seed(0)).double()
    # With i = 1 - f for both pairs, the gate is half as far above f^2 as a refine gate.
    tied, _ = master(r, 1 - r, f, 1 - f)
    apart = float((refine(f, r) - f**2 - 2 * (tied - f**2)).abs().max())
    return abs(total - 5 / 6) < 1e-3 and apart < 1e-12, (
        f"mean of f + i = {total:.4f}; tied and doubled, it differs from refine by {apart:.0e}"
    )


def gato_jacobian() -> tuple[bool, str]:
    """GATO, section 4.2: the Jacobian of s over any number of steps is the identity."""
    torch.manual_seed(0)
    worst, units = 0.0, 6
    for length in (1, 50, 500):
        core = make_core("gato", 3, 2 * units, backend="plain").double()
        inputs = torch.randn(length, 1, 3, dtype=torch.float64)
        start = torch.zeros(1, core.state_size, dtype=torch.float64, requires_grad=True)
        _, end = core(inputs, start)
        rows = [
            torch.autograd.grad(end[0, k], start, retain_graph=True)[0][0]
            for k in range(core.state_size)
        ]
        whole = torch.stack(rows)
        # The parts r and s of the state: that of s over s is the identity.
        blocks = [whole[a : a + units, a : a + units] for a in (0, units)]
        eye = torch.eye(units, dtype=torch.float64)
        worst = max(worst, min(float((block - eye).abs().max()) for block in blocks))
    return worst < 1e-12, f"largest difference over 1, 50 and 500 steps: {worst:.1e}"


def gato_parameters() -> tuple[bool, str]:
    """GATO, appendix B: the published numbers of parameters, and those of other cells."""
    published = {
        (2, 512, 2): 43_264,
        (5, 1024, 2): 138_752,
        (25, 512, 1): 20_736,
        (651, 1300, 1): 1_273_350,
    }
    found, shares = {}, []
    for inputs, units, depth in published:
        gato = _parameters("gato", inputs, units, depth=depth)
        found[inputs, units, depth] = gato
        shares += [gato / _parameters(other, inputs, units) for other in ("lstm", "gru")]
    return found == published and max(shares) < 0.25, (
        f"{', '.join(f'{count:,}' for count in found.values())}: "
        f"{min(shares):.3f} to {max(shares):.3f} of an LSTM's or a GRU's of as many units"
    )


def _parameters(core: str, inputs: int, units: int, **options: Any) -> int:
    with torch.device("meta"):
        made = make_core(core, inputs, units, **options)
    return sum(parameter.numel() for parameter in made.parameters())


def janet_parameters() -> tuple[bool, str]:
    """JANET has half of the parameters of an LSTM."""
    one, other = (_parameters(name, 64, 64) for name in ("janet", "lstm"))
    return 2 * one == other, f"{one:,} and {other:,}"


def _slope(x: Tensor, y: Tensor) -> float:
    centred = x - x.mean()
    return float((centred * (y - y.mean())).sum() / (centred**2).sum())
