"""Images of environments: of the phases of Match, and a sheet of all environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from rlgates.envs import ENVS, BatchedEnv, make_env_spec
from rlgates.envs.render.frames import BACKGROUND, render_batch
from rlgates.experiments.plots.curves import RC_PARAMS, save
from rlgates.experiments.plots.frames import Image, env_image, make_env, short_name
from rlgates.experiments.plots.titles import title_words

SEED = 3
PHASE_STEPS = {"explore": 1, "distractor": 12, "reward": 3}  # the step drawn of each phase
MATCH_IDS = ("rlgates/PassiveMatch-v0", "rlgates/ActiveMatch-v0")
# The sheet, in pixels: its images are not scaled.
COLUMNS = 2
DPI = 160
LINES, GAP = 84, 40  # height of the two lines above each image, and space between images


@dataclass(frozen=True)
class Scene:
    """A moment of an environment that shows what it is about.

    Attributes:
        words: what has to be remembered.
        settings, options: of the environment, and of its reset.
        actions: taken before it is drawn.
    """

    words: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    actions: Sequence[Any] = ()


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
    "rlgates/MiniGridMemory-v0": Scene(
        "Which object is in the room? Go to the same one at the fork.",
        settings={"size": 9},
        options={"object": 0, "top": 1, "start": 3},
    ),
    "rlgates/PassiveTMaze-v0": Scene(
        "A sign at the start shows which way to turn at the end.", options={"goal": 1}
    ),
    "rlgates/ActiveTMaze-v0": Scene(
        "The sign lies the other way, and must be fetched first.",
        settings={"corridor_length": 8, "oracle_length": 2},
        options={"goal": -1},
        actions=(2,),
    ),
    "rlgates/RepeatFirst-v0": Scene(
        "Cards are dealt. Which suit was the first one?",
        options={"suits": _SUITS},
        actions=(2,) * 20,
    ),
    "rlgates/RepeatPrevious-v0": Scene(
        "Cards are dealt. Which suit was the one three before?",
        options={"suits": _SUITS},
        actions=(0, 0, 0, *_SUITS[:17]),
    ),
    "rlgates/Autoencode-v0": Scene("Cards are shown. Name them from last to first."),
    "rlgates/CountRecall-v0": Scene("How often was a card of this kind dealt so far?"),
    "rlgates/Concentration-v0": Scene("Turn up pairs of cards that match.", actions=(3, 9, 7)),
    "rlgates/HigherLower-v0": Scene("Is the next card higher? Counting cards helps."),
    "rlgates/MultiarmedBandit-v0": Scene("Which bandit pays most often?", actions=(0, 1, 2)),
    "rlgates/MineSweeper-v0": Scene(
        "One number at a time tells where the mines are.",
        options={"mines": (3, 12)},
        actions=((1, 1), (1, 2), (2, 2)),
    ),
    "rlgates/Battleship-v0": Scene(
        "Only the last shot is visible. Where did the others go?",
        actions=tuple((row, (row * 3 + 1) % 10) for row in range(10)),
    ),
    "rlgates/StatelessCartPole-v0": Scene("Balance a pole without seeing how fast it falls."),
    "rlgates/NoisyStatelessCartPole-v0": Scene("The same, with noise on the observations."),
    "rlgates/StatelessPendulum-v0": Scene("Swing up a pendulum without seeing its speed."),
    "rlgates/NoisyStatelessPendulum-v0": Scene("The same, with noise on the observations."),
    "rlgates/LabyrinthEscape-v0": Scene("Find the goal, which is opposite to the start."),
    "rlgates/LabyrinthExplore-v0": Scene("Visit all squares of a maze."),
    "rlgates/MemoryChain-v0": Scene(
        "Some bits, then a wait. What was one of them?",
        settings={"num_bits": 8},
        options={"context": (0, 1, 1, 0, 1, 0, 0, 1), "query": 5},
    ),
}


def all_scenes() -> dict[str, Scene]:
    """`SCENES`, and the start of every other environment, with the first words about it."""
    scenes = dict(SCENES)
    for env_id, game in ENVS.items():
        if env_id not in scenes:
            description = cleandoc(game.__doc__ or "").partition("## Description\n")[2]
            scenes[env_id] = Scene(" ".join(description.partition(".")[0].split()) + ".")
    return scenes


def phase_images(env_id: str, settings: Mapping[str, Any]) -> list[Image]:
    """Draw each phase of an episode of one of `MATCH_IDS`, played by the player with memory."""
    spec = make_env_spec(env_id, **settings)
    env = BatchedEnv(spec, 1, seed=SEED)
    player = spec.memory_player()
    player.reset(1, SEED)
    (obs, _), episode_starts = env.reset(), np.ones(1, dtype=bool)
    images: list[Image] = []
    phase, steps = "", 0
    while len(images) < len(PHASE_STEPS) and not (steps and episode_starts[0]):
        current = spec.render_info(env.state)[0].phase
        steps = steps + 1 if current == phase else 1
        phase = current
        if steps == PHASE_STEPS[phase]:
            images.extend(render_batch(spec, env.state, [0.0]))
        actions = player.act(np.asarray(obs), episode_starts)
        obs, _, episode_starts, _, _ = env.step(actions)
    return images


def scene_image(env_id: str, scene: Scene) -> Image:
    """Draw the agent's view and the whole board of a scene."""
    env = make_env(env_id, scene.settings, board=True)
    reward: Any = 0.0
    obs, _ = env.reset(seed=SEED, options=dict(scene.options) or None)
    for action in scene.actions:
        obs, reward, _, _, _ = env.step(action)
    image = env_image(env, obs, float(reward), short_name(env_id), board=True)
    env.close()
    return image


def draw_environments(path: Path) -> None:
    """Draw `all_scenes` on one sheet, in two columns, with a line about each."""
    scenes = all_scenes()
    images = [scene_image(env_id, scene) for env_id, scene in scenes.items()]
    width = max(image.shape[1] for image in images)
    rows = [images[k : k + COLUMNS] for k in range(0, len(images), COLUMNS)]
    heights = [max(image.shape[0] for image in row) for row in rows]
    tops = [sum(heights[:k]) + k * (LINES + GAP) + LINES for k in range(len(rows))]
    size = tops[-1] + heights[-1] + GAP // 2, COLUMNS * (width + GAP)
    sheet = np.full((*size, 3), 255, dtype=np.uint8)
    with rc_context(RC_PARAMS):
        figure = Figure(figsize=(size[1] / DPI, size[0] / DPI), dpi=DPI)
        for number, (env_id, scene) in enumerate(scenes.items()):
            row, column = divmod(number, COLUMNS)
            x, y = GAP // 2 + column * (width + GAP), tops[row]
            _center(images[number], sheet[y : y + heights[row], x : x + width])
            left = x / size[1]
            font = {"fontsize": 12, "fontweight": "bold"}
            name = title_words(short_name(env_id))
            figure.text(left, 1 - (y - 44) / size[0], name, fontdict=font)
            figure.text(left, 1 - (y - 12) / size[0], scene.words, fontsize=9.5, color="#444444")
        figure.figimage(sheet, origin="upper")
        save(figure, path, exact=True)


def _center(image: Image, card: Image) -> None:
    """Put an image into the middle of its card."""
    card[:] = BACKGROUND
    top, left = ((card.shape[k] - image.shape[k]) // 2 for k in (0, 1))
    card[top : top + image.shape[0], left : left + image.shape[1]] = image
