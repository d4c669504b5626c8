"""Images for people: the agent's observation beside the whole board, under a line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlgates.envs.engine.arrays import Array, row_of
from rlgates.envs.engine.spec import EnvSpec, RenderInfo, State
from rlgates.envs.render.lettering import DOTS, length, write

FPS = 8

BACKGROUND = (58, 64, 78)
TEXT = (240, 242, 246)
FAINT = (168, 176, 190)
BRIGHT = (255, 200, 60)
MARGIN = 14
_GAP = 6  # between strips
_HEIGHT, _WIDTH = 252, 640  # of a panel at most: 7 rows of 36, or 5 of 50
_LARGEST, _LEAST = 50, 10  # sides of a cell
_FRAME = 3
_LINES = 8  # cells of at least this size have lines between them
_NARROWEST = 424
_REWARD = length("reward -1.234e-05")  # the longest text, so that all images have one width
_SQUARES = (36, 24, 18, 12)  # sides in a strip of numbers, the largest that fit
_LETTERED = 18  # sides of squares with room for text
_STRIP = 496  # width of a strip of numbers at most
_LABEL = 130  # width of the names before strips
_NEGATIVE, _ZERO, _POSITIVE = (172, 134, 240), (84, 91, 108), (240, 218, 120)


def render_batch(spec: EnvSpec, state: State, rewards: Sequence[float]) -> list[Array]:
    """One image for each environment of `state`; `rewards` are those of the last action."""
    obs = spec.observe(state)
    infos, boards = spec.render_info(state), spec.render_board(state)
    return [
        draw(
            row_of(obs, row),
            None if boards is None else boards[row],
            _words(info),
            reward,
            info.cell,
        )
        for row, (info, reward) in enumerate(zip(infos, rewards, strict=True))
    ]


def _words(info: RenderInfo) -> tuple[str, str]:
    steps = f"{info.steps_left} left"
    return (f"{info.phase} phase", steps) if info.phase else (steps, "")


def draw(
    view: Any,
    board: Array | None,
    words: tuple[str, str],
    reward: float,
    cell: tuple[int, int] | None = None,
) -> Array:
    """One image, uint8 (height, width, 3).

    Args:
        view: the observation of one agent: an image (h, w, 3) with values to 255, or to 1 if
            they are floats; or numbers of any shape, drawn as a strip of squares; or a dict of
            these, in which only `observation` is drawn as an image.
        board: the whole board, uint8 (rows, cols, 3), or None. A view of the same size is not
            drawn beside it.
        words: for the left and the middle of the line above; the reward is at the right.
        reward: of the last action.
        cell: (row, col) of the player on the board, for a frame around the cells in view.
    """
    parts = dict(view) if isinstance(view, dict) else {"observation": view}
    image = _as_image(parts.get("observation"))
    panels = []
    if image is not None:
        del parts["observation"]
    if image is not None and (board is None or image.shape != board.shape):
        panels.append(_enlarge(image, _size(image.shape)))
    if board is not None:
        panels.append(_board_panel(board, cell, None if not panels else image))
    strips = [_strip(name, np.asarray(values)) for name, values in parts.items()]
    return _composed(words, reward, panels, strips)


def _as_image(values: Any) -> Array | None:
    """The image as uint8, or None if `values` is not an image."""
    image: Array = np.asarray(values)
    if image.ndim != 3 or image.shape[2] != 3:
        return None
    return image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)


def _size(shape: tuple[int, ...]) -> int:
    """Side of a cell, so that all cells fit into a panel; at least 1."""
    return max(1, min(_LARGEST, _HEIGHT // shape[0], _WIDTH // shape[1]))


def _board_panel(board: Array, cell: tuple[int, int] | None, view: Array | None) -> Array:
    """The board (if very long, the part around the player), with a frame around the view."""
    size = _size(board.shape)
    if cell is not None and size < _LEAST:
        size = _LEAST
        (top, bottom), (left, right) = (
            _span(at, count, room // size)
            for at, count, room in zip(cell, board.shape, (_HEIGHT, _WIDTH), strict=False)
        )
        board, cell = board[top:bottom, left:right], (cell[0] - top, cell[1] - left)
    panel = _enlarge(board, size)
    if cell is not None and view is not None:
        _outline(panel, cell, size, len(view))
    return panel


def _span(at: int, count: int, room: int) -> tuple[int, int]:
    """Which `room` of `count` cells to show, with `at` in the middle where possible."""
    first = max(0, min(at - room // 2, count - room))
    return first, first + room


def _enlarge(cells: Array, size: int) -> Array:
    """`cells` as squares, with faint lines between them if they are large enough."""
    squares: Array = cells.repeat(size, axis=0).repeat(size, axis=1)
    if size >= _LINES:
        squares[size - 1 :: size] = squares[size - 1 :: size] * 0.92
        squares[:, size - 1 :: size] = squares[:, size - 1 :: size] * 0.92
    return squares


def _outline(panel: Array, cell: tuple[int, int], size: int, crop: int) -> None:
    """A frame on the board around the cells in view, which may reach beyond its edge."""
    top, left = ((at - crop // 2) * size for at in cell)
    bottom, right = top + crop * size, left + crop * size
    for y, y_end, x, x_end in (
        (top, top + _FRAME, left, right),
        (bottom - _FRAME, bottom, left, right),
        (top, bottom, left, left + _FRAME),
        (top, bottom, right - _FRAME, right),
    ):
        panel[max(y, 0) : max(y_end, 0), max(x, 0) : max(x_end, 0)] = BRIGHT


def _strip(name: str, values: Array) -> Array:
    """Numbers as squares, purple below 0 and yellow above, with their name before them."""
    numbers = values.astype(np.float64).ravel()
    size = next((size for size in _SQUARES if size * len(numbers) <= _STRIP), 8)
    columns = min(len(numbers), _STRIP // size)
    rows = -(-len(numbers) // columns)
    most = max(1.0, float(np.abs(numbers).max(initial=0.0)))
    label = name.replace("_", " ")
    left = max(_LABEL, length(label, 2) + 10)
    strip = np.full((max(rows * size, 10), left + columns * size, 3), BACKGROUND, np.uint8)
    write(strip, label, 0, max(0, (size - 11) // 2), FAINT, 2)
    for index, number in enumerate(numbers):
        row, col = divmod(index, columns)
        square = strip[row * size :, left + col * size :][: size - 1, : size - 1]
        share = abs(number) / most
        color = np.array(_POSITIVE if number > 0 else _NEGATIVE)
        square[:] = share * color + (1 - share) * np.array(_ZERO)
        text = f"{number:.3g}" if abs(number) >= 1 else f"{number:.2g}".replace("0.", ".")
        if size >= _LETTERED and length(text, 2) <= size - 5:
            x, y = (size - 1 - length(text, 2)) // 2, (size - 11) // 2
            write(square, text, x, y, BACKGROUND if share > 0.5 else TEXT, 2)
    return strip


def _composed(
    words: tuple[str, str], reward: float, panels: list[Array], strips: list[Array]
) -> Array:
    """The line of text, the panels side by side, and the strips below."""
    row = sum(panel.shape[1] + MARGIN for panel in panels)
    strips_width = max((strip.shape[1] + MARGIN for strip in strips), default=0)
    left, middle = words
    line = length(left) + 2 * MARGIN + _REWARD
    width = MARGIN + max(row, strips_width, line, _NARROWEST - MARGIN)
    top = 2 * MARGIN + 5 * DOTS
    tallest = max((panel.shape[0] + MARGIN for panel in panels), default=0)
    height = top + tallest + sum(strip.shape[0] + _GAP for strip in strips)
    height += MARGIN - _GAP if strips else 0
    image = np.full((height, width, 3), BACKGROUND, dtype=np.uint8)
    x = (width - row + MARGIN) // 2
    for panel in panels:
        y = top + (tallest - MARGIN - panel.shape[0]) // 2
        image[y : y + panel.shape[0], x : x + panel.shape[1]] = panel
        x += panel.shape[1] + MARGIN
    y = top + tallest
    for strip in strips:
        image[y : y + strip.shape[0], MARGIN : MARGIN + strip.shape[1]] = strip
        y += strip.shape[0] + _GAP

    right = f"reward {reward:+.4g}" if reward else "reward 0"
    ends = MARGIN + length(left), width - MARGIN - length(right)
    write(image, left, MARGIN, MARGIN, TEXT)
    if length(middle) + MARGIN <= ends[1] - ends[0]:
        write(image, middle, (sum(ends) - length(middle)) // 2, MARGIN, FAINT)
    write(image, right, ends[1], MARGIN, BRIGHT if reward else FAINT)
    return image
