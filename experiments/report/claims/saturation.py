"""Tests of how gates saturate, from the table of `rlgates analyse saturation`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlgates.experiments.analysis.saturation import FLOW, Curve, slope
from rlgates.experiments.report.claims.claim import (
    OPEN,
    Finding,
    Results,
    Test,
    ruling_from_fact,
)
from rlgates.experiments.report.saturation import read_saturation

Curves = Mapping[str, Mapping[str, Curve]]
"""1 - f over time of each method and gate."""


class CurveTest(Test):
    """A test of 1 - f over time."""

    @abstractmethod
    def compare(self, curves: Curves) -> tuple[bool, str]:
        """Tell whether it is true, with the numbers."""

    def judge(self, results: Results) -> Finding:
        command = "`rlgates analyse saturation`"
        rows = results.table("saturation")
        if rows.empty:
            return Finding(OPEN, "not computed yet", command)
        true, numbers = self.compare(read_saturation(rows))
        return Finding(ruling_from_fact(true), numbers, command)


@dataclass(frozen=True)
class Slopes(CurveTest):
    """The slope of log(1 - f) over log time at the end of gradient flow lies within bounds."""

    bounds: Mapping[str, tuple[float, float]]

    @property
    def parts(self) -> tuple[str, str]:
        words = (f"{gate} {low:g} to {high:g}" for gate, (low, high) in self.bounds.items())
        return "slope over the last two decades of gradient flow:", ", ".join(words)

    def compare(self, curves: Curves) -> tuple[bool, str]:
        slopes = {gate: slope(curves[FLOW][gate]) for gate in self.bounds}
        true = all(low <= slopes[gate] <= high for gate, (low, high) in self.bounds.items())
        return true, ", ".join(f"{gate} {value:.3f}" for gate, value in slopes.items())


@dataclass(frozen=True)
class Order(CurveTest):
    """At some time of gradient flow each gate is nearer to 1 than the next one."""

    time: float
    gates: Sequence[str]

    @property
    def parts(self) -> tuple[str, str]:
        return f"1 - f at {self.time:,.0f} is less with each than with the next:", ", ".join(
            self.gates
        )

    def compare(self, curves: Curves) -> tuple[bool, str]:
        flows = [curves[FLOW][gate] for gate in self.gates]
        left = [float(flow.left[(flow.times - self.time).abs().argmin()]) for flow in flows]
        true = all(first < second for first, second in pairwise(left))
        return true, ", ".join(f"{g} {x:.1e}" for g, x in zip(self.gates, left, strict=True))


@dataclass(frozen=True)
class Fastest(CurveTest):
    """With each of some optimizers the first gate is the first with 1 - f below a threshold."""

    optimizers: Sequence[str]
    gates: Sequence[str]
    threshold: float

    @property
    def parts(self) -> tuple[str, str]:
        optimizers = " and ".join(self.optimizers)
        return f"{self.gates[0]} is first below 1 - f = {self.threshold:g} with", optimizers

    def compare(self, curves: Curves) -> tuple[bool, str]:
        true, parts = True, []
        for optimizer in self.optimizers:
            times = {gate: self._time(curves[optimizer][gate]) for gate in self.gates}
            true &= all(times[self.gates[0]] < times[gate] for gate in self.gates[1:])
            parts.append(f"{optimizer}: {', '.join(f'{g} {t:,.0f}' for g, t in times.items())}")
        return true, f"updates with {'; '.join(parts)}"

    def _time(self, curve: Curve) -> float:
        below = curve.times[curve.left < self.threshold]
        return float(below[0]) if len(below) else math.inf
