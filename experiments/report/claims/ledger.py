"""The ledger: every claim of the papers, with what our own runs say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from rlgates.experiments.report.claims import CLAIMS, Claim, Finding, Results
from rlgates.experiments.report.claims.claim import LEVEL, SEEDS, Verdict
from rlgates.experiments.report.rows import markdown, no_results_error
from rlgates.experiments.runs.files import write_atomically

LEDGER = "LEDGER.md"
Judged = Mapping[str, Sequence[tuple[Claim, Finding]]]
"""The claims of each paper, with what was found."""


def write_ledger(results: Path) -> Path:
    """Judge all claims by the tables in a folder, and write `LEDGER.md` there.

    Raises:
        ValueError: the folder has no tables.
    """
    if not any(results.glob("*.csv")):
        raise no_results_error(results)
    path = results / LEDGER
    write_atomically(path, ledger(judge_claims(results)).encode())
    return path


def judge_claims(results: Path) -> Judged:
    """Judge all claims by the tables in a folder."""
    tables = Results(results)
    return {
        paper: [(claim, claim.test.judge(tables)) for claim in claims]
        for paper, claims in CLAIMS.items()
    }


def verdict_summary(judged: Judged) -> str:
    """Count the verdicts: "3 claims: 2 reproduced, 0 contradicted, 1 open"."""
    counts = Counter(finding.verdict for claims in judged.values() for _, finding in claims)
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
    return f"{counts.total()} claims: {words}"


def ledger(judged: Judged) -> str:
    """Format the page: the number of each verdict, then a table for each paper."""
    parts = [
        "# Claims of the papers, and what was found here\n",
        f"{verdict_summary(judged)}. A verdict is about the sizes and budgets of our own "
        f"tests, which are named. It needs {SEEDS} seeds of each core and, where two are compared, "
        f"an exact permutation test with a one-sided p of at most {LEVEL:g}; else it is open. A "
        "claim of several parts is reproduced if each part is, and contradicted if the p of some "
        f"part's being so, of all together, is at most {LEVEL:g} (Simes 1986). What is said of "
        "costs rests on the medians of one series of timings. Of so many claims some err. P(a "
        "sooner than b): how often a run of a is sooner than one of b, runs that never get there "
        "being last. Differences are means over runs with the same seed. In brackets: 95 % "
        "bootstrap intervals. `rlgates ledger` writes this page from the tables beside it.\n",
    ]
    heads = ("claim", "place", "our test", "found", "verdict", "made by")
    for paper, claims in judged.items():
        lines = []
        for claim, finding in claims:
            test = claim.test.words + (f" ({claim.note})" if claim.note else "")
            verdict = f"**{finding.verdict}**"
            cells = (claim.words, claim.place, test, finding.numbers, verdict)
            lines.append((*cells, finding.provenance))
        parts.append(f"## {paper}\n\n{markdown(heads, lines)}")
    return "\n".join(parts)
