"""The protocols of the papers on other cells: GATO (2020) and Zakovskis et al. 2023 (RRU)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlgates.tasks.protocol import Protocol

_GATO, _RRU = "GATO", "Zakovskis et al. 2023"

_WORDS: dict[str, Any] = {"cores": ("lstm", "gru", "gato"), "seeds": 3}
_HALVED = "halved if the loss of 10,000 examples is above that of the 10,000 before"
_TWO = {"gato": {"depth": 2}}
_DEFAULT = {"gato": {"input_start": "default"}}

GATO: dict[str, Protocol] = {
    "copy_aba-gato": Protocol(
        task="copy_aba",
        core_options=_TWO,
        hidden_size=1024,
        embedding_size=4,
        decoder_size=256,
        learning_rates=(4e-3,),
        batch_size=32,
        updates=1_000_000 // 32,
        source=f"{_GATO}, section 5.2, appendix B",
        **_WORDS,
    ),
    **{
        f"adding-gato-{steps}": Protocol(
            task="adding",
            settings={"steps": steps},
            core_options=_TWO,
            hidden_size=512,
            decoder_size=256,
            learning_rates=(4e-3,),
            schedule=_HALVED,
            batch_size=64,
            updates=200_000 // 64,
            source=f"{_GATO}, section 5.3, appendix B",
            outcome="GATO solves all lengths, the GRU on some seeds, the LSTM none",
            **_WORDS,
        )
        for steps in (100, 200, 400, 750)
    },
    **{
        f"adding-gato-{s_update}": Protocol(
            task="adding",
            settings={"steps": 750},
            core_options={"gato": {"depth": 2, "s_update": s_update}},
            hidden_size=512,
            decoder_size=256,
            learning_rates=(4e-3,),
            schedule=_HALVED,
            batch_size=64,
            updates=200_000 // 64,
            source=f"{_GATO}, appendix A",
            outcome="does not learn",
            cores=("gato",),
        )
        for s_update in ("increment", "zero")
    },
    "ptb_words-gato": Protocol(
        task="ptb_words",
        core_options=_DEFAULT,
        hidden_size=1300,
        embedding_size=650,
        learning_rates=(1e-4,),
        batch_size=20,
        weight_decay=1.2e-6,
        unstated={"epochs": 100, "patience": 10},
        source=f"{_GATO}, section 5.5, appendix B",
        **_WORDS,
    ),
    "icu-gato": Protocol(
        task="icu",
        core_options=_DEFAULT,
        hidden_size=512,
        decoder_size=1024,
        learning_rates=(4e-3, 1e-4),
        batch_size=256,
        weight_decay=1.2e-6,
        unstated={"epochs": 100, "patience": 10},
        source=f"{_GATO}, section 5.4, appendix B",
        **_WORDS,
    ),
}

# The paper clips gradients, and does not say to which norm.
_CELLS: dict[str, Any] = {
    "cores": ("rru", "gru", "lstm", "mogrifier"),
    "optimizer": "radam",
    "dropout_of": "core",
    "unstated": {"epochs": 1_000},  # a run ends after so many without gain
}
_TENTHS = tuple(k / 10 for k in range(10))
HEAT_RATES = (1e-4, 2e-4, 3e-4, 5e-4, 8e-4, 1.3e-3, 2.2e-3, 3.6e-3, 6e-3, 1e-2)
HEAT_SIZES = {
    "nottingham": (1.0, 2.6, 4.1, 5.7, 7.2, 8.8, 10.3, 11.9, 13.4, 15.0),
    "ptb_words": (10.0, 12.2, 14.4, 16.7, 18.9, 21.1, 23.3, 25.6, 27.8, 30.0),
}  # millions of parameters

# Table 4: what 100 runs for each core found. Rate, dropout, millions of parameters; then q of the
# RRU, the forget bias of the LSTM, rounds and rank of the Mogrifier LSTM.
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


def _options(found: dict[str, tuple[float, ...]]) -> dict[str, dict[str, Any]]:
    """Of the cores, from a row of `_TUNED`."""
    rounds, rank = found["mogrifier"][3:]
    return {
        "rru": {"expansion": found["rru"][3]},
        "lstm": {"forget_bias": found["lstm"][3]},
        "mogrifier": {"rounds": int(rounds), "rank": int(rank)},
    }


_MUSIC: dict[str, Any] = _CELLS | {"batch_size": 16, "patience": 7}
_TEXT: dict[str, Any] = _CELLS | {
    "num_layers": 2,
    "embedding_size": 64,
    "batch_size": 128,
    "patience": 7,
}
_PTB: dict[str, Any] = _TEXT | {"settings": {"window": 64, "random_windows": False}}

RRU: dict[str, Protocol] = {}
for _task, _found in _TUNED.items():
    _shape = _PTB if _task == "ptb_words" else _MUSIC
    _wide: dict[str, Any] = {"output_size": 128} if _task == "ptb_words" else {}
    _tuned = _options(_found)
    RRU[f"{_task}-rru"] = Protocol(
        task=_task,
        core_options=_tuned | {"rru": _tuned["rru"] | _wide},
        core_parameters={core: round(1e6 * row[2]) for core, row in _found.items()},
        learning_rates=(1e-4, 1e-2),  # the ends of the range that was searched
        core_learning_rates={core: row[:1] for core, row in _found.items()},
        core_dropout={core: row[1:2] for core, row in _found.items()},
        source=f"{_RRU}, table 1, appendix D.2",
        **_shape,
    )
    for _size in HEAT_SIZES.get(_task, ()):
        RRU[f"{_task}-rru-heat-{_size:g}M"] = Protocol(
            task=_task,
            core_options={"rru": _wide} if _wide else {},
            parameters=round(1e6 * _size),
            learning_rates=HEAT_RATES,
            dropout=(0.5,),
            seeds=1,
            source=f"{_RRU}, figures 2, 5, appendix D.3",
            outcome="the RRU is good over the widest range",
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
RRU |= {
    "nottingham-rru-dropout": Protocol(
        task="nottingham",
        parameters=5_000_000,
        learning_rates=(1e-3,),
        dropout=_TENTHS,
        source=f"{_RRU}, figure 3, appendix D.4",
        outcome="the RRU is best, near 0.7",
        **_MUSIC,
    ),
    "ptb_chars-rru": Protocol(
        task="ptb_chars",
        core_options=_PTB_CHARS,
        dropout=(0.5,),
        core_dropout={"rru": (0.7,), "lstm": (0.4,)},
        source=f"{_RRU}, table 1, appendix D.2",
        **_CHARACTERS,
    ),
    "ptb_chars-rru-dropout": Protocol(
        task="ptb_chars",
        core_options=_PTB_CHARS,
        dropout=_TENTHS,
        source=f"{_RRU}, figure 4, appendix D.4",
        outcome="best: RRU 0.7, GRU 0.5, LSTM 0.4, Mogrifier 0.5",
        **_CHARACTERS,
    ),
}
for _task in ("enwik8", "text8"):
    RRU[f"{_task}-rru"] = Protocol(
        task=_task,
        core_options={
            "rru": {"relu_layers": 2, "expansion": 4.0, "output_size": 128},
            "mogrifier": {"rounds": 6, "rank": 79},
        },
        core_learning_rates={"gru": (1e-4,)} if _task == "text8" else {},
        dropout=(0.7,),
        source=f"{_RRU}, table 1, appendix D.2",
        **(_CHARACTERS | {"embedding_size": 32, "patience": 3, "parameters": 48_000_000}),
    )
for _task in ("smnist", "pmnist"):
    RRU[f"{_task}-rru"] = Protocol(
        task=_task,
        settings={"permutation": "rows"} if _task == "pmnist" else {},
        core_options={"mogrifier": {"rounds": 6, "rank": 50}},
        parameters=70_000,
        num_layers=2,
        learning_rates=(1e-3,),
        core_learning_rates={"lstm": (1e-4,), "mogrifier": (5e-5,)},
        batch_size=64,
        dropout=(0.7,),
        core_dropout={"mogrifier": (0.5,)},
        patience=5,
        source=f"{_RRU}, table 1, appendix D.2",
        **_CELLS,
    )
RRU["imdb-rru"] = Protocol(
    task="imdb",
    core_options={"mogrifier": {"rounds": 5, "rank": 40}},
    parameters=20_000_000,
    num_layers=2,
    embedding_size=64,
    learning_rates=(1e-3,),
    batch_size=64,
    dropout=(0.5,),
    patience=5,
    source=f"{_RRU}, table 1, appendix D.2",
    **_CELLS,
)

# Table 2: options of the RRU, and the figures on Nottingham (nats), PTB's words (perplexity) and
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


def ablated(task: str, options: Mapping[str, Any]) -> tuple[float, ...] | None:
    """What the paper found on a task with the RRU that these options leave a part out of: nothing
    on the tasks that it does not name; None if nothing is left out."""
    for change, figures in ABLATIONS.values():
        if change.items() <= options.items():
            return (figures[[*ABLATED].index(task)],) if task in ABLATED else ()
    return None


def _rru_of(row: Protocol, change: dict[str, Any], outcome: str) -> Protocol:
    """The RRU of a protocol alone. What the paper tunes anew for it, it does not say: taken is
    what the whole cell has."""
    found = replace(
        row,
        cores=("rru",),
        core_options={"rru": {**row.options("rru"), **change}},
        parameters=row.size("rru"),
        core_parameters={},
        learning_rates=row.rates("rru"),
        core_learning_rates={},
        dropout=row.dropouts("rru"),
        core_dropout={},
        source=f"{_RRU}, table 2",
        outcome=outcome,
    )
    return replace(found, dropout=(0.3,)) if row.task == "ptb_chars" else found


for _place, (_task, _whole) in enumerate(ABLATED.items()):
    for _name, (_change, _figures) in ABLATIONS.items():
        RRU[f"{_task}-rru-{_name}"] = _rru_of(
            RRU[f"{_task}-rru"], _change, f"{_figures[_place]:g}, with the whole cell {_whole:g}"
        )
