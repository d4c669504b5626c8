"""Ohno, Kanai, Ida 2022: Fast saturating gate for learning long time scales with recurrent
neural networks. Its figure 2 is `rlgates analyse saturation`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import PARTS, task_config
from rlgates.experiments.studies.study import TEN, Arm, Options, Published, Study

CORES = ("s_lstm", "lstm", "r_lstm", "f_lstm", "ff_lstm", "c_lstm", "janet", "nru")


def _options(length: int) -> Options:
    """Tied gates for the LSTMs, and the length of the task for chrono gates."""
    return {
        "lstm": {"tied": True},
        "c_lstm": {"tied": True, "t_max": length},
        "janet": {"t_max": length},
    }


def _tied(task: str, settings: dict[str, Any], length: int, stop: float) -> Arm:
    config = TaskConfig(
        task=task,
        task_settings=settings,
        optimizer="rmsprop",
        learning_rate=1e-3,
        updates=5_000,
        batch_size=16,
        stop_loss=stop,
    )
    return Arm(config, CORES, _options(length), gates=("lstm", "r_lstm", "f_lstm", "c_lstm"))


_DIGITS = replace(task_config("digits"), hidden_size=64)
_SPEECH = task_config("speech_commands")

STUDIES: dict[str, Study] = {
    "tied_gates": Study(
        title="Copy and Adding with tied gates",
        source="Ohno et al. 2022, figures 3, 4 and 5",
        laptop=(
            _tied("copy", {"delay": 100, "cues": "one"}, 100, 0.104),
            _tied("adding", {"steps": 200}, 200, 0.0083),
        ),
        full=(
            Published("copy-ohno"),
            Published("adding-ohno"),
            Published("adding-ohno-timescales", variant="timescales"),
        ),
    ),
    "tied_pixels": Study(
        title="Images pixel by pixel with tied gates",
        source="Ohno et al. 2022, figure 6, tables 2, 4 and 5",
        laptop=(Arm(_DIGITS, (*CORES, "ur_lstm", "uf_lstm"), _options(64)),),
        full=tuple(
            Published(f"{task}-ohno{size}", variant=size.strip("-"))
            for size in ("", "-others", "-small")
            for task in ("smnist", "pmnist", "scifar")
        ),
        seeds=TEN,
        added=TEN[5:],
    ),
    "rare_words": Study(
        title="Words of the Penn Treebank, rare ones apart",
        source="Ohno et al. 2022, table 3",
        laptop=(
            Arm(
                replace(task_config("ptb_words"), task_settings={"by_frequency": True}, epochs=3),
                ("lstm", "r_lstm", "f_lstm"),
                {"f_lstm": {"tied": False}},
            ),
        ),
        full=(Published("ptb_words-ohno"),),
    ),
    "speech": Study(
        title="Raw speech",
        source="Ohno et al. 2022, table 6",
        laptop=(
            Arm(
                # With 500 clips only small batches learn anything.
                replace(_SPEECH, task_settings=PARTS["speech_commands"], epochs=10, batch_size=8),
                ("lstm", "r_lstm", "ur_lstm", "f_lstm"),
            ),
        ),
        full=tuple(
            Published(
                "speech_commands-ohno",
                variant=f"clip {clip:g}",
                changes={"max_grad_norm": clip},
            )
            for clip in (1.0, 0.1)
        ),
    ),
}
