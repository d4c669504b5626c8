"""Configs for the usual partially observable environments.

They start from the settings of `ppo_lstm` in RL Baselines3 Zoo (hyperparams/ppo_lstm.yml of
github.com/DLR-RM/rl-baselines3-zoo). Where it has minibatches of one sequence, these have several,
and higher learning rates to go with fewer updates. All but MiniGrid's, which are those of the study
`learning`, were tuned by hand on a few seeds from 100. The study `presets` has runs on other seeds,
beside the Zoo's scores (benchmark.md), each of which is the mean of one run.
"""

from __future__ import annotations

from typing import Any

from rlgates.experiments.configs.gym import GymConfig

# As in the Zoo: layers of 64 behind the core, ReLU, a core of its own for the critic, and the
# initial forget bias of torch.nn.LSTM.
_ZOO: dict[str, Any] = {
    "normalize": True,
    "core": "lstm",
    "core_options": {"forget_bias": 0.0},
    "ortho_init": False,
    "policy_kwargs": {"activation_fn": "relu"},
    "folder": "runs/gym",
}
GYM_PRESETS: dict[str, GymConfig] = {
    "cartpole_novel": GymConfig(
        env="CartPole-v1",
        env_title="CartPole-v1 without velocities",
        observation_indices=(0, 2),
        total_steps=100_000,
        n_envs=8,
        n_steps=128,
        batch_size=256,
        n_epochs=10,
        learning_rate=1e-3,
        linear_schedule=True,
        # Once all episodes reach the time limit, advantages that are normalized are noise.
        normalize_advantage=False,
        success_return=500.0,
        best_return=500.0,
        published="500 (Zoo, 300 episodes)",
        **_ZOO,
    ),
    "pendulum_novel": GymConfig(
        env="Pendulum-v1",
        env_title="Pendulum-v1 without velocity",
        observation_indices=(0, 1),
        total_steps=400_000,
        n_envs=32,
        n_steps=128,
        batch_size=512,
        learning_rate=1e-3,
        linear_schedule=True,
        # With the Zoo's 0.9 some agents swing more often than they must.
        gamma=0.95,
        eval_every=50_000,
        final_episodes=500,
        success_return=-217.933,
        best_return=0.0,
        worst_return=-1600.0,
        published="-217.9 (Zoo, 750 episodes)",
        algo_kwargs={"chunk_len": 64},
        **_ZOO,
    ),
    "mountaincar_novel": GymConfig(
        env="MountainCarContinuous-v0",
        env_title="MountainCarContinuous-v0 without velocity",
        observation_indices=(0,),
        # One of three tuning seeds ended with saturated actions, which fail without noise.
        total_steps=150_000,
        n_envs=8,
        n_steps=512,
        batch_size=1024,
        learning_rate=3e-4,
        gamma=0.999,
        ent_coef=4e-3,
        vf_coef=0.2,
        clip_range=0.1,
        max_grad_norm=5.0,
        eval_every=30_000,
        success_return=91.469,
        best_return=100.0,
        published="91.5 (Zoo, 1,340 episodes)",
        algo_kwargs={"use_sde": True, "sde_sample_freq": 8, "chunk_len": 128},
        **_ZOO,
    ),
    "lunarlander_novel": GymConfig(
        env="LunarLander-v3",
        env_title="LunarLander-v3 without velocities",
        observation_indices=(0, 1, 4, 6, 7),
        total_steps=4_000_000,
        n_envs=16,
        n_steps=512,
        batch_size=512,
        n_epochs=6,
        learning_rate=5e-4,
        linear_schedule=True,
        gamma=0.999,
        gae_lambda=0.98,
        ent_coef=0.01,
        eval_every=500_000,
        success_return=200.0,
        best_return=300.0,
        worst_return=-200.0,
        algo_kwargs={"chunk_len": 64},
        **_ZOO,
    ),
    "minigrid_memory": GymConfig(
        env="rlgates/MiniGridMemoryS7-v0",
        env_title="MiniGrid-MemoryS7, view of 3 cells",
        env_settings={"observation": "objects"},
        core="lstm",
        core_options={"forget_bias": 0.0},
        total_steps=1_000_000,
        n_envs=32,
        batch_size=1024,
        n_epochs=4,
        learning_rate=2e-3,
        gamma=0.98,
        ent_coef=0.05,
        eval_every=100_000,
        success_return=0.9,
        best_return=1.0,
        folder="runs/gym",
    ),
}
