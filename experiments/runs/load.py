"""What runs have trained: agents, with fresh environments for them, and networks of tasks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from stable_baselines3.common.vec_env import VecEnv

from rlgates.agents import PolicyEvaluation, evaluate_policy, load_vec_normalize
from rlgates.errors import check_size
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.gym_env import find_env_id
from rlgates.experiments.configs.modules import import_here
from rlgates.experiments.configs.task import TaskConfig, build_model
from rlgates.experiments.runs.agent.build import AGENT_FILE, AGENTS, BEST_FILE, Agent, agent_file
from rlgates.experiments.runs.agent.evaluate import MAX_ENVS, evaluation_seed, fresh_env
from rlgates.experiments.runs.folder import read_checkpoint, read_config, read_modules
from rlgates.experiments.runs.gym.envs import make_envs
from rlgates.experiments.runs.network.train import BEST_WEIGHTS
from rlgates.experiments.tasks import SequenceModel


@dataclass(frozen=True)
class LoadedRun:
    """The agent of a finished run.

    Attributes:
        config, seed: of the run.
        file: of the agent.
        model: the agent, on the CPU.
    """

    config: AgentConfig | GymConfig
    seed: int
    file: Path
    model: Agent

    def make_envs(self, episodes: int, seed: int) -> VecEnv:
        """As many fresh environments as the run has for so many episodes of its last evaluation.

        Each plays a share of the episodes, so that other numbers of copies play other episodes.
        The observations are as the agent knows them.
        """
        if isinstance(self.config, AgentConfig):
            return fresh_env(self.model, self.config, min(episodes, MAX_ENVS), seed)
        config = replace(self.config, normalize=False)  # by the statistics of the agent below
        env = make_envs(config, self.seed, training=False)
        env.seed(seed)
        return self.normalized(env)

    def normalized(self, env: VecEnv) -> VecEnv:
        """Environments with the statistics of the agent, if it has some."""
        if isinstance(self.config, AgentConfig) or not self.config.normalize:
            return env
        return load_vec_normalize(self.file, env, training=False)

    def evaluate(
        self, episodes: int, seed: int | None = None, deterministic: bool | None = None
    ) -> PolicyEvaluation:
        """Evaluate the agent on fresh episodes.

        Args:
            episodes: number of episodes, at least 1.
            seed: of the environments and of sampled actions; None: that of the evaluation at the
                end of the run.
            deterministic: take the likeliest actions; None: as the config says.
        """
        seed = evaluation_seed(self.seed, final=True) if seed is None else seed
        if deterministic is None:
            deterministic = self.config.eval_deterministic
        env = self.make_envs(check_size("episodes", episodes), seed)
        try:
            return evaluate_policy(self.model, env, episodes, deterministic, seed)
        finally:
            env.close()


def load_run(folder: Path, best: bool = False) -> LoadedRun:
    """The agent of a finished run of `rlgates train`.

    Args:
        folder: of the run.
        best: the agent of the best evaluation during training, not the last one.

    Raises:
        ValueError: there is no run or no agent, or it is one of sb3-contrib, whose file runs code
            and was not converted.
    """
    config, seed = read_config(folder)
    if not isinstance(config, AgentConfig | GymConfig):
        raise ValueError(f"{folder} does not hold a run of `rlgates train`.")
    converted = folder / (BEST_FILE if best else AGENT_FILE)
    if config.algo == "sb3-contrib" and not converted.exists():
        raise ValueError(
            f"the agent in {folder} is one of sb3-contrib, whose file runs code when it is loaded. "
            f"If you trust it: rlgates convert {converted.with_suffix('.zip')} --trust."
        )
    file = agent_file(folder, best)
    if isinstance(config, GymConfig) and not config.is_batched:
        find_env_id(config.env)  # its module may register the core
    for module in read_modules(folder):
        import_here(module)
    with warnings.catch_warnings():
        # Of statistics, with which `LoadedRun.normalized` wraps environments.
        warnings.filterwarnings("ignore", "the agent was trained in a VecNormalize")
        algorithm = AGENTS["ppo" if config.algo == "sb3-contrib" else config.algo]
        model = algorithm.load(file, device="cpu", safe=True)
    return LoadedRun(config, seed, file, model)


def load_network(folder: Path) -> SequenceModel:
    """The network of a run of `rlgates task`, with the weights that were best on "valid".

    Args:
        folder: of the run.

    Returns:
        the network, on the CPU, in evaluation mode.

    Raises:
        ValueError: there is no such run, or its weights are missing, damaged or of another version.
    """
    config, _ = read_config(folder)
    if not isinstance(config, TaskConfig):
        raise ValueError(f"{folder} does not hold a run of `rlgates task`.")
    file = folder / BEST_WEIGHTS
    if not file.exists():
        raise ValueError(
            f"{folder} has no {file.name}: the run has not been evaluated yet, no evaluation of it "
            "was finite, or the file was removed."
        )
    for module in read_modules(folder):
        import_here(module)
    network = build_model(config, config.check())
    network.load_state_dict(read_checkpoint(file)["network"])
    return network.eval()
