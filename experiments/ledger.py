"""The ledger: every claim of the papers with what our own runs say about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlgates.experiments.claims import CLAIMS, Claim, Finding, Results
from rlgates.experiments.claims.claim import LEVEL, SEEDS
from rlgates.experiments.files import write_atomically
from rlgates.experiments.tables import markdown, nothing_in

NAME = "LEDGER.md"
VERDICTS = ("reproduced", "contradicted", "open")


def write_ledger(results: Path) -> Path:
    """Judge all claims by the tables in a folder, and write `LEDGER.md` there.

    Raises:
        ValueError: there are none.
    """
    if not any(results.glob("*.csv")):
        raise nothing_in(results)
    tables = Results(results)
    findings = [claim.test.judge(tables) for claim in CLAIMS]
    path = results / NAME
    write_atomically(path, ledger(CLAIMS, findings).encode())
    return path


def ledger(claims: Sequence[Claim], findings: Sequence[Finding]) -> str:
    """The text: how many there are of each verdict, then a table for each paper."""
    counts = [sum(finding.verdict == verdict for finding in findings) for verdict in VERDICTS]
    summary = ", ".join(f"{n} {word}" for n, word in zip(counts, VERDICTS, strict=True))
    parts = [
        "# Claims of the papers, and what was found here\n",
        f"{len(claims)} claims: {summary}. A verdict is about the sizes and budgets of our own "
        f"tests, which are named. It needs {SEEDS} seeds of each core and, where two are compared, "
        f"an exact permutation test with a one-sided p of at most {LEVEL:g}; else it is open. A "
        "claim of several parts is reproduced if each part is, and contradicted if the p of some "
        f"part's being so, of all together, is at most {LEVEL:g} (Simes 1986). What is said of "
        "costs rests on the medians of one series of timings. Of so many claims some err. P(a "
        "sooner than b): how often a run of a is sooner than one of b, runs that never get there "
        "being last. Differences are means over runs with the same seed. In brackets: 95 % "
        "bootstrap intervals. `rlgates ledger` writes this page from the tables beside it.\n",
    ]
    papers = dict.fromkeys(claim.source.partition(",")[0] for claim in claims)
    for paper in papers:
        heads = ("claim", "place", "our test", "found", "verdict", "made by")
        lines = []
        for claim, finding in zip(claims, findings, strict=True):
            source, _, place = claim.source.partition(", ")
            if source == paper:
                test = claim.test.words + (f" ({claim.note})" if claim.note else "")
                cells = (claim.words, place, test, finding.found, f"**{finding.verdict}**")
                lines.append((*cells, finding.made_by))
        parts.append(f"## {paper}\n\n{markdown(heads, lines)}")
    return "\n".join(parts)
