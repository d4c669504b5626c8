"""Stateless Cart-Pole: balance a pole, seeing positions without velocities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, look_up, namespace
from rlgates.envs.engine.elementary import NORMAL_LEVELS, sin_cos_of_small
from rlgates.envs.engine.noise import Noise, sample_levels
from rlgates.envs.engine.parameters import EpisodeParameter, Integers, Numbers
from rlgates.envs.engine.philox import Key, fractions
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, State
from rlgates.errors import check_nonnegative

_MAX_STEPS = 100_000
_X_LIMIT, _ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360
_FORCE, _STEP_SECONDS, _GRAVITY = 10.0, 0.02, 9.8
_POLE_MASS, _HALF_LENGTH = 0.1, 0.5
_TOTAL_MASS, _MASS_LENGTH = 1.1, 0.05
_START = 0.05


@dataclass(frozen=True, kw_only=True)
class StatelessCartPole(EnvSpec):
    """Stateless Cart-Pole, `rlgates/StatelessCartPole-v0`.

    ## Description
    A pole stands on a cart on a rail, and every action pushes the cart to one side. The dynamics
    are those of gymnasium's CartPole-v1; velocities are not shown.

    ## Actions
    `Discrete(2)`: push to the left (0) or to the right (1), with 10 N for 0.02 s.

    ## Observations
    `Box(-high, high, (2,), float32)` with high = (4.8, 0.4189): the position of the cart in m, and
    the angle of the pole in radians, 0 upright.

    ## Rewards
    1 / max_steps in every step, including the last: an episode of maximum length brings 1.
    The number to report is `is_success` in the info of the last step: the pole stayed up.

    ## Start
    Position, velocity, angle and angular velocity are uniform in [-0.05, 0.05].
    `reset(options=...)` overrides parameters of the episode: `start`, these four in that order;
    `reveal=True` reports them in the info of the reset.

    ## End
    `terminated` when the cart is more than 2.4 m from the middle or the pole more than 12 degrees
    from upright, and after max_steps actions. The length is part of the game, as for the agents
    that POPGym publishes: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `max_steps` | 200 | the greatest length, 1 to 100,000 |

    Presets: `easy` (200 steps), `medium` (400) and `hard` (600), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning
    control problems", 1983; Morad et al., "POPGym: Benchmarking partially observable reinforcement
    learning", 2023; github.com/proroklab/popgym, version 1.0.7, envs/position_only_cartpole.py
    (the paper's Stateless Cartpole). Different here: an episode of maximum length ends by
    `terminated`, there by `truncated`; everything random follows from the seed. Sine and cosine are
    the same on every device, and differ from those of a C library by less than 1e-15.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/StatelessCartPole-v0"
    max_steps: int = 200

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"max_steps": 200},
        "medium": {"max_steps": 400},
        "hard": {"max_steps": 600},
    }
    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(2)
    action_names: ClassVar[tuple[str, ...]] = ("left", "right")
    fixed_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        set_fields(self, max_steps=check_range("max_steps", self.max_steps, 1, _MAX_STEPS))

    @cached_property
    def observation_space(self) -> spaces.Box:
        high = np.array([2 * _X_LIMIT, 2 * _ANGLE_LIMIT], dtype=np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    @property
    def max_episode_length(self) -> int:
        return self.max_steps

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {"start": Numbers(-_START, _START, 4)}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {"fell": (0, 1)}

    def sample(self, key: Key) -> dict[str, Array]:
        return {"start": -_START + (2 * _START) * fractions(key.words(4))}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        start = parameters["start"]
        xp = namespace(start)
        zeros = xp.zeros(start.shape[0], dtype=xp.int64, device=start.device)
        return {"t": zeros, "motion": start, "fell": zeros}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, tables = namespace(actions), self._tables.on_device_of(actions)
        before = state["motion"]
        angle, turn = before[:, 2], before[:, 3]
        # An episode with a larger angle has ended.
        sine, cosine = sin_cos_of_small(angle)
        # In the order of gymnasium: a pole that is held upright doubles every difference soon.
        # Divisors are arrays: a GPU would multiply by the rounded reciprocal of a number.
        push = (look_up(tables.force, actions) + _MASS_LENGTH * (turn * turn) * sine) / tables.mass
        lever = _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * (cosine * cosine) / tables.mass)
        turning = (_GRAVITY * sine - cosine * push) / lever
        motion = xp.empty_like(before)  # first its change in a second
        motion[:, 0::2] = before[:, 1::2]
        motion[:, 1] = push - _MASS_LENGTH * turning * cosine / tables.mass
        motion[:, 3] = turning
        motion *= _STEP_SECONDS
        motion += before
        x, angle = motion[:, 0], motion[:, 2]
        fell = (xp.abs(x) > _X_LIMIT) | (xp.abs(angle) > _ANGLE_LIMIT)
        t = state["t"] + 1
        state = {**state, "t": t, "motion": motion, "fell": state["fell"] + fell}
        return state, look_up(tables.reward, actions), fell | (t == self.max_steps)

    def observe(self, state: State) -> Array:
        xp = namespace(state["t"])
        seen: Array = xp.astype(state["motion"][:, 0::2], xp.float32)
        return seen

    def metrics(self, state: State) -> dict[str, Array]:
        return {"is_success": state["fell"] == 0}

    def memory_player(self) -> Player:
        return CartPoleMemoryPlayer()

    def reactive_player(self) -> Player:
        return CartPoleReactivePlayer()

    @cached_property
    def _tables(self) -> Tables:
        return Tables(
            force=np.array([-_FORCE, _FORCE]),
            mass=np.array([_TOTAL_MASS]),
            reward=np.full(2, 1 / self.max_steps, dtype=np.float32),
        )


