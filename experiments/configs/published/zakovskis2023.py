"""The protocols of Zakovskis et al. 2023, on the RRU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlgates.experiments.configs.published.protocol import Protocol

_SOURCE = "Zakovskis et al. 2023"

# The paper clips gradients, but does not say to which norm.
_CELLS: dict[str, Any] = {
    "cores": ("rru", "gru", "lstm", "mogrifier"),
    "optimizer": "radam",
    "dropout_of": "core",
    "unstated": {"epochs": 1_000, "max_grad_norm": 1.0},  # `patience` ends a run
}
_TENTHS = tuple(k / 10 for k in range(10))
HEAT_RATES = (1e-4, 2e-4, 3e-4, 5e-4, 8e-4, 1.3e-3, 2.2e-3, 3.6e-3, 6e-3, 1e-2)
HEAT_SIZES = {
    "nottingham": (1.0, 2.6, 4.1, 5.7, 7.2, 8.8, 10.3, 11.9, 13.4, 15.0),
    "ptb_words": (10.0, 12.2, 14.4, 16.7, 18.9, 21.1, 23.3, 25.6, 27.8, 30.0),
}  # millions of parameters

# Table 4, from a search of 100 runs for each core: learning rate, dropout, millions of parameters
# (which section 4 calls equal); then q of the RRU, the forget bias of the LSTM, rounds and rank of
# the Mogrifier LSTM.
_TUNED: dict[str, dict[str, tuple[float, ...]]] = {
    "jsb": {
        "rru": (0.00495, 0.79362, 6.9, 1.76958),
        "gru": (0.00460, 0.67605, 1.8),
        "lstm": (0.01000, 0.30081, 1.3, 0.76843),
        "mogrifier": (0.00255, 0.47521, 1.3, 6, 58),
    },
    "nottingham": {
        "rru": (0.00029, 0.77186, 2.6, 7.31994),
        "gru": (0.00454, 0.33787, 3.4),
        "lstm": (0.00882, 0.20310, 1.3, -0.04104),
        "mogrifier": (0.00169, 0.73808, 6.0, 5, 48),
    },
    "musedata": {
        "rru": (0.00030, 0.77518, 8.6, 6.85699),
        "gru": (0.00260, 0.64839, 1.9),
        "lstm": (0.00493, 0.35383, 1.8, 1.85746),
        "mogrifier": (0.00135, 0.55499, 10.3, 5, 76),
    },
    "piano": {
        "rru": (0.00077, 0.71577, 5.9, 3.68371),
        "gru": (0.00932, 0.75069, 2.4),
        "lstm": (0.00727, 0.22951, 11.9, 0.59993),
        "mogrifier": (0.00012, 0.77291, 2.9, 5, 63),
    },
    "ptb_words": {
        "rru": (0.00683, 0.66035, 25.9, 6.86655),
        "gru": (0.00012, 0.27062, 10.0),
        "lstm": (0.00162, 0.10384, 14.2, -2.33114),
        "mogrifier": (0.00074, 0.46872, 24.2, 5, 74),
    },
}


def _options(tuned: dict[str, tuple[float, ...]]) -> dict[str, dict[str, Any]]:
    """The options of the cores, from a row of `_TUNED`."""
    rounds, rank = tuned["mogrifier"][3:]
    return {
        "rru": {"expansion": tuned["rru"][3]},
        "lstm": {"forget_bias": tuned["lstm"][3]},
        "mogrifier": {"rounds": int(rounds), "rank": int(rank)},
    }


_MUSIC: dict[str, Any] = _CELLS | {"batch_size": 16, "patience": 7}
_TEXT: dict[str, Any] = _CELLS | {
    "num_layers": 2,
    "embedding_size": 64,
    "batch_size": 128,
    "patience": 7,
}
_PTB: dict[str, Any] = _TEXT | {"task_settings": {"window": 64, "random_windows": False}}

ZAKOVSKIS2023: dict[str, Protocol] = {}
for _task, _rows in _TUNED.items():
    _shape = _PTB if _task == "ptb_words" else _MUSIC
    _wide: dict[str, Any] = {"output_size": 128} if _task == "ptb_words" else {}
    _tuned = _options(_rows)
    ZAKOVSKIS2023[f"{_task}-rru"] = Protocol(
        task=_task,
        core_options=_tuned | {"rru": _tuned["rru"] | _wide},
        count_core_parameters={core: round(1e6 * row[2]) for core, row in _rows.items()},
        learning_rates=(1e-4, 1e-2),  # the ends of the range that was searched
        core_learning_rates={core: row[:1] for core, row in _rows.items()},
        core_dropout={core: row[1:2] for core, row in _rows.items()},
        source=f"{_SOURCE}, table 1, appendix D.2",
        **_shape,
    )
    for _size in HEAT_SIZES.get(_task, ()):
        ZAKOVSKIS2023[f"{_task}-rru-heat-{_size:g}M"] = Protocol(
            task=_task,
            core_options={"rru": _wide} if _wide else {},
            parameters=round(1e6 * _size),
            learning_rates=HEAT_RATES,
            dropout=(0.5,),
            seeds=1,
            source=f"{_SOURCE}, figures 2, 5, appendix D.3",
            finding="the RRU is good over the widest range",
            **_shape,
        )

_CHARACTERS: dict[str, Any] = _TEXT | {
    "embedding_size": 16,
    "batch_size": 64,
    "patience": 11,
    "learning_rates": (1e-3,),
    "parameters": 24_000_000,
}
_PTB_CHARS: dict[str, dict[str, Any]] = {
    "rru": {"relu_layers": 2, "expansion": 4.0, "output_size": 128},
    "mogrifier": {"rounds": 4, "rank": 24},
}
ZAKOVSKIS2023 |= {
    "nottingham-rru-dropout": Protocol(
        task="nottingham",
        parameters=5_000_000,
        learning_rates=(1e-3,),
        dropout=_TENTHS,
        source=f"{_SOURCE}, figure 3, appendix D.4",
        finding="the RRU is best, near 0.7",
        **_MUSIC,
    ),
    "ptb_chars-rru": Protocol(
        task="ptb_chars",
        core_options=_PTB_CHARS,
        dropout=(0.5,),
        core_dropout={"rru": (0.7,), "lstm": (0.4,)},
        source=f"{_SOURCE}, table 1, appendix D.2",
        **_CHARACTERS,
    ),
    "ptb_chars-rru-dropout": Protocol(
        task="ptb_chars",
        core_options=_PTB_CHARS,
        dropout=_TENTHS,
        source=f"{_SOURCE}, figures 4 and 9, appendix D.4",
        finding="best: RRU 0.7, GRU 0.5, LSTM 0.4, Mogrifier 0.5",
        **_CHARACTERS,
    ),
}
for _task in ("enwik8", "text8"):
    ZAKOVSKIS2023[f"{_task}-rru"] = Protocol(
        task=_task,
        core_options={
            "rru": {"relu_layers": 2, "expansion": 4.0, "output_size": 128},
            "mogrifier": {"rounds": 6, "rank": 79},
        },
        core_learning_rates={"gru": (1e-4,)} if _task == "text8" else {},
        dropout=(0.7,),
        source=f"{_SOURCE}, table 1, appendix D.2",
        **(_CHARACTERS | {"embedding_size": 32, "patience": 3, "parameters": 48_000_000}),
    )
for _task in ("smnist", "pmnist"):
    ZAKOVSKIS2023[f"{_task}-rru"] = Protocol(
        task=_task,
        task_settings={"permutation": "rows"} if _task == "pmnist" else {},
        core_options={"mogrifier": {"rounds": 6, "rank": 50}},
        parameters=70_000,
        num_layers=2,
        learning_rates=(1e-3,),
        core_learning_rates={"lstm": (1e-4,), "mogrifier": (5e-5,)},
        batch_size=64,
        dropout=(0.7,),
        core_dropout={"mogrifier": (0.5,)},
        patience=5,
        source=f"{_SOURCE}, table 1, appendix D.2",
        **_CELLS,
    )
ZAKOVSKIS2023["imdb-rru"] = Protocol(
    task="imdb",  # trimmed to 500 words (appendix D.1); table 5 has a context of 512
    core_options={"mogrifier": {"rounds": 5, "rank": 40}},
    parameters=20_000_000,
    num_layers=2,
    embedding_size=64,
    learning_rates=(1e-3,),
    batch_size=64,
    dropout=(0.5,),
    patience=5,
    source=f"{_SOURCE}, table 1, appendix D.2",
    **_CELLS,
)

# Table 2: options of the RRU, and the results on Nottingham (nats), PTB words (perplexity), PTB
# characters (bits), IMDB and sMNIST (accuracy).
ABLATIONS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "no-normalization": ({"normalize": False}, (2.92, 104.60, 1.32, 0.8721, 0.9803)),
    "scalar-z": ({"scalar_z": True}, (2.97, 104.44, 1.32, 0.8708, 0.9845)),
    "relu": (
        {"relu_candidate": True, "relu_output": True},
        (3.07, 120.76, 1.34, 0.8717, 0.8638),
    ),
    "fixed-decay": ({"fixed_decay": True}, (3.56, 110.74, 2.25, 0.8678, 0.9843)),
    "start-0.95": ({"start_decay": 0.95}, (2.96, 103.09, 1.33, 0.8671, 0.9860)),
}
ABLATED = {"nottingham": 2.92, "ptb_words": 102.70, "ptb_chars": 1.32, "imdb": 0.8745,
           "smnist": 0.9874}  # fmt: skip


def ablation_result(task: str, options: Mapping[str, Any]) -> tuple[float, ...] | None:
    """The published result of an ablated RRU on a task.

    Returns:
        the result, empty if the paper has none on this task; None if the options ablate nothing.
    """
    for change, figures in ABLATIONS.values():
        if change.items() <= options.items():
            return (figures[[*ABLATED].index(task)],) if task in ABLATED else ()
    return None


def _ablation(protocol: Protocol, change: dict[str, Any], finding: str) -> Protocol:
    """A protocol's RRU with a change, if any. The paper tuned it again, but does not say with what
    result: the settings are those of table 1, except for the dropout of the characters."""
    ablation = replace(
        protocol,
        cores=("rru",),
        core_options={"rru": {**protocol.options("rru"), **change}},
        parameters=protocol.num_parameters("rru"),
        count_core_parameters={},
        learning_rates=protocol.learning_rates_for("rru"),
        core_learning_rates={},
        dropout=protocol.dropouts_for("rru"),
        core_dropout={},
        source=f"{_SOURCE}, table 2",
        finding=finding,
    )
    return replace(ablation, dropout=(0.3,)) if protocol.task == "ptb_chars" else ablation


for _place, (_task, _whole) in enumerate(ABLATED.items()):
    ZAKOVSKIS2023[f"{_task}-rru-whole"] = _ablation(
        ZAKOVSKIS2023[f"{_task}-rru"], {}, f"{_whole:g}"
    )
    for _name, (_change, _figures) in ABLATIONS.items():
        ZAKOVSKIS2023[f"{_task}-rru-{_name}"] = _ablation(
            ZAKOVSKIS2023[f"{_task}-rru"],
            _change,
            f"{_figures[_place]:g}, with the complete cell {_whole:g}",
        )
