"""The frames of a film: the environment, and the agent's forget gates over time below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps

from rlgates.envs.render.frames import BACKGROUND, BRIGHT, FAINT, MARGIN, TEXT
from rlgates.envs.render.lettering import length, write
from rlgates.experiments.analysis.stats import Floats
from rlgates.experiments.analysis.unit_gates import unit_timescales

Pixels = np.ndarray[Any, Any]

HEIGHT = 128  # of the strip at most
DECADES = 3  # range of the colour map in timescales, 1 / (1 - f)
_DOT = 2
_LINE = 5 * _DOT
_GAP = 6  # between the image and the text below it
_LEFT = MARGIN + length("slow", _DOT) + 8  # left edge of the strip
_MARK_HEIGHT = 6  # of rewards, in pixels
_BAR = 24  # pixels of a decade in the colour legend
_SHADES = 32
_MAP = (colormaps["viridis"](np.linspace(0, 1, _SHADES))[:, :3] * 255).round().astype(np.uint8)
_AHEAD = (70, 77, 93)
_LOSS = (172, 134, 240)


class Episode(NamedTuple):
    """A recorded episode of T steps.

    Attributes:
        images: T + 1 of uint8 (h, w, 3): before each action, and at the end.
        actions: T names.
        rewards: T.
        phases: T names; empty if the environment has no phases.
        result: "success", "failure" or "end".
        forget: effective forget gates (T, d) of all units; None if the core has none.
    """

    images: Sequence[Pixels]
    actions: Sequence[str]
    rewards: Sequence[float]
    phases: Sequence[str]
    result: str
    forget: Floats | None


def frames(episode: Episode, title: str = "", most: int = 250) -> Iterator[Pixels]:
    """Yield the frames of a film, uint8 (height, width, 3), one per step.

    Args:
        episode: the recorded episode.
        title: text beside the action.
        most: approximate number of frames kept of a longer episode; the last one and those with
            a reward are always kept.
    """
    steps = len(episode.actions)
    stride = -(-steps // most)
    rewards = [0.0, *episode.rewards]  # what each image shows
    panel = None if episode.forget is None else _Panel(episode, episode.images[0].shape[1])
    for t, image in enumerate(episode.images):
        if t % stride and t < steps and not rewards[t]:
            continue
        line = np.full((_GAP + _LINE + MARGIN, image.shape[1], 3), BACKGROUND, dtype=np.uint8)
        caption, color = (episode.result, BRIGHT)
        if t < steps:
            caption, color = (f"action {episode.actions[t]}", TEXT)
        write(line, caption, MARGIN, _GAP, color, _DOT)
        write(line, title, line.shape[1] - MARGIN - length(title, _DOT), _GAP, FAINT, _DOT)
        below = [] if panel is None else [panel.at(t)]
        yield np.concatenate([image, line, *below])


class _Panel:
    """Gates as a strip of colours: a row per unit, slowest on top, and a column per step."""

    def __init__(self, episode: Episode, width: int) -> None:
        assert episode.forget is not None
        self._strip = _strip(episode.forget)
        steps, units = episode.forget.shape
        room = width - _LEFT - MARGIN
        # Columns of equal width; a fraction of a pixel if there are more steps than pixels.
        self._edges = np.arange(steps + 1) * min(max(1, room // steps), room / steps)
        columns = np.searchsorted(self._edges, np.arange(int(self._edges[-1])), "right") - 1
        rows = np.repeat(np.arange(units), max(1, HEIGHT // units))
        if units > HEIGHT:
            rows = np.linspace(0, units - 1, HEIGHT).round().astype(int)
        self._strip = self._strip[rows][:, columns]
        self._top = _LINE + 10 + _MARK_HEIGHT
        height = self._top + len(rows) + 6 + _LINE + MARGIN
        self._background = np.full((height, width, 3), BACKGROUND, dtype=np.uint8)
        self._label(units, len(rows))
        self._name_phases(episode.phases, self._top + len(rows) + 6)
        self._rewards = episode.rewards

    def _label(self, units: int, height: int) -> None:
        """Label the rows and the colours."""
        image, width = self._background, self._background.shape[1]
        write(image, "slow", MARGIN, self._top, FAINT, _DOT)
        write(image, "fast", MARGIN, self._top + height - _LINE, FAINT, _DOT)
        x = width - MARGIN
        for decade in range(DECADES, -1, -1):
            mark = f"{1 - 0.1**decade:.{decade}f}".replace("0.", ".")
            x -= length(mark, _DOT)
            write(image, mark, x, 0, FAINT, _DOT)
            if decade:
                x -= _BAR + 6
                image[:_LINE, x : x + _BAR] = _colors(decade - 1 + np.arange(_BAR) / _BAR)
                x -= 6
        for words in (f"forget gates of {units} units", "forget gates", "gates"):
            if MARGIN + length(words, _DOT) + 6 <= x:
                write(image, words, MARGIN, 0, FAINT, _DOT)
                break

    def _name_phases(self, phases: Sequence[str], y: int) -> None:
        """Write the name of each phase below its first step, if it fits."""
        first_steps = [t for t, phase in enumerate(phases) if t == 0 or phase != phases[t - 1]]
        for t, end in zip(first_steps, [*first_steps[1:], len(phases)], strict=True):
            x, room = _LEFT + int(self._edges[t]), self._edges[end] - self._edges[t]
            if phases[t]:
                self._background[y - 6 : y + _LINE, x : x + 1] = FAINT
                if length(phases[t], _DOT) + 8 <= room:
                    write(self._background, phases[t], x + 5, y, FAINT, _DOT)

    def at(self, t: int) -> Pixels:
        """Draw the panel with the cursor after step `t`; later columns are empty."""
        image = self._background.copy()
        bottom, width = self._top + len(self._strip), self._strip.shape[1]
        now = int(self._edges[min(t + 1, len(self._edges) - 1)])
        image[self._top : bottom, _LEFT : _LEFT + now] = self._strip[:, :now]
        image[self._top : bottom, _LEFT + now : _LEFT + width] = _AHEAD
        for step, reward in enumerate(self._rewards[:t]):
            if reward:
                x, end = (_LEFT + int(self._edges[step + k]) for k in (0, 1))
                color = BRIGHT if reward > 0 else _LOSS
                image[self._top - _MARK_HEIGHT : self._top - 2, x : max(end, x + 1)] = color
        image[self._top - 2 : bottom + 2, _LEFT + now : _LEFT + now + 2] = TEXT
        return image


def _colors(decades: Floats) -> Pixels:
    """Colours of timescales 10 ** decades."""
    shades = np.minimum(decades / DECADES * _SHADES, _SHADES - 1).astype(int)
    return np.asarray(_MAP[shades])


def _strip(forget: Floats) -> Pixels:
    """Colours (d, T, 3) of gates (T, d), slowest unit first."""
    order = np.argsort(-unit_timescales(forget), kind="stable")
    return _colors(-np.log10(np.maximum(1 - forget[:, order].T, 0.1**DECADES)))
