"""The colour, dash and marker of a core, and the words of a title."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.colors import rgb_to_hsv, to_rgb

from rlgates.envs import ENVS
from rlgates.experiments.plots.styles import (
    FAMILIES,
    GATE_COLORS,
    MUTED,
    in_core_order,
    style,
)
from rlgates.experiments.plots.titles import TITLES, loss_words, title_words
from rlgates.experiments.report.outputs import study_names
from rlgates.experiments.report.rows import LABEL, read_frame
from rlgates.experiments.tasks import TASKS
from rlgates.gates import GATES
from rlgates.registry import CORES, core_names

RESULTS = Path(__file__).parents[3] / "experiments" / "results"


def test_every_gate_and_every_family_is_in_the_tables() -> None:
    assert set(GATE_COLORS) == set(GATES)
    assert set(FAMILIES) == set(CORES) - {"none"}


def test_no_two_cores_look_alike() -> None:
    styles = [style(core) for core in core_names()]
    assert len({(one.color, one.dash) for one in styles}) == len(styles)
    assert len({(one.color, one.marker) for one in styles}) == len(styles)


def test_a_gate_is_a_colour_and_a_family_is_one() -> None:
    assert {style(f"ur_{family}").color for family in ("lstm", "gru", "rmc")} == {"#009E73"}
    assert style("lstm") == ("#0072B2", "-", "o")
    assert style("none").color == MUTED
    plain = ("lstm", "gru", "janet", "mogrifier", "nru", "rru", "gato", "mingru", "lru", "dnc")
    assert len({style(core).color for core in plain}) == len(plain)


def test_variants_are_shades_of_their_core() -> None:
    core, *variants = map(style, ("lstm", "lstm, forget_bias=0", "lstm, sb3-contrib"))
    hues = [rgb_to_hsv(to_rgb(one.color))[0] for one in (core, *variants)]
    assert hues == pytest.approx([hues[0]] * 3, abs=0.01)
    assert len({one.color for one in (core, *variants)}) == 3
    assert len({one.dash for one in (core, *variants)}) == 3
    assert style("none, longer") != style("none")


def test_a_core_of_a_user_has_a_style_too() -> None:
    assert style("mine") == style("mine")
    assert style("mine").color in GATE_COLORS.values()


@pytest.mark.parametrize(
    "study", [study for study in study_names(RESULTS) if any(RESULTS.glob(f"{study}*.png"))]
)
def test_the_lines_of_a_committed_study_can_be_told_apart(study: str) -> None:
    rows = read_frame(RESULTS / f"{study}.csv")
    for _, group in rows.groupby("title"):
        for one, other in combinations(group[LABEL].unique(), 2):
            first, second = style(one), style(other)
            assert (first.color, first.dash) != (second.color, second.dash), (one, other)


def test_cores_in_order_with_their_variants() -> None:
    labels = ["x", "none", "rru, S = 1", "gru", "rru", "rru, A", "lstm"]
    expected = ["lstm", "gru", "rru", "rru, S = 1", "rru, A", "none", "x"]
    assert in_core_order(labels) == expected


def test_every_task_and_environment_has_words_of_its_own() -> None:
    envs = [env_id.partition("/")[2].partition("-v")[0] for env_id in ENVS]
    assert {*TASKS, *envs} <= set(TITLES)
    assert len(set(TITLES.values())) == len(TITLES)
    assert not any("," in words or ":" in words for words in TITLES.values())


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("jsb", "Bach chorales"),
        ("copy, delay 100, cues one", "Copy, delay 100, cues one"),
        ("adding, steps 200", "Adding, 200 steps"),
        ("text8, prefix True", "Wikipedia in letters (text8), prefix"),
        ("PassiveMatch 15/30/15, A2C", "Passive Match, 15/30/15 steps, A2C"),
        ("PassiveTMaze 11", "Passive T-Maze, 11 steps"),
        ("PassiveMatch, explore steps 15", "Passive Match, explore steps 15"),
        ("CartPole-v1 without velocities", "CartPole-v1 without velocities"),
    ],
)
def test_titles_in_words(title: str, words: str) -> None:
    assert title_words(title) == words


def test_losses_have_their_units() -> None:
    assert loss_words("adding, steps 200") == "squared error"
    assert loss_words("jsb") == "loss, nats"
