"""Tests of how gates saturate, out of the table of `rlgates analyse saturation`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from rlgates.experiments.analysis import FLOW
from rlgates.experiments.claims.claim import OPEN, Finding, Results, Test, seen
from rlgates.experiments.logs import column
from rlgates.tasks import saturation
from rlgates.tasks.saturation import Curve


class OverCurves(Test):
    """A test of 1 - f over time."""

    @abstractmethod
    def compare(self, curves: Mapping[tuple[str, str], Curve]) -> tuple[bool, str]:
        """Whether it is so, and the numbers, from the curve of each method and gate."""

    def judge(self, results: Results) -> Finding:
        command = "`rlgates analyse saturation`"
        rows = results.table("saturation")
        if not rows:
            return Finding(OPEN, "not computed yet", command)
        curves = {}
        for label in dict.fromkeys((row["method"], row["gate"]) for row in rows):
            mine = [row for row in rows if (row["method"], row["gate"]) == label]
            times, left = (torch.from_numpy(column(mine, x)) for x in ("time", "one_minus_f"))
            curves[label] = Curve(times, left)
        true, found = self.compare(curves)
        return Finding(seen(true, not true), found, command)


@dataclass(frozen=True)
class Slopes(OverCurves):
    """The slope of log(1 - f) over log time at the end of gradient flow lies within bounds."""

    bounds: Mapping[str, tuple[float, float]]

    @property
    def parts(self) -> tuple[str, str]:
        words = (f"{gate} {low:g} to {high:g}" for gate, (low, high) in self.bounds.items())
        return "slope over the last two decades of gradient flow:", ", ".join(words)

    def compare(self, curves: Mapping[tuple[str, str], Curve]) -> tuple[bool, str]:
        slopes = {gate: saturation.slope(curves[FLOW, gate]) for gate in self.bounds}
        true = all(low <= slopes[gate] <= high for gate, (low, high) in self.bounds.items())
        return true, ", ".join(f"{gate} {slope:.3f}" for gate, slope in slopes.items())


@dataclass(frozen=True)
class Order(OverCurves):
    """At some time of gradient flow each gate is nearer to 1 than the next."""

    time: float
    gates: Sequence[str]

    @property
    def parts(self) -> tuple[str, str]:
        return f"1 - f at {self.time:,.0f} is less with each than with the next:", ", ".join(
            self.gates
        )

    def compare(self, curves: Mapping[tuple[str, str], Curve]) -> tuple[bool, str]:
        flows = [curves[FLOW, gate] for gate in self.gates]
        left = [float(flow.left[(flow.times - self.time).abs().argmin()]) for flow in flows]
        true = all(one < other for one, other in pairwise(left))
        return true, ", ".join(f"{g} {x:.1e}" for g, x in zip(self.gates, left, strict=True))


@dataclass(frozen=True)
class First(OverCurves):
    """With each of some optimizers the first gate is the first to have 1 - f below a goal."""

    optimizers: Sequence[str]
    gates: Sequence[str]
    goal: float

    @property
    def parts(self) -> tuple[str, str]:
        optimizers = " and ".join(self.optimizers)
        return f"{self.gates[0]} is first below 1 - f = {self.goal:g} with", optimizers

    def compare(self, curves: Mapping[tuple[str, str], Curve]) -> tuple[bool, str]:
        true, found = True, []
        for optimizer in self.optimizers:
            when = {gate: self._reached(curves[optimizer, gate]) for gate in self.gates}
            true &= all(when[self.gates[0]] < when[gate] for gate in self.gates[1:])
            found.append(f"{optimizer}: {', '.join(f'{g} {t:,.0f}' for g, t in when.items())}")
        return true, f"updates with {'; '.join(found)}"

    def _reached(self, curve: Curve) -> float:
        below = curve.times[curve.left < self.goal]
        return float(below[0]) if len(below) else math.inf
