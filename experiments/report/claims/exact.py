"""Tests that need no training: of what is computed, or was timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import linregress

from rlgates.experiments.analysis import refine_gate
from rlgates.experiments.report.claims.claim import OPEN, Finding, Results, Test, ruling_from_fact
from rlgates.experiments.report.rows import short_commits
from rlgates.gates import Gate, master, refine
from rlgates.registry import make_core


@dataclass(frozen=True)
class Exact(Test):
    """A fact that is computed.

    Attributes:
        text: what is computed.
        compute: returns whether it is true, and the numbers.
    """

    text: str
    compute: Callable[[], tuple[bool, str]]

    @property
    def parts(self) -> tuple[str, str]:
        return self.text, ""

    def judge(self, results: Results) -> Finding:
        true, numbers = self.compute()
        return Finding(ruling_from_fact(true), numbers, "`rlgates ledger`")


@dataclass(frozen=True)
class Cost(Test):
    """The plain loop of a core takes more, or at most, some multiple of another one's time.

    The largest size that was timed counts. It is open where the interval of the ratio contains the
    bound.

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
            f"forward and backward of the plain loop of `{self.core}` take {bound} times those of",
            f"`{self.than}`",
        )

    def judge(self, results: Results) -> Finding:
        rows = results.table("loop_speed")
        if not rows.empty:
            rows = rows[(rows["core"] == self.core) & (rows["than"] == self.than)]
        if rows.empty:
            command = f"`rlgates bench loops --cores {self.core}/{self.than}`"
            return Finding(OPEN, "not timed yet", command)
        rows = rows.assign(units=[int(shape.split("x")[-1]) for shape in rows["shape"]])
        *_, row = timed = rows.sort_values("units").to_dict("records")
        bound = self.most if self.most < math.inf else self.least
        ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
        return Finding(
            OPEN if low < bound < high else ruling_from_fact(self.least <= ratio <= self.most),
            f"{self.core} / {self.than} = {', '.join(map(_ratio, timed))}",
            f"`rlgates bench loops`, commit {short_commits(rows)}, load {row['load']} before",
        )


def _ratio(row: dict[Hashable, Any]) -> str:
    low, high = (f"{float(row[name]):.2f}" for name in ("low", "high"))
    return f"{float(row['ratio']):.2f} [{low}, {high}] with {row['units']} units"


def refine_bounds() -> tuple[bool, str]:
    """Check how far a refine gate moves a gate and its timescale (Gu et al. 2020, section 2.3)."""
    f = torch.tensor([0.9], dtype=torch.float64)
    highest = float(refine_gate.bounds(f)[1])
    lengths = torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64)
    short, long = (1 / (1 - gate) for gate in refine_gate.bounds(1 - 1 / lengths))
    true = abs(highest - 0.99) < 1e-12 and bool((long / lengths**2 - 1).abs().max() < 1e-9)
    below = (short / lengths).tolist()
    true &= all(0.5 < share < 0.53 for share in below)
    return true, (
        f"0.9 becomes {highest:.2f} at most; timescales D = 10, 100, 1,000 become D^2 at most, "
        f"{', '.join(f'{share:.3f} D' for share in below)} at least"
    )


def initial_timescales() -> tuple[bool, str]:
    """Check how timescales are distributed initially (Gu et al. 2020, proposition 1)."""
    generator, units = torch.Generator().manual_seed(0), 200_000
    uniform = Gate("u", units).initial_biases(generator)["f"].double()
    lengths = 1 / (1 - uniform.sigmoid())
    marks = torch.tensor([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], dtype=torch.float64)
    tails = torch.stack([(lengths > mark).double().mean() for mark in marks])
    slope = float(linregress(marks.log(), tails.log()).slope)
    chrono = Gate("c", units, t_max=1_000).initial_biases(generator)["f"].double()
    flat = (1 / (1 - chrono.sigmoid())).quantile(torch.tensor([0.25, 0.5, 0.75]).double())
    true = abs(slope + 1) < 0.03 and bool(
        (flat / torch.tensor([251, 501, 750]) - 1).abs().max() < 0.02
    )
    return true, (
        f"share of timescales above x falls as x^{slope:.2f}; chrono gates of T_max 1,000: "
        f"quartiles {', '.join(f'{x:.0f}' for x in flat.tolist())}"
    )


def initial_master_gates() -> tuple[bool, str]:
    """Check master gates initially, and when tied (Gu et al. 2020, appendix B.4)."""
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
    """Check that the Jacobian of s over any number of steps is the identity (GATO, section 4.2)."""
    torch.manual_seed(0)
    largest, units = 0.0, 6
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
        largest = max(largest, min(float((block - eye).abs().max()) for block in blocks))
    return largest < 1e-12, f"largest difference over 1, 50 and 500 steps: {largest:.1e}"


def gato_parameters() -> tuple[bool, str]:
    """Check the published numbers of parameters against other cells (GATO, section 5).

    They are those of 5 and 651 inputs, where the text has embeddings of 4 and 650.
    """
    published = {
        (2, 512, 2): 43_264,
        (5, 1024, 2): 138_752,
        (25, 512, 1): 20_736,
        (651, 1300, 1): 1_273_350,
    }
    counts, shares = {}, []
    for inputs, units, depth in published:
        gato = _parameters("gato", inputs, units, depth=depth)
        counts[inputs, units, depth] = gato
        shares += [gato / _parameters(other, inputs, units) for other in ("lstm", "gru")]
    return counts == published and max(shares) < 0.25, (
        f"{', '.join(f'{count:,}' for count in counts.values())}: "
        f"{min(shares):.3f} to {max(shares):.3f} of an LSTM's or a GRU's of as many units "
        "(with 5 and 651 inputs, where the text has 4 and 650)"
    )


def _parameters(core: str, inputs: int, units: int, **options: Any) -> int:
    with torch.device("meta"):
        module = make_core(core, inputs, units, **options)
    return sum(parameter.numel() for parameter in module.parameters())


def janet_parameters() -> tuple[bool, str]:
    """Check that JANET has half of the parameters of an LSTM."""
    janet, lstm = (_parameters(name, 64, 64) for name in ("janet", "lstm"))
    return 2 * janet == lstm, f"{janet:,} and {lstm:,}"
