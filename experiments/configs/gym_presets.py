"""Configs for the usual partially observable environments; none of them has been tuned here.

CartPole and Pendulum without velocities have the settings of `ppo_lstm` in RL Baselines3 Zoo, but
Pendulum has minibatches of eight sequences of 128 steps. Those of MountainCar and MiniGrid are our
own.
"""

from __future__ import annotations

from typing import Any

from rlgates.experiments.configs.gym import GymConfig

# As in the Zoo: layers of 64 behind the core, ReLU, a core of its own for the critic.
_ZOO: dict[str, Any] = {
    "normalize": True,
    "core": "lstm",
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
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        learning_rate=1e-3,
        linear_schedule=True,
        gamma=0.98,
        gae_lambda=0.8,
        success_return=500.0,
        best_return=500.0,
        **_ZOO,
    ),
    "pendulum_novel": GymConfig(
        env="Pendulum-v1",
        env_title="Pendulum-v1 without velocity",
        observation_indices=(0, 1),
        total_steps=100_000,
        n_envs=4,
        n_steps=1024,
        batch_size=1024,
        learning_rate=1e-3,
        gamma=0.9,
        success_return=-218.0,
        algo_kwargs={"use_sde": True, "sde_sample_freq": 4, "chunk_len": 128},
        **_ZOO,
    ),
    "mountaincar_novel": GymConfig(
        env="MountainCarContinuous-v0",
        env_title="MountainCarContinuous-v0 without velocity",
        observation_indices=(0,),
        total_steps=300_000,
        n_envs=8,
        n_steps=512,
        batch_size=512,
        learning_rate=3e-4,
        gamma=0.999,
        ent_coef=4e-3,
        vf_coef=0.2,
        clip_range=0.1,
        max_grad_norm=5.0,
        success_return=91.0,
        best_return=100.0,
        algo_kwargs={"use_sde": True, "sde_sample_freq": 8, "chunk_len": 128},
        **_ZOO,
    ),
    "minigrid_memory": GymConfig(
        env="MiniGrid-MemoryS7-v0",
        env_title="MiniGrid-MemoryS7, view of 3 cells",
        env_settings={"agent_view_size": 3},
        total_steps=1_000_000,
        n_envs=32,
        batch_size=1024,
        n_epochs=4,
        learning_rate=2e-3,
        gamma=0.98,
        ent_coef=0.05,
        success_return=0.9,
        folder="runs/gym",
    ),
}
