"""Small boards drawn with letters, turned into look-up tables.

A place is one number for (board, row, col): board * 77 + row * 11 + col. Everything about a
place that does not change is looked up: where each action leads, what stands there, and what
is seen from there. What does change (an apple that is gone, the colour of a pad) is a *tile*:
every such cell has a tile number of its own, and a task paints its tiles anew for each picture.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlgates.envs.philox import Array

HEIGHT, WIDTH = 7, 11
CELLS = HEIGHT * WIDTH
ACTIONS = ("north", "south", "west", "east")
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

# Colours by number. The published games name them in thousandths and cut to whole bytes.
PALETTE = np.array(
    [
        (204, 204, 204),  # floor, and what lies outside the board
        (25, 25, 25),  # wall
        (228, 148, 109),  # player
        (140, 178, 0),  # apple
        (255, 0, 0),  # the colours to remember
        (0, 255, 0),
        (0, 0, 255),
    ],
    dtype=np.uint8,
)
FLOOR, WALL, PLAYER, APPLE, CUE = range(5)


def row_and_col(place: Array) -> tuple[Array, Array]:
    """Row and column on its board of each place."""
    cell = place % CELLS
    return cell // WIDTH, cell % WIDTH


class Atlas:
    """The tables of a task's boards.

    Letters: space is floor, `#` wall, `P` the floor cell where the player starts; every cell
    with another letter is a tile of its own, numbered in reading order through all boards.

    Attributes:
        num_tiles: tiles 0, 1 and 2 are floor, wall and player; the lettered ones follow.
        tiles: letter -> its range of tile numbers, as a slice.
        start: (boards,) the place where the player starts.
        next: (places, 4) the place to which each action leads.
    """

    def __init__(self, boards: Sequence[Sequence[str]], solid: str = "") -> None:
        text = [letter for board in boards for row in board for letter in row]
        if len(text) != len(boards) * CELLS:
            raise ValueError(f"boards must have {HEIGHT} rows of {WIDTH} letters.")
        letters = np.array(text)
        self.start = np.flatnonzero(letters == "P")
        if len(self.start) != len(boards):
            raise ValueError("each board must have one start P.")

        self._tile = np.where(letters == "#", WALL, FLOOR)
        self.tiles: dict[str, slice] = {}
        self.num_tiles = 3
        for letter in sorted(set(text) - set(" #P")):
            places = np.flatnonzero(letters == letter)
            self.tiles[letter] = slice(self.num_tiles, self.num_tiles + len(places))
            self._tile[places] = self.num_tiles + np.arange(len(places))
            self.num_tiles += len(places)

        blocked = np.isin(letters, list("#" + solid))
        self.next = np.empty((len(text), len(_MOVES)), dtype=np.int64)
        for place in range(len(text)):
            board, cell = divmod(place, CELLS)
            row, col = divmod(cell, WIDTH)
            for action, (down, right) in enumerate(_MOVES):
                r, c = row + down, col + right
                to = board * CELLS + r * WIDTH + c
                inside = 0 <= r < HEIGHT and 0 <= c < WIDTH
                self.next[place, action] = to if inside and not blocked[to] else place

    def number(self, letter: str) -> Array:
        """(places,) which of the tiles of `letter` is there, or their count if none is."""
        tiles = self.tiles[letter]
        count = tiles.stop - tiles.start
        inside = (self._tile >= tiles.start) & (self._tile < tiles.stop)
        number: Array = np.where(inside, self._tile - tiles.start, count)
        return number

    def sight(self, crop: int | None) -> Array:
        """(places, height * width) the tiles in view of a player who stands there.

        The view is crop x crop with the player in its centre, or the whole board.
        """
        boards = self._tile.reshape(-1, HEIGHT, WIDTH)
        places = np.arange(boards.size)
        board, row, col = np.unravel_index(places, boards.shape)
        if crop is None:
            view: Array = boards[board].reshape(boards.size, CELLS)
            view[places, places % CELLS] = PLAYER
            return view
        margin = crop // 2
        padded = np.pad(boards, ((0, 0), (margin, margin), (margin, margin)))  # 0 is floor
        offset = np.arange(crop)
        rows = row[:, None, None] + offset[:, None]
        cols = col[:, None, None] + offset[None, :]
        view = padded[board[:, None, None], rows, cols].reshape(boards.size, crop * crop)
        view[:, view.shape[1] // 2] = PLAYER
        return view


class Schedule:
    """Phases of fixed length, played one after the other; a length of 0 leaves one out.

    Each phase takes exactly its number of actions. The picture that its last action would have
    made is replaced by the first picture of the next phase; the reward of that action stays.

    Attributes:
        names: of all phases. total: number of actions of an episode.
        phase: (total + 1,) the phase that picture t shows.
        enters: (total + 1,) whether picture t is the first one of its phase.
        ends: (phases,) the t at which each phase ends.
    """

    def __init__(self, **lengths: int) -> None:
        self.names = tuple(lengths)
        counts = np.array(list(lengths.values()))
        self.ends = np.cumsum(counts)
        self.total = int(self.ends[-1])
        # The last picture still belongs to the last phase.
        self.phase = np.append(np.repeat(np.arange(len(counts)), counts), len(counts) - 1)
        self.enters = np.diff(self.phase, prepend=-1) != 0

    def progress(self, t: Array) -> tuple[Array, Array]:
        """The phase at time t and the actions left of it."""
        phase = self.phase[t]
        return phase, self.ends[phase] - t
