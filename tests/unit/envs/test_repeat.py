"""The Repeat games against slow twins, against their rules by hand, and with scripted players."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.env_checks import by_hand, compare_with_twins, in_letters, uniform
from support.players import ShuffledCue
from twins.repeat import SlowRepeat

from rlgates.envs.engine.arrays import Array
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.engine.players import play
from rlgates.envs.engine.spec import Player
from rlgates.envs.games.repeat import (
    Repeat,
    RepeatFirst,
    RepeatFirstMemoryPlayer,
    RepeatFirstReactivePlayer,
    RepeatPrevious,
    RepeatPreviousMemoryPlayer,
    RepeatPreviousReactivePlayer,
)

SPECS: dict[str, Repeat] = {
    "first": RepeatFirst(),
    "first, 3 decks": RepeatFirst(num_decks=3),
    "previous": RepeatPrevious(),
    "previous, medium": RepeatPrevious(num_decks=2, k=32),
    "previous, in sight": RepeatPrevious(k=1),
    "previous, one answer": RepeatPrevious(k=51),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


@every_spec
def test_random_episodes_are_those_of_the_slow_twin(spec: Repeat) -> None:
    k = spec.k if isinstance(spec, RepeatPrevious) else None
    ends = compare_with_twins(
        spec, lambda reported: SlowRepeat(**reported, k=k), uniform(4), rows=80
    )
    assert len(set(ends["accuracy"].tolist())) > 1


DECK = [2, 0, 1, 3] * 13


def test_first_by_hand() -> None:
    observations, rewards, info = by_hand(RepeatFirst(), {"suits": DECK}, [2] * 50 + [1])
    share = float(np.float32(1 / 51))
    assert observations == DECK
    assert rewards == [share] * 50 + [-share]
    assert info["accuracy"][0] == np.float32(50 / 51)
    assert not info["is_success"][0]


def test_previous_by_hand() -> None:
    # With k = 3 the third action is the first that counts, and asks for the first card.
    answers = [3, 3, *DECK[:49]]
    observations, rewards, info = by_hand(RepeatPrevious(k=3), {"suits": DECK}, answers)
    share = float(np.float32(1 / 49))
    assert observations == DECK
    assert rewards == [0, 0] + [share] * 49
    assert (info["accuracy"][0], info["is_success"][0]) == (1, True)
    # The card in sight is no other than two before it, in this deck never of the same suit.
    _, rewards, info = by_hand(RepeatPrevious(k=3), {"suits": DECK}, DECK[:51])
    assert rewards == [0, 0] + [-share] * 49
    assert info["accuracy"][0] == 0


def test_decks_hold_every_suit_thirteen_times_in_a_uniform_order() -> None:
    env = BatchedEnv(RepeatFirst(num_decks=2), 2000, seed=3)
    _, info = env.reset(options={"reveal": True})
    suits = info["parameters"]["suits"]
    assert suits.shape == (2000, 104)
    for suit in range(4):
        assert ((suits == suit).sum(axis=1) == 26).all()
        shares = (suits == suit).mean(axis=0)
        assert abs(shares - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 2000)
    # Neighbours are of one suit as often as without replacement.
    same = (suits[:, 1:] == suits[:, :-1]).mean()
    assert same == pytest.approx(25 / 103, abs=0.01)


# Memory is enough, and nothing else is.

EASY = {
    "first": (RepeatFirst(), RepeatFirstMemoryPlayer(), RepeatFirstReactivePlayer()),
    "first, medium": (
        RepeatFirst(num_decks=8),
        RepeatFirstMemoryPlayer(),
        RepeatFirstReactivePlayer(),
    ),
    "previous": (RepeatPrevious(), RepeatPreviousMemoryPlayer(4), RepeatPreviousReactivePlayer(4)),
    "previous, hard": (
        RepeatPrevious(num_decks=3, k=64),
        RepeatPreviousMemoryPlayer(64),
        RepeatPreviousReactivePlayer(64),
    ),
}
players_spec = pytest.mark.parametrize(("spec", "ceiling", "floor"), EASY.values(), ids=EASY)
EPISODES = 1000


def num_answers(spec: Repeat) -> int:
    cards = 52 * spec.num_decks
    return cards - spec.k if isinstance(spec, RepeatPrevious) else cards - 1


def best_without_memory(spec: Repeat) -> float:
    """Expected accuracy of the best rule on the visible card, from the chances of each answer.

    Of the other cards, one fewer has the visible suit than any other suit.
    """
    cards = 52 * spec.num_decks
    same, other = (cards / 4 - 1) / (cards - 1), (cards / 4) / (cards - 1)
    if isinstance(spec, RepeatPrevious):
        return 1.0 if spec.k == 1 else max(same, other)
    later = cards - 2  # answers after the first, at which the first card is in sight
    return max(1 + later * same, later * other) / (1 + later)


@players_spec
def test_memory_reaches_the_ceiling(spec: Repeat, ceiling: Player, floor: Player) -> None:
    result = play(BatchedEnv(spec, 250), ceiling, EPISODES)
    assert (result["is_success"], result["accuracy"]) == (1.0, 1.0)
    # The sum of what is paid, which is 1 but for the rounding of payments to float32.
    rewards = [float(np.float32(1 / num_answers(spec)))] * num_answers(spec)
    assert result["episode_return"] == pytest.approx(sum(rewards), abs=1e-12)
    assert result["episode_return"] == pytest.approx(1, abs=1e-5)


@players_spec
def test_without_memory_answers_are_guesses(spec: Repeat, ceiling: Player, floor: Player) -> None:
    result = play(BatchedEnv(spec, 250), floor, EPISODES)
    # The answers of an episode are near to independent.
    margin = 6 * math.sqrt(0.25 * 0.75 / (EPISODES * num_answers(spec)))
    assert result["accuracy"] == pytest.approx(best_without_memory(spec), abs=margin)
    assert result["episode_return"] == pytest.approx(2 * result["accuracy"] - 1, abs=1e-5)
    assert result["is_success"] == 0


def test_chance_is_a_guess_at_each_answer() -> None:
    assert RepeatPrevious(k=51).chance == 0.25
    assert RepeatPrevious(k=49).chance == 0.25**3
    assert RepeatPrevious(k=1).chance == 1  # the card in sight is the answer
    assert RepeatFirst().chance == 0.25  # always the same suit: it may be that of the first card


def test_the_visible_card_is_enough_with_k_1() -> None:
    spec = RepeatPrevious(k=1)
    assert play(BatchedEnv(spec, 50), RepeatPreviousReactivePlayer(1), 50)["is_success"] == 1.0
    assert play(BatchedEnv(spec, 50), RepeatPreviousMemoryPlayer(1), 50)["is_success"] == 1.0


@players_spec
def test_memory_of_another_episodes_cards_is_at_chance(
    spec: Repeat, ceiling: Player, floor: Player
) -> None:
    def is_cue(observations: Array, episode_starts: Array) -> Array:
        return episode_starts if isinstance(spec, RepeatFirst) else np.ones_like(episode_starts)

    result = play(BatchedEnv(spec, 250), ShuffledCue(ceiling, is_cue), EPISODES)
    # All answers of an episode of Repeat First are one guess; the others are near to independent.
    guesses = EPISODES * (1 if isinstance(spec, RepeatFirst) else num_answers(spec))
    margin = 5 * math.sqrt(0.25 * 0.75 / guesses)
    assert result["accuracy"] == pytest.approx(0.25, abs=margin)


# Choices, images and settings.


def test_the_deck_can_be_overridden_and_is_reported() -> None:
    env = BatchedEnv(RepeatPrevious(), 5, seed=2)
    obs, info = env.reset(options={"suits": DECK, "reveal": True})
    assert info["parameters"]["suits"].tolist() == [DECK] * 5
    assert obs.tolist() == [2] * 5
    with pytest.raises(ValueError, match="suits must have 52 items, got 51"):
        env.reset(options={"suits": DECK[1:]})
    with pytest.raises(ValueError, match="suits must be at most 3, got 4"):
        env.reset(options={"suits": [4, *DECK[1:]]})
    with pytest.raises(ValueError, match=r"13 cards of each suit, got \[14, 13, 12, 13\]"):
        env.reset(options={"suits": [0, *DECK[1:]]})


def _board(spec: Repeat) -> Array:
    env = BatchedEnv(spec, 1, seed=0)
    env.reset()
    board: Array = spec.render_board(env.state)[0]
    return board


def test_the_board_shows_the_cards_dealt_and_brightly_the_one_to_name() -> None:
    colors = [(25, 25, 25)]
    colors += [(85, 85, 85), (25, 50, 95), (25, 75, 35), (90, 30, 30)]
    colors += [(240, 240, 240), (70, 130, 255), (60, 210, 90), (245, 70, 70)]
    letters = dict(zip(colors, ".sdchSDCH", strict=True))

    def first_row(spec: Repeat, steps: int) -> str:
        env = BatchedEnv(spec, 1, seed=0)
        env.reset(options={"suits": DECK})
        for _ in range(steps):
            env.step([0])
        assert spec.render_info(env.state) == [("", 51 - steps, None)]
        rows = in_letters(spec.render_board(env.state)[0], letters)
        assert rows[1:] == ["." * 13] * 3
        return rows[0]

    shapes = [_board(RepeatFirst(num_decks=n)).shape for n in (1, 3, 4, 16, 60, 1000)]
    assert shapes[:4] == [(4, 13, 3), (12, 13, 3), (8, 26, 3), (16, 52, 3)]
    assert shapes[4:] == [(48, 65, 3), (223, 234, 3)]  # never higher than wide
    assert first_row(RepeatFirst(), 0) == "C" + "." * 12
    assert first_row(RepeatFirst(), 4) == "CsdhC" + "." * 8
    assert first_row(RepeatPrevious(k=3), 1) == "cS" + "." * 11
    assert first_row(RepeatPrevious(k=3), 5) == "csdHcS" + "." * 7


def test_all_cards_of_many_decks_are_on_the_board() -> None:
    spec = RepeatFirst(num_decks=59)  # 3,068 cards in rows of 65, the last of which has 13
    env = BatchedEnv(spec, 1, seed=0)
    env.reset()
    state = {**env.state, "t": env.state["t"] + spec.max_episode_length}
    dealt = (spec.render_board(state)[0] != 25).any(axis=2).ravel()
    assert dealt.tolist() == [True] * 3068 + [False] * 52


def test_presets_are_the_published_levels() -> None:
    first = [RepeatFirst(**preset) for preset in RepeatFirst.presets.values()]
    previous = [RepeatPrevious(**preset) for preset in RepeatPrevious.presets.values()]
    assert list(RepeatFirst.presets) == list(RepeatPrevious.presets) == ["easy", "medium", "hard"]
    assert first == [RepeatFirst(num_decks=n) for n in (1, 8, 16)]
    assert [spec.max_episode_length for spec in first] == [51, 415, 831]
    assert previous == [RepeatPrevious(num_decks=n, k=k) for n, k in ((1, 4), (2, 32), (3, 64))]
    assert [spec.max_episode_length for spec in previous] == [51, 103, 155]


@pytest.mark.parametrize(
    ("kind", "settings", "error", "text"),
    [
        (RepeatFirst, {"num_decks": 0}, ValueError, "num_decks must be at least 1, got 0"),
        (RepeatFirst, {"num_decks": 1001}, ValueError, "num_decks must be at most 1000, got 1001"),
        (RepeatFirst, {"num_decks": 1.0}, TypeError, r"num_decks must be an integer, got 1\.0"),
        (RepeatPrevious, {"num_decks": 0}, ValueError, "num_decks must be at least 1, got 0"),
        (RepeatPrevious, {"k": 0}, ValueError, "k must be at least 1, got 0"),
        (RepeatPrevious, {"k": 52}, ValueError, "k must be at most 51, got 52"),
        (RepeatPrevious, {"k": "4"}, TypeError, "k must be an integer, got '4'"),
    ],
)
def test_unusable_settings_are_refused(
    kind: type[Repeat], settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        kind(**settings)


@pytest.mark.parametrize("kind", [RepeatPreviousMemoryPlayer, RepeatPreviousReactivePlayer])
def test_players_refuse_an_impossible_k(kind: type[Any]) -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        kind(0)
