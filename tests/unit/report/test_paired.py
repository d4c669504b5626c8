"""Cores against one of them: by hand, from made-up rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.image import imread

from rlgates.experiments.report.rows import to_frame
from rlgates.experiments.report.studies.paired import score, steps_and_success, write_paired

COMMON = {"title": "Match", "variant": "", "command": "rlgates sweep some", "commit": "abcdef01"}


def agents(core: str, successes: list[float], reached: list[int | None]) -> list[dict[str, str]]:
    return [
        {
            **COMMON,
            "core": core,
            "seed": str(seed),
            "success": str(success),
            "steps_to_0.9": "" if when is None else str(when),
            "budget": "1000",
            "steps": "1000",
        }
        for seed, (success, when) in enumerate(zip(successes, reached, strict=True))
    ]


def networks(core: str, figures: list[str]) -> list[dict[str, str]]:
    row: dict[str, Any] = {**COMMON, "core": core, "task": "jsb", "metric": "nll", "epochs": "3"}
    return [{**row, "seed": str(seed), "test": test} for seed, test in enumerate(figures)]


def test_agents(tmp_path: Path) -> None:
    rows = [
        *agents("ur_lstm", [1.0, 0.9, 0.8], [100, 300, None]),
        *agents("lstm", [0.5, 0.6, 0.7], [None, None, None]),
        *agents("f_lstm", [0.5, 0.6], [None, None]),
    ]
    table, picture = write_paired(tmp_path, "some", to_frame(rows))
    lines = table.read_text().splitlines()
    assert lines[0] == "| Match | better than `lstm` | gain in success | steps |"
    assert lines[2] == "| `lstm` |  |  | 1.0 k [1.0 k, 1.0 k], 0 of 3 |"
    assert lines[3].startswith(
        "| `ur_lstm` | 1 [1, 1], p = 0.1 | +0.3 [+0.1, +0.5], p = 0.25 | 467 [100, 1.0 k], 2 of"
    )
    assert "f_lstm" not in table.read_text()  # of two seeds nothing is said
    assert "`rlgates sweep some`, commit abcdef0" in lines[-1]
    assert imread(picture).std() > 0.05


def test_networks_whose_figure_is_better_if_lower(tmp_path: Path) -> None:
    rows = [*networks("lstm", ["8", "9", "10"]), *networks("rru", ["7", "8", "11"])]
    (table,) = write_paired(tmp_path, "some", to_frame(rows))
    lines = table.read_text().splitlines()
    assert lines[0] == "| Match | better than `lstm` | gain in nll |"
    # 7 is below 8, 9 and 10, 8 below two and level with one, 11 below none.
    assert lines[3].startswith("| `rru` | 0.611 [")
    assert "| +0.333 [-1, +1], p = 1 |" in lines[3]


def test_the_p_of_a_loss_is_that_of_the_opposite_gain(tmp_path: Path) -> None:
    low, high = ["1", "2", "3", "4", "5"], ["6", "7", "8", "9", "10"]
    for first, second, chance, gain in ((high, low, 1, "+5"), (low, high, 0, "-5")):
        rows = [*networks("lstm", first), *networks("rru", second)]
        (table,) = write_paired(tmp_path, "some", to_frame(rows))
        words = f"| {chance} [{chance}, {chance}], p = 0.0079 |"  # 2 / 252, of 5 out of 10
        words += f" {gain} [{gain}, {gain}], p = 0.062 |"  # 2 / 2 ** 5
        assert words in table.read_text()


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    assert write_paired(tmp_path, "some", to_frame(networks("rru", ["7", "8", "9"]))) == []
    assert not list(tmp_path.iterdir())


def test_runs_that_diverge_are_the_worst(tmp_path: Path) -> None:
    common = {"stop_loss": "0.1", "updates": "900"}
    good = [{**row, **common, "made": "90", "ended": "goal"} for row in networks("lstm", ["7"] * 3)]
    lost = {**common, "diverged_at": "3", "made": "2", "ended": "diverged"}
    rows = [*good, *({**row, **lost} for row in networks("rru", ["", "", ""]))]
    rows += [
        {**row, **lost}
        if not row["test"]
        else {**row, **good[0], "core": "gru", "seed": row["seed"]}
        for row in networks("gru", ["7", "", "7"])
    ]
    (table,) = write_paired(tmp_path, "some", to_frame(rows))
    lines = table.read_text().splitlines()
    assert lines[3] == "| `rru` | 0 [0, 0], p = 0.1 |  | 900 [900, 900], 0 of 3 |"
    assert lines[4].startswith("| `gru` | 0.333 [")
    assert "| +0 [+0, +0], p = 1, 2 seeds | 360 [" in lines[4]


def test_what_a_run_had_before_it_diverged_is_no_score(tmp_path: Path) -> None:
    rows = [*networks("lstm", ["7", "8", "9"]), *networks("nru", ["1", "1", "9"])]
    for row in rows[3:5]:
        row |= {"diverged_at": "3", "ended": "diverged"}  # with figures of the best weights
    (table,) = write_paired(tmp_path, "some", to_frame(rows))
    line = table.read_text().splitlines()[3]
    assert line.startswith("| `nru` | 0.0556 [")  # level with one of nine
    assert line.endswith("| +0 [+0, +0], p = 1, 1 seed |")
    lost = [{**row, "ended": "diverged"} for row in agents("nru", [0.9] * 3, [None] * 3)]
    rows = [*agents("lstm", [0.1] * 3, [None] * 3), *lost]
    table, _ = write_paired(tmp_path, "some", to_frame(rows))
    assert table.read_text().splitlines()[3].startswith("| `nru` | 0 [0, 0], p = 0.1 |  |")


def test_runs_of_both_kinds() -> None:
    def first(rows: list[dict[str, str]], **changes: str) -> dict[str, str]:
        return to_frame([{**rows[0], **changes}]).to_dict("records")[0]

    agent = agents("lstm", [0.5], [None])
    assert (score(first(agent)), steps_and_success(first(agent))) == (0.5, (1000.0, False))
    assert steps_and_success(first(agent, steps="700", ended="minutes")) == (700.0, False)
    assert steps_and_success(first(agent, steps="700", ended="diverged")) == (1000.0, False)
    reached = agents("lstm", [0.9], [400])
    assert steps_and_success(first(reached)) == (400.0, True)
    assert steps_and_success(first(reached, ended="diverged")) == (1000.0, False)
    network = networks("lstm", ["8"])
    assert score(first(network)) == -8.0
    assert math.isnan(score(first(network, diverged_at="3")))
    assert steps_and_success(first(network, made="70", ended="goal")) == (70.0, True)
    no_test_set = first([{"loss": "0.25", "updates": "2000"}])
    assert (score(no_test_set), steps_and_success(no_test_set)) == (-0.25, (2000.0, False))
