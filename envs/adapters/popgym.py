"""The environments of POPGym, adapted to the agents."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlgates.envs.adapters.views import split_settings, with_view
from rlgates.errors import check_choice

SETTINGS: dict[str, tuple[str, ...]] = {
    "Autoencode": ("num_decks",),
    "Battleship": ("board_size", "ship_sizes"),
    "Concentration": ("num_decks", "deck_type"),
    "CountRecall": ("num_decks", "error_clamp", "deck_type"),
    "HigherLower": ("num_decks",),
    "LabyrinthEscape": ("maze_dims", "episode_length"),
    "LabyrinthExplore": ("maze_dims", "episode_length"),
    "MineSweeper": ("difficulty",),
    "MultiarmedBandit": ("num_bandits", "episode_length"),
    "NoisyPositionOnlyCartPole": ("max_episode_length", "noise_sigma", "render_mode"),
    "NoisyPositionOnlyPendulum": ("max_episode_length", "noise_sigma", "render_mode"),
    "PositionOnlyCartPole": ("max_episode_length", "render_mode"),
    "PositionOnlyPendulum": ("max_episode_length", "render_mode"),
    "RepeatFirst": ("num_decks",),
    "RepeatPrevious": ("num_decks", "k"),
    "VelocityOnlyCartPole": ("max_episode_length", "render_mode"),
}
"""The games and their settings; each also comes as Easy, Medium and Hard, which have none."""

LEVELS = ("Easy", "Medium", "Hard")
NAMES = tuple(f"{game}{level}" for game in SETTINGS for level in ("", *LEVELS))

IDS: dict[str, dict[str, Any]] = {f"rlgates/popgym-{name}-v0": {"name": name} for name in NAMES}

PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    f"popgym-{name.replace('VelocityOnlyCartPole', 'VelocityOnlyCartpole')}-v0": (
        f"rlgates/popgym-{name}-v0",
        {},
    )
    for name in NAMES
    if name not in SETTINGS
}
"""By POPGym's own id, which levels alone have: the one here, and no settings."""

BATCHED: dict[str, tuple[str, dict[str, str]]] = {
    f"rlgates/popgym-{game}{level}-v0": (
        f"rlgates/{game.replace('PositionOnly', 'Stateless')}-v0",
        {"preset": level.lower()} if level else {},
    )
    for game in SETTINGS
    for level in ("", *LEVELS)
    if game != "VelocityOnlyCartPole"
}
"""By id: the game with the same rules that is stepped as a batch, and its settings."""


def register() -> None:
    """Register the ids with gymnasium; POPGym is imported when an environment is made."""
    for env_id, settings in IDS.items():
        if env_id not in gymnasium.registry:
            entry_point = "rlgates.envs.adapters.popgym:make_popgym"
            gymnasium.register(id=env_id, entry_point=entry_point, kwargs=settings)


def make_popgym(name: str, **settings: Any) -> gymnasium.Env[Any, Any]:
    """An environment of POPGym, ready for the agents; its id is `rlgates/popgym-<name>-v0`.

    Args:
        name: of `NAMES`, the names of POPGym's classes: "RepeatFirstEasy", or "RepeatFirst" for
            one with settings.
        settings: of the game, in `SETTINGS` (none for the levels Easy, Medium and Hard), and those
            of `View`.

    Returns:
        A `POPGym`, in wrappers if settings of `View` are given.

    Warns:
        UserWarning: `add_previous_action` makes memory superfluous.

    Raises:
        ValueError: unknown name or setting (the nearest known one is named), or a view that the
            game does not have. TypeError: a setting of `View` of the wrong type.
        ImportError: POPGym is not installed, or for a labyrinth its own extra.
    """
    check_choice("POPGym environment", name, NAMES)
    known = SETTINGS.get(name, ())
    if "render_mode" in settings and "render_mode" not in known:
        raise TypeError(f"{name} has no images.")  # SB3 then makes it without
    own, view = split_settings(name, settings, known)
    try:
        games = importlib.import_module("popgym.envs")
    except ImportError as error:
        raise ImportError(
            f'POPGym cannot be imported ({error}): pip install "rlgates[popgym]"'
        ) from error
    if not hasattr(games, name):  # POPGym omits the labyrinths if mazelib is missing
        raise ImportError(f'{name} needs mazelib: pip install "popgym[navigation]"')
    return with_view(POPGym(getattr(games, name)(**own)), name, **view)


