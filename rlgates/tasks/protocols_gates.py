"""The protocols of the papers on gates: Gu et al. 2020 and Ohno et al. 2022."""

from __future__ import annotations

from typing import Any

from rlgates.tasks.protocol import Protocol

_GU, _OHNO = "Gu et al. 2020", "Ohno et al. 2022"
_GATES = ("", "c_", "o_", "u_", "r_", "om_", "or_", "um_", "ur_")
_LSTMS = tuple(f"{gate}lstm" for gate in _GATES)
_GRUS = tuple(f"{gate}gru" for gate in _GATES)


_LTE_LSTMS = tuple(f"{gate}lstm" for gate in ("", "c_", "u_", "om_", "ur_"))  # of figure 11
_LTE_RMCS = tuple(core.replace("lstm", "rmc") for core in _LTE_LSTMS)
_LONG: dict[str, Any] = {"updates": 50_000, "eval_every": 500}
_WIKITEXT = ("lstm", "c_lstm", "om_lstm", "u_lstm", "ur_lstm")


def _chunks(chunk_size: int, cores: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Appendix D: how many units share a master value."""
    return {core: {"chunk_size": chunk_size} for core in cores if core[:3] in ("om_", "um_")}


_SYNTHETIC: dict[str, Any] = {
    "cores": _LSTMS,
    "core_options": _chunks(16, _LSTMS),
    "hidden_size": 256,
    "learning_rates": (1e-3,),
    "batch_size": None,
    "clip": 1.0,
    "unstated": {"batch_size": 32, **_LONG},
    "seeds": 3,
    "source": f"{_GU}, section 3.1, appendix D.1",
}

GU: dict[str, Protocol] = {
    "copy-gu": Protocol(
        task="copy",
        settings={"delay": 500},
        outcome="or_, ur_, o_ and c_ solve it; u_ is slower; the others stay at the baseline",
        **_SYNTHETIC,
    ),
    "adding-gu": Protocol(
        task="adding",
        settings={"steps": 2000},
        outcome="all but the plain LSTM solve it, those with a refine gate first",
        **_SYNTHETIC,
    ),
    "forgetting-gu": Protocol(
        task="forgetting",
        settings={"steps": 500},
        # The paper's figure has the UR-LSTM: its uniform start is no single number.
        cores=("lstm", "r_lstm"),
        core_options={"lstm": {"forget_bias": 6.0}, "r_lstm": {"forget_bias": 6.0}},
        hidden_size=64,
        learning_rates=(1e-4,),
        batch_size=None,
        clip=1.0,
        updates=10_000,
        unstated={"batch_size": 32},
        source=f"{_GU}, appendix E.1",
        outcome="the refine gate solves it, the plain LSTM is stuck; after training the smallest "
        "timescale is over 10 times smaller with a refine gate",
    ),
    "wikitext103-gu": Protocol(
        task="wikitext103",
        cores=_WIKITEXT,
        core_options=_chunks(32, _WIKITEXT),
        hidden_size=3072,
        learning_rates=(1e-3,),
        batch_size=128,
        clip=0.1,
        tied=True,
        # Embeddings as wide as the core, where nothing stands between them and the decoder.
        unstated={"embedding_size": 3072, "epochs": 20},
        dropout=(0.3,),
        dropout_of="input",
        source=f"{_GU}, appendix D.3",
        outcome="ur_ best, then om_",
    ),
}

for _task, _epochs in (("smnist", 150), ("pmnist", 150), ("scifar", 100)):
    _pixels: dict[str, Any] = {
        "task": _task,
        "decoder_size": 256,
        "batch_size": 50,
        "clip": 1.0,
        "epochs": _epochs,
    }
    if _task != "smnist":
        GU[f"{_task}-gu"] = Protocol(
            cores=(*_LSTMS, *_GRUS),
            core_options=_chunks(16, (*_LSTMS, *_GRUS)),
            hidden_size=512,
            learning_rates=(2e-4, 5e-4, 1e-3, 2e-3),
            core_learning_rates=dict.fromkeys(_GRUS, (2e-4, 5e-4)),
            seeds=3,
            source=f"{_GU}, table 2, appendix D.2",
            **_pixels,
        )
    GU[f"{_task}-gu-plain"] = Protocol(
        cores=("lstm",),
        hidden_size=1024 if _task == "scifar" else 512,
        learning_rates=(2e-4, 5e-4, 1e-3, 2e-3),
        source=f"{_GU}, table 3, appendix D.2",
        **_pixels,
    )
    for _zoneout in (False, True):
        GU[f"{_task}-gu-large" + "-zoneout" * _zoneout] = Protocol(
            cores=("ur_lstm", "ur_gru"),
            core_options={
                "ur_lstm": {"zoneout_cell": 0.5, "zoneout_hidden": 0.05},
                "ur_gru": {"zoneout_hidden": 0.1},
            }
            if _zoneout
            else {},
            hidden_size=2048 if _task == "scifar" else 1024,
            learning_rates=(2e-4, 5e-4, 1e-3, 2e-3),
            core_learning_rates={"ur_gru": (2e-4, 5e-4)},
            dropout=(0.5 if _zoneout else 0.0,),  # of the layer before the logits
            source=f"{_GU}, table 3, appendix D.2",
            **_pixels,
        )

_PROGRAMS: dict[str, Any] = {
    "learning_rates": (5e-4, 1e-3),
    "batch_size": 128,
    "source": f"{_GU}, appendices D.4, E.3",
}
for _task in ("lte_addition", "lte_control", "lte_program"):
    _best = "u_ is best" if _task == "lte_addition" else "ur_ is best"
    _settings = {"nesting": 1 if _task == "lte_addition" else 4, "length": 9, "curriculum": "mix"}
    for _hidden in (1024, 2048):
        GU[f"{_task}-gu-lstm-{_hidden}"] = Protocol(
            task=_task,
            settings=_settings,
            cores=_LTE_LSTMS,
            core_options=_chunks(32, _LTE_LSTMS),
            hidden_size=_hidden,
            updates=500_000,
            outcome=_best,
            **_PROGRAMS,
        )
    for _slots in (2, 4):
        for _heads in (2, 4):
            _memory = {core: {"mem_slots": _slots, "num_heads": _heads} for core in _LTE_RMCS}
            _memory["om_rmc"]["chunk_size"] = 32
            GU[f"{_task}-gu-rmc-{_slots}-{_heads}"] = Protocol(
                task=_task,
                settings=_settings,
                cores=_LTE_RMCS,
                core_options=_memory,
                hidden_size=512,
                updates=200_000,
                outcome=_best,
                **_PROGRAMS,
            )


def _tied(chrono: int, memory_size: int, *, starts: bool = True) -> dict[str, Any]:
    """The gates of Ohno et al., input and forget gate tied, with JANET and the NRU."""
    return {
        "cores": ("s_lstm", "lstm", "r_lstm", "f_lstm", "c_lstm", "janet", "nru")
        + (("ur_lstm", "uf_lstm") if starts else ()),
        "core_options": {
            "lstm": {"tied": True},
            "c_lstm": {"tied": True, "t_max": chrono},
            "janet": {"t_max": chrono},
            "nru": {"memory_size": memory_size},
        },
    }


_RMSPROP: dict[str, Any] = {
    "hidden_size": 128,
    "optimizer": "rmsprop",
    "learning_rates": (1e-3,),
    "batch_size": 64,
    "clip": 1.0,
    "unstated": _LONG,
    "seeds": 3,
    "source": f"{_OHNO}, section 6.1, appendix E.3",
}

OHNO: dict[str, Protocol] = {
    "copy-ohno": Protocol(
        task="copy",
        settings={"delay": 500, "cues": "one"},
        outcome="f_ solves it first, then r_; s_ never; the NRU diverges",
        **_tied(500, 64, starts=False),
        **_RMSPROP,
    ),
    "adding-ohno": Protocol(
        task="adding",
        settings={"steps": 5000},
        outcome="the NRU needs the fewest updates; among the gates f_ is first, s_ never",
        **_tied(5000, 64, starts=False),
        **_RMSPROP,
    ),
    "adding-ohno-timescales": Protocol(
        task="adding",
        settings={"steps": 5000},
        cores=("s_lstm", "lstm", "r_lstm", "f_lstm", "c_lstm"),
        core_options={"lstm": {"tied": True}, "c_lstm": {"tied": True, "t_max": 5000}},
        outcome="-1 / log phi(b_f) grows exponentially further for f_; for c_ it does not change",
        **(_RMSPROP | {"learning_rates": (1e-2,), "source": f"{_OHNO}, figure 5, appendix E.3"}),
    ),
    "ptb_words-ohno": Protocol(
        task="ptb_words",
        settings={"by_frequency": True},
        # Not tied; the rest is as in the code of Mahto et al. 2021, which the paper ran, and which
        # goes back to that of Merity et al. 2018: the widths are theirs.
        cores=("lstm", "r_lstm", "f_lstm"),
        core_options={"f_lstm": {"tied": False}},
        num_layers=3,
        learning_rates=(),
        batch_size=None,
        unstated={
            "hidden_size": 1150,
            "embedding_size": 400,
            "input_dropout": 0.4,
            "output_dropout": 0.4,
            "learning_rate": 1e-3,
            "batch_size": 20,
            "max_grad_norm": 0.25,
            "epochs": 100,
            "patience": 10,
        },
        source=f"{_OHNO}, section 6.3, appendix E.5",
        outcome="f_ best in all; of words in over 10,000, 1,000, 100 and fewer places lstm has "
        "7.25, 27.72, 170.25 and 2,026.87, r_lstm 7.61, 28.01, 166.46 and 1,936.02, f_lstm 7.43, "
        "27.70, 166.68 and 1,975.51",
    ),
    "speech_commands-ohno": Protocol(
        task="speech_commands",
        cores=("lstm", "r_lstm", "ur_lstm", "f_lstm"),
        hidden_size=256,
        learning_rates=(1e-3, 5e-4, 1e-4, 5e-5),
        batch_size=None,
        clip=1.0,  # and 0.1
        unstated={"batch_size": 32, "epochs": 100},
        source=f"{_OHNO}, appendix F.4",
        outcome="all but f_ diverge",
    ),
}

for _task, _epochs, _cut in (("smnist", 150, 100), ("pmnist", 150, 100), ("scifar", 100, 50)):
    _steps = 1024 if _task == "scifar" else 784
    OHNO[f"{_task}-ohno"] = Protocol(
        task=_task,
        **_tied(_steps, 144),
        hidden_size=512,
        decoder_size=256,
        learning_rates=(5e-4, 2e-4),
        core_learning_rates={"s_lstm": (2e-4,), "nru": (2e-4,)},  # the best stable ones
        batch_size=50,
        clip=1.0,
        epochs=150,
        seeds=3,
        source=f"{_OHNO}, table 2, appendix E.4",
    )
    OHNO[f"{_task}-ohno-others"] = Protocol(
        task=_task,
        cores=("uf_lstm", "ff_lstm", "gru", "r_gru", "ur_gru", "f_gru"),
        hidden_size=512,
        decoder_size=256,
        learning_rates=(5e-4, 2e-4),
        batch_size=50,
        clip=1.0,
        epochs=150,
        seeds=3,
        source=f"{_OHNO}, table 4, appendix F.2",
    )
    OHNO[f"{_task}-ohno-small"] = Protocol(
        task=_task,
        **_tied(_steps, 64),
        hidden_size=128,
        optimizer="rmsprop",
        learning_rates=(5e-4,),
        core_learning_rates={} if _task == "pmnist" else {"nru": (2e-4,)},
        schedule=f"divided by 5 after {_cut} epochs",
        batch_size=100,
        clip=1.0,
        epochs=_epochs,
        seeds=4,
        source=f"{_OHNO}, table 5, appendix F.3",
    )
