"""The CLAIMS of the papers, each with its test."""

from __future__ import annotations

from rlgates.experiments.claims import gu2020, ohno2022, others
from rlgates.experiments.claims.claim import Claim, Finding, Results

__all__ = ["CLAIMS", "Claim", "Finding", "Results"]

CLAIMS: tuple[Claim, ...] = (
    *gu2020.CLAIMS,
    *ohno2022.CLAIMS,
    *others.GATO,
    *others.ZAKOVSKIS,
    *others.JANET,
)
