"""Pictures of environments: one beside the curves, and a sheet with all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from rlgates.envs import BatchedEnv, make_task
from rlgates.envs.players import MemoryPlayer
from rlgates.envs.render import BACKGROUND, draw_rows
from rlgates.experiments.figures import LOOK, Curve, Levels, plot_panels, save
from rlgates.experiments.play import make_env, picture

SEED = 3
STEPS_IN = {"explore": 1, "distractor": 12, "reward": 3}  # which step of each phase is shown
PLAYED = ("rlgates/PassiveMatch-v0", "rlgates/ActiveMatch-v0")  # by the scripted player
# The sheet, in pixels: its pictures are not scaled.
COLUMNS = 2
DPI = 160
LINES, GAP = 84, 40  # height of the two lines above each picture, and space between pictures


@dataclass(frozen=True)
class Scene:
    """A telling moment of an environment.

    Attributes:
        words: what has to be remembered.
        settings, options: of the environment, and of its reset.
        actions: made before the picture.
    """

    words: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    actions: Sequence[int] = ()


_SUITS = (2, 0, 3, 3, 1, 2, 0, 1, 1, 3, 2, 0, 0, 3, 1, 2) * 3 + (0, 1, 2, 3)
SCENES: dict[str, Scene] = {
    "rlgates/PassiveMatch-v0": Scene(
        "A colour is shown at the start. Its pad is the right one at the end.",
        options={"target_color": 2, "target_cell": (1, 5)},
        actions=(0, 0, 0),
    ),
    "rlgates/ActiveMatch-v0": Scene(
        "The same, but the colour must be found first.",
        options={"target_color": 0, "target_cell": (2, 8), "start_cell": (5, 5)},
        actions=(0, 0, 0),
    ),
    "rlgates/KeyToDoor-v0": Scene(
        "A key that is taken early opens a door that pays much later.",
        options={"key_cell": (1, 4), "start_cell": (4, 5)},
        actions=(0,),
    ),
    "rlgates/MiniGridMemoryS9-v0": Scene(
        "What lies in the room? Go to the same thing at the fork.", actions=(0, 0, 2, 2)
    ),
    "rlgates/PassiveTMaze-v0": Scene(
        "A sign at the start says which way to turn at the end.", options={"goal": 1}
    ),
    "rlgates/ActiveTMaze-v0": Scene(
        "The sign lies the other way, and must be fetched first.",
        settings={"corridor_length": 8, "oracle_length": 2},
        options={"goal": -1},
        actions=(2,),
    ),
    "rlgates/RepeatFirst-v0": Scene(
        "Cards are dealt. Which suit had the first one?",
        options={"suits": _SUITS},
        actions=(2,) * 20,
    ),
    "rlgates/RepeatPrevious-v0": Scene(
        "Cards are dealt. Which suit had the one three before?",
        options={"suits": _SUITS},
        actions=(0, 0, 0, *_SUITS[:17]),
    ),
    "rlgates/MemoryChain-v0": Scene(
        "Some bits, then a wait. Which value had one of them?",
        settings={"num_bits": 8},
        options={"context": (0, 1, 1, 0, 1, 0, 0, 1), "query": 5},
    ),
}


def phase_pictures(env: str, settings: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """One picture of each phase of an episode of one of `PLAYED`, as the scripted player with
    memory plays it."""
    task = make_task(env, **settings)
    rows = BatchedEnv(task, 1, seed=SEED)
    player = MemoryPlayer()
    player.reset(1, SEED)
    (obs, _), starts = rows.reset(), np.ones(1, dtype=bool)
    pictures: list[np.ndarray[Any, Any]] = []
    phase, steps = "", 0
    while len(pictures) < len(STEPS_IN) and not (steps and starts[0]):
        here = task.moments(rows.state)[0].phase
        steps = steps + 1 if here == phase else 1
        phase = here
        if steps == STEPS_IN[phase]:
            pictures.extend(draw_rows(task, rows.state, [0.0]))
        obs, _, starts, _, _ = rows.step(player.act(np.asarray(obs), starts))
    return pictures


def draw_readme(
    panels: Mapping[str, Sequence[Curve]],
    env: str,
    settings: Mapping[str, Any],
    path: Path,
    chances: Levels,
) -> None:
    """The phases of one of `PLAYED` on the left, one below the other, and the learning curves on
    the right."""
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
        plot_panels(right, panels, chances)
        save(figure, path)


def scene_picture(env_id: str, scene: Scene) -> np.ndarray[Any, Any]:
    """The agent's view and the whole board at that moment.

    Raises:
        ImportError: the environment needs a package that is not there.
    """
    env = make_env(env_id, scene.settings, board=True)
    reward: Any = 0.0
    obs, _ = env.reset(seed=SEED, options=dict(scene.options) or None)
    for action in scene.actions:
        obs, reward, _, _, _ = env.step(action)
    shown = picture(env, obs, float(reward), _name(env_id), board=True)
    env.close()
    return shown


def _name(env_id: str) -> str:
    """ "rlgates/PassiveMatch-v0" -> "PassiveMatch"."""
    return env_id.rpartition("/")[2].rpartition("-v")[0]


def draw_environments(path: Path) -> None:
    """All of `SCENES` on one sheet, in two columns, with a line about each.

    Raises:
        ImportError: one of them needs a package that is not there; nothing is drawn.
    """
    pictures = [scene_picture(env_id, scene) for env_id, scene in SCENES.items()]
    width = max(shown.shape[1] for shown in pictures)
    rows = [pictures[k : k + COLUMNS] for k in range(0, len(pictures), COLUMNS)]
    heights = [max(shown.shape[0] for shown in row) for row in rows]
    tops = [sum(heights[:k]) + k * (LINES + GAP) + LINES for k in range(len(rows))]
    total = tops[-1] + heights[-1] + GAP // 2, COLUMNS * (width + GAP)
    sheet = np.full((*total, 3), 255, dtype=np.uint8)
    with rc_context(LOOK):
        figure = Figure(figsize=(total[1] / DPI, total[0] / DPI), dpi=DPI)
        for number, (env_id, scene) in enumerate(SCENES.items()):
            row, column = divmod(number, COLUMNS)
            x, y = GAP // 2 + column * (width + GAP), tops[row]
            _place(pictures[number], sheet[y : y + heights[row], x : x + width])
            across = x / total[1]
            name = {"fontsize": 12, "fontweight": "bold"}
            figure.text(across, 1 - (y - 44) / total[0], _name(env_id), fontdict=name)
            figure.text(across, 1 - (y - 12) / total[0], scene.words, fontsize=9.5, color="#444444")
        figure.figimage(sheet, origin="upper")
        save(figure, path)


def _place(shown: np.ndarray[Any, Any], card: np.ndarray[Any, Any]) -> None:
    """Put a picture into the middle of its card."""
    card[:] = BACKGROUND
    top, left = ((card.shape[k] - shown.shape[k]) // 2 for k in (0, 1))
    card[top : top + shown.shape[0], left : left + shown.shape[1]] = shown
