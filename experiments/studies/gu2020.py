"""Gu, Gulcehre, Paine, Hoffman, Pascanu 2020: Improving the gating mechanism of recurrent
neural networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.presets import PRESETS, STUDY
from rlgates.experiments.configs.published.gu2020 import LSTMS
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.studies.study import FRESH, Arm, Published, Study

# Those of figure 4, and the fast gate.
SHOWN = ("lstm", "c_lstm", "u_lstm", "r_lstm", "ur_lstm", "f_lstm")
AGENTS = ("lstm", "c_lstm", "om_lstm", "u_lstm", "r_lstm", "ur_lstm", "f_lstm", "none")
SATURATED = {core: {"forget_bias": 6.0} for core in ("lstm", "r_lstm")}

_FORGETTING = TaskConfig(
    task="forgetting",
    task_settings={"steps": 500},
    learning_rate=1e-3,  # with the published 1e-4 neither learns in 10,000 updates
    updates=10_000,
    batch_size=16,
    eval_every=250,
)


# Units as published: with 128 UR does not start to learn. A batch of 4 suffices.
_COPY = TaskConfig(
    task="copy",
    task_settings={"delay": 500},
    hidden_size=256,
    learning_rate=2e-3,
    updates=24_000,
    batch_size=4,
    stop_loss=0.104,
)
_ADDING = TaskConfig(
    task="adding",
    task_settings={"steps": 750},
    updates=20_000,
    batch_size=16,  # learns in as many updates as 32, at half the time
    stop_loss=0.0083,
)


def _gates(config: TaskConfig, *others: str) -> Arm:
    """The gates of the paper, and other cores."""
    cores = (*LSTMS, *others)
    options: dict[str, dict[str, Any]] = {
        **{core: {"chunk_size": config.hidden_size // 16} for core in ("om_lstm", "um_lstm")},
        "janet": {"t_max": 750},
        "gato": {"depth": 2},
    }
    return Arm(config, cores, options, gates=tuple(core for core in SHOWN if core in cores))


def _match(config: AgentConfig, preset: str, gamma: float, steps: int) -> AgentConfig:
    """At the published length, with the published discount; the paper's agent is A3C."""
    settings = {"preset": preset}
    return replace(config, env_settings=settings, gamma=gamma, total_steps=steps, threads=4)


_ACTIVE = PRESETS["study30_active"]
_PROGRAMS = ("lte_addition", "lte_control", "lte_program")
# A memory as long as an episode, and a latent about as wide as the core.
MEMORY: dict[str, dict[str, Any]] = {
    **{core: {"latent_size": 32, "num_slots": 60, "top_k": 8} for core in ("rma", "ur_rma")},
    **{core: {"num_slots": 16, "word_size": 16, "num_reads": 2} for core in ("dnc", "ur_dnc")},
}


def _apples(size: str, figure: int, reward: float, gamma: float, cores: tuple[str, ...]) -> Study:
    """Active Match with apples of that reward on the way; `gamma` is the published discount."""
    settings = {**_ACTIVE.env_settings, "apple_reward": reward}
    return Study(
        title=f"Active Match with {size} distractor rewards",
        source=f"Gu et al. 2020, figure {figure}",
        laptop=(Arm(replace(_ACTIVE, env_settings=settings), cores, MEMORY),),
        full=(Arm(_match(_ACTIVE, f"long_{size}", gamma, 200_000_000), cores),),
        seeds=(10, 11, 12, 13, 14),
    )


STUDIES: dict[str, Study] = {
    "forgetting": Study(
        title="Adding from forget gates that are saturated at the start, and their timescales",
        source="Gu et al. 2020, appendix E.1, figure 9",
        laptop=(Arm(_FORGETTING, tuple(SATURATED), SATURATED, gates=tuple(SATURATED)),),
        full=(Published("forgetting-gu"),),
        seeds=FRESH,
    ),
    "passive_match_ten": Study(
        title="Passive Match over 90 steps with UR and plain gates, on ten fresh seeds",
        source="Gu et al. 2020, figure 7",
        laptop=(Arm(PRESETS["study90"], ("lstm", "ur_lstm")),),
        full=(Arm(_match(PRESETS["study90"], "long", 0.96, 100_000_000), ("lstm", "ur_lstm")),),
        seeds=tuple(range(30, 40)),
    ),
    "copy_adding": Study(
        title="Copy over 500 blanks and Adding over 750 steps, and the gates before and after",
        source="Gu et al. 2020, figures 3 and 4",
        laptop=(
            _gates(_COPY, "nru"),
            _gates(_ADDING, "f_lstm", "janet", "nru", "gato", "gru"),
        ),
        full=(Published("copy-gu"), Published("adding-gu")),
        seeds=FRESH[:5],
    ),
    "match": Study(
        title="Passive and Active Match without distractor rewards, PPO and A2C",
        source="Gu et al. 2020, figure 7",
        laptop=(
            Arm(PRESETS["study30"], AGENTS),
            Arm(_ACTIVE, AGENTS),
            *(
                Arm(PRESETS[name], ("lstm", "ur_lstm", "none"), seeds=tuple(range(20, 25)))
                for name in ("study30_a2c", "study30_active_a2c")
            ),
        ),
        full=(
            Arm(_match(STUDY, "long", 0.96, 100_000_000), AGENTS),
            Arm(_match(_ACTIVE, "long", 0.96, 200_000_000), AGENTS),
        ),
        seeds=tuple(range(20, 30)),
    ),
    "match_small_apples": _apples("small", 8, 1.0, 0.998, ("lstm", "ur_lstm", "rma", "ur_rma")),
    "match_large_apples": _apples("large", 10, 5.0, 0.96, ("lstm", "ur_lstm", "dnc", "ur_dnc")),
    "programs": Study(
        title="Learning to Execute",
        source="Gu et al. 2020, figure 11",
        laptop=tuple(
            Arm(task_config(task), ("lstm", "c_lstm", "u_lstm", "om_lstm", "ur_lstm"))
            for task in _PROGRAMS
        ),
        full=tuple(
            Published(f"{task}-gu-{size}", variant=size)
            for task in _PROGRAMS
            for size in ("lstm-1024", "lstm-2048", "rmc-2-2", "rmc-2-4", "rmc-4-2", "rmc-4-4")
        ),
    ),
    "words": Study(
        title="Word-level language models",
        source="Gu et al. 2020, figure 6",
        laptop=(
            Arm(
                replace(task_config("ptb_words"), epochs=3),
                ("lstm", "c_lstm", "om_lstm", "u_lstm", "ur_lstm"),
            ),
        ),
        full=(
            Published("wikitext103-gu"),
            *(
                Published(
                    "wikitext103-gu",
                    ("c_lstm",),
                    variant=f"t_max {steps}",
                    changes={"core_options": {"t_max": steps}},
                )
                for steps in (8, 11)
            ),
        ),
    ),
}
