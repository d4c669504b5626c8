"""Multi-Armed Bandit: find out which of some bandits pays most often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, entry, look_up, namespace
from rlgates.envs.engine.parameters import EpisodeParameter, Numbers
from rlgates.envs.engine.philox import Key, fractions
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, State

_MAX_BANDITS, _MAX_STEPS = 10_000, 100_000


@dataclass(frozen=True, kw_only=True)
class MultiarmedBandit(EnvSpec):
    """Multi-Armed Bandit, `rlgates/MultiarmedBandit-v0`.

    ## Description
    Each bandit pays with its own probability, uniform in [0, 1), unknown to the player and constant
    throughout the episode. Every action plays one of them.

    ## Actions
    `Discrete(num_bandits)`: the bandit played.

    ## Observations
    `Discrete(2)`, int64: whether the bandit just played paid; 0 at the start. Which one was played
    is not shown: add it with `add_previous_action=True`.

    ## Rewards
    1 / episode_length if the bandit pays, else -1 / episode_length: playing a bandit with
    probability p brings 2 p - 1 over an episode, on average.

    The numbers to report are in the info of the last step: `accuracy`, the share of actions that
    played the bandit with the highest probability (float32), and `is_success`: the last action did.

    ## Start
    `reset(options=...)` overrides parameters of the episode: `chances`, the probabilities of the
    bandits, and `draws`, numbers in [0, 1], one for each step: the bandit pays if the draw is below
    its probability. `reveal=True` reports both in the info of the reset.

    ## End
    `terminated` after exactly episode_length actions. The length is part of the game: `truncated`
    is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `num_bandits` | 10 | at least 2 |
    | `episode_length` | 200 | steps of an episode, at least 1 |

    Presets: `easy` (10 bandits, 200 steps), `medium` (20, 400) and `hard` (30, 600), the published
    levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/multiarmed_bandit.py. There the infos contain
    the probabilities, and the episode ends by `truncated`. Different here: it ends by `terminated`,
    the infos contain no answers, and everything random follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/MultiarmedBandit-v0"
    num_bandits: int = 10
    episode_length: int = 200

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_bandits": 10, "episode_length": 200},
        "medium": {"num_bandits": 20, "episode_length": 400},
        "hard": {"num_bandits": 30, "episode_length": 600},
    }
    observation_space: ClassVar[spaces.Discrete] = spaces.Discrete(2)
    metric_names: ClassVar[tuple[str, ...]] = ("is_success", "accuracy")
    needs_previous_action: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            num_bandits=check_range("num_bandits", self.num_bandits, 2, _MAX_BANDITS),
            episode_length=check_range("episode_length", self.episode_length, 1, _MAX_STEPS),
        )

    @cached_property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(self.num_bandits)

    @property
    def max_episode_length(self) -> int:
        return self.episode_length

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {
            "chances": Numbers(0.0, 1.0, self.num_bandits),
            "draws": Numbers(0.0, 1.0, self.episode_length),
        }

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {"paid": (0, 1), "num_best": (0, self.episode_length), "is_best": (0, 1)}

    def sample(self, key: Key) -> dict[str, Array]:
        numbers = fractions(key.words(self.num_bandits + self.episode_length))
        return {"chances": numbers[:, : self.num_bandits], "draws": numbers[:, self.num_bandits :]}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        chances, draws = parameters["chances"], parameters["draws"]
        xp = namespace(chances)
        zeros = xp.zeros(chances.shape[0], dtype=xp.int64, device=chances.device)
        counts = {"t": zeros, "paid": zeros, "num_best": zeros, "is_best": zeros}
        return {**counts, "chances": chances, "draws": draws}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, t, chances, draws = namespace(actions), state["t"], state["chances"], state["draws"]
        chance = entry(chances, actions)
        paid = xp.astype(entry(draws, t) < chance, xp.int64)
        is_best = xp.astype(chance == xp.max(chances, axis=1), xp.int64)
        state = {
            **state,
            "t": t + 1,
            "paid": paid,
            "is_best": is_best,
            "num_best": state["num_best"] + is_best,
        }
        reward = look_up(self._tables.on_device_of(actions).reward, paid)
        return state, reward, state["t"] == self.episode_length

    def observe(self, state: State) -> Array:
        observation: Array = namespace(state["paid"]).asarray(state["paid"], copy=True)
        return observation

    def metrics(self, state: State) -> dict[str, Array]:
        num_best = state["num_best"]
        return {
            "is_success": state["is_best"] == 1,
            "accuracy": look_up(self._tables.on_device_of(num_best).accuracy, num_best),
        }

    def memory_player(self) -> Player:
        return BanditMemoryPlayer(self.num_bandits)

    def reactive_player(self) -> Player:
        return BanditReactivePlayer()

    @cached_property
    def _tables(self) -> Tables:
        steps = self.episode_length
        return Tables(
            reward=np.array([-1 / steps, 1 / steps], dtype=np.float32),
            accuracy=(np.arange(steps + 1) / steps).astype(np.float32),
        )


class BanditMemoryPlayer:
    """A good player with memory: Thompson sampling, with a uniform prior for each bandit.

    No player is known to be optimal; this one is close (Chapelle and Li 2011).

    Args:
        num_bandits: of the game.
    """

    def __init__(self, num_bandits: int) -> None:
        self.num_bandits = num_bandits

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._counts = np.ones((2, num_envs, self.num_bandits))  # paid, not paid
        self._last = np.zeros(num_envs, dtype=np.int64)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        rows = np.arange(len(self._last))
        self._counts[1 - observations, rows, self._last] += 1
        self._counts[:, episode_starts] = 1
        paid, unpaid = self._counts
        self._last = self._rng.beta(paid, unpaid).argmax(axis=1)
        return self._last


class BanditReactivePlayer(Player):
    """The floor of the bandits: plays the first. Without memory all bandits look alike."""

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return np.zeros(len(observations), dtype=np.int64)
