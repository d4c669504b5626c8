"""The definition of a batched environment: settings, and pure functions of arrays."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from gymnasium import spaces

from rlgates.deprecation import warn_renamed
from rlgates.envs.engine.actions import ActionSpace
from rlgates.envs.engine.arrays import Array
from rlgates.envs.engine.parameters import EpisodeParameter
from rlgates.envs.engine.philox import Key

State: TypeAlias = dict[str, Array]
"""The state of a batch: named arrays, each with the batch as its first axis."""
Observation: TypeAlias = Array | dict[str, Array]
"""Observations: an array (B, ...), or several by name."""


class RenderInfo(NamedTuple):
    """Text next to a rendered board: phase, steps left in it, the player's cell if any."""

    phase: str
    steps_left: int
    cell: tuple[int, int] | None


class Player(Protocol):
    """A scripted player: acts in a batch of environments, on the observations of an agent."""

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        """Forget everything; `seed` is for the player's own random numbers."""
        return

    def act(self, observations: Array, episode_starts: Array) -> Array:
        """An action for each environment, (B, ...) of the action space.

        Args:
            observations: (B, ...) as the environment gives them.
            episode_starts: bool (B,), where an observation is the first one of its episode.
        """


class EnvSpec(ABC):
    """A batched environment, as settings and pure functions of arrays. One subclass per game.

    (`gymnasium.envs.registration.EnvSpec` is something else: an id and its entry point.)

    A subclass is a frozen dataclass whose fields are its settings. Its functions take and return
    arrays of one kind, NumPy or torch, on one device, and never branch on their values. Everything
    random is a function of the `Key` (seed, environment index, episode). Episodes end by
    `terminated`: their length is part of the game, not a time limit.

    A game must define `observation_space`, `action_space`, `max_episode_length`, `sample`,
    `initial_state`, `step`, `observe` and `metrics`; `fixed_length` if episodes may end earlier,
    and `metric_names` for other metrics than `is_success`. Everything else has a default.
    Registered games also define scripted players.
    """

    env_id: ClassVar[str]
    """The id of a registered game."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Published settings by name."""
    action_names: ClassVar[tuple[str, ...]] = ()
    """What the actions are called; those without a name have a number."""

    @property
    def actions_can_keep_the_cue(self) -> bool:
        """Whether a player can keep the cue by repeating its last action.

        With `add_previous_action`, such a game needs no memory.
        """
        return False

    @property
    def needs_previous_action(self) -> bool:
        """Whether an observation means little without the action that led to it.

        Agents should then get it, with `add_previous_action`.
        """
        return False

    @property
    @abstractmethod
    def observation_space(self) -> spaces.Space[Any]:
        """The observations of one environment."""

    @property
    @abstractmethod
    def action_space(self) -> ActionSpace:
        """The actions of one environment."""

    @property
    @abstractmethod
    def max_episode_length(self) -> int:
        """The largest number of steps in an episode."""

    @property
    def fixed_length(self) -> bool:
        """Whether every episode has `max_episode_length` steps; define it as False if not."""
        return True

    @property
    def sampling_is_costly(self) -> bool:
        """Whether `sample` takes so long that it is called for new episodes alone.

        On a GPU, that synchronizes in every step.
        """
        return False

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of `metrics`."""
        return ("is_success",)

    @property
    def phase_names(self) -> tuple[str, ...]:
        """The phases of an episode in order; empty if it is not divided."""
        return ()

    @property
    def chance(self) -> float | None:
        """Success rate of guessing, if every episode ends with a guess; otherwise None."""
        return None

    @property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        """The random parameters of an episode, by name."""
        return {}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        """The smallest and largest value of each bounded integer in a state, except `t`."""
        return {}

    @property
    def choices(self) -> Mapping[str, EpisodeParameter]:
        """Deprecated: the old name of `parameters`."""
        warn_renamed("choices", "parameters")
        return self.parameters

    @abstractmethod
    def sample(self, key: Key) -> dict[str, Array]:
        """The sampled parameters of the episodes of `key`, by name, each (B, ...)."""

    @abstractmethod
    def initial_state(self, parameters: dict[str, Array]) -> State:
        """First states for sampled `parameters`.

        Every state has `t`, the number of steps taken, integers (B,).
        """

    @abstractmethod
    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        """Next state, reward (B,) float32 and terminated (B,) bool; `state` is not changed."""

    @abstractmethod
    def observe(self, state: State) -> Observation:
        """Observations: `observation_space` with a leading batch axis.

        The arrays are not part of `state`: the caller may change them.
        """

    @abstractmethod
    def metrics(self, state: State) -> dict[str, Array]:
        """Metrics at the end of an episode, by name, each (B,)."""

    def phase(self, state: State) -> Array:
        """The index in `phase_names` of each episode's phase, (B,)."""
        return state["t"] * 0

    def render_board(self, state: State) -> Array | None:
        """The whole board for rendering, uint8 (B, height, width, 3); None if the game has none."""
        return None

    def render_info(self, state: State) -> list[RenderInfo]:
        """The text next to each board."""
        return [RenderInfo("", self.max_episode_length - t, None) for t in state["t"].tolist()]

    def memory_player(self) -> Player:
        """A scripted player at the ceiling."""
        raise NotImplementedError(f"{type(self).__name__} has no scripted players.")

    def reactive_player(self) -> Player:
        """A scripted player at the floor: a rule without memory, the best where that is known."""
        raise NotImplementedError(f"{type(self).__name__} has no scripted players.")


def copy_spaces(spec: EnvSpec) -> tuple[spaces.Space[Any], ActionSpace]:
    """Copies of the observation and action space of `spec`, each with a new random generator.

    All environments of a spec share it; seeding the space of one must not seed those of others.
    """
    copies = copy.deepcopy((spec.observation_space, spec.action_space))
    for space in copies:
        space.seed()
    return copies
