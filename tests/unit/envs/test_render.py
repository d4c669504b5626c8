"""Rendered frames, for every spec and every kind of observation."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rlgates.envs import ENVS, BatchedEnv, make_env_spec
from rlgates.envs.engine.actions import random_actions
from rlgates.envs.render.frames import BACKGROUND, BRIGHT, MARGIN, draw, render_batch
from rlgates.envs.render.lettering import length, write

MATCH, MAZE = "rlgates/PassiveMatch-v0", "rlgates/PassiveTMaze-v0"
WORDS = ("left", "middle")
TOP = 2 * MARGIN + 15  # height of the line of text
BOARD = np.random.default_rng(0).integers(256, size=(7, 11, 3), dtype=np.uint8)
VIEW = np.random.default_rng(1).integers(256, size=(5, 5, 3), dtype=np.uint8)


def centres(frame: np.ndarray, x: int, cells: int, size: int) -> np.ndarray:
    """The colours in the middle of the cells of a square panel."""
    at = np.arange(cells) * size + size // 2
    return frame[TOP + at[:, None] + 1, x + at]


def colors(frame: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(color) for color in np.unique(frame.reshape(-1, 3), axis=0).tolist()}


@pytest.mark.parametrize("env_id", ENVS)
def test_every_spec_can_be_rendered_to_its_end(env_id: str) -> None:
    spec = make_env_spec(env_id)
    env = BatchedEnv(spec, 2, seed=0)
    env.reset()
    rng, pairs, done = np.random.default_rng(0), [], False
    while not done:
        if env.state["t"][0] % 5 == 0:
            pairs.append(render_batch(spec, env.state, [0.0, 1.0]))
        done = bool(env.step(random_actions(spec.action_space, rng, 2))[2].any())
    assert len({frame.shape for pair in pairs for frame in pair}) == 1
    assert all(frame.dtype == np.uint8 for pair in pairs for frame in pair)
    assert len({one.tobytes() for one, _ in pairs}) == len(pairs)  # the steps left, if nothing else
    assert BRIGHT in colors(pairs[0][1][:TOP])  # the reward is highlighted
    assert BRIGHT not in colors(pairs[0][0][:TOP])


def test_view_and_board_stand_side_by_side() -> None:
    frame = draw(VIEW, BOARD, WORDS, 0.0)
    np.testing.assert_array_equal(centres(frame, MARGIN, 5, 50), VIEW)
    right = 2 * MARGIN + 250
    np.testing.assert_array_equal(centres(frame, right, 7, 36), BOARD[:, :7])
    assert frame.shape == (TOP + 252 + MARGIN, right + 11 * 36 + MARGIN, 3)


def test_a_whole_board_view_is_rendered_once() -> None:
    both = draw(BOARD, BOARD, WORDS, 0.0, (2, 3))
    np.testing.assert_array_equal(both, draw(BOARD, None, WORDS, 0.0))
    assert BRIGHT not in colors(both)


def test_the_cells_in_view_are_framed() -> None:
    black = np.zeros((7, 11, 3), np.uint8)
    frame = draw(black[:5, :5], black, WORDS, 0.0, (3, 4))
    rows, cols = np.nonzero((frame[TOP:] == BRIGHT).all(axis=-1))
    left = 2 * MARGIN + 250
    assert (rows.min(), rows.max() + 1) == (1 * 36, 6 * 36)
    assert (cols.min() - left, cols.max() + 1 - left) == (2 * 36, 7 * 36)


def test_scaled_images_look_like_plain_ones() -> None:
    plain, scaled = (make_env_spec(MATCH, scale_frames=flag) for flag in (False, True))
    frames = []
    for spec in (plain, scaled):
        env = BatchedEnv(spec, 1, seed=3)
        env.reset()
        frames += render_batch(spec, env.state, [0.0])
    np.testing.assert_array_equal(*frames)


def test_numbers_are_squares_by_their_sign_and_size() -> None:
    def squares(*values: float) -> list[tuple[int, ...]]:
        strip = draw(np.array(values, np.float32), None, WORDS, 0.0)[TOP:]
        x = MARGIN + 130 + 36 * np.arange(len(values)) + 2
        return [tuple(color) for color in strip[2, x].tolist()]

    low, half, zero, high = squares(-1, 0.5, 0, 1)
    assert len({low, half, zero, high}) == 4
    assert all(min(a, b) <= c <= max(a, b) for a, b, c in zip(zero, high, half, strict=True))
    assert squares(-8, 4, 0, 8) == [low, half, zero, high]  # to the scale of the largest
    assert squares(0.25, 0)[0] != high  # but never of less than 1


def test_extra_inputs_are_strips_below_the_image() -> None:
    obs = {"observation": VIEW, "previous_action": np.eye(4)[2], "time": np.array([0.25])}
    frame = draw(obs, BOARD, WORDS, 0.0)
    plain = draw(VIEW, BOARD, WORDS, 0.0)
    np.testing.assert_array_equal(frame[: len(plain)], plain)
    assert frame.shape[0] > len(plain) + 2 * 36
    other = draw({**obs, "time": np.array([0.5])}, BOARD, WORDS, 0.0)
    changed = np.nonzero((frame != other).any(axis=(1, 2)))[0]
    assert len(plain) + 36 < changed.min() <= changed.max() < len(frame) - MARGIN


def test_dictionaries_need_no_entry_observation() -> None:
    parts = {"a": np.array([3]), "b": np.zeros((2, 2))}
    for board in (None, BOARD):
        frame, fewer = draw(parts, board, WORDS, 0.0), draw({"a": parts["a"]}, board, WORDS, 0.0)
        assert len(frame) > len(fewer)
    eye = draw({"eye": VIEW}, None, WORDS, 0.0)
    assert (eye != draw({"eye": VIEW // 2}, None, WORDS, 0.0)).any()


@pytest.mark.parametrize("name", ["m", "popgym-NoisyPositionOnlyCartPoleMedium"])
def test_a_title_and_the_reward_have_room_side_by_side(name: str) -> None:
    plain, rewarded = (draw(VIEW, None, (name, ""), reward) for reward in (0.0, -1.234e-05))
    assert plain.shape == rewarded.shape
    left = MARGIN + length(name)
    np.testing.assert_array_equal(plain[:TOP, :left], rewarded[:TOP, :left])
    columns = np.nonzero((rewarded[:TOP] == BRIGHT).all(axis=-1).any(axis=0))[0]
    assert columns.min() >= left + MARGIN
    assert columns.max() < rewarded.shape[1] - MARGIN


def test_what_does_not_fit_between_the_ends_is_left_out() -> None:
    crowded, alone = (draw(VIEW, None, ("left" * 5, middle), 1.0) for middle in ("m" * 9, ""))
    np.testing.assert_array_equal(crowded, alone)


@pytest.mark.parametrize("count", [1, 13, 42, 300])
def test_any_number_of_numbers_fits(count: int) -> None:
    values = np.ones(count, np.float32)
    frame = draw(values, None, WORDS, 0.0)
    assert frame.shape[1] <= 700
    last = draw(np.append(values[:-1], -1).astype(np.float32), None, WORDS, 0.0)
    assert (frame != last).any()
    np.testing.assert_array_equal(frame[:, -MARGIN:], np.full_like(frame[:, -MARGIN:], BACKGROUND))


def test_a_very_long_board_shows_the_part_around_the_player() -> None:
    env = gymnasium.make(MAZE, corridor_length=1500, render_mode="rgb_array")
    env.reset(seed=0)
    orange = (228, 148, 109)
    columns = []
    for _ in range(100):
        env.step(0)
        frame = env.render()
        assert frame.shape[1] <= 700
        columns.append(np.nonzero((frame == orange).all(axis=-1))[1].mean())
    assert columns[0] < columns[10] < columns[20]  # near the end of the corridor it moves,
    assert columns[60] == columns[80] == columns[99]  # and then the corridor does


def test_text_has_the_length_that_it_is_said_to_have() -> None:
    frame = np.zeros((20, 200, 3), np.uint8)
    write(frame, "Hm 0.5", 10, 3, (9, 9, 9), 2)
    rows, cols = np.nonzero(frame[..., 0])
    assert (rows.min(), rows.max()) == (3, 12)
    assert (cols.min(), cols.max()) == (10, 10 + length("Hm 0.5", 2) - 1)
    again = np.zeros_like(frame)
    write(again, "hM\N{SNOWMAN}0.5", 10, 3, (9, 9, 9), 2)
    np.testing.assert_array_equal(frame, again)
