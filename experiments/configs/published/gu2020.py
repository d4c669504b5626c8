"""The protocols of Gu et al. 2020, on refine gates and the uniform initialization."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from rlgates.experiments.configs.published.protocol import Protocol

_SOURCE = "Gu et al. 2020"
_GATES = ("", "c_", "o_", "u_", "r_", "om_", "or_", "um_", "ur_")
LSTMS = tuple(f"{gate}lstm" for gate in _GATES)
_GRUS = tuple(f"{gate}gru" for gate in _GATES)
_LTE_LSTMS = tuple(f"{gate}lstm" for gate in ("", "c_", "u_", "om_", "ur_"))  # of figure 11
_LTE_RMCS = tuple(core.replace("lstm", "rmc") for core in _LTE_LSTMS)
_WIKITEXT = ("lstm", "c_lstm", "om_lstm", "u_lstm", "ur_lstm")


def _chunks(chunk_size: int, cores: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The chunk sizes of appendix D: the number of units that share a master gate value."""
    return {core: {"chunk_size": chunk_size} for core in cores if core[:3] in ("om_", "um_")}


_SYNTHETIC: dict[str, Any] = {
    "cores": LSTMS,
    "core_options": _chunks(16, LSTMS),
    "hidden_size": 256,
    "learning_rates": (1e-3,),
    "batch_size": None,
    "max_grad_norm": 1.0,
    "unstated": {"batch_size": 32, "updates": 50_000, "eval_every": 500},
    "seeds": 3,
    "source": f"{_SOURCE}, section 3.1, appendix D.1",
}

GU2020: dict[str, Protocol] = {
    "copy-gu": Protocol(
        task="copy",
        task_settings={"delay": 500},
        finding="or_, ur_, o_ and c_ solve it; u_ is slower; the others stay at the baseline",
        **_SYNTHETIC,
    ),
    "adding-gu": Protocol(
        task="adding",
        task_settings={"steps": 2000},
        finding="all but the plain LSTM solve it, those with a refine gate first",
        **_SYNTHETIC,
    ),
    "forgetting-gu": Protocol(
        task="forgetting",
        task_settings={"steps": 500},
        # The paper's figure has the UR-LSTM, whose uniform bias initialization has no single value.
        cores=("lstm", "r_lstm"),
        core_options={"lstm": {"forget_bias": 6.0}, "r_lstm": {"forget_bias": 6.0}},
        hidden_size=64,
        learning_rates=(1e-4,),
        batch_size=None,
        max_grad_norm=1.0,  # of appendix D.1, as is Adam
        updates=10_000,
        unstated={"batch_size": 32},
        source=f"{_SOURCE}, appendix E.1",
        finding="the refine gate solves it, the plain LSTM is stuck; after training the smallest "
        "timescale is over 10 times smaller with a refine gate",
    ),
    "wikitext103-gu": Protocol(
        task="wikitext103",
        cores=_WIKITEXT,
        core_options=_chunks(32, _WIKITEXT),
        hidden_size=3072,
        learning_rates=(1e-3,),
        batch_size=128,
        max_grad_norm=0.1,
        tied=True,
        # Embeddings as wide as the core, where nothing stands between them and the decoder.
        unstated={"embedding_size": 3072, "epochs": 20},
        dropout=(0.3,),
        dropout_of="input",
        source=f"{_SOURCE}, appendix D.3",
        finding="on test ur_ best, then om_",
    ),
}

for _task, _epochs, _units in (("smnist", 150, 512), ("pmnist", 150, 512), ("scifar", 100, 1024)):
    _pixels: dict[str, Any] = {
        "task": _task,
        "decoder_size": 256,
        "learning_rates": (2e-4, 5e-4, 1e-3, 2e-3),
        "batch_size": 50,
        "max_grad_norm": 1.0,
        "epochs": _epochs,
    }
    if _task != "smnist":
        _grus = _GRUS if _task == "scifar" else ()
        _cores = (*LSTMS, *_grus)
        GU2020[f"{_task}-gu"] = Protocol(
            cores=_cores,
            core_options=_chunks(16, _cores),
            hidden_size=512,
            core_learning_rates=dict.fromkeys(_grus, (2e-4, 5e-4)),
            seeds=3,
            source=f"{_SOURCE}, table 2, appendix D.2",
            **_pixels,
        )
    # The paper gives the learning rates for table 2 alone.
    _pixels["source"] = f"{_SOURCE}, table 3, appendix D.2"
    GU2020[f"{_task}-gu-plain"] = Protocol(cores=("lstm",), hidden_size=_units, **_pixels)
    _large = Protocol(cores=("ur_lstm",), hidden_size=2 * _units, **_pixels)
    GU2020[f"{_task}-gu-large"] = _large
    GU2020[f"{_task}-gu-large-zoneout"] = replace(
        _large,
        cores=("ur_lstm", "ur_gru"),
        core_learning_rates={"ur_gru": (2e-4, 5e-4)},
        core_options={
            "ur_lstm": {"zoneout_cell": 0.5, "zoneout_hidden": 0.05},
            "ur_gru": {"zoneout_hidden": 0.1},
        },
        dropout=(0.5,),  # of the layer before the logits
    )

for _task in ("lte_addition", "lte_control", "lte_program"):
    _sums = _task == "lte_addition"
    _programs: dict[str, Any] = {
        "task": _task,
        "task_settings": {"nesting": 1 if _sums else 4, "length": 9, "curriculum": "mix"},
        "learning_rates": (5e-4, 1e-3),  # said of the LSTMs; of the RMCs nothing
        "batch_size": 128,
        "source": f"{_SOURCE}, appendices D.4, E.3",
        "finding": "u_ is best" if _sums else "ur_ is best",
    }
    for _hidden in (1024, 2048):
        GU2020[f"{_task}-gu-lstm-{_hidden}"] = Protocol(
            cores=_LTE_LSTMS,
            core_options=_chunks(32, _LTE_LSTMS),
            hidden_size=_hidden,
            updates=500_000,
            **_programs,
        )
    for _slots, _heads in product((2, 4), (2, 4)):
        _memory = {core: {"mem_slots": _slots, "num_heads": _heads} for core in _LTE_RMCS}
        _memory["om_rmc"]["chunk_size"] = 32
        GU2020[f"{_task}-gu-rmc-{_slots}-{_heads}"] = Protocol(
            cores=_LTE_RMCS,
            core_options=_memory,
            hidden_size=512,
            updates=200_000,
            **_programs,
        )
