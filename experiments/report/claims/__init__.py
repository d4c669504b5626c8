"""The CLAIMS of the papers, each with its test."""

from __future__ import annotations

from rlgates.experiments.report.claims import gu2020, hung2019, ohno2022, others
from rlgates.experiments.report.claims.claim import Claim, Finding, Results

__all__ = ["CLAIMS", "Claim", "Finding", "Results"]

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "Gu et al. 2020": gu2020.CLAIMS,
    "Hung et al. 2019": hung2019.CLAIMS,
    "Ohno et al. 2022": ohno2022.CLAIMS,
    "GATO": others.GATO,
    "Zakovskis et al. 2023": others.ZAKOVSKIS,
    "Van der Westhuizen and Lasenby 2018": others.JANET,
}
"""The claims of each paper."""
