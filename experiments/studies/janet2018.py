"""Van der Westhuizen and Lasenby 2018: The unreasonable effectiveness of the forget gate."""

from __future__ import annotations

from dataclasses import replace

from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.studies.study import FRESH, Arm, Options, Study

CORES = ("janet", "lstm", "c_lstm")


def _times(length: int) -> Options:
    """Options of the cores with chrono gates for a task of that length."""
    return {core: {"t_max": length} for core in ("janet", "c_lstm")}


def _synthetic(task: str, setting: str, length: int, stop: float, beta: bool) -> Arm:
    """As in the authors' code, except that sequences are generated anew for each batch."""
    config = TaskConfig(
        task=task,
        task_settings={setting: length},
        learning_rate=1e-3,
        batch_size=50,
        hidden_size=128 if length > 200 else 64,
        max_grad_norm=5.0,
        updates=5_000,
        stop_loss=stop,
    )
    if beta:
        return Arm(config, ("janet",), {"janet": {"t_max": length, "beta": 0.0}}, "beta 0")
    return Arm(config, CORES, _times(length))


_PIXELS = replace(
    task_config("smnist"),
    hidden_size=128,
    num_layers=2,
    decoder_size=None,
    batch_size=200,
    learning_rate=1e-3,
    max_grad_norm=5.0,
    output_dropout=0.1,
    weight_decay=1e-5,
    epochs=100,
)

STUDIES: dict[str, Study] = {
    "janet": Study(
        title="JANET with and without its beta, and against the LSTM",
        source="van der Westhuizen and Lasenby 2018, abstract and code",
        laptop=(
            *(
                _synthetic("adding", "steps", 200, 0.0083, beta).with_cores(("janet",))
                for beta in (False, True)
            ),
            replace(
                Arm(
                    replace(task_config("smnist"), hidden_size=64, epochs=2),
                    ("lstm", "janet"),
                    _times(784),
                ),
                seeds=FRESH[:5],
            ),
        ),
        full=(
            *(_synthetic("copy", "delay", 200, 0.104, beta) for beta in (False, True)),
            *(_synthetic("adding", "steps", 750, 0.0083, beta) for beta in (False, True)),
            *(
                Arm(replace(_PIXELS, task=task, num_layers=layers), CORES, _times(784))
                for task, layers in (("smnist", 2), ("pmnist", 1))
            ),
        ),
        seeds=FRESH,
    ),
}
