"""A session of training: it goes on until the run ends, or is stopped and can be continued."""

from __future__ import annotations

from collections.abc import Sequence

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from rlgates.errors import TrainingDiverged
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.agent.callbacks import Boundary, RolloutProgress, Stop
from rlgates.experiments.runs.folder import EndReason
from rlgates.experiments.runs.progress import Progress
from rlgates.experiments.runs.stopping import InterruptedRun


def learn_to_the_end(
    model: OnPolicyAlgorithm, boundary: Boundary, measures: Sequence[BaseCallback], bar: bool | None
) -> EndReason:
    """Train an agent until its run ends, and save it.

    Args:
        model: as it was made, or as a checkpoint has it; with the logger of the run.
        boundary: saves the run, and ends it.
        measures: further callbacks, of the first rank alone.
        bar: draw a progress bar; None: on a terminal.

    Returns:
        why training ended.

    Raises:
        InterruptedRun: it was stopped before the end.
    """
    folder, config = boundary.folder, boundary.folder.config
    assert isinstance(config, AgentConfig | GymConfig)
    name = f"{config.core} seed {folder.seed}"
    progress = Progress(name, "steps", config.total_steps, bar, config.max_minutes)
    callbacks: list[BaseCallback] = [boundary]
    if folder.ranks.is_first:
        callbacks += [*measures, RolloutProgress(progress, boundary.seconds_before)]
    ended: EndReason | None = "budget"
    try:
        # The last rollout may go beyond the budget.
        remaining = max(0, config.total_steps - model.num_timesteps)
        model.learn(remaining, callbacks, log_interval=1, reset_num_timesteps=False)
    except Stop as reason:
        ended = reason.ended
    except TrainingDiverged as reason:
        ended = "diverged"
        print(f"{name} diverged: {reason}", flush=True)
        logs.log_first_row(model.logger, model.num_timesteps)
    finally:
        progress.close()
    if ended != "diverged":  # which stops within an iteration; checkpoints are between them
        boundary.save()
    if ended is None:
        folder.end("interrupted")
        raise InterruptedRun(f"at {model.num_timesteps:,} steps, saved in {folder.path}")
    return ended
