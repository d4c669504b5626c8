"""GATO: Gates are not the only option (anonymous authors, under review in 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlgates.experiments.configs.published.gato2020 import TORCH_BIASES
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.studies.study import FRESH, TEN, Arm, Published, Study

CORES = ("gato", "gru", "lstm")
LENGTHS = (100, 200, 400, 750)
TWO: dict[str, dict[str, Any]] = {"gato": {"depth": 2}}
TORCH_BIAS = "forget bias 0"  # about that of torch.nn, which the paper has


def _adding(length: int) -> TaskConfig:
    """As published, except for the sizes, and that a run ends when the task is solved."""
    return TaskConfig(
        task="adding",
        task_settings={"steps": length},
        decoder_size=64,
        updates=200_000 // 64,
        batch_size=64,
        halve_block=10_000,
        max_grad_norm=None,
        eval_every=125,
        stop_loss=0.0083,
    )


def _torch_bias(length: int, *cores: str) -> Arm:
    return Arm(_adding(length), cores, TWO | TORCH_BIASES, TORCH_BIAS)


def _without(s_update: str, words: str) -> Arm:
    return Arm(_adding(200), ("gato",), {"gato": {"depth": 2, "s_update": s_update}}, words)


_DEPTH: dict[str, Any] = {"gato": {"input_start": "default"}}

STUDIES: dict[str, Study] = {
    "adding_lengths": Study(
        title="Adding at four lengths, and GATO without the part that carries its sum",
        source="GATO 2020, figure 2, appendix A",
        laptop=(
            *(Arm(_adding(length), CORES, TWO) for length in LENGTHS),
            *(_torch_bias(length, "lstm") for length in LENGTHS),
            _without("zero", "s' = 0"),
            _without("increment", "s' = increment"),
        ),
        full=(
            *(Published(f"adding-gato-{length}") for length in LENGTHS),
            Published("adding-gato-zero", variant="s' = 0"),
            Published("adding-gato-increment", variant="s' = increment"),
        ),
    ),
    "adding_torch": Study(
        title="GATO on Adding against the GRU and LSTM of torch.nn, on ten fresh seeds",
        source="GATO 2020, figure 2",
        laptop=(_torch_bias(100, "lstm"), _torch_bias(750, "gato", "gru")),
        full=(Published("adding-gato-100", ("lstm",)), Published("adding-gato-750")),
        seeds=FRESH,
    ),
    "copy_aba": Study(
        title="Copy without a marker",
        source="GATO 2020, figure 1",
        laptop=(
            Arm(
                replace(
                    task_config("copy_aba"),
                    task_settings={"delay": 100, "length": 20},
                    updates=1_000_000 // 32,  # as published
                    eval_every=250,
                ),
                CORES,
                TWO | TORCH_BIASES,
            ),
        ),
        full=(Published("copy_aba-gato"),),
        seeds=FRESH[:5],
    ),
    "icu": Study(
        title="Length of stay",
        source="GATO 2020, table 1",
        laptop=tuple(
            Arm(
                replace(task_config("icu"), learning_rate=rate),
                CORES,
                _DEPTH,
                variant=f"rate {rate:g}",
            )
            for rate in (4e-3, 1e-4)
        ),
        full=(Published("icu-gato"),),
        seeds=TEN,
        added=TEN[5:],
    ),
    "ptb": Study(
        title="Words of the Penn Treebank",
        source="GATO 2020, table 2",
        laptop=(
            Arm(
                replace(task_config("ptb_words"), epochs=3, max_grad_norm=None),
                CORES,
                _DEPTH | TORCH_BIASES,
            ),
        ),
        full=(Published("ptb_words-gato"),),
    ),
}
