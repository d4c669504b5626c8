"""What TensorBoard shows of a study: a chart for each task and measure, and its settings.

`tensorboard --logdir runs/STUDY` reads both from one event file in the folder of the study: the
layout of the tab Custom Scalars, and the columns of the tab HParams. A chart has a regular
expression for tags, and shows all chosen runs that have such a tag; which runs it shows, a layout
cannot say. So the runs log what is charted below the name of their task, too
(`rlgates.experiments.logs.TaskFormat`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard.summary import custom_scalars

from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.files import write_atomically
from rlgates.experiments.hparams import (
    AGENT_METRICS,
    PREFIX,
    Value,
    event_file,
    flat,
    summary,
)
from rlgates.experiments.jobs import Config, kind_of
from rlgates.experiments.logs import TIMESCALE, task_tag
from rlgates.tasks import TASKS

# Always the same file, of no machine and no time.
FILE = "events.out.tfevents.0000000000.study"
_AGENT_CHARTS = {
    "success in training": "rollout/success_rate",
    "reward of the last phase": "match/last_phase_reward",
}
_FRESH_CHARTS = {
    "success on fresh episodes": "eval/success_rate",
    "reward of the last phase on fresh episodes": "eval/last_phase_reward",
}
_GATES = {"log10 of the gates' median timescale": TIMESCALE}
Layout = dict[str, dict[str, tuple[str, list[str]]]]


def write_board(folder: Path, configs: Sequence[Config]) -> Path:
    """Write the event file of a study, unless it is there with the same content.

    Args:
        folder: of the study's runs.
        configs: of all of its tasks and cores.

    Returns:
        the file.
    """
    content = event_file([custom_scalars(layout(configs)), _experiment(configs)])
    path = folder / FILE
    if not (path.exists() and path.read_bytes() == content):
        write_atomically(path, content)
    return path


def layout(configs: Iterable[Config]) -> Layout:
    """A category for each task, with its charts: their titles and the tags that they show."""
    found: Layout = {}
    for config in configs:
        title = kind_of(config).title(config)
        start = rf"^{task_tag(title)}/".replace(".", r"\.")
        found[title] = {
            words: ("Multiline", [f"{start}{tag}$"]) for words, tag in _charts(config).items()
        }
    return found


def _charts(config: Config) -> dict[str, str]:
    """The tags that are charted of a task, by what they are."""
    if isinstance(config, TrainConfig):
        fresh = _FRESH_CHARTS if config.eval_every else {}
        return {**_AGENT_CHARTS, **fresh, **_GATES}
    metric = TASKS[config.task].metric
    measures = dict.fromkeys(("loss", metric))
    charts = {f"{name} on held-out sequences": f"eval/{name}" for name in measures}
    return {**charts, "loss in training": "train/loss", **_GATES}


def _experiment(configs: Iterable[Config]) -> Summary:
    """The columns of the tab HParams, as a summary: without it TensorBoard shows every scalar.

    What differs between the runs of the study comes first.
    """
    values: dict[str, set[Value]] = {}
    metrics: dict[str, None] = {}
    for config in configs:
        for name, value in flat(config, seed=0).items():
            values.setdefault(name, set()).add(value)
        metrics |= dict.fromkeys(_metrics(config))
    values["seed"] |= {1}
    columns = [
        api_pb2.HParamInfo(name=name, type=_type(some), differs=len(some) > 1)
        for name, some in sorted(values.items())
    ]
    shown = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=PREFIX + name), display_name=name)
        for name in metrics
    ]
    experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=shown)
    return summary(metadata.EXPERIMENT_TAG, HParamsPluginData(experiment=experiment))


def _metrics(config: Config) -> tuple[str, ...]:
    if isinstance(config, TrainConfig):
        return AGENT_METRICS
    return f"test_{TASKS[config.task].metric}", "loss", "steps", "seconds"


def _type(values: Iterable[Value]) -> int:
    """The type of a column: numbers, or truth, or else text."""
    kinds = {bool if isinstance(value, bool) else type(value) for value in values}
    if kinds == {bool}:
        return int(api_pb2.DATA_TYPE_BOOL)
    number = kinds <= {int, float}
    return int(api_pb2.DATA_TYPE_FLOAT64 if number else api_pb2.DATA_TYPE_STRING)
