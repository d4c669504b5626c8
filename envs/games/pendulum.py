"""Stateless Pendulum: swing a pendulum up, seeing its angle without its velocity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, namespace
from rlgates.envs.engine.elementary import NORMAL_LEVELS, sin_cos
from rlgates.envs.engine.noise import Noise, sample_levels
from rlgates.envs.engine.parameters import EpisodeParameter, Integers, Numbers
from rlgates.envs.engine.philox import Key, fractions
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, State
from rlgates.errors import check_nonnegative

_MAX_STEPS = 100_000
_MAX_TORQUE, _MAX_SPEED, _STEP_SECONDS = 2.0, 8.0, 0.05
_GRAVITY_TERM = 15.0  # 3 g / (2 l) with g = 10 m/s^2 and l = 1 m
_HALF_RANGE = 16.2736044 / 2  # of the reward before it is scaled
_UPRIGHT = 0.2


@dataclass(frozen=True, kw_only=True)
class StatelessPendulum(EnvSpec):
    """Stateless Pendulum, `rlgates/StatelessPendulum-v0`.

    ## Description
    The player must swing a pendulum up and hold it upright, with a torque too weak to lift it
    directly. The dynamics are those of gymnasium's Pendulum-v1; the angular velocity is not shown.

    ## Actions
    `Box(-2, 2, (1,), float32)`: the torque in N m, for 0.05 s; what is beyond is clipped.

    ## Observations
    `Box(-1, 1, (2,), float32)`: cosine and sine of the angle, which is 0 upright.

    ## Rewards
    With the cost c = angle^2 + 0.1 velocity^2 + 0.001 torque^2 of the state before the action, the
    angle in [-pi, pi): (1 - c / 8.1368) / max_steps, so that returns lie in [-1, 1]. The number to
    report beside the return is `is_success` in the info of the last step: the angle is within 0.2
    radians of upright.

    ## Start
    The angle is uniform in [-pi, pi], the angular velocity in [-1, 1]. `reset(options=...)`
    overrides parameters of the episode: `angle` and `velocity`, one number in a sequence each;
    `reveal=True` reports them in the info of the reset.

    ## End
    `terminated` after exactly max_steps actions. The length is part of the game, as for the agents
    that POPGym publishes: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `max_steps` | 200 | the length, 1 to 100,000 |

    Presets: `easy` (200 steps), `medium` (150) and `hard` (100), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/position_only_pendulum.py (the paper's
    Stateless Pendulum). Different here: the episode ends by `terminated`, there by `truncated`;
    everything random follows from the seed. Sine and cosine are the same on every device, and
    differ from those of a C library by less than 1e-15.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/StatelessPendulum-v0"
    max_steps: int = 200

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"max_steps": 200},
        "medium": {"max_steps": 150},
        "hard": {"max_steps": 100},
    }
    action_space: ClassVar[spaces.Box] = spaces.Box(-_MAX_TORQUE, _MAX_TORQUE, (1,), np.float32)
    observation_space: ClassVar[spaces.Box] = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __post_init__(self) -> None:
        set_fields(self, max_steps=check_range("max_steps", self.max_steps, 1, _MAX_STEPS))

    @property
    def max_episode_length(self) -> int:
        return self.max_steps

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {"angle": Numbers(-math.pi, math.pi, 1), "velocity": Numbers(-1.0, 1.0, 1)}

    def sample(self, key: Key) -> dict[str, Array]:
        numbers = 2.0 * fractions(key.words(2)) - 1.0
        return {"angle": math.pi * numbers[:, :1], "velocity": numbers[:, 1:]}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        angle = parameters["angle"][:, 0]
        xp = namespace(angle)
        sine, cosine = sin_cos(angle)
        return {
            "t": xp.zeros(angle.shape[0], dtype=xp.int64, device=angle.device),
            "angle": angle,
            "velocity": parameters["velocity"][:, 0],
            "sine": sine,
            "cosine": cosine,
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, angle, velocity = namespace(actions), state["angle"], state["velocity"]
        torque = actions[:, 0].clip(-_MAX_TORQUE, _MAX_TORQUE)
        # As gymnasium does: torques are float32, the rest is float64.
        effort = xp.astype(0.001 * (torque * torque), xp.float64)
        from_upright = _from_upright(angle)
        cost = from_upright * from_upright + 0.1 * (velocity * velocity) + effort
        reward = (1.0 - cost * (1 / _HALF_RANGE)) * (1 / self.max_steps)
        pull = _GRAVITY_TERM * state["sine"] + xp.astype(3.0 * torque, xp.float64)
        velocity = (velocity + pull * _STEP_SECONDS).clip(-_MAX_SPEED, _MAX_SPEED)
        t, angle = state["t"] + 1, angle + velocity * _STEP_SECONDS
        sine, cosine = sin_cos(angle)
        moved = {"t": t, "angle": angle, "velocity": velocity, "sine": sine, "cosine": cosine}
        state = {**state, **moved}
        return state, xp.astype(reward, xp.float32), t == self.max_steps

    def observe(self, state: State) -> Array:
        xp, cosine = namespace(state["t"]), state["cosine"]
        seen: Array = xp.empty((cosine.shape[0], 2), dtype=xp.float32, device=cosine.device)
        seen[:, 0], seen[:, 1] = cosine, state["sine"]
        return seen

    def metrics(self, state: State) -> dict[str, Array]:
        angle = state["angle"]
        return {"is_success": namespace(angle).abs(_from_upright(angle)) < _UPRIGHT}

    def memory_player(self) -> Player:
        return PendulumMemoryPlayer()

    def reactive_player(self) -> Player:
        return PendulumReactivePlayer()


def _from_upright(angle: Array) -> Array:
    """The same angle in [-pi, pi)."""
    turns = namespace(angle).floor((angle + math.pi) * (1 / (2 * math.pi)))
    rest: Array = angle - turns * (2 * math.pi)
    return rest


@dataclass(frozen=True, kw_only=True)
class NoisyStatelessPendulum(StatelessPendulum):
    """Noisy Stateless Pendulum, `rlgates/NoisyStatelessPendulum-v0`.

    ## Description
    `StatelessPendulum` with normal noise on every observation.

    ## Actions
    `Box(-2, 2, (1,), float32)`: the torque in N m, for 0.05 s; what is beyond is clipped.

    ## Observations
    `Box(-1, 1, (2,), float32)`: cosine and sine of the angle, each with normal noise of
    `noise_sigma`, clipped to the bounds.

    ## Rewards
    As in `StatelessPendulum`.

    ## Start
    As in `StatelessPendulum`, with a further parameter: `noise`, 2 numbers in [0, 65536) for each
    observation, of which number k stands for the normal quantile at (k + 1/2) / 65536.

    ## End
    As in `StatelessPendulum`.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `max_steps` | 200 | the length, 1 to 100,000 |
    | `noise_sigma` | 0.1 | standard deviation of the noise, at least 0 |

    Presets: `easy` (0.1), `medium` (0.2) and `hard` (0.3), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    As `StatelessPendulum`; envs/noisy_position_only_pendulum.py. The noise has 65,536 equally
    likely values, the largest of 4.17 standard deviations.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/NoisyStatelessPendulum-v0"
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
        return {"noise": (0, NORMAL_LEVELS - 1)}

    def sample(self, key: Key) -> dict[str, Array]:
        return {**super().sample(key), "noise": sample_levels(key, 2 * (self.max_steps + 1))}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        return {**super().initial_state(parameters), "noise": parameters["noise"]}

    def observe(self, state: State) -> Array:
        return self._noise.add(super().observe(state), state["t"], state["noise"])

    def memory_player(self) -> Player:
        return PendulumMemoryPlayer(self.noise_sigma)


class PendulumMemoryPlayer:
    """A good player with memory: estimates the motion; pumps energy, then holds.

    It predicts angle and velocity from the dynamics and corrects them by the observations, as an
    extended Kalman filter does.

    Args:
        noise_sigma: of the game.
    """

    def __init__(self, noise_sigma: float = 0.0) -> None:
        self.sigma = max(noise_sigma, 1e-3)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._angle, self._velocity, self._torque = np.zeros((3, num_envs))
        self._spread = np.zeros((num_envs, 2, 2))

    def act(self, observations: Array, episode_starts: Array) -> Array:
        seen = np.arctan2(observations[:, 1], observations[:, 0])
        self._follow()
        self._angle = np.where(episode_starts, seen, self._angle)
        self._velocity = np.where(episode_starts, 0.0, self._velocity)
        self._spread[episode_starts] = np.diag([self.sigma**2, 1 / 3])
        gain = self._spread[:, :, 0] / (self._spread[:, 0, 0] + self.sigma**2)[:, None]
        surprise = _from_upright(seen - self._angle)
        self._angle = _from_upright(self._angle + gain[:, 0] * surprise)
        self._velocity = self._velocity + gain[:, 1] * surprise
        self._spread = self._spread - gain[:, :, None] * self._spread[:, None, 0]
        self._torque = self._choose(self._angle, self._velocity)
        return self._torque.astype(np.float32)[:, None]

    def _follow(self) -> None:
        """One step of the dynamics."""
        pull = _GRAVITY_TERM * np.sin(self._angle) + 3 * self._torque
        self._velocity = np.clip(self._velocity + pull * _STEP_SECONDS, -_MAX_SPEED, _MAX_SPEED)
        slope = _GRAVITY_TERM * np.cos(self._angle) * _STEP_SECONDS
        self._angle = self._angle + self._velocity * _STEP_SECONDS
        move = np.zeros_like(self._spread)
        move[:, 1, 0], move[:, 1, 1] = slope, 1
        move[:, 0, 0], move[:, 0, 1] = 1 + slope * _STEP_SECONDS, _STEP_SECONDS
        self._spread = move @ self._spread @ move.transpose(0, 2, 1) + 1e-5 * np.eye(2)

    def _choose(self, angle: Array, velocity: Array) -> Array:
        # Energy of a rod of 1 kg and 1 m, 0 when it stands upright at rest.
        energy = velocity**2 / 6 + 5 * (np.cos(angle) - 1)
        pump = -_MAX_TORQUE * np.sign(np.where(velocity == 0, 1, velocity) * energy)
        torque = np.where(abs(angle) < 0.5, -(15 * angle + 4 * velocity), pump)
        clipped: Array = np.clip(torque, -_MAX_TORQUE, _MAX_TORQUE)
        return clipped


class PendulumReactivePlayer(Player):
    """The floor of Stateless Pendulum: pushes towards upright, with full torque."""

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return (-_MAX_TORQUE * np.sign(observations[:, 1:])).astype(np.float32)
