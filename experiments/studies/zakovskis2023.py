"""Zakovskis, Draguns, Gaile, Ozolins, Freivalds 2023: Gates are not what you need in RNNs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlgates.experiments.configs.published.zakovskis2023 import ABLATED, ABLATIONS, HEAT_SIZES
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.studies.space import SPACE, Range
from rlgates.experiments.studies.study import FRESH, TEN, Arm, EqualParameters, Published, Study

CORES = ("rru", "gru", "lstm", "mogrifier")
MUSIC = ("jsb", "nottingham", "musedata", "piano")
# The dropout of the RRU is the default of the paper's code.
_JSB, _NOTTINGHAM, _DIGITS = (
    replace(task_config(task), core="rru", core_options={"dropout": 0.5})
    for task in ("jsb", "nottingham", "digits")
)
# Rate 5e-3: with 1e-3 an LSTM and a GRU are far from converged after as many epochs.
_JSB, _NOTTINGHAM = (
    replace(config, learning_rate=5e-3, epochs=100, patience=7) for config in (_JSB, _NOTTINGHAM)
)
_RADAM = replace(_DIGITS, optimizer="radam")
# Until none improves: `patience` ended all 40 runs within 150 epochs.
_CONVERGED = tuple(replace(config, epochs=1_000) for config in (_NOTTINGHAM, _RADAM))
# Labels of the ablations.
WITHOUT = {
    "no-normalization": "no normalization",
    "scalar-z": "one scalar Z",
    "relu": "ReLU on c and o",
    "fixed-decay": "S = 1",
    "start-0.95": "S from 0.95",
}
# The dropout option of each core.
_DROPOUT = {"rru": "dropout", **dict.fromkeys(("gru", "lstm", "mogrifier"), "recurrent_dropout")}


# The paper searched the dropout of every cell.
_SPACE = SPACE | {
    f"{core}.{name}": Range(0.0, 0.8) for core, name in _DROPOUT.items() if core != "rru"
}


def _with_dropout(rate: float) -> dict[str, dict[str, Any]]:
    """The options of each core."""
    return {core: {name: rate} for core, name in _DROPOUT.items()}


def _equal(config: TaskConfig) -> EqualParameters:
    """The other cells with the parameters of the RRU of 128 units, and its dropout.

    The paper tuned the size of each cell (of pixels alone they are equal), and its dropout.
    """
    parameters, inputs = (83_524, 1) if config.task == "digits" else (177_136, 88)
    options = _with_dropout(0.5)
    return EqualParameters(
        config, CORES[1:], parameters, inputs, options, variant="equal parameters"
    )


def _dropout(rate: float) -> Arm:
    return Arm(_NOTTINGHAM, CORES, _with_dropout(rate), variant=f"dropout {rate:g}")


STUDIES: dict[str, Study] = {
    "music": Study(
        title="Polyphonic music",
        source="Zakovskis et al. 2023, table 1, figure 8",
        laptop=(
            Arm(_JSB, CORES),
            Arm(_NOTTINGHAM, CORES),
            _equal(_JSB),
            _equal(_NOTTINGHAM),
        ),
        full=tuple(Published(f"{task}-rru") for task in MUSIC),
        space=_SPACE,
    ),
    "residual": Study(
        title="Music and pixels with the residual cell, until none improves",
        source="Zakovskis et al. 2023, table 1",
        laptop=tuple(
            arm for config in _CONVERGED for arm in (Arm(config, ("rru",)), _equal(config))
        ),
        full=tuple(
            Published(f"{task}-rru")
            for task in (
                *("nottingham", "smnist", "pmnist"),
                *("ptb_words", "ptb_chars", "enwik8", "text8", "imdb"),
            )
        ),
        seeds=FRESH[:5],
        space=_SPACE,
    ),
    "rru_ablation": Study(
        title="The residual cell without its parts",
        source="Zakovskis et al. 2023, table 2",
        laptop=(
            Arm(_NOTTINGHAM, ("rru",)),
            *(
                Arm(_NOTTINGHAM, ("rru",), {"rru": ABLATIONS[name][0]}, words)
                for name, words in WITHOUT.items()
            ),
        ),
        full=tuple(
            row
            for task in ABLATED
            for row in (
                Published(f"{task}-rru-whole"),
                *(
                    Published(f"{task}-rru-{name}", variant=words)
                    for name, words in WITHOUT.items()
                ),
            )
        ),
    ),
    "rru_start": Study(
        title="The residual cell with other initial weights, on ten fresh seeds",
        source="Zakovskis et al. 2023, table 2",
        laptop=(
            Arm(_NOTTINGHAM, ("rru",)),
            Arm(_NOTTINGHAM, ("rru",), {"rru": ABLATIONS["start-0.95"][0]}, WITHOUT["start-0.95"]),
        ),
        full=(
            Published("nottingham-rru", ("rru",)),
            Published("nottingham-rru-start-0.95", variant=WITHOUT["start-0.95"]),
        ),
        seeds=FRESH,
    ),
    "rate_size": Study(
        title="Learning rate and size",
        source="Zakovskis et al. 2023, figure 2",
        laptop=tuple(
            Arm(
                replace(_NOTTINGHAM, hidden_size=size, learning_rate=rate, epochs=10),
                CORES,
                variant=f"rate {rate:g}, size {size}",
            )
            for size in (32, 64, 128)
            for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
        ),
        full=tuple(
            Published(f"{task}-rru-heat-{size:g}M", variant=f"size {size:g}M")
            for task, sizes in HEAT_SIZES.items()
            for size in sizes
        ),
        seeds=(0,),
        chart="heat",
    ),
    "dropout": Study(
        title="Dropout inside the cells",
        source="Zakovskis et al. 2023, figures 3 and 4",
        laptop=tuple(_dropout(rate) for rate in (0.0, 0.3, 0.5, 0.7, 0.9)),
        full=(
            Published("nottingham-rru-dropout"),
            Published("ptb_chars-rru-dropout"),
        ),
        seeds=TEN,
    ),
}
