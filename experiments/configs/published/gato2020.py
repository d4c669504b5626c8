"""The protocols of GATO (anonymous 2020)."""

from __future__ import annotations

from typing import Any

from rlgates.experiments.configs.published.protocol import Protocol

_SOURCE = "GATO"
_WORDS: dict[str, Any] = {"cores": ("lstm", "gru", "gato"), "seeds": 3}
# The biases of torch.nn are about 0.
TORCH_BIASES: dict[str, dict[str, Any]] = {core: {"forget_bias": 0.0} for core in ("lstm", "gru")}
_ADDING: dict[str, Any] = {
    "task": "adding",
    "hidden_size": 512,
    "decoder_size": 256,
    "learning_rates": (4e-3,),
    "halve_block": 10_000,
    "batch_size": 64,
    "updates": 200_000 // 64,
    "eval_sequences": 1_000,
}
_MEASURED: dict[str, Any] = {
    "core_options": TORCH_BIASES | {"gato": {"input_start": "default"}},
    "weight_decay": 1.2e-6,
    "unstated": {"epochs": 100, "patience": 10},
}
_TWO = TORCH_BIASES | {"gato": {"depth": 2}}

GATO2020: dict[str, Protocol] = {
    "copy_aba-gato": Protocol(
        task="copy_aba",
        core_options=_TWO,
        hidden_size=1024,
        embedding_size=4,  # but the published 138,752 parameters of GATO are those of 5 inputs
        decoder_size=256,
        learning_rates=(4e-3,),
        batch_size=32,
        updates=1_000_000 // 32,
        eval_sequences=1_000,
        source=f"{_SOURCE}, section 5.2, appendix B",
        **_WORDS,
    ),
    **{
        f"adding-gato-{steps}": Protocol(
            task_settings={"steps": steps},
            core_options=_TWO,
            source=f"{_SOURCE}, section 5.3, appendix B",
            finding="GATO solves all lengths, the LSTM none; at 750 steps random initializations "
            "of the GRU fail",
            **_ADDING,
            **_WORDS,
        )
        for steps in (100, 200, 400, 750)
    },
    **{
        f"adding-gato-{s_update}": Protocol(
            cores=("gato",),
            task_settings={"steps": 750},
            core_options={"gato": {"depth": 2, "s_update": s_update}},
            source=f"{_SOURCE}, appendix A",
            finding="does not learn",
            seeds=3,
            **_ADDING,
        )
        for s_update in ("increment", "zero")
    },
    "ptb_words-gato": Protocol(
        task="ptb_words",
        hidden_size=1300,
        embedding_size=650,  # but the published 1,273,350 parameters of GATO are those of 651
        learning_rates=(1e-4,),
        batch_size=20,
        source=f"{_SOURCE}, section 5.5, appendix B",
        **_MEASURED,
        **_WORDS,
    ),
    "icu-gato": Protocol(
        task="icu",
        hidden_size=512,
        decoder_size=1024,
        learning_rates=(4e-3, 1e-4),
        batch_size=256,
        source=f"{_SOURCE}, section 5.4, appendix B",
        **_MEASURED,
        **_WORDS,
    ),
}
