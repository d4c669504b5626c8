"""An agent tested in longer environments than it was trained in."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.devices import threads_set
from rlgates.experiments.runs.agent.build import Agent, load_agent
from rlgates.experiments.runs.agent.evaluate import evaluate_in, evaluation_seed, fresh_env
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.horizon import FACTORS, length_columns, stretched

EPISODES = 256
"""Fresh episodes at each length, unless the run was tested on fewer."""


def agent_rows(config: AgentConfig, seed: int, setting: str) -> list[Row]:
    """Test the agent of a finished run in fresh episodes of longer environments.

    The score is the share of successful episodes. An episode in which the state was not finite
    is a failure.

    Args:
        config, seed: of the run.
        setting: the setting that is stretched.

    Returns:
        for each of `FACTORS`, the episodes' length in steps and number, score with its 95 %
        interval (Wilson), and the score without memory, empty where it is not known.

    Raises:
        ValueError: there is no finished run.
    """
    episodes = min(EPISODES, config.final_episodes)
    first, rows = evaluation_seed(seed, final=True), []
    with threads_set(config.threads):
        model = load_agent(config.run_folder(seed), config, seed)
        for factor in FACTORS:
            longer = stretched(config, setting, factor)
            env = fresh_env(model, longer, episodes, first)
            checked = _CheckedModel(model, env.num_envs)
            judged = _FailingEnv(env, checked)
            evaluation = evaluate_in(checked, judged, episodes, first, config.eval_deterministic)
            spec = longer.make_spec()
            rows.append(
                {
                    **length_columns(spec, setting, factor, spec.max_episode_length),
                    "count": str(episodes),
                    "score": f"{evaluation.success:.6g}",
                    "low": f"{evaluation.low:.6g}",
                    "high": f"{evaluation.high:.6g}",
                    "floor": "" if spec.chance is None else f"{spec.chance:.6g}",
                }
            )
    return rows


class _CheckedModel:
    """A model that records where its state was not finite in the present episode."""

    def __init__(self, model: Agent, num_envs: int) -> None:
        self.model, self.device = model, model.device
        self.invalid = np.zeros(num_envs, dtype=bool)

    def predict(
        self, observations: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[Any, Any]:
        self.invalid &= ~episode_start
        if state is not None:  # `predict` refuses such numbers, which no longer matter
            state = tuple(np.where(self.invalid[:, None], 0, half) for half in state)
        try:
            actions, state = self.model.predict(observations, state, episode_start, deterministic)
        except ValueError:  # in some episode, not in all
            rows = [
                self._row(row, observations, state, episode_start, deterministic)
                for row in range(len(self.invalid))
            ]
            actions = np.concatenate([actions for actions, _ in rows])
            state = tuple(
                np.concatenate(halves, axis=1) for halves in zip(*(s for _, s in rows), strict=True)
            )
        finite = [np.isfinite(half).all(axis=(0, 2)) for half in state]
        self.invalid |= ~np.logical_and.reduce(finite)
        return actions, state

    def _row(
        self, row: int, observations: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[Any, Any]:
        """Action and state of one environment; the first action and NaN if there are none."""
        one = slice(row, row + 1)
        if isinstance(observations, dict):
            observations = {name: part[one] for name, part in observations.items()}
        else:
            observations = observations[one]
        if state is not None:
            state = tuple(half[:, one] for half in state)
        try:
            return self.model.predict(observations, state, episode_start[one], deterministic)
        except ValueError:
            space = self.model.action_space
            shape = 1, *(space.shape or ())
            lost = tuple(np.full_like(half, np.nan) for half in self._initial_state())
            return np.zeros(shape, space.dtype), lost

    def _initial_state(self) -> Any:
        return [half.cpu().numpy() for half in self.model.policy.lstm_actor.initial_state(1)]


class _FailingEnv(VecEnvWrapper):
    """Environments whose episodes fail if the state of the model was not finite."""

    def __init__(self, env: VecEnv, model: _CheckedModel) -> None:
        super().__init__(env)
        self.model = model

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        for index in np.flatnonzero(dones & self.model.invalid):
            infos[index] = {**infos[index], "is_success": False}
        return obs, rewards, dones, infos