class POPGym(gymnasium.Env[Any, Any]):
    """An environment of POPGym, with spaces that Stable-Baselines3 supports.

    ## Description
    The game is that of POPGym, in `game`. Only its observations are passed on, not its hidden
    state (`game.state_space`, `game.get_state()`) or its infos, which contain the answer (the
    counts of CountRecall, the chances of MultiarmedBandit).

    ## Actions
    Those of the game: `Discrete`, `MultiDiscrete`, or a `Box` for the pendulums.

    ## Observations
    `Discrete` and `Box` as they are, which Stable-Baselines3 one-hot encodes and flattens.
    `MultiDiscrete`, `MultiBinary`, `Tuple` and `Dict` as one `Box` of float32, (n,): one-hots
    and numbers, one part after the other, as `gymnasium.spaces.flatten` orders them.

    Where `needs_previous_action` is true, the observation means little without the action that
    led to it: make the environment with `add_previous_action=True`, or wrap it in
    `rlgates.envs.wrappers.PreviousActionReward`.

    ## Rewards
    Those of the game, as float; POPGym scales them so that returns lie about in [-1, 1].

    ## Start and end
    Those of the game.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking Partially Observable Reinforcement Learning", 2023;
    github.com/proroklab/popgym, version 1.0.7. A seed gives the same episodes as there. Its
    baselines add the previous action and a mark of the first step to every observation; here that
    is left to the wrapper. One oddity is kept: the first observation of VelocityOnlyCartPole shows
    the positions, not the velocities.

    Args:
        game: the environment, with any observation space that can be flattened to numbers.

    Raises:
        ValueError: its observations have no fixed size.
    """

    def __init__(self, game: gymnasium.Env[Any, Any]) -> None:
        self.game = game
        self.metadata = game.metadata
        self.render_mode = game.render_mode
        self.action_space = game.action_space
        self.observation_space = game.observation_space
        self._flat = not isinstance(game.observation_space, spaces.Discrete | spaces.Box)
        if self._flat:
            box = spaces.flatten_space(game.observation_space)
            if not isinstance(box, spaces.Box):
                raise ValueError(f"cannot flatten observations of {game.observation_space}.")
            self.observation_space = spaces.Box(
                box.low.astype(np.float32), box.high.astype(np.float32), dtype=np.float32
            )

    @property
    def needs_previous_action(self) -> bool:
        """Whether POPGym says that the best player must know its last action."""
        return bool(getattr(self.game, "obs_requires_prev_action", False))

    @property
    def actions_can_keep_the_cue(self) -> bool:
        """Whether the last action can replace memory: a player then just names the cue again."""
        return type(self.game).__name__.startswith("RepeatFirst")

    @property
    def max_episode_length(self) -> int | None:
        """The largest number of steps in an episode, or None if unknown."""
        length = getattr(self.game, "episode_length", None)
        return getattr(self.game, "max_episode_length", length)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, _ = self.game.reset(seed=seed, options=options)
        return self._observation(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One action; the info is always empty."""
        obs, reward, terminated, truncated, _ = self.game.step(action)
        return self._observation(obs), float(reward), bool(terminated), bool(truncated), {}

    def _observation(self, obs: Any) -> Any:
        if not self._flat:
            return obs
        return np.asarray(spaces.flatten(self.game.observation_space, obs), dtype=np.float32)

    def render(self) -> Any:
        """The image of the cart-poles and pendulums that were made with a `render_mode`."""
        return None if self.render_mode is None else self.game.render()

    def close(self) -> None:
        self.game.close()
