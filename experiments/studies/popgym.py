"""The memory benchmark: every memory at equal parameters on the games of POPGym.

Morad et al. 2023 (POPGym) train each of 13 memories on each game for 15 M steps, and report the
maximum over training of the mean return (MMER). Here all memories have about as many parameters,
and the learning rate of each is the best of `RATES` by `popgym_rates`, which has other seeds. The
tier `laptop` is 500 k steps of a run, three seeds at level easy and one at the others: means over
games tell more of a memory than further seeds of one game. The tier `full` is 15 M steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.presets import previous_action
from rlgates.experiments.studies.study import EqualParameters, Study

# The games from the shortest to the longest, in groups: repeat, count, search, control, mazes.
GAMES = (
    *("RepeatFirst", "RepeatPrevious", "Autoencode", "CountRecall", "HigherLower"),
    *("MultiarmedBandit", "MineSweeper", "Battleship", "Concentration"),
    *("StatelessCartPole", "NoisyStatelessCartPole"),
    *("StatelessPendulum", "NoisyStatelessPendulum"),
    *("LabyrinthEscape", "LabyrinthExplore"),
)
LEVELS = ("easy", "medium", "hard")
PARAMETERS = 33_280
"""Parameters of an LSTM with 64 inputs and 64 units, the most that a core may have."""
INPUT_SIZE = 64
RATES = (5e-4, 1.5e-3, 5e-3)
"""Learning rates that are tried with each core, on `TUNED_ON`."""
TUNED_ON = ("RepeatPrevious", "CountRecall", "NoisyStatelessCartPole")
LEARNING_RATES: dict[str, float] = {
    **dict.fromkeys(("lstm", "ur_lstm", "f_lstm", "c_lstm", "slstm", "mlstm", "mogrifier"), 5e-3),
    **dict.fromkeys(("gru", "janet", "nru", "rru", "gato", "cornn", "gilr", "minlstm"), 5e-3),
    **dict.fromkeys(("mingru", "ur_mingru", "ffm", "s4d", "mamba", "mamba2", "gtrxl"), 5e-3),
    **dict.fromkeys(("deltanet", "rwkv7", "dnc", "rma"), 5e-3),
    **dict.fromkeys(("ur_gru", "dilated_gru", "elman", "indrnn", "lem", "s5", "rtu"), 1.5e-3),
    **dict.fromkeys(("fwp", "linear_transformer", "frame_conv", "positional", "shm"), 1.5e-3),
    "rmc": 1.5e-3,
    **dict.fromkeys(("none", "frame_stack", "lru", "lmu", "transformer"), 5e-4),
}
"""The best of `RATES` for each core, by its returns at the end, as a share of the range, on average
over `TUNED_ON`. A core of a user's own has `BASE`'s, unless its module adds a rate here."""
PUBLISHED: Mapping[tuple[str, str], float] = {
    ("RepeatPrevious, medium", "gru"): -0.315,
    ("RepeatPrevious, medium", "lmu"): 0.789,
    ("CountRecall, easy", "gru"): 0.177,
    ("CountRecall, easy", "lstm"): 0.509,
}
"""MMER of Morad et al. 2023, table 3, by title and core."""
CORES = (
    *("none", "positional", "frame_stack", "frame_conv", "elman", "indrnn"),
    *("lstm", "ur_lstm", "f_lstm", "c_lstm", "gru", "ur_gru", "dilated_gru", "janet", "nru"),
    *("gato", "mogrifier"),
    *("rru", "slstm", "mlstm", "mingru", "ur_mingru", "minlstm", "gilr", "lru", "rtu", "s5", "s4d"),
    *("lmu", "cornn", "lem", "ffm", "shm", "mamba", "mamba2", "fwp", "deltanet", "rwkv7"),
    *("linear_transformer", "transformer", "gtrxl", "rmc", "dnc", "rma"),
)
# Memories whose size does not follow from `hidden_size`; and the heads of two papers, since with
# one head the memory of `fwp` would have 60,000 numbers.
OPTIONS: dict[str, dict[str, Any]] = {
    "fwp": {"num_heads": 8},
    "mlstm": {"num_heads": 4},
    "dnc": {"num_slots": 16, "word_size": 16, "num_reads": 2},
    "rma": {"latent_size": 32, "num_slots": 128, "top_k": 8},
}
BASE = GymConfig(
    n_envs=64,
    n_steps=128,
    batch_size=2048,
    n_epochs=4,
    learning_rate=1.5e-3,
    ent_coef=0.01,
    total_steps=500_000,
    eval_every=50_000,
    # As in training: POPGym's scores are of sampled actions too.
    eval_deterministic=False,
    policy_kwargs={
        "features_extractor_class": "linear",
        "shared_lstm": True,
        "shared_gradient": "both",
        "enable_critic_lstm": False,
    },
    success_return=0.9,
    best_return=1.0,
    worst_return=-1.0,
)


def _rows(
    levels: tuple[str, ...],
    games: tuple[str, ...] = GAMES,
    *,
    seeds: tuple[int, ...] = (),
    **changes: Any,
) -> Iterator[EqualParameters]:
    """The rows of some games, level by level, with these seeds or all of the study."""
    for level in levels:
        for game in games:
            config = replace(
                BASE,
                env=f"rlgates/{game}-v0",
                env_settings=previous_action(f"rlgates/{game}-v0", preset=level),
                env_title=f"{game}, {level}",
                # A cart-pole pays for each step that the pole stands; the others can cost.
                worst_return=0.0 if game.endswith("CartPole") else -1.0,
                **changes,
            )
            yield EqualParameters(
                config, CORES, PARAMETERS, INPUT_SIZE, OPTIONS, LEARNING_RATES, seeds=seeds
            )


def _searched() -> Iterator[EqualParameters]:
    """The rows of the search, one for each game and learning rate."""
    for row in _rows(("easy",), TUNED_ON, total_steps=250_000, eval_every=None):
        for rate in RATES:
            config = replace(row.config, learning_rate=rate)
            yield replace(row, config=config, learning_rates={}, variant=f"rate {rate:g}")


STUDIES: dict[str, Study] = {
    "popgym": Study(
        title="Every memory at equal parameters on the games of POPGym",
        source="Morad et al. 2023, table 3; Le et al. 2025, table 1",
        laptop=(*_rows(("easy",)), *_rows(("medium", "hard"), seeds=(0,))),
        full=tuple(_rows(LEVELS, total_steps=15_000_000, eval_every=1_500_000)),
        seeds=(0, 1, 2),
        chart="benchmark",
    ),
    # One game stands for all: the cost is that of the memory. `--jobs 1`, on an idle machine.
    "popgym_costs": Study(
        title="The cost of a run of each memory in the study popgym",
        laptop=tuple(_rows(("easy",), ("RepeatPrevious",), total_steps=200_000, eval_every=None)),
        seeds=(100,),
    ),
    "popgym_rates": Study(
        title="The learning rate of each memory in the study popgym",
        laptop=tuple(_searched()),
        seeds=(100,),
    ),
}
