"""Mazes of many episodes at once, by the algorithm hunt and kill."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from rlgates.envs.engine.arrays import Array, Tables, look_up, namespace, row_starts
from rlgates.envs.engine.philox import below

# Up, down, left, right, and no move.
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))
_NONE = 4
_CHOICES = 12  # divisible by each number of directions


def words_of_a_maze(cells: int) -> int:
    """How many random words `hunt_and_kill` takes for each maze of `cells` by `cells`."""
    return 1 + _hunts(cells) + cells**2 - 1


def _hunts(cells: int) -> int:
    return (2 * cells + 1) ** 2


def hunt_and_kill(words: Array, cells: int) -> Array:
    """Mazes of `cells` by `cells` cells, 1 for a wall and 0 for a free square.

    The walk begins at a random cell and goes to random neighbours that were not visited. Where
    there is none, a cell is drawn, and the walk goes on from there if it was visited, which is
    done (2 cells + 1)^2 times. The distribution is that of `HuntAndKill` of mazelib 0.9.16.

    Args:
        words: 32-bit words, (B, `words_of_a_maze(cells)`).
        cells: at least 2.

    Returns:
        int64 (B, (2 cells + 1)^2), row by row.
    """
    xp, tables, batch = namespace(words), _tables(cells).on_device_of(words), words.shape[0]
    width = cells + 2  # cells have a frame, which counts as visited
    rows = row_starts(batch, width**2, words)
    drawn = look_up(tables.places, below(words, cells**2).T)  # (words, B)
    slots = xp.asarray(below(words, _CHOICES).T, copy=True)
    # The move with which a cell was entered; -1: not yet.
    entered = xp.zeros((batch, width**2), dtype=xp.int64, device=words.device) + tables.empty
    flat, here = entered.reshape(-1), drawn[0]
    flat[rows + here] = _NONE
    hunts = xp.zeros_like(here)
    for number in range(1, words.shape[1]):
        # Of -1 all bits are left, of a move none.
        around = look_up(flat, rows + here + tables.around) >> 62 & tables.bits  # (5, B)
        code = around[0] | around[1] | around[2] | around[3] | around[4]
        move = look_up(tables.pick, code * _CHOICES + slots[number])
        walks = move != _NONE
        there = here + look_up(tables.steps, move)
        # Without a move, what is written goes to a corner of the frame.
        flat[rows + xp.where(walks, there, 0)] = move
        hunts = hunts + ~walks
        drawn_next = xp.where(hunts <= _hunts(cells), drawn[number], here)
        here = xp.where(walks, there, drawn_next)
        if isinstance(flat, np.ndarray) and number % 16 == 0 and flat.min() >= 0:
            break  # all cells were visited, and nothing can change any more
    inner = entered[:, tables.places]  # (B, cells^2)
    visited = inner >= 0
    back = look_up(tables.back, xp.where(visited, inner, _NONE))
    squares = tables.squares + back
    side = 2 * cells + 1
    maze: Array = xp.zeros((batch, side**2), dtype=xp.int64, device=words.device) + 1
    first = row_starts(batch, side**2, words)[:, None]
    # A cell that was left out writes into its own square, which stays a wall.
    wall = xp.astype(~visited, xp.int64)
    maze.reshape(-1)[(first + squares).reshape(-1)] = wall.reshape(-1)
    maze.reshape(-1)[(first + tables.squares).reshape(-1)] = wall.reshape(-1)
    return maze


@lru_cache(maxsize=16)
def _tables(cells: int) -> Tables:
    width, side = cells + 2, 2 * cells + 1
    inner = [(row, column) for row, column in product(range(cells), repeat=2)]
    empty = np.full((width, width), _NONE)
    empty[1:-1, 1:-1] = -1
    # A code has a bit for each neighbour that was not visited, and 16 for the cell itself.
    pick = np.full((32, _CHOICES), _NONE)
    for code in range(1, 16):
        moves = [move for move in range(4) if code >> move & 1]
        pick[code] = np.tile(moves, _CHOICES // len(moves))
    return Tables(
        places=np.array([(row + 1) * width + column + 1 for row, column in inner]),
        squares=np.array([(2 * row + 1) * side + 2 * column + 1 for row, column in inner]),
        empty=empty.reshape(-1),
        around=np.array([[down * width + right] for down, right in _MOVES]),
        bits=np.array([[1], [2], [4], [8], [16]]),
        steps=np.array([down * width + right for down, right in _MOVES]),
        back=np.array([-(down * side + right) for down, right in _MOVES]),
        pick=pick.reshape(-1),
    )
