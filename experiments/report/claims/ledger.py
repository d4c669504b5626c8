"""The ledger: every claim of the papers, with what our own runs say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from rlgates.atomic import write_atomically
from rlgates.experiments.report.claims import CLAIMS, Claim, Finding, Results
from rlgates.experiments.report.claims.claim import LEVEL, SEEDS, Verdict
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
    """Format the page: the number of each verdict, then a table for each paper."""
    parts = [
        "# Claims of the papers, and what was found here\n",
        f"{verdict_summary(judged)}. Most tests here are far smaller than the papers', so what "
        "holds or fails in them is marked as reproduced, or not reproduced, at smaller scale. A "
        "claim is contradicted only if sizes, budget and data are at least the paper's, and if the "
        "positive controls, cores that should learn there, did learn. If a control is not reached, "
        "or undecided, the claim is open. A test needs all seeds of each core that the study names "
        f"before its first run, at least {SEEDS}. Where seeds were added later, it reads only "
        "those; where a claim is tested again in a study with fresh seeds, it reads those, though "
        "some of these still lack runs. It decides with an exact one-sided p of at most "
        f"{LEVEL:g}: by permutations where two cores are compared; by the binomial distribution "
        "where runs solve a task or do not, so that three of five count as solved and none of five "
        "as not solved, even before all seeds are run if the missing ones cannot change this. A "
        "claim of several parts holds if each part does. It fails if the p of any part failing, "
        f"over all parts together, is at most {LEVEL:g} (Simes 1986); of two parts that compare "
        "five pairs of seeds each (least p 0.031), one alone cannot show that. Where a paper says "
        "that a task is solved, but not in how many updates, reaching the end of our budget is not "
        "a failure. A difference of test results of networks decides only if most runs of the one "
        "that is behind stopped improving, before the budget ended them. Runs that diverged did "
        "not solve the task, have no gates to compare, and leave open whether a core learns. "
        "Differences of accuracy too small to be visible with the examples of a test set decide "
        "nothing. Where a task was run at several lengths, the longest counts (except for the NRU "
        "on Copy, which must diverge at both: its runs with 500 blanks have another optimizer). "
        "Claims about costs rest on medians of one series of timings of the plain loops, and are "
        "decided if the bound lies outside the interval of the ratio. The tests of 40 claims were "
        "changed after their runs had been inspected, towards the paper's sizes or a finer "
        "measure: the NRU on Copy; small apples; both Match games (steps instead of success, and "
        "90 steps of distraction instead of 30: by success, or over 30 steps, Passive Match would "
        "be open, but Active Match, tested again on fresh seeds, would not); gates above chance on "
        "Active Match (runs above a level instead of a difference from an agent without memory, "
        "with which it would be open); the RRU against cells with as many parameters; the LSTM on "
        "Adding (torch's forget bias); the four costs (plain loops of 512 units; at first fused "
        "code of 64, in which the NRU took 1.9 times and the fast gate 1.04 times as long, whose "
        "bound was 1.05, and then plain loops of 64, with 2.3 and 1.19); and, on fresh seeds, "
        "eleven claims of figures 3 and 4 of Gu et al. (three and four times the updates), "
        "softsign and the order of the gates on Copy (ten times the updates), the growth of "
        "timescales (the paper's rate), GATO and the GRU on Adding (torch's initial weights), GATO "
        "on Copy (the paper's lengths), the RRU on Nottingham and on digits (until no cell "
        "improves), the two of UR gates and of GATO about words (until no core improves, instead "
        "of three epochs) and seven claims about pixels (until no core improves, on "
        "average-pooled images; at first small digits, on which JANET was behind the LSTM when the "
        "budget ended, then two epochs of MNIST). The rule that test results are open if the "
        "budget ended most runs was added after two claims had been called failures on digits; at "
        "first it applied "
        "to failures alone, and five claims were called reproduced by differences that runs ended "
        "by the budget had. Among so many claims some verdicts are wrong by chance. P(a sooner "
        "than b): how often a run of a is sooner than one of b; runs that never get there come "
        "last. Differences are means over runs with the same seed. In brackets: 95 % bootstrap "
        "intervals. Losses and success are those at the end of a run; the best of its learning "
        "curve is given too, since a run may get worse again. Test results are those of the "
        "weights that were best on held-out sequences; in tasks that generate their sequences "
        "(Copy, Learning to Execute) runs from before commit 3f6440e are tested on those same "
        "held-out sequences. `rlgates ledger` writes this page from the tables next to it.\n",
    ]
    heads = ("claim", "place", "the paper's", "ours", "our test", "found", "verdict", "made by")
    for paper, claims in judged.items():
        lines = []
        for claim, verdict, finding in claims:
            paper_setting, ours, _ = claim.setting
            cells = (claim.words, claim.place, paper_setting, ours, claim.test.words)
            lines.append((*cells, finding.numbers, f"**{verdict}**", finding.provenance))
        parts.append(f"## {paper}\n\n{markdown(heads, lines)}")
    return "\n".join(parts)
