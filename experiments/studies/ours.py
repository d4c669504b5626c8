"""What the papers did not ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlgates.cores import CORES as TABLE
from rlgates.experiments.configs import PRESETS, TrainConfig, match
from rlgates.experiments.studies.study import Arm, Study
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_tiers import PARTS, task_config

# Every core, and what other gates make of three of them; those that take longest at the end.
CORES = (
    *("lstm", "ur_lstm", "f_lstm", "c_lstm", "om_lstm", "gru", "ur_gru", "janet", "gato"),
    *("mingru", "ur_mingru", "minlstm", "gilr", "lru", "none"),
    *("rru", "nru", "mogrifier", "rmc", "rma", "dnc"),
)
# A memory of the length of the tasks, and a latent about as wide as the other cores.
_MEMORY = {"rma": {"latent_size": 32, "num_slots": 256, "top_k": 16}}
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


def _epoch(task: str) -> SupervisedConfig:
    """One pass over the task's data, or some updates where they are made up."""
    config = task_config(task)
    if config.updates is not None and config.epochs is None:
        return replace(config, updates=2_000 if task == "forgetting" else 500)
    settings = {**config.task_settings, **PARTS.get(task, {})}
    return replace(config, task_settings=settings, epochs=1, updates=None, patience=None)


def _stretched(config: TrainConfig | SupervisedConfig, setting: str, length: int) -> Arm:
    """What a core is told of the length is that of the training."""
    options: dict[str, dict[str, Any]] = {
        **{core: {"t_max": length} for core in ("c_lstm", "janet")},
        "gato": {"depth": 2},
        "dnc": {"num_slots": 16, "word_size": 16, "num_reads": 2},
    }
    return Arm(config, _HORIZON, options, horizon=setting)


def _distracted(steps: int, around: int, **changes: Any) -> Arm:
    """Passive Match with so many steps of distraction, and so many before it and after it."""
    settings = {**match(steps), "explore_steps": around, "reward_steps": around}
    config = replace(PRESETS["study30"], env_settings=settings, **changes)
    options = {"c_lstm": {"t_max": 2 * around + steps}}
    return Arm(config, (*_EVERY_GATE, "none"), options)


STUDIES: dict[str, Study] = {
    "all_cores": Study(
        title="Every core on Copy and Adding, with a small budget",
        laptop=(
            Arm(SupervisedConfig(task="copy", task_settings={"delay": 100}), CORES, _MEMORY),
            Arm(SupervisedConfig(task="adding", task_settings={"steps": 200}), CORES, _MEMORY),
        ),
        seeds=(0, 1, 2),
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
    "horizon": Study(
        title="Trained at one length, tested at up to 16 times it",
        laptop=(
            _stretched(
                SupervisedConfig(
                    task="copy", task_settings={"delay": 25}, updates=15_000, stop_loss=0.104
                ),
                "delay",
                25 + 20,
            ),
            _stretched(
                replace(
                    PRESETS["tmaze"],
                    env_settings={"corridor_length": 10},
                    stop_success=0.97,
                    eval_every=None,
                ),
                "corridor_length",
                11,
            ),
            _stretched(PRESETS["study30"], "distractor_steps", 60),
        ),
        seeds=(10, 11, 12, 13, 14),
    ),
    "distractor_lengths": Study(
        title="Every gate of the LSTM against the length of the distraction",
        # Over 90 steps gates that learn it get there after 3 to 5 M steps.
        laptop=tuple(_distracted(steps, 15, total_steps=6_000_000) for steps in _LENGTHS),
        full=tuple(
            _distracted(steps, 75, total_steps=20_000_000, gamma=0.96, threads=4)
            for steps in _LENGTHS
        ),
        seeds=(10, 11, 12, 13, 14),
        chart="lengths",
    ),
}
