"""Settings under which every environment meets many ends in few steps."""

from __future__ import annotations

from typing import Any

from rlgates.envs import TASKS

_PHASES = {"explore_steps": 3, "distractor_steps": 9, "reward_steps": 8, "apple_reward": (1, 3)}
_EARLY = {**_PHASES, "end_on_choice": True, "apple_respawn": 2, "crop": 7}
_SHORT: dict[str, list[dict[str, Any]]] = {
    "rlgates/PassiveMatch-v0": [_PHASES, _EARLY, {"num_colors": 2, "reward_steps": 9}],
    "rlgates/ActiveMatch-v0": [_PHASES, {**_EARLY, "shuffle_pads": "env"}],
    "rlgates/PassiveTMaze-v0": [{"corridor_length": 3}],
    "rlgates/ActiveTMaze-v0": [{"corridor_length": 3, "oracle_length": 2, "distract_reward": 0.1}],
    "rlgates/MemoryChain-v0": [{"memory_length": 4, "num_bits": 3}, {"show_time": False}],
    "rlgates/RepeatPrevious-v0": [{}, {"k": 1}],
    "rlgates/KeyToDoor-v0": [{**_PHASES, "explore_steps": 12}, {**_EARLY, "explore_steps": 12}],
}
VIEWS = {
    "add_previous_action": True,
    "add_previous_reward": True,
    "add_time": True,
    "reward_scale": 0.1,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    (env_id, settings)
    for env_id in TASKS
    for settings in (*_SHORT.get(env_id, [{}]), {**_SHORT.get(env_id, [{}])[0], **VIEWS})
]


def name(case: tuple[str, dict[str, Any]]) -> str:
    env_id, settings = case
    position = [s for i, s in CASES if i == env_id].index(settings)
    return f"{env_id.removeprefix('rlgates/')}-{position}"
