"""Named configs of agents in the environments of rlgates.

In the committed results are runs of `study30` and `study90` (the studies `passive_match` and
`match`), `study30_active`, `study30_a2c` and `study30_active_a2c` (`match`), of `tmaze` with a
corridor of 10 (`horizon`), and of `demo`, in its GIF. The others are untuned; `repeat_first`,
`key_to_door` and `minigrid` learned in a single trial each, `active_tmaze` did not.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rlgates.envs import make_env_spec
from rlgates.errors import check_choice
from rlgates.experiments.configs.agent import AgentConfig, match


def smoke(config: AgentConfig) -> AgentConfig:
    """The same in a few seconds: everything runs, nothing is learned."""
    settings = dict(config.env_settings)
    if "distractor_steps" in settings:
        distractor = settings["distractor_steps"] // 10
        settings |= {"explore_steps": 2, "distractor_steps": distractor, "reward_steps": 6}
    return replace(
        config,
        env_settings=settings,
        hidden_size=16,
        n_envs=16,
        n_epochs=1,
        n_minibatches=2,
        total_steps=3_000,
        window=50,
        eval_every=1_000,
        eval_episodes=20,
        final_episodes=100,
        threads=1,
        folder="runs/smoke",
    )


def previous_action(env_id: str, **settings: Any) -> dict[str, Any]:
    """The settings, with the previous action where an observation means little without it."""
    needed = make_env_spec(env_id, **settings).needs_previous_action
    return {**settings, **({"add_previous_action": True} if needed else {})}


# Small tasks on which a core can be judged in a minute.
MINUTE = AgentConfig(total_steps=600_000, ent_coef=0.02, reward_scale=5.0, eval_every=100_000)
STUDY = AgentConfig(stop_success=0.97, eval_every=None, folder="runs/study")
# What is done in the explore phase is rewarded much later.
ACTIVE = replace(STUDY, env="rlgates/ActiveMatch-v0", gamma=0.98, ent_coef=0.1)
# One update per rollout, of as many episodes as a minibatch has in PPO.
A2C: dict[str, Any] = {"algo": "a2c", "n_envs": 32, "learning_rate": 3e-3}
PRESETS: dict[str, AgentConfig] = {
    "default": AgentConfig(),
    "demo": AgentConfig(
        total_steps=20_000_000,
        max_minutes=9.0,
        stop_success=0.97,
        seeds=(200,),
        folder="runs/demo",
    ),
    "showcase": AgentConfig(
        env_settings=match(90), total_steps=20_000_000, threads=2, folder="runs/showcase"
    ),
    "tmaze": replace(
        MINUTE,
        env="rlgates/PassiveTMaze-v0",
        env_settings={"corridor_length": 30},
        gamma=0.99,
        ent_coef=0.05,
    ),
    "chain": replace(MINUTE, env="rlgates/MemoryChain-v0", env_settings={"memory_length": 30}),
    "repeat": replace(MINUTE, env="rlgates/RepeatPrevious-v0", env_settings={"k": 4}),
    "repeat_first": replace(MINUTE, env="rlgates/RepeatFirst-v0", env_settings={}),
    "key_to_door": replace(
        ACTIVE, env="rlgates/KeyToDoor-v0", env_settings=match(30), total_steps=2_000_000
    ),
    "active_tmaze": replace(
        MINUTE,
        env="rlgates/ActiveTMaze-v0",
        env_settings={"corridor_length": 10},
        gamma=0.99,
        ent_coef=0.05,
    ),
    "minigrid": replace(
        MINUTE,
        env="rlgates/MiniGridMemory-v0",
        env_settings={},
        n_steps=64,
        gamma=0.99,
        total_steps=2_000_000,
    ),
    "study30": replace(STUDY, total_steps=3_000_000),
    "study90": replace(STUDY, total_steps=6_000_000, env_settings=match(90)),
    "study30_active": replace(ACTIVE, total_steps=6_000_000),
    "study30_a2c": replace(STUDY, **A2C, total_steps=8_000_000),
    "study30_active_a2c": replace(ACTIVE, **A2C, total_steps=8_000_000),
}
# The other games of POPGym, at their easy level.
PRESETS.update(
    {
        re.sub("(?<=[a-z])(?=[A-Z])", "_", game).lower(): replace(
            MINUTE,
            env=f"rlgates/{game}-v0",
            env_settings=previous_action(f"rlgates/{game}-v0"),
            reward_scale=1.0,
        )
        for game in (
            *("Autoencode", "Battleship", "Concentration", "CountRecall", "HigherLower"),
            *("LabyrinthEscape", "LabyrinthExplore", "MineSweeper", "MultiarmedBandit"),
            *("StatelessCartPole", "StatelessPendulum"),
            *("NoisyStatelessCartPole", "NoisyStatelessPendulum"),
        )
    }
)
PRESETS.update({f"{name}-smoke": smoke(config) for name, config in list(PRESETS.items())})


def preset(name: str) -> AgentConfig:
    """The config of that name.

    Raises:
        ValueError: unknown name (the nearest is named).
    """
    return PRESETS[check_choice("preset", name, PRESETS)]
