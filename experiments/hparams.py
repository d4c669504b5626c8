"""The HParams tab of TensorBoard: the settings of a run and what it reached, as event files."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import (
    HParamsPluginData,
    SessionEndInfo,
    SessionStartInfo,
)
from tensorboard.summary.writer.record_writer import RecordWriter

from rlgates.cores import CORES, core_names
from rlgates.experiments import logs
from rlgates.experiments.configs import NOT_LEARNED_FROM, TrainConfig
from rlgates.experiments.files import read_json, write_atomically
from rlgates.experiments.manifest import manifest_path
from rlgates.experiments.supervised_configs import NOT_LEARNED_FROM as NOT_LEARNED_FROM_IN_TASKS
from rlgates.experiments.supervised_configs import SupervisedConfig

Value = bool | float | str
# What the names of settings begin with that a config keeps together.
OPTION, SETTING = "core.", "task."
PREFIX = "final/"
_GROUPS = {"core_options": OPTION, "env_settings": SETTING, "task_settings": SETTING}
AGENT_METRICS = ("success", "last_phase_reward", "steps", "seconds")


def flat(config: TrainConfig | SupervisedConfig, seed: int) -> dict[str, Value]:
    """The hyper-parameters of a run by name: "core.forget_bias", "task.delay"; None is left out."""
    aside = {*NOT_LEARNED_FROM, *NOT_LEARNED_FROM_IN_TASKS}
    core, gate = core_names()[config.core]
    gate = gate or ("plain" if CORES[core].gates else "none")
    found: dict[str, Any] = {"gate": gate, "seed": seed}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in _GROUPS:
            start = _GROUPS[field.name]
            found |= {f"{start}{name}": item for name, item in value.items()}
        elif field.name not in aside:
            found[field.name] = value
    return {name: _simple(value) for name, value in found.items() if value is not None}


def _simple(value: Any) -> Value:
    return value if isinstance(value, bool | int | float | str) else str(value)


def write_hparams(
    folder: Path,
    config: TrainConfig | SupervisedConfig,
    seed: int,
    metrics: Mapping[str, float | None],
    steps: int,
    *,
    diverged: bool = False,
) -> Path:
    """Write what a finished run was made with, and what it reached, into an event file beside
    its others.

    A run that has to go on from its checkpoint removes the file (`logs.rewind`), and writes it
    again at its end.

    Args:
        folder: of the run, which has a manifest and event files.
        config, seed: of the run.
        metrics: what it reached, by name: scalars below "final/". What is None or no finite
            number is left out.
        steps: steps or updates that were made.
        diverged: shown as a failure.

    Returns:
        the file.
    """
    begun = datetime.fromisoformat(read_json(manifest_path(folder))["sessions"][0]["start"])
    start = SessionStartInfo(start_time_secs=begun.timestamp())
    for name, value in flat(config, seed).items():
        kind = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
        setattr(start.hparams[name], kind, value)
    now = time.time()
    status = api_pb2.STATUS_FAILURE if diverged else api_pb2.STATUS_SUCCESS
    end = SessionEndInfo(status=status, end_time_secs=now)
    numbers = [
        Summary(value=[Summary.Value(tag=PREFIX + name, simple_value=value)])
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    ]
    summaries = [
        summary(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
        *numbers,
        summary(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)),
    ]
    # TensorBoard reads the files of a run by name, and does not go back to an earlier one.
    last = max(folder.glob(logs.EVENTS))
    path = last.with_name(f"{last.name}.hparams")
    write_atomically(path, event_file(summaries, steps, now))
    return path


def summary(tag: str, content: HParamsPluginData) -> Summary:
    """A message of the plugin."""
    about = metadata.create_summary_metadata(content)
    value = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])


def event_file(summaries: Iterable[Summary], step: int = 0, wall_time: float = 0.0) -> bytes:
    """The content of an event file of TensorBoard.

    Args:
        summaries: in their order.
        step: of all of them.
        wall_time: of all of them, in seconds since 1970.
    """
    first = Event(wall_time=wall_time, file_version="brain.Event:2")
    content = io.BytesIO()
    writer = RecordWriter(content)
    for event in (first, *(Event(wall_time=wall_time, step=step, summary=s) for s in summaries)):
        writer.write(event.SerializeToString())
    return content.getvalue()
