"""Mazes of hunt and kill: every cell can be reached in one way, as often as in mazelib."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from rlgates.envs import BatchedEnv, make_env_spec
from rlgates.envs.engine.mazes import hunt_and_kill, words_of_a_maze
from rlgates.envs.engine.philox import Key


def mazes(count: int, cells: int) -> np.ndarray:
    key = Key(7, np.arange(count), np.zeros(count, dtype=np.int64))
    side = 2 * cells + 1
    return hunt_and_kill(key.words(words_of_a_maze(cells)), cells).reshape(-1, side, side)


def reached(maze: np.ndarray) -> int:
    """How many free squares can be reached from the first of them."""
    first = (int(np.argwhere(maze == 0)[0][0]), int(np.argwhere(maze == 0)[0][1]))
    seen, todo = {first}, [first]
    while todo:
        row, column = todo.pop()
        for there in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if maze[there] == 0 and there not in seen:
                seen.add(there)
                todo.append(there)
    return len(seen)


@pytest.mark.parametrize("cells", [3, 5, 9])
def test_all_cells_are_joined_without_a_circle(cells: int) -> None:
    for maze in mazes(50, cells):
        assert maze[1::2, 1::2].sum() == 0
        assert maze[0].all()
        assert maze[-1].all()
        assert maze[:, 0].all()
        assert maze[:, -1].all()
        # As many passages as a tree of the cells has, and one piece: so no circle.
        assert (maze == 0).sum() == reached(maze) == 2 * cells**2 - 1


@pytest.mark.parametrize("name", ["Escape", "Explore"])
def test_the_player_without_memory_moves_from_any_start(name: str) -> None:
    env = BatchedEnv(make_env_spec(f"rlgates/Labyrinth{name}-v0"), 200, seed=0)
    player = env.spec.reactive_player()
    player.reset(200, seed=0)
    observations, _ = env.reset()
    first, moved = observations[:, :9], np.zeros(200, dtype=bool)
    for step in range(30):
        observations, *_ = env.step(player.act(observations, np.full(200, step == 0)))
        moved |= (observations[:, :9] != first).any(axis=1)
    assert moved.all()


def test_each_maze_is_as_frequent_as_in_mazelib() -> None:
    generate = pytest.importorskip("mazelib.generate.HuntAndKill")
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    theirs = Counter(generate.HuntAndKill(3, 3).generate().tobytes() for _ in range(4_000))
    ours = Counter(maze.tobytes() for maze in mazes(40_000, 3).astype(np.int8))
    assert theirs.keys() <= ours.keys()
    table = [[theirs[maze] for maze in ours], list(ours.values())]
    assert stats.chi2_contingency(table).pvalue > 1e-4
    # The test tells this distribution from the uniform one over the trees.
    assert stats.chisquare(table[1]).pvalue < 1e-9


def test_cells_that_are_left_out_stay_walls() -> None:
    # From some word on, the first cell alone is drawn.
    words = np.random.default_rng(0).integers(2**32, size=(100, words_of_a_maze(5)))
    words[:, 24:] = 0
    made = hunt_and_kill(words, 5).reshape(-1, 11, 11)
    left_out = made[:, 1::2, 1::2].sum(axis=(1, 2))
    assert (left_out > 0).any()
    assert (left_out == 0).any()
    for maze, count in zip(made, left_out, strict=True):
        assert (maze == 0).sum() == reached(maze) == 2 * (25 - count) - 1


def test_the_start_is_opposite_to_the_goal() -> None:
    env = BatchedEnv(make_env_spec("rlgates/LabyrinthEscape-v0"), 200, seed=0)
    parameters = env.reset(options={"reveal": True})[1]["parameters"]
    start, goal = parameters["start"], parameters["goal"]
    assert (abs(start - goal).max(axis=1) == 10).all()
    assert np.isin([start.min(axis=1), goal.min(axis=1)], range(10)).all()
    assert len(np.unique(start, axis=0)) == 20


@pytest.mark.parametrize("name", ["Escape", "Explore"])
def test_odd_sizes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="size must be even, got 9"):
        make_env_spec(f"rlgates/Labyrinth{name}-v0", size=9)
    with pytest.raises(ValueError, match="size must be at least 6, got 4"):
        make_env_spec(f"rlgates/Labyrinth{name}-v0", size=4)
