"""Pictures for people: what the agent sees beside the whole board, under a line of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlgates.envs.engine import Moment, State, Task
from rlgates.envs.philox import Array

FPS = 8

_BACKGROUND = (58, 64, 78)
_TEXT = (240, 242, 246)
_FAINT = (168, 176, 190)
_BRIGHT = (255, 200, 60)
_MARGIN = 14
_PANEL = 252  # height of both panels: 7 cells of 36, or 5 of 50
_DOT = 3

# Letters of 3 x 5 dots: an octal digit is a row of three.
_GLYPHS = (
    "A25755 B65656 C34443 D65556 E74647 F74644 G34553 H55755 I72227 J11152 K55655 L44447 M57755 "
    "N65555 O25552 P65644 Q25563 R65655 S34216 T72222 U55557 V55552 W55775 X55255 Y55222 Z71247 "
    "075557 126227 271747 371317 455711 574717 674757 771122 875757 975717 +02720 -00700 .00002"
)
_FONT = {
    glyph[0]: np.array([[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in glyph[1:]], bool)
    for glyph in _GLYPHS.split()
}


def draw_rows(task: Task, state: State, rewards: Sequence[float]) -> list[Array]:
    """One picture for each row of `state`; `rewards` are those of the last action."""
    rows = zip(task.observe(state), task.board(state), task.moments(state), rewards, strict=True)
    return [draw(*row) for row in rows]


def draw(view: Array, board: Array, moment: Moment, reward: float) -> Array:
    """One picture, uint8 (height, width, 3).

    Args:
        view: what the agent sees, uint8 (h, w, 3). If that is the whole board it is drawn once.
        board: the whole board, uint8 (rows, cols, 3).
        moment: where the episode stands.
        reward: of the last action.
    """
    panels = [_enlarge(board)]
    if view.shape != board.shape:
        _outline(panels[0], moment, _PANEL // len(board), len(view))
        panels.insert(0, _enlarge(view))
    top = 2 * _MARGIN + 5 * _DOT
    width = _MARGIN + sum(panel.shape[1] + _MARGIN for panel in panels)
    picture = np.full((top + _PANEL + _MARGIN, width, 3), _BACKGROUND, dtype=np.uint8)
    x = _MARGIN
    for panel in panels:
        y = top + (_PANEL - panel.shape[0]) // 2
        picture[y : y + panel.shape[0], x : x + panel.shape[1]] = panel
        x += panel.shape[1] + _MARGIN

    left, middle = f"{moment.phase} phase", f"{moment.steps_left} left"
    right = f"paid {reward:+.4g}" if reward else "paid 0"
    ends = _MARGIN + _length(left), width - _MARGIN - _length(right)
    _write(picture, left, _MARGIN, _TEXT)
    _write(picture, middle, (sum(ends) - _length(middle)) // 2, _FAINT)
    _write(picture, right, ends[1], _BRIGHT if reward else _FAINT)
    return picture


def _enlarge(cells: Array) -> Array:
    """`cells` as squares with faint lines between them, as high as a panel."""
    size = _PANEL // len(cells)
    squares: Array = cells.repeat(size, axis=0).repeat(size, axis=1)
    squares[size - 1 :: size] = squares[size - 1 :: size] * 0.92
    squares[:, size - 1 :: size] = squares[:, size - 1 :: size] * 0.92
    return squares


def _outline(panel: Array, moment: Moment, size: int, crop: int) -> None:
    """A frame on the board around the cells in view, which may reach beyond its edge."""
    y, x = np.indices(panel.shape[:2])
    centre_y, centre_x = moment.row * size + size / 2, moment.col * size + size / 2
    distance = np.maximum(np.abs(y + 0.5 - centre_y), np.abs(x + 0.5 - centre_x))
    half = crop * size / 2
    panel[(distance < half) & (distance > half - 3)] = _BRIGHT


def _length(text: str) -> int:
    return (4 * len(text) - 1) * _DOT


def _write(picture: Array, text: str, x: int, color: tuple[int, int, int]) -> None:
    for letter in text.upper():
        if letter in _FONT:
            dots = _FONT[letter].repeat(_DOT, axis=0).repeat(_DOT, axis=1)
            picture[_MARGIN : _MARGIN + len(dots), x : x + dots.shape[1]][dots] = color
        x += 4 * _DOT
