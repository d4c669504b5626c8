"""The pictures of a film: what is played, and below it the gates of the agent over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps

from rlgates.envs.lettering import length, write
from rlgates.envs.render import BACKGROUND, BRIGHT, FAINT, MARGIN, TEXT
from rlgates.experiments.gate_figures import unit_timescales
from rlgates.experiments.stats import Floats

Pixels = np.ndarray[Any, Any]

HEIGHT = 128  # of the strip at most
DECADES = 3  # of timescales, 1 / (1 - f), that colours tell apart
_DOT = 2
_LINE = 5 * _DOT
_LEFT = MARGIN + length("slow", _DOT) + 8  # where the strip begins
_PRICE = 6  # height of the marks for rewards
_BAR = 24  # pixels of a decade in the key to the colours
_SHADES = 32
_MAP = (colormaps["viridis"](np.linspace(0, 1, _SHADES))[:, :3] * 255).round().astype(np.uint8)
_AHEAD = (70, 77, 93)
_LOSS = (172, 134, 240)


class Episode(NamedTuple):
    """What was seen of an episode of T steps.

    Attributes:
        pictures: uint8 (h, w, 3) each, T + 1 of them: before every action, and at the end.
        actions: their names, T.
        rewards: T.
        phases: the phase in which each action was chosen, T; empty texts if there are none.
        result: how it ended, in a word.
        forget: effective forget gates (T, d) of all units; None if the core has none.
    """

    pictures: Sequence[Pixels]
    actions: Sequence[str]
    rewards: Sequence[float]
    phases: Sequence[str]
    result: str
    forget: Floats | None


def frames(episode: Episode, title: str = "", most: int = 250) -> Iterator[Pixels]:
    """The pictures of the film, uint8 (height, width, 3), one a step.

    Args:
        episode: what was seen.
        title: a few words beside the action.
        most: of a longer episode some pictures are left out: about as many as this are kept,
            the last one and those with a reward among them.
    """
    steps = len(episode.actions)
    stride = -(-steps // most)
    paid = [0.0, *episode.rewards]
    panel = None if episode.forget is None else _Panel(episode, episode.pictures[0].shape[1])
    for t, picture in enumerate(episode.pictures):
        if t % stride and t < steps and not paid[t]:
            continue
        line = np.full((_LINE + MARGIN, picture.shape[1], 3), BACKGROUND, dtype=np.uint8)
        words, color = (episode.result, BRIGHT)
        if t < steps:
            words, color = (f"action {episode.actions[t]}", TEXT)
        write(line, words, MARGIN, 0, color, _DOT)
        write(line, title, line.shape[1] - MARGIN - length(title, _DOT), 0, FAINT, _DOT)
        below = [] if panel is None else [panel.at(t)]
        yield np.concatenate([picture, line, *below])


class _Panel:
    """Gates as a strip of colours: a row for each unit, the slowest above, a column a step."""

    def __init__(self, episode: Episode, width: int) -> None:
        assert episode.forget is not None
        self._strip = _strip(episode.forget)
        steps, units = episode.forget.shape
        room = width - _LEFT - MARGIN
        # From step to column: columns of equal width, or if there are too many steps, pixels.
        each = max(1, room // steps)
        self._edges = np.arange(steps + 1) * min(each, room / steps)
        columns = np.searchsorted(self._edges, np.arange(int(self._edges[-1])), "right") - 1
        rows = np.repeat(np.arange(units), max(1, HEIGHT // units))
        if units > HEIGHT:
            rows = np.linspace(0, units - 1, HEIGHT).round().astype(int)
        self._strip = self._strip[rows][:, columns]
        self._top = _LINE + 10 + _PRICE
        height = self._top + len(rows) + 6 + _LINE + MARGIN
        self._picture = np.full((height, width, 3), BACKGROUND, dtype=np.uint8)
        self._label(units, len(rows))
        self._name_phases(episode.phases, self._top + len(rows) + 6)
        self._rewards = episode.rewards

    def _label(self, units: int, height: int) -> None:
        """What the rows and the colours mean."""
        picture, width = self._picture, self._picture.shape[1]
        write(picture, f"forget gates of {units} units", MARGIN, 0, FAINT, _DOT)
        write(picture, "slow", MARGIN, self._top, FAINT, _DOT)
        write(picture, "fast", MARGIN, self._top + height - _LINE, FAINT, _DOT)
        x = width - MARGIN
        for decade in range(DECADES, -1, -1):
            mark = f"{1 - 0.1**decade:.{decade}f}".replace("0.", ".")
            x -= length(mark, _DOT)
            write(picture, mark, x, 0, FAINT, _DOT)
            if decade:
                x -= _BAR + 6
                picture[:_LINE, x : x + _BAR] = _colors(decade - 1 + np.arange(_BAR) / _BAR)
                x -= 6

    def _name_phases(self, phases: Sequence[str], y: int) -> None:
        """The name of each phase below its first step, if there is room for it."""
        starts = [t for t, phase in enumerate(phases) if t == 0 or phase != phases[t - 1]]
        for t, end in zip(starts, [*starts[1:], len(phases)], strict=True):
            x, room = _LEFT + int(self._edges[t]), self._edges[end] - self._edges[t]
            if phases[t]:
                self._picture[y - 6 : y + _LINE, x : x + 1] = FAINT
                if length(phases[t], _DOT) + 8 <= room:
                    write(self._picture, phases[t], x + 5, y, FAINT, _DOT)

    def at(self, t: int) -> Pixels:
        """The panel with the cursor behind step `t`; what lies ahead is still empty."""
        picture = self._picture.copy()
        bottom, width = self._top + len(self._strip), self._strip.shape[1]
        now = int(self._edges[min(t + 1, len(self._edges) - 1)])
        picture[self._top : bottom, _LEFT : _LEFT + now] = self._strip[:, :now]
        picture[self._top : bottom, _LEFT + now : _LEFT + width] = _AHEAD
        for step, reward in enumerate(self._rewards[:t]):
            if reward:
                x, end = (_LEFT + int(self._edges[step + k]) for k in (0, 1))
                color = BRIGHT if reward > 0 else _LOSS
                picture[self._top - _PRICE : self._top - 2, x : max(end, x + 1)] = color
        picture[self._top - 2 : bottom + 2, _LEFT + now : _LEFT + now + 2] = TEXT
        return picture


def _colors(decades: Floats) -> Pixels:
    """Colours of timescales 10 ** decades."""
    shades = np.minimum(decades / DECADES * _SHADES, _SHADES - 1).astype(int)
    return np.asarray(_MAP[shades])


def _strip(forget: Floats) -> Pixels:
    """The colours (d, T, 3) of gates (T, d), the unit that keeps longest first."""
    order = np.argsort(-unit_timescales(forget), kind="stable")
    return _colors(-np.log10(np.maximum(1 - forget[:, order].T, 0.1**DECADES)))
