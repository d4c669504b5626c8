"""What is trained on the supervised tasks, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlgates.experiments.configs import Pairs


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """How to train one core on one supervised task."""

    task: str = "copy"
    """The task; its settings are below."""
    task_settings: Pairs = field(default_factory=lambda: {"delay": 100})
    """Settings of the task."""
    core: str = "ur_lstm"
    """Memory core; `rlgates cores` lists them."""
    core_options: Pairs = field(default_factory=dict)
    """Options of the core."""
    hidden_size: int = 64
    """Units of the core."""
    updates: int = 2_000
    """Budget; each update is one batch of fresh sequences, the same ones for every core."""
    batch_size: int = 32
    """Sequences of a batch."""
    learning_rate: float = 4e-3
    """Of Adam, constant."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    eval_every: int = 100
    """Updates between evaluations."""
    eval_sequences: int = 256
    """Sequences of an evaluation; none of them is trained on."""
    folder: str = "runs/supervised"
    """Where the folders of the runs are made."""
    threads: int = 1
    """CPU threads of a run."""


NOT_LEARNED_FROM = ("folder", "threads")


_BASE = SupervisedConfig()
PRESETS: dict[str, SupervisedConfig] = {
    "copy": replace(_BASE, task="copy", task_settings={"delay": 100}),
    "adding": replace(_BASE, task="adding", task_settings={"steps": 200}),
}
PRESETS |= {
    f"{name}-smoke": replace(
        config,
        task_settings=dict.fromkeys(config.task_settings, 6),
        hidden_size=8,
        updates=4,
        batch_size=4,
        eval_every=2,
        eval_sequences=8,
        folder="runs/smoke",
    )
    for name, config in list(PRESETS.items())
}

# Every core, and what other gates make of three of them; those that take longest at the end.
CORES = (
    *("lstm", "ur_lstm", "f_lstm", "c_lstm", "om_lstm", "gru", "ur_gru", "janet", "gato"),
    *("mingru", "ur_mingru", "minlstm", "gilr", "lru", "none"),
    *("rru", "nru", "mogrifier", "rmc", "rma", "dnc"),
)
# A memory of the length of the tasks, and a latent about as wide as the other cores.
CORE_OPTIONS: dict[str, dict[str, int]] = {
    "rma": {"latent_size": 32, "num_slots": 256, "top_k": 16},
}


@dataclass(frozen=True, kw_only=True)
class SupervisedStudy:
    """The comparison of all cores on Copy and Adding."""

    name: str = "supervised"
    """Of the result files."""
    presets: tuple[str, ...] = ("copy", "adding")
    """Tasks, each with its settings and budget."""
    cores: tuple[str, ...] = CORES
    """Memory cores that are compared, all with the same settings and budget."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run for each task, core and seed."""
    jobs: int = 1
    """Runs at a time, each in a process of its own."""
    results: str = "experiments/results"
    """Where the tables are written."""
    smoke: bool = False
    """The same grid in a few seconds; tables beside the runs, not in `results`."""
