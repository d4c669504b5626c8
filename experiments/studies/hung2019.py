"""The studies of Hung et al. 2019: does value transport earn the key its reward?

In Key-To-Door the key is worth fetching, but pays nothing until the door opens, when a discount
of 0.92 for each step has left nothing of the door's reward for it. Temporal value transport gives
the value of the door to the steps that the memory reads there. The settings were found on seed
100; the seeds of the study were fixed before its first run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.studies.study import Arm, Study

STEPS = 60  # of an episode, and rows of the memory
_TRANSPORT: dict[str, Any] = {"tvt": {"alpha": 0.9, "threshold": 2.0}}
_KEY_TO_DOOR = GymConfig(
    env="rlgates/KeyToDoor-v0",
    env_title="Key-To-Door 15/30/15",
    env_settings={
        "distractor_steps": STEPS - 30,
        "add_previous_action": True,
        "add_previous_reward": True,
    },
    policy="RMAPolicy",
    core="rma",
    core_options={"latent_size": 32, "latent_hidden": 64, "num_slots": STEPS, "top_k": 8},
    hidden_size=64,
    policy_kwargs={"code_size": 64, "head_size": 64, "channels": 8, "image_weight": 5.0},
    algo_kwargs=_TRANSPORT,
    n_envs=64,
    n_steps=STEPS,
    batch_size=16 * STEPS,
    n_epochs=4,
    learning_rate=1e-3,
    gamma=0.92,
    ent_coef=0.05,
    total_steps=1_500_000,
    eval_every=150_000,
    eval_episodes=100,
    final_episodes=200,
    eval_deterministic=False,
    success_return=9.0,
    best_return=10.0,
)
_WITHOUT = replace(_KEY_TO_DOOR, algo_kwargs={})

STUDIES: dict[str, Study] = {
    "value_transport": Study(
        title="The RMA agent in Key-To-Door, with and without temporal value transport",
        source="Hung et al. 2019, Key-To-Door; google-deepmind/deepmind-research, tvt",
        laptop=(
            Arm(_KEY_TO_DOOR, ("rma", "ur_rma"), variant="with transport"),
            Arm(_WITHOUT, ("rma",), variant="without transport"),
            # As in the paper, lambda is gamma.
            Arm(
                replace(_WITHOUT, gamma=1.0, gae_lambda=1.0),
                ("rma",),
                variant="without transport, gamma 1",
            ),
        ),
    ),
}
