"""The ledger: every claim of the papers, with what our own runs say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from rlgates.atomic import write_atomically
from rlgates.experiments.report.claims import CLAIMS, Claim, Finding, Results
from rlgates.experiments.report.claims.claim import Verdict
from rlgates.experiments.report.rows import markdown, no_results_error
from rlgates.experiments.runs.locks import locked

LEDGER = "LEDGER.md"
Judged = Mapping[str, Sequence[tuple[Claim, Verdict, Finding]]]
"""The claims of each paper, with what was found."""


def write_ledger(results: Path) -> Path:
    """Judge all claims by the tables in a folder, and write `LEDGER.md` there.

    Raises:
        ValueError: the folder has no tables.
    """
    if not any(results.glob("*.csv")):
        raise no_results_error(results)
    path = results / LEDGER
    with locked(results):
        write_atomically(path, ledger(judge_claims(results)).encode())
    return path


def judge_claims(results: Path) -> Judged:
    """Judge all claims by the tables in a folder."""
    tables = Results(results)
    return {
        paper: [(claim, *claim.judge(tables)) for claim in claims]
        for paper, claims in CLAIMS.items()
    }


def verdict_summary(judged: Judged) -> str:
    """Count the verdicts: "3 claims: 2 reproduced, ..., 0 contradicted, 1 open"."""
    counts = Counter(verdict for claims in judged.values() for _, verdict, _ in claims)
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
    return f"{counts.total()} claims: {words}"


def ledger(judged: Judged) -> str:
    """Format the page: the number of verdicts of each kind, then a table for each paper."""
    parts = [
        "# Claims of the papers, and what was found here\n",
        f"{verdict_summary(judged)}.\n",
        _counts(judged),
        "[How claims are judged](../../docs/results/verdicts.md) has the rules, the tests that "
        "were changed after their runs had been inspected, and the verdicts that changed.\n\n"
        "P(a sooner than b) is the share of pairs of runs in which that of a is sooner; runs that "
        "never get there come last. Differences are those of the means, the first minus the "
        "second, of runs with the same seeds. In brackets: 95 % bootstrap intervals. `rlgates "
        "ledger` writes this page from the tables next to it. `rlgates study` is the former name "
        "of `rlgates sweep`; some studies, too, had other names, which their tables give.\n",
    ]
    heads = (
        *("claim", "place", "paper's setting", "our setting", "our test"),
        *("result", "verdict", "command and commit"),
    )
    for paper, claims in judged.items():
        lines = []
        for claim, verdict, finding in claims:
            paper_setting, ours, _ = claim.setting
            cells = (claim.words, claim.place, paper_setting, ours, claim.test.words)
            lines.append((*cells, finding.numbers, f"**{verdict}**", finding.provenance))
        parts.append(f"## {paper}\n\n{markdown(heads, lines)}")
    return "\n".join(parts)


def _counts(judged: Judged) -> str:
    """Format the table of the verdicts on the claims of each paper."""
    verdicts = get_args(Verdict)
    lines = []
    for paper, claims in judged.items():
        counts = Counter(verdict for _, verdict, _ in claims)
        lines.append((paper, *(str(counts[verdict]) for verdict in verdicts)))
    return markdown(("paper", *verdicts), lines)
