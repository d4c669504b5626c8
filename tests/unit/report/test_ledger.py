"""The ledger: what its tests find in made-up tables, and that its claims can be tested at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from rlgates.experiments.bench.configs import LoopBenchConfig
from rlgates.experiments.cli import main as cli
from rlgates.experiments.report.claims import CLAIMS, Claim, Results
from rlgates.experiments.report.claims.claim import (
    LEVEL,
    SEEDS,
    All,
    Outcome,
    RunGroup,
    RunTest,
    Scale,
    Setting,
    Test,
    Verdict,
    p_of_any,
    verdict_of,
)
from rlgates.experiments.report.claims.exact import (
    Cost,
    Exact,
    gato_jacobian,
    gato_parameters,
    initial_master_gates,
    initial_timescales,
    janet_parameters,
    refine_bounds,
)
from rlgates.experiments.report.claims.ledger import ledger
from rlgates.experiments.report.claims.saturation import Fastest, Order, Slopes
from rlgates.experiments.report.claims.training import (
    Above,
    Better,
    Diverges,
    Learns,
    Moves,
    Solves,
    Sooner,
    ruling_from_count,
)
from rlgates.experiments.runs.logs import write_rows
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.studies.study import TEN, Arm
from rlgates.experiments.sweep.sweep import SweepConfig, find_study, study_conditions

ROOT = Path(__file__).parents[3]
A, B = (RunGroup("some", "task, steps 3", core) for core in ("a", "b"))


def single(test: Test) -> list[Test]:
    """The tests that a test is made of."""
    return [one for part in test.tests for one in single(part)] if isinstance(test, All) else [test]


EVERY_CLAIM = [claim for claims in CLAIMS.values() for claim in claims]
ALL = [one for claim in EVERY_CLAIM for one in single(claim.test)]


def test_every_claim_is_about_runs_of_a_study() -> None:
    there: dict[str, set[tuple[str, str, str]]] = {}
    gates: dict[str, set[str]] = {}
    for test in ALL:
        if not isinstance(test, RunTest):
            continue
        for runs in test.groups():
            if runs.study not in there:
                found = study_conditions(*find_study(runs.study), SweepConfig())
                there[runs.study] = {
                    (part.config.title, part.config.core, part.variant) for part in found
                }
                gates[runs.study] = {part.config.core for part in found if part.gates}
            assert (runs.title, runs.core, runs.variant) in there[runs.study], runs
            if isinstance(test, Moves):
                assert runs.core in gates[runs.study], runs


def test_tests_of_steps_are_of_runs_that_end_when_they_have_solved_the_task() -> None:
    for test in ALL:
        if isinstance(test, Solves | Sooner):
            for runs in test.groups():
                sweep = SweepConfig(cores=(runs.core,))
                for part in study_conditions(*find_study(runs.study), sweep):
                    title = part.config.title
                    if (title, part.variant) == (runs.title, runs.variant):
                        stop = getattr(part.config, "stop_loss", None)
                        assert stop or getattr(part.config, "stop_success", None), runs


def test_studies_of_claims_have_as_many_seeds_as_a_verdict_needs() -> None:
    for test in ALL:
        for runs in test.groups() if isinstance(test, RunTest) else ():
            assert len(find_study(runs.study)[1].seeds) >= SEEDS, runs


def test_each_claim_is_said_once() -> None:
    words = [claim.words for claim in EVERY_CLAIM]
    assert len(set(words)) == len(words)
    assert len(words) >= 45


def test_claims_that_something_fails_have_a_control() -> None:
    for claim in EVERY_CLAIM:
        negative = [test for test in single(claim.test) if getattr(test, "never", False)]
        assert not negative or claim.controls, claim.words
        assert not any(getattr(test, "never", False) for test in claim.controls), claim.words


def test_a_claim_says_how_near_its_test_is_to_the_paper() -> None:
    for claim in EVERY_CLAIM:
        assert all(claim.setting), claim.words
        if claim.test.learns and claim.setting.scale == "as published":
            assert claim.controls, claim.words


@pytest.mark.parametrize(
    ("outcome", "scale", "reached", "verdict"),
    [
        ("true", "as published", None, "reproduced"),
        ("true", "as published", True, "reproduced"),
        ("true", "smaller", None, "reproduced at smaller scale"),
        ("false", "smaller", True, "not reproduced at smaller scale"),
        ("false", "smaller", None, "not reproduced at smaller scale"),
        ("false", "as published", True, "contradicted"),
        ("false", "as published", None, "open"),
        *(
            (outcome, scale, False, "open")
            for outcome in get_args(Outcome)
            for scale in get_args(Scale)
        ),
        *(
            ("open", scale, reached, "open")
            for scale in get_args(Scale)
            for reached in (None, True, False)
        ),
    ],
)
def test_verdicts(outcome: Any, scale: Any, reached: Any, verdict: str) -> None:
    assert verdict_of(outcome, scale, reached) == verdict


def test_every_verdict_can_be_reached_and_nothing_small_contradicts() -> None:
    cases = list(product(get_args(Outcome), get_args(Scale), (None, True, False)))
    assert {verdict_of(*case) for case in cases} == set(get_args(Verdict))
    contradicted = [case for case in cases if verdict_of(*case) == "contradicted"]
    assert contradicted == [("false", "as published", True)]


def tables(folder: Path, rows: list[Mapping[str, Any]], end: str = "") -> Results:
    """A folder with one table, of the study "some"."""
    common = {
        "title": A.title,
        "variant": "",
        "command": "rlgates sweep some",
        "commit": "abcdef01",
    }
    full = [{k: str(v) for k, v in {**common, "commit": "abcdef01", **row}.items()} for row in rows]
    write_rows(folder / f"some{end}.csv", full, list(full[0]))
    return Results(folder)


def runs(core: str, made: list[int | None], losses: list[float] | None = None) -> list[Any]:
    """A run for each number of updates; None: not solved."""
    return [
        {
            "core": core,
            "seed": seed,
            "ended": "budget" if updates is None else "goal",
            "made": updates or 900,
            "diverged_at": "",
            "task": "adding",
            "loss": losses[seed] if losses else 0.5,
            "baseline": 0.5,
            "test": losses[seed] if losses else 0.5,
        }
        for seed, updates in enumerate(made)
    ]


def diverged(rows: list[Any]) -> list[Any]:
    """The same runs, which diverge."""
    return [{**row, "diverged_at": 1} for row in rows]


FIVE: list[int | None] = [10, 20, 30, 40, 50]
NEVER: list[int | None] = [None] * 5
TENTH_APART = [
    {**row, "ended": "patience"}
    for row in (
        *runs("a", NEVER, [0.1, 0.2, 0.3, 0.4, 0.5]),
        *runs("b", NEVER, [0.2, 0.3, 0.4, 0.5, 0.6]),
    )
]


def test_runs_that_fall_again_are_shown_at_their_best_too(tmp_path: Path) -> None:
    def judged(test: Test, rows: list[Any], points: list[Any]) -> tuple[str, str]:
        tables(tmp_path, points, "_curves")
        finding = test.judge(tables(tmp_path, rows))
        return finding.outcome, finding.numbers

    rows = runs("a", NEVER, [0.5, 0.49, 0.48, 0.5, 0.51])
    points = [
        {"core": "a", "seed": seed, "loss": loss, "success": ""}
        for seed in range(5)
        for loss in (0.6, 0.1 if seed == 1 else 0.2, "nan", 0.5)
    ]
    outcome, found = judged(Learns(A, never=True), rows, points)
    assert outcome == "true"  # by the end
    assert "a ends at 0.96 to 1.02 of that loss (best 0.20 to 0.40)" in found
    assert "best" not in judged(Learns(A, never=True), rows, points[4:])[1]  # one has no curve

    agents = [{**row, "success": 0.4} for row in rows]
    points = [
        {**point, "loss": "", "success": 0.9 if point["loss"] == 0.2 else 0.3} for point in points
    ]
    outcome, found = judged(Above(A, 0.5), agents, points)
    assert outcome == "false"
    assert "a 0.4 (best in training 0.9), above 0.5 on 0 of 5" in found
    agents += [{**row, "core": "b", "success": 0.3} for row in agents]
    found = judged(Better(A, B), agents, points)[1]
    assert "a 0.4 (best in training 0.9), b 0.3: difference 0.1 [0.1, 0.1], p = 0.031" in found


@pytest.mark.parametrize(
    ("test", "rows", "outcome", "found"),
    [
        (Solves(A), runs("a", FIVE), "true", "a solves it on 5 of 5, after 30; 5 seeds"),
        (Solves(A), runs("a", [*FIVE[:3], None, None]), "true", "3 of 5, after 20"),
        (Solves(A), runs("a", [*FIVE[:2], None, None, None]), "open", "2 of 5, after 15"),
        (Solves(A, never=True), runs("a", [*FIVE[:3], None, None]), "false", "3 of 5"),
        (Solves(A, never=True), runs("a", [*FIVE[:1], *NEVER[:4]]), "open", "1 of 5"),
        (Solves(A), runs("a", NEVER), "false", "0 of 5; 5 seeds"),
        (
            Solves(A, eventually=True),
            runs("a", NEVER, [0.4, 0.5, 0.1, 0.2, 0.5]),
            "open",
            "0 of 5, and ends at a median of 0.80 of",
        ),
        (Solves(A, eventually=True), runs("a", FIVE), "true", "5 of 5"),
        (Solves(A), runs("a", FIVE[:3]), "true", "3 of 3, after 20; 3 seeds"),
        (Solves(A), runs("a", FIVE[:2]), "open", "2 of 2, after 15; 2 seeds"),
        (Solves(A), runs("a", NEVER[:3]), "open", "0 of 3; 3 seeds"),
        (Solves(A, never=True), runs("a", FIVE[:3]), "false", "3 of 3"),
        (Solves(A, never=True), runs("a", NEVER[:4]), "open", "0 of 4; 4 seeds"),
        (Diverges(A), diverged(runs("a", NEVER[:3])), "true", "3 of 3; 3 seeds"),
        (Learns(A, never=True), diverged(runs("a", NEVER[:3], [0.1] * 3)), "open", "3 of 3"),
        (Above(A, 0.4, "test"), runs("a", NEVER, [0.41] * 3 + [0.3] * 2), "true", "3 of 5"),
        (Above(A, 0.4, "test"), runs("a", NEVER, [0.4] * 5), "false", "a 0.4, above 0.4 on 0 of"),
        (Above(A, 0.4, "test", never=True), runs("a", NEVER, [0.5] * 5), "false", "5 of 5"),
        (Solves(A, never=True), runs("a", NEVER), "true", "0 of 5"),
        (Solves(A, never=True), runs("a", FIVE), "false", "5 of 5"),
        (Solves(A), runs("b", FIVE), "open", "not run yet"),
        (Learns(A, never=True), runs("a", NEVER, [0.5, 0.49, 0.48, 0.5, 0.51]), "true", "0.96"),
        (
            Learns(A, never=True),
            runs("a", NEVER, [0.5, 0.1, 0.48, 0.5, 0.51]),
            "open",
            "0.20 to 1.02",
        ),
        (Learns(A, never=True), runs("a", NEVER, [0.1] * 5), "false", "ends at 0.20 of that loss"),
        (Learns(A), runs("a", NEVER, [0.1, 0.1, 0.1, 0.5, 0.5]), "true", "0.20 to 1.00"),
        (Diverges(A), runs("a", NEVER), "false", "a diverges on 0 of 5"),
        (
            Diverges(A),
            diverged(runs("a", NEVER)),
            "true",
            "a diverges on 5 of 5",
        ),
        (
            Better(A, B, "test", examples=360),
            [{**row, "task": "digits"} for row in TENTH_APART],
            "false",
            "a 0.3, b 0.4",
        ),
        (
            Better(A, B, "test", examples=80),
            [{**row, "task": "digits"} for row in TENTH_APART],
            "open",
            "of 80 examples: standard error 0.075",
        ),
        (
            Sooner(A, B),
            runs("a", FIVE) + runs("b", NEVER),
            "true",
            "= 1.00 [1.00, 1.00], p = 0.004",
        ),
        (
            Sooner(B, A),
            runs("a", FIVE) + runs("b", NEVER),
            "false",
            "= 0.00 [0.00, 0.00], p against = 0.004",
        ),
        (Sooner(A, B), runs("a", NEVER) + runs("b", NEVER), "open", "neither a nor b solves it"),
        (Sooner(A, B), runs("a", FIVE) + runs("b", FIVE[:4]), "open", "4 seeds"),
        (
            Better(A, B, "test"),
            TENTH_APART,
            "true",
            "a 0.3, b 0.4 (lower is better): difference -0.1 [-0.1, -0.1], p = 0.031; 5",
        ),
        (
            Better(A, B, "test"),
            [{**row, "task": "copy_aba"} for row in TENTH_APART],
            "false",
            "a 0.3, b 0.4",
        ),
        (
            Better(B, A, "test"),
            [{**row, "ended": "budget" if row["seed"] < 3 else "patience"} for row in TENTH_APART],
            "open",
            "p against = 0.031; the budget ended 3 of 5 runs of b",
        ),
        (
            Better(A, B, "test"),
            [
                {**row, "ended": "budget" if row["core"] == "b" else "patience"}
                for row in TENTH_APART
            ],
            "open",
            "p = 0.031; the budget ended 5 of 5 runs of b",
        ),
        (
            Better(A, B, "test"),
            [
                {**row, "ended": "budget" if row["core"] == "a" else "patience"}
                for row in TENTH_APART
            ],
            "true",
            "p = 0.031; 5",
        ),
        *(
            (
                Better(*pair, "test"),
                [{**row, "test": "" if row["seed"] == 2 else row["test"]} for row in TENTH_APART],
                "open",
                f"{pair[0].core} has no figure on 1 of 5",
            )
            for pair in ((A, B), (B, A))
        ),
        (
            Better(A, B, "test"),  # with figures of its best weights
            diverged(TENTH_APART[:1]) + TENTH_APART[1:],
            "open",
            "a has no figure on 1 of 5",
        ),
        (
            Above(A, 0.4, "test"),
            runs("a", NEVER, [0.5, 0.6, 0.7, 0.8, 0.9]),
            "true",
            "a 0.7, above 0.4 on 5 of 5",
        ),
        (
            Above(A, 0.4, "test"),  # with figures of their best weights
            diverged(runs("a", NEVER, [0.5, 0.6, 0.7, 0.8, 0.9]))[:4] + runs("a", FIVE)[4:],
            "open",
            "a diverges on 4 of 5",
        ),
        (Above(A, 0.4, "test"), diverged(runs("a", NEVER)), "open", "a diverges on 5 of 5"),
        (Above(A, 0.4, "test", never=True), diverged(runs("a", NEVER)), "open", "on 5 of 5"),
        (
            Above(A, 0.4),
            [{**row, "ended": "diverged", "success": 0.9} for row in runs("a", FIVE)],
            "open",
            "a diverges on 5 of 5",
        ),
        (
            Learns(A, never=True),
            [{**row, "baseline": ""} for row in runs("a", NEVER)],
            "open",
            "a has no figure on 5 of 5",
        ),
        (Learns(A), runs("a", NEVER[:4], [0.1] * 4), "open", "4 seeds"),  # the fifth may diverge
        (
            Better(A, B, "test"),
            [{**row, "ended": "time"} for row in TENTH_APART],
            "open",
            "the budget ended 5 of 5 runs of b",
        ),
        (
            Better(A, B, "test"),
            [
                {**row, "seed": row["seed"] + 5 * half, "ended": "budget" if half else "patience"}
                for row in TENTH_APART
                for half in (0, 1)
            ],
            "open",
            "the budget ended 5 of 10 runs of b",
        ),
        (
            Better(A, B, "test"),
            [{**row, "seed": row["seed"] + 2 * (row["core"] == "b")} for row in TENTH_APART],
            "open",
            "; 3 seeds",
        ),
        (
            Learns(A, never=True),
            [{**row, "loss": "nan", "diverged_at": 1} for row in runs("a", NEVER)],
            "open",
            "a diverges on 5 of 5",
        ),
        (
            Better(A, B, "test", margin=0.2),
            TENTH_APART,
            "false",
            "difference -0.1",
        ),
        (
            Better(B, A, "test", margin=-0.2),
            TENTH_APART,
            "true",
            "difference 0.1",
        ),
    ],
)
def test_outcomes(test: Test, rows: list[Any], outcome: str, found: str, tmp_path: Path) -> None:
    finding = test.judge(tables(tmp_path, rows))
    assert (finding.outcome, found in finding.numbers) == (outcome, True), finding
    if "not run" in found:
        assert finding.provenance == "`rlgates sweep some`"
    else:
        assert finding.provenance == "`rlgates sweep some`, commit abcdef0"


def test_agents_are_compared_by_their_steps(tmp_path: Path) -> None:
    rows = [
        {"core": core, "seed": seed, "steps_to_0.9": steps, "success": 0.9, "steps": 10}
        for core, all_steps in (("a", (1, 2, 3, 4, 5)), ("b", (9, "", "", 8, 7)))
        for seed, steps in enumerate(all_steps)
    ]
    assert Sooner(A, B).judge(tables(tmp_path, rows)).outcome == "true"


def test_counts_of_five_and_ten_seeds() -> None:
    five = [ruling_from_count(count, 5).outcome for count in range(6)]
    assert five == ["false", "open", "open", "true", "true", "true"]
    ten = [ruling_from_count(count, 10, never=True).outcome for count in range(6)]
    assert ten == ["true", "true", "open", "open", "false", "false"]


@pytest.mark.parametrize("total", [5, 17, 18, 20, 30, 50])
def test_nothing_both_happens_and_does_not(total: int) -> None:
    for count in range(total + 1):
        does, does_not = (ruling_from_count(count, total, never) for never in (False, True))
        assert {does.outcome, does_not.outcome} in ({"true", "false"}, {"open"}), count
        if does.outcome == "open":
            assert max(does.p_false, does_not.p_false) > LEVEL
    assert ruling_from_count(8, 30) == ruling_from_count(8, 30, never=True) == ("open", 1.0)


def test_seeds_that_were_added_are_tested_alone(tmp_path: Path) -> None:
    """Of `icu` seeds 5 to 9 were added: 0 to 4, and any that the study does not name, are not read.

    Those of a study without added ones are all read.
    """

    def solved(seeds: range, study: str, title: str) -> list[Any]:
        new = [{**runs("a", FIVE)[0], "title": title, "seed": seed} for seed in seeds]
        tables(tmp_path, new)
        (tmp_path / "some.csv").rename(tmp_path / f"{study}.csv")
        return list(RunGroup(study, title, "a").rows(Results(tmp_path))["seed"])

    assert solved(range(12), "icu", "icu") == ["5", "6", "7", "8", "9"]
    assert solved(range(12), "music", "jsb") == ["0", "1", "2", "3", "4"]
    assert solved(range(12), "mine", "x") == [str(seed) for seed in range(12)]


@pytest.mark.parametrize(
    ("seeds", "outcome"), [(5, "open"), (8, "open"), (9, "true"), (10, "true")]
)
def test_all_seeds_of_a_study_are_waited_for(seeds: int, outcome: str, tmp_path: Path) -> None:
    """Of ten seeds five that agree decide nothing yet; nine do, whatever the last one shows."""
    title = "copy, delay 100, cues one"
    rows = [
        {**runs("s_lstm", NEVER)[0], "title": title, "seed": 10 + seed} for seed in range(seeds)
    ]
    results = tables(tmp_path, rows)
    (tmp_path / "some.csv").rename(tmp_path / "tied_gates.csv")
    finding = Solves(RunGroup("tied_gates", title, "s_lstm"), never=True).judge(results)
    assert finding.outcome == outcome
    # The rows name the study as it was called when they were made.
    assert finding.provenance.startswith("`rlgates sweep tied_gates`")


def test_more_seeds_than_needed_decide_too(tmp_path: Path) -> None:
    rows = [{**runs("a", FIVE)[0], "seed": seed} for seed in range(8)]
    assert Solves(A).judge(tables(tmp_path, rows)).outcome == "true"


def test_only_the_seeds_of_a_row_are_waited_for() -> None:
    assert RunGroup("janet", "smnist", "janet").needed == 5
    assert RunGroup("janet", "adding, steps 200", "janet").needed == 10


def test_a_row_without_added_seeds_is_tested_on_all_of_its_own() -> None:
    janet = STUDIES["janet"]
    config = janet.arms("laptop")[0].config
    rows = Arm(config, ("gru",), seeds=(0, 1)), Arm(config, ("lstm",))
    study = replace(janet, laptop=rows, seeds=TEN, added=(5, 6, 7, 8, 9), full=())
    assert study.tested_seeds(config.title, "gru") == (0, 1)
    assert study.tested_seeds(config.title, "lstm") == (5, 6, 7, 8, 9)


def test_controls_decide_whether_a_failure_counts(tmp_path: Path) -> None:
    results = tables(tmp_path, runs("a", NEVER) + runs("b", FIVE))
    whole = Setting("100 steps", "100 steps", "as published")
    smaller = whole._replace(scale="smaller")
    fails, learns, unknown = Solves(A), Solves(B), Solves(RunGroup("other", "x", "a"))
    for setting, controls, verdict, control in (
        (whole, (learns,), "contradicted", "control reached"),
        (whole, (), "open", ""),
        (whole, (learns, fails), "open", "control not reached"),
        (whole, (learns, unknown), "open", "control undecided"),
        (smaller, (learns,), "not reproduced at smaller scale", "control reached"),
        (smaller, (fails,), "open", "control not reached"),
        (smaller, (fails, unknown), "open", "control not reached"),
    ):
        claim = Claim("figure 1", "A is good.", fails, setting, controls)
        found, finding = claim.judge(results)
        assert found == verdict
        assert control in finding.numbers
        assert ("control" in finding.numbers) == bool(controls)
    never = Claim("figure 1", "A is bad.", Solves(A, never=True), whole, (fails,))
    assert never.judge(results)[0] == "open"


def test_several_tests_hold_together(tmp_path: Path) -> None:
    results = tables(tmp_path, runs("a", FIVE) + runs("b", NEVER))
    good, bad, unknown = Solves(A), Solves(A, never=True), Solves(RunGroup("other", "x", "a"))
    assert All((good, Solves(B, never=True))).judge(results).outcome == "true"
    assert All((good, bad)).judge(results).outcome == "false"
    assert Solves(B).judge(results).outcome == "false"
    assert All((good, Solves(B))).judge(results).outcome == "open", "2 / 32"
    assert All((good, unknown)).judge(results).outcome == "open"
    assert All((good, All((bad, unknown)))).judge(results).outcome == "false"
    assert All((good, All((bad, good)))).words == f"solved: {A}, {A}; not solved: {A}"


def test_numbers_of_several_tests_say_what_they_are_of(tmp_path: Path) -> None:
    other = [run._replace(title="task, steps 9", variant="fast") for run in (A, B)]
    rows = runs("a", FIVE) + runs("b", [9, 9, 9, 9, 9])
    there = [{**row, "title": "task, steps 9", "variant": "fast"} for row in rows]
    results = tables(tmp_path, [{"variant": "", "title": A.title, **row} for row in rows] + there)
    here, away = Sooner(A, B), Sooner(*other)
    words = "P(a sooner than b) = 0.00 [0.00, 0.00], p against = 0.004; 5 seeds"
    assert All((here, away)).judge(results).numbers == (
        f"task, steps 3: {words}; task, steps 9, fast: {words}"
    )
    twice = All((All((here, Solves(A))), All((away, Solves(other[0])))))
    solved = "a solves it on 5 of 5, after 30; 5 seeds"
    assert twice.judge(results).numbers == (
        f"task, steps 3: {words}; {solved}; task, steps 9, fast: {words}; {solved}"
    )
    rare = Better(A, B, "test_perplexity_rare")
    assert (Better(A, B, "test").label, rare.label) == (
        "task, steps 3",
        "task, steps 3, perplexity rare",
    )


def test_one_of_many_parts_is_not_contradicted_by_chance(tmp_path: Path) -> None:
    cores = [RunGroup("some", A.title, core) for core in "bcd"]
    losses = [[0.2, 0.3, 0.4, 0.5, 0.6], [0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.1, 0.6, 0.4, 0.4]]
    rows = runs("a", NEVER, [0.1, 0.2, 0.3, 0.4, 0.5])
    for where, some in zip(cores, losses, strict=True):
        rows += runs(where.core, NEVER, some)
    rows = [{**row, "ended": "patience"} for row in rows]
    b, c, d = (Better(where, A, "test") for where in cores)  # p = 1 / 32 against b and c
    results = tables(tmp_path, rows)
    assert b.judge(results).outcome == "false"
    assert All((b, d)).judge(results).outcome == "open", "2 / 32"
    assert All((b, c)).judge(results).outcome == "false", "2 / 2 / 32"
    assert All((b, c, d)).judge(results).outcome == "false", "3 / 2 / 32"
    assert p_of_any([0.6, 0.03, 0.03, 0.9]) == pytest.approx(4 / 2 * 0.03)
    assert p_of_any([LEVEL] * 3) <= LEVEL, "of three at the level, not just above it"


def test_gates_that_move(tmp_path: Path) -> None:
    def units(core: str, shift: float) -> list[Any]:
        return [
            {
                "core": core,
                "seed": seed,
                "unit": unit,
                "gate_before": 0.1 * unit,
                "gate_after": 0.1 * unit + shift,
                "timescale_before": 2,
                "timescale_after": 2 + 100 * shift,
                "bias_timescale_before": 3,
                "bias_timescale_after": 3 + 50 * shift,
            }
            for seed in range(5)
            for unit in range(4)
        ]

    tables(tmp_path, runs("a", FIVE) + runs("b", FIVE))
    results = tables(tmp_path, units("a", 0.3) + units("b", 0.1), "_gates")
    finding = Moves(A, B, "moved").judge(results)
    assert finding.outcome == "true"
    assert "a 0.3, b 0.1 (P = 1.00 [1.00, 1.00]), p = 0.004; 5 seeds" in finding.numbers
    assert Moves(B, A, "longest").judge(results).outcome == "false"
    assert Moves(A, B, "change", factor=10).judge(results).outcome == "false"
    assert "a 32, b 12 " in Moves(A, B, "shortest").judge(results).numbers


@pytest.mark.parametrize(
    "compute",
    [
        refine_bounds,
        initial_timescales,
        initial_master_gates,
        gato_jacobian,
        gato_parameters,
        janet_parameters,
    ],
)
def test_what_can_be_computed(compute: Any, tmp_path: Path) -> None:
    finding = Exact("as computed", compute).judge(Results(tmp_path))
    assert finding.outcome == "true", finding


def test_saturation_is_read_from_its_table(tmp_path: Path) -> None:
    rows = [
        {"method": method, "gate": gate, "time": 10**k, "one_minus_f": 0.5 * 10 ** (-power * k)}
        for method in ("gradient flow", "Adam")
        for gate, power in (("fast", 1.1), ("sigmoid", 1.0), ("softsign", 1 / 3))
        for k in range(9)
    ]
    plain = [{k: str(v) for k, v in row.items()} for row in rows]
    write_rows(tmp_path / "saturation.csv", plain, list(plain[0]))
    results = Results(tmp_path)
    assert Slopes({"sigmoid": (-1.01, -0.99)}).judge(results).outcome == "true"
    assert Slopes({"softsign": (-1.01, -0.99)}).judge(results).outcome == "false"
    assert Order(1e4, ("fast", "sigmoid", "softsign")).judge(results).outcome == "true"
    assert Order(1e4, ("sigmoid", "fast")).judge(results).outcome == "false"
    first = Fastest(("Adam",), ("fast", "sigmoid", "softsign"), 3e-5).judge(results)
    assert first.outcome == "true"
    assert first.numbers == "updates with Adam: fast 10,000, sigmoid 100,000, softsign inf"
    assert Fastest(("Adam",), ("sigmoid", "fast"), 1e-5).judge(results).outcome == "false"
    assert Slopes({"sigmoid": (-1, 0)}).judge(Results(tmp_path / "none")).outcome == "open"


def test_costs_are_those_that_were_timed(tmp_path: Path) -> None:
    row = {"core": "nru", "than": "janet", "ratio": "2.5", "low": "2.1", "high": "2.9"}
    row |= {"commit": "1234567890", "load": "0.2", "shape": "64x32x64x512"}
    small = {**row, "shape": "64x32x64x64", "ratio": "1.5", "low": "1.4", "high": "1.6"}
    write_rows(tmp_path / "loop_speed.csv", [row, small], list(row))
    results = Results(tmp_path)
    found = Cost("nru", "janet", least=2.0).judge(results)
    assert found.outcome == "true"
    one, other = "1.50 [1.40, 1.60] with 64 units", "2.50 [2.10, 2.90] with 512 units"
    assert found.numbers == f"nru / janet = {one}, {other}"
    assert found.provenance == "`rlgates bench loops`, commit 1234567, load 0.2 before"
    assert Cost("nru", "janet", most=2.0).judge(results).outcome == "false"
    assert Cost("nru", "janet", most=2.6).judge(results).outcome == "open", "within the interval"
    for folder in (tmp_path, tmp_path / "none"):
        unknown = Cost("lstm", "gru", most=1.0).judge(Results(folder))
        assert unknown.outcome == "open"
        assert unknown.provenance == "`rlgates bench loops --cores lstm/gru`"


def test_every_cost_of_a_claim_is_timed_by_default() -> None:
    costs = {f"{test.core}/{test.than}" for test in ALL if isinstance(test, Cost)}
    assert costs == set(LoopBenchConfig().cores)


def test_the_page() -> None:
    claim = Claim("figure 1", "A is good.", Solves(A), Setting("100 steps", "3 steps"))
    text = ledger({"Someone 2020": [(claim, *claim.judge(Results(ROOT)))]})
    assert "1 claims: 0 reproduced, 0 reproduced at smaller scale" in text
    assert "0 contradicted, 1 open." in text
    assert "## Someone 2020\n" in text
    line = f"| A is good. | figure 1 | 100 steps | 3 steps | solved: {A} | not run yet | **open** |"
    assert line in text


def test_the_command_and_that_the_page_is_up_to_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = ROOT / "experiments" / "results"
    for file in (*committed.glob("*.csv"), committed / "core_speed.json"):
        (tmp_path / file.name).symlink_to(file)
    assert cli.main(["ledger", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "LEDGER.md")
    assert (tmp_path / "LEDGER.md").read_text() == (committed / "LEDGER.md").read_text()
