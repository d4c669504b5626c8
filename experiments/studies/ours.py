"""What the papers did not ask."""

from __future__ import annotations

from dataclasses import replace

from rlgates.experiments.configs import PRESETS
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


def _epoch(task: str) -> SupervisedConfig:
    """One pass over the task's data, or some updates where they are made up."""
    config = task_config(task)
    if config.updates is not None and config.epochs is None:
        return replace(config, updates=500)
    settings = {**config.task_settings, **PARTS.get(task, {})}
    return replace(config, task_settings=settings, epochs=1, updates=None, patience=None)


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
        laptop=tuple(Arm(_epoch(task), ("ur_lstm",)) for task in _OTHERS),
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
}
