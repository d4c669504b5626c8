"""The protocols of Ohno et al. 2022, on the fast gate."""

from __future__ import annotations

from typing import Any

from rlgates.experiments.configs.published.protocol import Protocol

_SOURCE = "Ohno et al. 2022"


def _tied(chrono: int, memory_size: int, *, uniform: bool = False) -> dict[str, Any]:
    """The gates of the paper with tied input and forget gates, JANET and the NRU.

    Args:
        chrono: `t_max` of the chrono initialization. The paper states it for Adding, and not for
            JANET.
        memory_size: of the NRU.
        uniform: include the gates with uniform initialization.
    """
    return {
        "cores": ("s_lstm", "lstm", "r_lstm", "f_lstm", "c_lstm", "janet", "nru")
        + (("ur_lstm", "uf_lstm") if uniform else ()),
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
    "max_grad_norm": 1.0,
    "unstated": {"updates": 50_000, "eval_every": 500},
    "seeds": 3,
    "source": f"{_SOURCE}, section 6.1, appendix E.3",
}

OHNO2022: dict[str, Protocol] = {
    "copy-ohno": Protocol(
        task="copy",
        task_settings={"delay": 500, "cues": "one"},
        finding="f_ solves it first, then r_; s_ never; the NRU diverges",
        **_tied(500, 64),
        **_RMSPROP,
    ),
    "adding-ohno": Protocol(
        task="adding",
        task_settings={"steps": 5000},
        finding="the NRU needs the fewest updates; among the gates f_ is first, s_ never",
        **_tied(5000, 64),
        **_RMSPROP,
    ),
    "adding-ohno-timescales": Protocol(
        task="adding",
        task_settings={"steps": 5000},
        cores=("s_lstm", "lstm", "r_lstm", "f_lstm", "c_lstm"),
        core_options={"lstm": {"tied": True}, "c_lstm": {"tied": True, "t_max": 5000}},
        finding="-1 / log phi(b_f) grows exponentially further for f_; for c_ it does not change",
        **(_RMSPROP | {"learning_rates": (1e-2,), "source": f"{_SOURCE}, figure 5, appendix E.3"}),
    ),
    "ptb_words-ohno": Protocol(
        task="ptb_words",
        task_settings={"by_frequency": True},
        # The gates are not tied. The paper ran the code of Mahto et al. 2021, which goes back to
        # that of Merity et al. 2018: widths, clipping and weight decay are theirs. They have
        # another optimizer (SGD, then its average), hundreds of epochs, and more: weights that
        # embedding and decoder share, a last layer as narrow as these, dropout of recurrent
        # weights, and penalties of activations.
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
            "weight_decay": 1.2e-6,
            "epochs": 100,
            "patience": 10,
        },
        source=f"{_SOURCE}, section 6.3, appendix E.5",
        finding="f_ best in all, the NRU diverges; of words in over 10,000, 1,000, 100 and fewer "
        "places lstm has 7.25, 27.72, 170.25 and 2,026.87, r_lstm 7.61, 28.01, 166.46 and "
        "1,936.02, f_lstm 7.43, 27.70, 166.68 and 1,975.51",
    ),
    "speech_commands-ohno": Protocol(
        task="speech_commands",
        cores=("lstm", "r_lstm", "ur_lstm", "f_lstm"),
        core_options={"lstm": {"tied": True}},
        hidden_size=256,
        learning_rates=(1e-3, 5e-4, 1e-4, 5e-5),
        batch_size=None,
        max_grad_norm=1.0,  # and 0.1
        unstated={"optimizer": "adam", "batch_size": 32, "epochs": 100},
        source=f"{_SOURCE}, appendix F.4",
        finding="all but f_ diverge",
    ),
}

for _task, _epochs, _cut in (("smnist", 150, 100), ("pmnist", 150, 100), ("scifar", 100, 50)):
    _steps = 1024 if _task == "scifar" else 784
    _pixels: dict[str, Any] = {
        "task": _task,
        "hidden_size": 512,
        "decoder_size": 256,
        "learning_rates": (5e-4, 2e-4),
        "batch_size": 50,
        "max_grad_norm": 1.0,
        "epochs": 150,
        "seeds": 3,
    }
    OHNO2022[f"{_task}-ohno"] = Protocol(
        core_learning_rates={"s_lstm": (2e-4,), "nru": (2e-4,)},  # the best stable ones
        source=f"{_SOURCE}, table 2, appendix E.4",
        **_tied(_steps, 144),
        **_pixels,
    )
    OHNO2022[f"{_task}-ohno-others"] = Protocol(
        cores=(
            "ur_lstm",
            "uf_lstm",
            "ff_lstm",
            "s_gru",
            "gru",
            "r_gru",
            "ur_gru",
            "f_gru",
            "uf_gru",
        ),
        source=f"{_SOURCE}, table 4, appendix F.2",
        **_pixels,
    )
    OHNO2022[f"{_task}-ohno-small"] = Protocol(
        task=_task,
        **_tied(_steps, 64, uniform=True),
        hidden_size=128,
        optimizer="rmsprop",
        learning_rates=(5e-4,),
        core_learning_rates={} if _task == "pmnist" else {"nru": (2e-4,)},
        decay_at=(_cut,),
        decay_factor=1 / 5,
        batch_size=100,
        max_grad_norm=1.0,
        epochs=_epochs,
        seeds=4,
        source=f"{_SOURCE}, table 5, appendix F.3",
    )