@dataclass(frozen=True, kw_only=True)
class NoisyStatelessCartPole(StatelessCartPole):
    """Noisy Stateless Cart-Pole, `rlgates/NoisyStatelessCartPole-v0`.

    ## Description
    `StatelessCartPole` with normal noise on every observation.

    ## Actions
    `Discrete(2)`: push to the left (0) or to the right (1), with 10 N for 0.02 s.

    ## Observations
    `Box(-high, high, (2,), float32)` with high = (4.8, 0.4189): the position of the cart in m and
    the angle of the pole in radians, each with normal noise of `noise_sigma`, clipped to the
    bounds.

    ## Rewards
    As in `StatelessCartPole`.

    ## Start
    As in `StatelessCartPole`, with a further parameter: `noise`, 2 numbers in [0, 65536) for each
    observation, of which number k stands for the normal quantile at (k + 1/2) / 65536.

    ## End
    As in `StatelessCartPole`.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `max_steps` | 200 | the greatest length, 1 to 100,000 |
    | `noise_sigma` | 0.1 | standard deviation of the noise, at least 0 |

    Presets: `easy` (0.1), `medium` (0.2) and `hard` (0.3), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    As `StatelessCartPole`; envs/noisy_position_only_cartpole.py. The noise has 65,536 equally
    likely values, the largest of 4.17 standard deviations.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/NoisyStatelessCartPole-v0"
    noise_sigma: float = 0.1

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"noise_sigma": 0.1},
        "medium": {"noise_sigma": 0.2},
        "hard": {"noise_sigma": 0.3},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, noise_sigma=check_nonnegative("noise_sigma", self.noise_sigma))

    @cached_property
    def _noise(self) -> Noise:
        return Noise(self.noise_sigma, self.observation_space)

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {**super().parameters, "noise": Integers(NORMAL_LEVELS, 2 * (self.max_steps + 1))}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {**super().state_bounds, "noise": (0, NORMAL_LEVELS - 1)}

    def sample(self, key: Key) -> dict[str, Array]:
        return {**super().sample(key), "noise": sample_levels(key, 2 * (self.max_steps + 1))}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        return {**super().initial_state(parameters), "noise": parameters["noise"]}

    def observe(self, state: State) -> Array:
        return self._noise.add(super().observe(state), state["t"], state["noise"])

    def memory_player(self) -> Player:
        return CartPoleFilterPlayer(self.noise_sigma)


class CartPoleMemoryPlayer:
    """The ceiling of Stateless Cart-Pole: velocities from differences, and a linear rule."""

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._last = np.zeros((num_envs, 2))

    def act(self, observations: Array, episode_starts: Array) -> Array:
        last = np.where(episode_starts[:, None], observations, self._last)
        self._last = observations
        speed = (observations - last) / _STEP_SECONDS
        motion = np.stack(
            [observations[:, 0], speed[:, 0], observations[:, 1], speed[:, 1]], axis=1
        )
        return _push(motion)


def _push(motion: Array) -> Array:
    """A linear rule that balances: the side of a weighted sum of (x, speed, angle, turn)."""
    return (motion @ [0.1, 0.2, 1.0, 0.4] > 0).astype(np.int64)


class CartPoleFilterPlayer:
    """A good player with noise: a Kalman filter of the dynamics near upright, and the same rule.

    Args:
        noise_sigma: of the game.
    """

    def __init__(self, noise_sigma: float) -> None:
        self.sigma = max(noise_sigma, 1e-3)
        # x'' and angle'' of the pole near upright, for a unit of angle and of force.
        lever = _HALF_LENGTH * (4 / 3 - _POLE_MASS / _TOTAL_MASS)
        turning = np.array([_GRAVITY, -1 / _TOTAL_MASS]) / lever
        pushing = np.array([0, 1 / _TOTAL_MASS]) - _MASS_LENGTH / _TOTAL_MASS * turning
        self._move = np.eye(4)
        self._move[0, 1] = self._move[2, 3] = _STEP_SECONDS
        self._move[1, 2], self._move[3, 2] = _STEP_SECONDS * pushing[0], _STEP_SECONDS * turning[0]
        self._force = _FORCE * _STEP_SECONDS * np.array([0, pushing[1], 0, turning[1]])

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._motion = np.zeros((num_envs, 4))
        self._spread = np.zeros((num_envs, 4, 4))
        self._side = np.zeros(num_envs)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        self._motion = self._motion @ self._move.T + self._side[:, None] * self._force
        self._spread = self._move @ self._spread @ self._move.T + 1e-7 * np.eye(4)
        self._motion[episode_starts] = 0
        self._spread[episode_starts] = _START**2 / 3 * np.eye(4)
        seen = self._spread[:, :, 0::2]
        noise = self.sigma**2 * np.eye(2)
        gain = seen @ np.linalg.inv(seen[:, 0::2] + noise)
        surprise = observations - self._motion[:, 0::2]
        self._motion = self._motion + np.einsum("bij,bj->bi", gain, surprise)
        self._spread = self._spread - gain @ seen.transpose(0, 2, 1)
        actions = _push(self._motion)
        self._side = 2.0 * actions - 1
        return actions


class CartPoleReactivePlayer(Player):
    """The floor of Stateless Cart-Pole: pushes towards the side to which the pole leans."""

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return (observations[:, 1] > 0).astype(np.int64)
