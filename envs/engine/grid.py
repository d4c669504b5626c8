"""Boards of letters as look-up tables, and functions that read their images.

A place is one number for (board, row, col): board * 77 + row * 11 + col. All fixed
properties of a place are tabulated: where each action leads, which tile it has, and which tiles
are visible from it. A cell that can change (an apple, a pad) has its own *tile* number; a game
paints its tiles for each image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlgates.envs.engine.arrays import Array

HEIGHT, WIDTH = 7, 11
CELLS = HEIGHT * WIDTH
ACTIONS = ("north", "south", "west", "east")
NORTH, SOUTH, WEST, EAST = range(len(ACTIONS))
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

# Colours by number. The published games give them in thousandths, truncated to whole bytes.
PALETTE = np.array(
    [
        (204, 204, 204),  # floor, and outside the board
        (25, 25, 25),  # wall
        (228, 148, 109),  # player
        (140, 178, 0),  # apple
        (159, 81, 44),  # key
        (134, 206, 235),  # door
        (255, 255, 255),  # sign that the key has been taken
        (255, 0, 0),  # the colours to remember
        (0, 255, 0),
        (0, 0, 255),
    ],
    dtype=np.uint8,
)
FLOOR, WALL, PLAYER, APPLE, KEY, DOOR, SIGN, CUE = range(8)
# The palette with an alpha byte, each colour as one int32, so that whole pixels are copied.
RGBA = np.pad(PALETTE, ((0, 0), (0, 1))).view(np.int32)[:, 0]


class Atlas:
    """The tables of a game's boards.

    Letters: space is floor, `#` wall, `P` the floor cell where the player starts; those of
    `things` and `walls` are tiles, numbered letter by letter and in reading order through all
    boards; all others are floor, and name cells. First come the things, then one tile each for
    `FLOOR`, `WALL` and `PLAYER`, then the walls.

    Args:
        boards: rows of letters.
        things: letters of things, which may be present or absent.
        walls: letters of walls that are painted.
        solid: letters of things that the player cannot enter.
        over: letters of things drawn over the player who stands there.

    Attributes:
        num_things, num_tiles: counts.
        tiles: letter -> its tile numbers, as a slice.
        tile: (places,) the tile at each place.
        start: (boards,) the place where the player starts, or -1.
        next: (places * 4,) the place to which each action leads, by place * 4 + action.
    """

    def __init__(
        self,
        boards: Sequence[Sequence[str]],
        things: str = "",
        walls: str = "",
        solid: str = "",
        over: str = "",
    ) -> None:
        text = [letter for board in boards for row in board for letter in row]
        if len(text) != len(boards) * CELLS:
            raise ValueError(f"boards must have {HEIGHT} rows of {WIDTH} letters.")
        self._letters = np.array(text)
        self._over = list(over)
        self.start = np.full(len(boards), -1)
        starts = self.places("P")
        self.start[starts // CELLS] = starts

        self.num_things = sum(len(self.places(letter)) for letter in things)
        self.tile = self.num_things + np.where(self._letters == "#", WALL, FLOOR)
        self.tiles: dict[str, slice] = {}
        first = 0
        for letter in (*things, "", *walls):
            places = self.places(letter)
            self.tiles[letter] = slice(first, first + (len(places) if letter else 3))
            self.tile[places] = first + np.arange(len(places))
            first = self.tiles[letter].stop
        self.num_tiles = first

        blocked = np.isin(self._letters, list("#" + walls + solid))
        self.next = np.empty(len(text) * len(_MOVES), dtype=np.int64)
        for place in range(len(self._letters)):
            board, cell = divmod(place, CELLS)
            row, col = divmod(cell, WIDTH)
            for action, (down, right) in enumerate(_MOVES):
                r, c = row + down, col + right
                to = board * CELLS + r * WIDTH + c
                free = 0 <= r < HEIGHT and 0 <= c < WIDTH and not blocked[to]
                self.next[place * len(_MOVES) + action] = to if free else place

    def places(self, letter: str) -> Array:
        """The places with this letter, in reading order."""
        return np.flatnonzero(self._letters == letter)

    def cells(self, letter: str) -> tuple[tuple[int, int], ...]:
        """(row, col) of each place with this letter."""
        cells = self.places(letter) % CELLS
        return tuple((int(cell) // WIDTH, int(cell) % WIDTH) for cell in cells)

    def sight(self, crop: int | None) -> Array:
        """The tiles visible to a player at each place, (places, height * width).

        The view is crop x crop with the player in the centre, or the whole board if None.
        """
        boards = self.tile.reshape(-1, HEIGHT, WIDTH)
        places = np.arange(boards.size)
        board, row, col = np.unravel_index(places, boards.shape)
        if crop is None:
            view: Array = boards[board].reshape(boards.size, CELLS)
            here = places % CELLS
        else:
            margin = crop // 2
            edges = ((0, 0), (margin, margin), (margin, margin))
            padded = np.pad(boards, edges, constant_values=self.num_things + FLOOR)
            offset = np.arange(crop)
            rows = row[:, None, None] + offset[:, None]
            cols = col[:, None, None] + offset[None, :]
            view = padded[board[:, None, None], rows, cols].reshape(boards.size, crop * crop)
            here = np.full(boards.size, view.shape[1] // 2)
        hidden = np.isin(self._letters, self._over)
        view[places, here] = np.where(hidden, self.tile, self.num_things + PLAYER)
        return view


class Schedule:
    """Consecutive phases of fixed length; a phase of length 0 is left out.

    Each phase takes exactly its number of actions. The image that its last action would have
    led to is replaced by the first image of the next phase; the reward of that action stays.

    Attributes:
        total: number of actions of an episode.
        phase: (total + 1,) the phase that image t shows.
        enters: (total + 1,) whether image t is the first one of its phase.
        ends: (phases,) the t at which each phase ends.
    """

    def __init__(self, **lengths: int) -> None:
        counts = np.array(list(lengths.values()))
        self.ends = np.cumsum(counts)
        self.total = int(self.ends[-1])
        # The last image still belongs to the last phase.
        self.phase = np.append(np.repeat(np.arange(len(counts)), counts), len(counts) - 1)
        self.enters = np.diff(self.phase, prepend=-1) != 0


# Reading views, for scripted players.


def view_center(images: Array) -> int:
    """Row and column of the player in square views (B, h, h, 3).

    Raises:
        ValueError: the views are not square, or smaller than 5 x 5.
    """
    height, width = images.shape[1:3]
    if height != width or height < 5:
        raise ValueError(
            f"players need square views of 5 x 5 or more cells, got {height} x {width}."
        )
    return int(height) // 2


def cells_showing(images: Array, color: int) -> Array:
    """Cells of this colour of `PALETTE`, bool (B, h, w)."""
    cells: Array = (images == PALETTE[color]).all(axis=3)
    return cells


def blocked_ahead(images: Array) -> Array:
    """Whether the next or the second cell in each direction is not floor, bool (B, 4)."""
    c, blocked = view_center(images), ~cells_showing(images, FLOOR)
    ahead = [
        blocked[:, c + down, c + right] | blocked[:, c + 2 * down, c + 2 * right]
        for down, right in _MOVES
    ]
    return np.stack(ahead, axis=1)


def first_cell(cells: Array) -> tuple[Array, Array]:
    """Row and column of the first true cell of (B, h, w), (B,) each; 0 and 0 if there is none."""
    return np.divmod(cells.reshape(len(cells), -1).argmax(axis=1), cells.shape[2])
