"""Studies beyond the papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlgates.experiments.configs.agent import AgentConfig, match
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.gym_presets import GYM_PRESETS
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import PARTS, task_config
from rlgates.experiments.studies.space import SPACE
from rlgates.experiments.studies.study import Arm, Study
from rlgates.registry import CORES as TABLE

# 18 cores, and three of them with other gates; the slowest at the end.
CORES = (
    *("lstm", "ur_lstm", "f_lstm", "c_lstm", "om_lstm", "gru", "ur_gru", "janet", "gato"),
    *("mingru", "ur_mingru", "minlstm", "gilr", "lru", "none"),
    *("rru", "nru", "mogrifier", "rmc", "rma", "dnc"),
)
# A memory as long as the tasks, and a latent about as wide as the other cores; the dropout of the
# RRU is the default of the paper's code.
_OPTIONS: dict[str, dict[str, Any]] = {
    "rma": {"latent_size": 32, "num_slots": 256, "top_k": 16},
    "rru": {"dropout": 0.5},
}
_OTHERS = (
    *("copy_aba", "forgetting", "lte_addition", "lte_control", "lte_program", "digits", "pmnist"),
    *("scifar", "ptb_words", "ptb_chars", "wikitext2", "enwik8", "text8", "musedata", "piano"),
    *("imdb", "speech_commands", "icu"),
)
# Gated cores, linear ones, and those with a memory or a sum of another kind.
_HORIZON = (
    *("lstm", "ur_lstm", "f_lstm", "c_lstm", "gru", "janet"),
    *("mingru", "ur_mingru", "lru", "nru", "gato", "dnc", "none"),
)
_LENGTHS = (15, 30, 60, 120, 240, 450)
_EVERY_GATE = tuple(f"{gate}_lstm".lstrip("_") for gate in TABLE["lstm"].gates)


def _epoch(task: str) -> TaskConfig:
    """One epoch of a task, or a few updates if its data are generated."""
    config = task_config(task)
    if config.updates is not None and config.epochs is None:
        return replace(config, updates=2_000 if task == "forgetting" else 500)
    settings = {**config.task_settings, **PARTS.get(task, {})}
    return replace(config, task_settings=settings, epochs=1, updates=None, patience=None)


def _stretched(config: AgentConfig | TaskConfig, setting: str, length: int) -> Arm:
    """An arm tested at longer lengths; options of cores use the training length."""
    options: dict[str, dict[str, Any]] = {
        **{core: {"t_max": length} for core in ("c_lstm", "janet")},
        "gato": {"depth": 2},
        "dnc": {"num_slots": 16, "word_size": 16, "num_reads": 2},
    }
    return Arm(config, _HORIZON, options, horizon=setting)


def _distracted(steps: int, around: int, **changes: Any) -> Arm:
    """Passive Match with `steps` of distraction, and `around` steps before and after it."""
    settings = {**match(steps), "explore_steps": around, "reward_steps": around}
    config = replace(PRESETS["study30"], env_settings=settings, **changes)
    options = {"c_lstm": {"t_max": 2 * around + steps}}
    return Arm(config, (*_EVERY_GATE, "none"), options)


def _beside_sb3(config: GymConfig, *cores: str) -> tuple[Arm, ...]:
    """sb3-contrib's agent, ours with an LSTM that starts as torch's does, and ours with `cores`."""
    torch_lstm = replace(config, core_options={"forget_bias": 0.0})
    return (
        Arm(replace(torch_lstm, algo="sb3-contrib"), ("lstm",), variant="sb3-contrib"),
        Arm(torch_lstm, ("lstm",), variant="forget_bias=0"),
        Arm(config, cores),
    )


# As in sb3-contrib's own test of what its agent learns.
_CARTPOLE = GymConfig(
    env="CartPole-v1",
    env_title="CartPole-v1 without velocities",
    observation_indices=(0, 2),
    normalize=True,
    net_arch=(),
    ortho_init=False,
    learning_rate=7e-4,
    total_steps=50_000,
    max_grad_norm=1.0,
    gae_lambda=0.98,
    eval_every=5_000,
    success_return=450.0,
    best_return=500.0,
)
_T_MAZE = GymConfig(
    env="rlgates/PassiveTMaze-v0",
    env_title="Passive T-Maze, corridor of 10",
    env_settings={"corridor_length": 10},
    n_envs=128,
    n_steps=32,
    batch_size=1024,
    n_epochs=4,
    learning_rate=1e-3,
    linear_schedule=True,
    # Once all episodes succeed, advantages that are normalized are noise.
    normalize_advantage=False,
    total_steps=500_000,
    ent_coef=0.02,
    vf_coef=1.0,
    eval_every=50_000,
    success_return=0.9,
    best_return=1.0,
)


_LONGER_T_MAZE = replace(
    _T_MAZE,
    env_title="Passive T-Maze, corridor of 20",
    env_settings={"corridor_length": 20},
)


def _minigrid(size: int, steps: int) -> GymConfig:
    """A memory task of MiniGrid with a view of 3 cells."""
    return replace(
        GYM_PRESETS["minigrid_memory"],
        env=f"rlgates/MiniGridMemoryS{size}-v0",
        env_title=f"MiniGrid-MemoryS{size}, view of 3 cells",
        core_options={},
        total_steps=steps,
        eval_every=steps // 10,
    )


STUDIES: dict[str, Study] = {
    "all_cores": Study(
        title="Copy and Adding with a small budget",
        laptop=(
            Arm(TaskConfig(task="copy", task_settings={"delay": 100}), CORES, _OPTIONS),
            Arm(TaskConfig(task="adding", task_settings={"steps": 200}), CORES, _OPTIONS),
        ),
        seeds=(0, 1, 2),
        costs=True,
    ),
    "epochs": Study(
        title="One epoch of each task",
        laptop=tuple(Arm(config, (config.core,)) for config in map(_epoch, _OTHERS)),
        seeds=(0,),
    ),
    "passive_match": Study(
        title="Passive Match with short and long distractor phases",
        laptop=tuple(
            Arm(PRESETS[name], ("ur_lstm", "lstm", "f_lstm", "c_lstm", "none"))
            for name in ("study30", "study90")
        ),
        seeds=(10, 11, 12, 13, 14),
    ),
    "learning": Study(
        title="Agents of rlgates and of sb3-contrib in the same environments",
        laptop=tuple(
            arm
            for config, *cores in (
                (_CARTPOLE, "ur_lstm", "none", "lstm"),
                (_T_MAZE, "ur_lstm", "none"),
                (_minigrid(7, 1_000_000), "ur_lstm", "none"),
                (_minigrid(9, 2_000_000), "ur_lstm", "none"),
            )
            # At the end, too, the runs were judged by the episodes of an evaluation.
            for arm in _beside_sb3(replace(config, final_episodes=config.eval_episodes), *cores)
        ),
        # No options of the core, which sb3-contrib's does not have.
        space={name: values for name, values in SPACE.items() if "." not in name},
    ),
    "presets": Study(
        title="The presets for partially observable environments, next to published scores",
        laptop=tuple(Arm(config, (config.core, "none")) for config in GYM_PRESETS.values()),
    ),
    "forget_bias": Study(
        title="The plain LSTM with a forget bias of 0, as in torch.nn.LSTM, and of 1",
        laptop=tuple(
            arm
            for config in (_CARTPOLE, _T_MAZE, _LONGER_T_MAZE, _minigrid(7, 1_000_000))
            for arm in _beside_sb3(config, "lstm")[1:]
        ),
        seeds=tuple(range(10, 20)),
    ),
    "horizon": Study(
        title="Trained at one length, tested at up to 16 times that length",
        laptop=(
            _stretched(
                TaskConfig(
                    task="copy", task_settings={"delay": 25}, updates=15_000, stop_loss=0.104
                ),
                "delay",
                25 + 20,
            ),
            _stretched(
                # As in `_T_MAZE`: other settings let agents that had learned it fall again.
                replace(
                    PRESETS["tmaze"],
                    env_settings={"corridor_length": 10},
                    n_steps=32,
                    learning_rate=1e-3,
                    linear_schedule=True,
                    normalize_advantage=False,
                    ent_coef=0.02,
                    reward_scale=1.0,
                    total_steps=500_000,
                    eval_every=None,
                ),
                "corridor_length",
                11,
            ),
            _stretched(PRESETS["study30"], "distractor_steps", 60),
        ),
        seeds=(10, 11, 12, 13, 14),
        costs=True,
    ),
    "distractor_lengths": Study(
        title="Every gate of the LSTM against the length of the distraction",
        # Over 90 steps the gates that learn it need 3 to 5 M steps.
        laptop=tuple(_distracted(steps, 15, total_steps=6_000_000) for steps in _LENGTHS),
        full=tuple(
            _distracted(steps, 75, total_steps=20_000_000, gamma=0.96, threads=4)
            for steps in _LENGTHS
        ),
        seeds=(10, 11, 12, 13, 14),
        chart="lengths",
    ),
}
