"""The gates of finished runs before and after training, from the run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from rlgates.agents import trace_gates
from rlgates.core import GateTrace
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.runs.agent.build import Agent, build, load_agent, read_agent_config
from rlgates.experiments.runs.agent.evaluate import evaluation_seed, fresh_env
from rlgates.experiments.runs.gates import growth

EPISODES = 32


def draw_runs(folders: Sequence[Path], path: Path) -> bool:
    """Draw the gates of one or more finished runs in one figure.

    Runs of cores without forget gates are skipped.

    Returns:
        whether any run was drawn.

    Raises:
        ValueError: a folder without a finished run.
    """
    # Here, since matplotlib delays the start of every command.
    from rlgates.experiments.plots.forget_gates import draw_gates

    runs = [(folder, *read_agent_config(folder)) for folder in dict.fromkeys(folders)]
    titles = [config.title for _, config, _ in runs]
    names = [
        config.core if len(set(titles)) == 1 else f"{config.core} {title}"
        for (_, config, _), title in zip(runs, titles, strict=True)
    ]
    if len(set(names)) < len(names):
        names = [f"{name} seed {seed}" for name, (_, _, seed) in zip(names, runs, strict=True)]
    panels, growths = {}, {}
    for name, (folder, config, seed) in zip(names, runs, strict=True):
        before, after = gates_of_run(folder, config, seed)
        if after.forget:
            panels[name] = before, after
            timescales = growth(folder)
            if timescales is not None:
                growths[name] = timescales
    if panels:
        prefix = f"{title_words(titles[0])}: " if len(set(titles)) == 1 else ""
        draw_gates(panels, path, f"{prefix}forget gates before and after training", growths)
    return bool(panels)


def gates_of_run(folder: Path, config: AgentConfig, seed: int) -> tuple[GateTrace, GateTrace]:
    """Trace the untrained and the trained core of a run on the same fresh episodes.

    The trained agent acts; the untrained one is rebuilt from the seed.
    """
    after = load_agent(folder, config, seed)
    before, _ = build(config, seed)
    final = evaluation_seed(seed, final=True)
    env = fresh_env(after, config, EPISODES, final)
    steps = config.make_spec().max_episode_length
    observations, episode_starts = _rollout(after, env, steps)
    policies: Any = before.policy, after.policy
    first, last = (trace_gates(policy, observations, episode_starts) for policy in policies)
    return first, last


def _rollout(model: Agent, env: VecEnv, steps: int) -> tuple[Any, np.ndarray[Any, Any]]:
    """Observations (T, B, ...) under the likeliest actions, and episode starts (T, B)."""
    obs: Any = env.reset()
    episode_start, state = np.ones(env.num_envs, bool), None
    observations, episode_starts = [], []
    for _ in range(steps):
        observations.append(obs)
        episode_starts.append(episode_start)
        actions, state = model.predict(obs, state, episode_start, deterministic=True)
        obs, _, episode_start, _ = env.step(actions)
    starts = np.stack(episode_starts)
    if isinstance(obs, dict):
        return {key: np.stack([step[key] for step in observations]) for key in obs}, starts
    return np.stack(observations), starts
