"""The picture of the README: what the agent sees and the whole board, beside the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from rlgates.envs import BatchedEnv, make_task
from rlgates.envs.players import MemoryPlayer
from rlgates.envs.render import draw_rows
from rlgates.experiments.figures import LOOK, Curve, plot_panels, save

SEED = 3
STEPS_IN = {"explore": 1, "distractor": 12, "reward": 3}  # which step of each phase is shown


def phase_pictures(env: str, settings: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """One picture of each phase of an episode, as the scripted player with memory plays it."""
    task = make_task(env, **settings)
    rows = BatchedEnv(task, 1, seed=SEED)
    player = MemoryPlayer()
    player.reset(1, SEED)
    obs, starts = rows.reset(), np.ones(1, dtype=bool)
    pictures: list[np.ndarray[Any, Any]] = []
    phase, steps = "", 0
    while len(pictures) < len(STEPS_IN) and not (steps and starts[0]):
        here = task.moments(rows.state)[0].phase
        steps = steps + 1 if here == phase else 1
        phase = here
        if steps == STEPS_IN[phase]:
            pictures.extend(draw_rows(task, rows.state, [0.0]))
        obs, _, starts, _, _ = rows.step(player.act(obs, starts))
    return pictures


def draw_readme(
    panels: Mapping[str, Sequence[Curve]],
    env: str,
    settings: Mapping[str, Any],
    path: Path,
    chance: float,
) -> None:
    """The phases on the left, one below the other, and the learning curves on the right."""
    pictures = phase_pictures(env, settings)
    with rc_context(LOOK):
        figure = Figure(figsize=(11.5, 4.4), layout="constrained")
        parts: Any = figure.subfigures(1, 2, width_ratios=(1, 2.6))
        left, right = parts
        for axes, picture in zip(
            left.subplots(len(pictures), 1, squeeze=False)[:, 0], pictures, strict=True
        ):
            axes.imshow(picture, interpolation="lanczos")
            axes.set_axis_off()
        top = left.axes[0]
        for x, words in ((0.02, "agent's view"), (0.41, "whole board")):
            top.text(x, 1.06, words, transform=top.transAxes, fontsize=10)
        plot_panels(right, panels, chance)
        save(figure, path)
