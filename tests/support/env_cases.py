"""Settings under which every environment ends many episodes in few steps, and their digest."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from gymnasium import spaces

from rlgates.envs import ENVS, BatchedEnv, make_env_spec
from rlgates.envs.engine.actions import random_actions
from rlgates.envs.engine.philox import Key

_PHASES = {"explore_steps": 3, "distractor_steps": 9, "reward_steps": 8, "apple_reward": (1, 3)}
_EARLY = {**_PHASES, "end_on_choice": True, "apple_respawn": 2, "crop": 7}
_SHORT: dict[str, list[dict[str, Any]]] = {
    "rlgates/PassiveMatch-v0": [
        _PHASES,
        _EARLY,
        {"num_colors": 2, "reward_steps": 9},
        {**_PHASES, "apple_reward": ("pickup", 1, 3)},
    ],
    "rlgates/ActiveMatch-v0": [_PHASES, {**_EARLY, "shuffle_pads": "env"}],
    "rlgates/PassiveTMaze-v0": [{"corridor_length": 3}, {"corridor_length": 1}],
    "rlgates/ActiveTMaze-v0": [{"corridor_length": 3, "oracle_length": 2, "distract_reward": 0.1}],
    "rlgates/MemoryChain-v0": [
        {"memory_length": 4, "num_bits": 3},
        {"memory_length": 1, "num_bits": 40, "show_time": False},
    ],
    "rlgates/RepeatFirst-v0": [{}, {"num_decks": 3}],
    "rlgates/RepeatPrevious-v0": [{}, {"k": 1}, {"k": 51}],
    "rlgates/CountRecall-v0": [{}, {"num_decks": 2, "mark": "suits"}, {"mark": "ranks"}],
    "rlgates/Concentration-v0": [{"mark": "colors"}, {}],
    "rlgates/MultiarmedBandit-v0": [{}, {"num_bandits": 2, "episode_length": 7}],
    "rlgates/MineSweeper-v0": [{}, {"size": 7, "num_mines": 12}],
    "rlgates/Battleship-v0": [
        {"board_size": 3, "ship_sizes": (2, 1)},
        {"board_size": 3, "ship_sizes": (1,)},
    ],
    "rlgates/LabyrinthEscape-v0": [{"size": 6, "episode_length": n} for n in (90, 40)],
    "rlgates/LabyrinthExplore-v0": [{"size": 6, "episode_length": n} for n in (300, 200)],
    "rlgates/StatelessPendulum-v0": [{"max_steps": 40}],
    "rlgates/NoisyStatelessPendulum-v0": [{"max_steps": 40}],
    "rlgates/NoisyStatelessCartPole-v0": [{"max_steps": 30, "noise_sigma": 0.3}],
    "rlgates/StatelessCartPole-v0": [{"max_steps": 25}],
    "rlgates/KeyToDoor-v0": [{**_PHASES, "explore_steps": 12}, {**_EARLY, "explore_steps": 12}],
}
VIEWS = {
    "add_previous_action": True,
    "add_previous_reward": True,
    "add_time": True,
    "reward_scale": 0.1,
}
NEVER_EARLY = ("rlgates/Concentration-v0",)
"""Games that random actions never win, so that all their episodes have the greatest length."""
CASES: list[tuple[str, dict[str, Any]]] = [
    (env_id, settings)
    for env_id in ENVS
    for settings in (*_SHORT.get(env_id, [{}]), {**_SHORT.get(env_id, [{}])[0], **VIEWS})
]


def name(case: tuple[str, dict[str, Any]]) -> str:
    env_id, settings = case
    position = [s for i, s in CASES if i == env_id].index(settings)
    return f"{env_id.removeprefix('rlgates/')}-{position}"


def actions(env: BatchedEnv, steps: int = 400, seed: int = 0) -> np.ndarray:
    """Random actions; the first one is likelier, which leads to the pads and the door."""
    space, rng = env.spec.action_space, np.random.default_rng(seed)
    if not isinstance(space, spaces.Discrete):
        return random_actions(space, rng, steps, env.num_envs)
    weights = np.where(np.arange(space.n) == 0, 2.0, 1.0)
    return rng.choice(int(space.n), size=(steps, env.num_envs), p=weights / weights.sum())


def parts(obs: Any) -> dict[str, np.ndarray]:
    """Observations by name, as NumPy arrays."""
    named = obs if isinstance(obs, dict) else {"": obs}
    return {key: np.asarray(values) for key, values in named.items()}


def digest(env_id: str) -> str:
    """A hash of the observations, rewards and ends of 8 environments over 300 steps."""
    settings = next(s for i, s in CASES if i == env_id)
    env = BatchedEnv(make_env_spec(env_id, **settings), 8, seed=2**63 + 11)
    obs, _ = env.reset()
    total = hashlib.sha256(obs.tobytes())
    numbers = Key(0, np.arange(300), np.zeros(300, dtype=np.int64)).words(8)
    for action in _actions_of(env.spec.action_space, numbers):
        obs, reward, end, _, _ = env.step(action)
        for values in (obs, reward, end):
            total.update(
                np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
            )
    return total.hexdigest()


def _actions_of(space: Any, words: np.ndarray) -> np.ndarray:
    """Actions (steps, B, ...) from 32-bit words (steps, B)."""
    if isinstance(space, spaces.Box):
        unit = (words * 2.0**-32).astype(np.float32)[..., None]
        return space.low + (space.high - space.low) * unit
    if isinstance(space, spaces.MultiDiscrete):
        return (words[..., None] >> np.arange(len(space.nvec))) % space.nvec
    return words % int(space.n)
