"""What TensorBoard is told of a study: its charts, its hyper-parameters, and what runs reached."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import DataType
from tensorboard.plugins.hparams.plugin_data_pb2 import SessionEndInfo, SessionStartInfo
from test_supervise import TINY
from tiny import tiny

from rlgates.experiments import logs, manifest
from rlgates.experiments.hparams import flat
from rlgates.experiments.jobs import Job, make
from rlgates.experiments.logs import EVENTS, task_tag
from rlgates.experiments.runs import run_folder
from rlgates.experiments.studies import STUDIES, Arm, Study
from rlgates.experiments.supervise import Run
from rlgates.experiments.sweep import SweepConfig, parts, run_sweep
from rlgates.experiments.sweep_board import layout, write_board
from rlgates.experiments.train import train

ADDING = replace(TINY, task="adding", task_settings={"steps": 4})
BIAS = {"lstm": {"forget_bias": 3.0}}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two tasks, one of them with a variant."""
    arms = (
        Arm(TINY, ("lstm", "none")),
        Arm(replace(TINY, learning_rate=0.1), ("lstm",), BIAS, variant="bias 3"),
        Arm(ADDING, ("lstm",)),
    )
    made = Study(title="some", laptop=arms, seeds=(0,))
    monkeypatch.setitem(STUDIES, "some", made)
    return made


def session(folder: Path) -> tuple[SessionStartInfo, SessionEndInfo, dict[str, float]]:
    """What a run's event files hold for the tab HParams."""
    events = EventAccumulator(str(folder))
    events.Reload()
    contents = events.PluginTagToContent("hparams")
    final = {
        tag.removeprefix("final/"): events.Scalars(tag)[-1].value
        for tag in events.Tags()["scalars"]
        if tag.startswith("final/")
    }
    return (
        metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG]),
        metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG]),
        final,
    )


class Server:
    """A TensorBoard on this machine, as a user starts it."""

    def __init__(self, folder: str) -> None:
        command = ["-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1"]
        options = ["--port", "0", "--load_fast", "false"]
        self.process = subprocess.Popen(
            [sys.executable, *command, *options], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        self.url = next(found[0] for line in lines if (found := re.search(r"http://\S+/", line)))

    def get(self, path: str, body: Any = None, **query: str) -> Any:
        """What the server answers."""
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.url}data/{path}?{urlencode(query)}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def runs(self, count: int) -> list[str]:
        """The runs, once so many of them have been read."""
        for _ in range(600):
            found: list[str] = self.get("runs")
            if len(found) == count:
                return found
            time.sleep(0.1)
        raise AssertionError(found)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server("runs/some")
    yield made
    made.process.terminate()
    made.process.communicate()


@pytest.mark.slow
def test_what_a_server_shows(study: Study, request: pytest.FixtureRequest) -> None:
    configs = [part.config for part in parts("some", study, SweepConfig())]
    assert all(make(Job(config, 0)).result for config in configs)
    write_board(Path("runs/some"), configs)
    server = request.getfixturevalue("server")
    runs = server.runs(1 + 4)
    shown: dict[tuple[str, str], set[str]] = {}
    for category in server.get("plugin/custom_scalars/layout")["category"]:
        for chart in category["chart"]:
            (tag,) = chart["multiline"]["tag"]
            for run in runs:
                found = server.get("plugin/custom_scalars/scalars", run=run, tag=tag)
                assert found["regex_valid"]
                for points in found["tag_to_events"].values():
                    assert points
                    shown.setdefault((category["title"], chart["title"]), set()).add(run)
    copy = {"copy-2-lstm/seed-0", "copy-2-none/seed-0", "bias_3/copy-2-lstm/seed-0"}
    losses = ("loss on held-out sequences", "loss in training")
    gates = "log10 of the gates' median timescale"
    assert shown == {
        **{("copy, delay 2", chart): copy for chart in losses},
        ("copy, delay 2", gates): {run for run in copy if "none" not in run},
        **{("adding, steps 4", chart): {"adding-4-lstm/seed-0"} for chart in (*losses, gates)},
    }
    about = server.get("plugin/hparams/experiment", {})
    columns = [column["name"] for column in about["hparamInfos"]]
    metrics = [metric["name"]["tag"] for metric in about["metricInfos"]]
    assert metrics == ["final/test_loss", "final/loss", "final/steps", "final/seconds"]
    asked = {
        "allowedStatuses": ["STATUS_SUCCESS"],
        "colParams": [{"hparam": name} for name in columns],
        "sliceSize": 100,
        "includeMetrics": True,
    }
    groups = server.get("plugin/hparams/session_groups", asked)["sessionGroups"]
    assert {group["name"] for group in groups} == set(runs) - {"."}
    bias = next(group for group in groups if group["name"].startswith("bias"))["hparams"]
    assert (bias["core"], bias["gate"], bias["core.forget_bias"]) == ("lstm", "plain", 3.0)


def test_what_is_never_measured_has_no_chart() -> None:
    fresh = {"success on fresh episodes", "reward of the last phase on fresh episodes"}
    for every, shown in ((150, fresh), (None, set())):
        (charts,) = layout([tiny("runs", eval_every=every)]).values()
        assert {title for title in charts if "fresh" in title} == shown


def test_the_file_of_a_study_is_written_once(study: Study) -> None:
    sweep, folder = SweepConfig(results="results", jobs=1, tasks=("adding",)), Path("runs/some")
    run_sweep("some", sweep)
    (path,) = folder.glob(EVENTS)
    content, when = path.read_bytes(), path.stat().st_mtime_ns
    run_sweep("some", replace(sweep, seeds=(1,)))
    assert path.stat().st_mtime_ns == when
    configs = [part.config for part in parts("some", study, SweepConfig())]
    assert write_board(folder, configs) == path
    assert path.stat().st_mtime_ns == when
    write_board(folder, configs[:1])
    assert path.read_bytes() != content
    assert list(folder.glob(EVENTS)) == [path]


def test_the_columns_of_a_study(study: Study) -> None:
    write_board(Path("some"), [part.config for part in parts("some", study, SweepConfig())])
    events = EventAccumulator("some")
    events.Reload()
    content = events.PluginTagToContent("hparams")[metadata.EXPERIMENT_TAG]
    about = metadata.parse_experiment_plugin_data(content)
    columns = {column.name: DataType.Name(column.type) for column in about.hparam_infos}
    assert columns["core.forget_bias"] == columns["hidden_size"] == "DATA_TYPE_FLOAT64"
    assert (columns["core"], columns["tied"]) == ("DATA_TYPE_STRING", "DATA_TYPE_BOOL")
    differs = {column.name for column in about.hparam_infos if column.differs}
    assert differs == {"core", "gate", "learning_rate", "seed", "task"}
    assert [metric.display_name for metric in about.metric_infos] == [
        *("test_loss", "loss", "steps", "seconds")
    ]
    (layout_event,) = events.Tensors("custom_scalars__config__")
    (content,) = layout_event.tensor_proto.string_val
    titles = [category.title for category in Layout.FromString(content).category]
    assert titles == ["copy, delay 2", "adding, steps 4"]


def test_an_agent_its_charts_its_settings_and_what_it_reached() -> None:
    config = tiny("runs", core_options={"input_scale": 2.0}, total_steps=112, eval_every=56)
    result = train(config, 3, bar=False)
    rows = logs.read_rows(run_folder(config, 3) / "progress.csv")
    for _, (tag,) in layout([config])["PassiveMatch 1/1/5"].values():
        events = EventAccumulator(str(run_folder(config, 3)))
        events.Reload()
        (found,) = (name for name in events.Tags()["scalars"] if re.match(tag, name))
        plain = found.removeprefix("PassiveMatch-1-1-5/")
        points = [event.value for event in events.Scalars(found)]
        assert points == [event.value for event in events.Scalars(plain)]
        column = logs.column(rows, plain)
        assert points == pytest.approx(column[np.isfinite(column)], rel=1e-6)
    start, end, final = session(run_folder(config, 3))
    said = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert said == flat(config, 3)
    assert (said["core"], said["gate"], said["seed"]) == ("ur_lstm", "ur", 3)
    assert (said["core.input_scale"], said["task.end_on_choice"]) == (2.0, True)
    assert said["net_arch"] == "()"
    assert not {"folder", "seeds", "jobs", "stop_success", "core_options"} & set(said)
    assert end.status == 1
    assert 0 < end.end_time_secs - start.start_time_secs < 600
    expected = {name: getattr(result, name) for name in ("success", "last_phase_reward", "steps")}
    assert final == pytest.approx({**expected, "seconds": result.seconds})


def test_the_settings_of_a_network_and_what_it_reached() -> None:
    config = replace(TINY, folder="runs")
    run = Run(config, 2)
    learned = run.go()
    assert learned is not None
    start, end, final = session(run.folder)
    said = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert said == flat(config, 2)
    assert (said["task"], said["task.delay"], said["learning_rate"]) == ("copy", 2, 4e-3)
    assert end.status == 1
    loss = learned.losses[-1][1]
    expected = {"test_loss": learned.test["loss"], "loss": loss, "steps": 6}
    assert final == pytest.approx({**expected, "seconds": learned.seconds})


def test_a_network_that_diverged_is_a_failure() -> None:
    run = Run(replace(TINY, folder="runs"), 0)
    with torch.no_grad():
        run.reader.decoder.bias.fill_(torch.inf)
    assert run.go() is not None
    _, end, final = session(run.folder)
    assert end.status == 2
    assert set(final) == {"steps", "seconds"}


@pytest.mark.parametrize("kind", ["agent", "network"])
def test_a_run_killed_at_its_very_end_writes_it_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: str) -> Path:
        if kind == "agent":
            config = tiny(folder, total_steps=112, eval_every=None)
            train(config, 0, bar=False)
            return run_folder(config, 0)
        made = Run(replace(TINY, folder=folder), 0)
        made.go()
        return made.folder

    straight, end = run("straight"), manifest.end

    def die(folder: Path, status: str, **facts: Any) -> None:
        if status == "finished":
            raise KeyboardInterrupt
        end(folder, status, **facts)

    with monkeypatch.context() as patch:
        patch.setattr("rlgates.experiments.manifest.end", die)
        with pytest.raises(KeyboardInterrupt):
            run("killed")
    killed = run("killed")
    assert len(list(killed.glob("*.hparams"))) == 1
    (one, _, reached), (other, _, expected) = session(killed), session(straight)
    assert one.hparams == other.hparams
    assert {**reached, "seconds": 0} == {**expected, "seconds": 0}


@pytest.mark.parametrize("name", STUDIES)
def test_the_charts_of_every_study(name: str) -> None:
    configs = [part.config for part in parts(name, STUDIES[name], SweepConfig())]
    charts = layout(configs)
    starts = {task_tag(title) for title in charts}
    assert len(starts) == len(charts)
    for title, some in charts.items():
        for kind, (tag,) in some.values():
            assert kind == "Multiline"
            assert re.fullmatch(r"[\w.-]+", task_tag(title))  # others are replaced by torch
            others = [f"{task_tag(other)}/eval/loss" for other in charts if other != title]
            assert not any(re.match(tag, other) for other in others)
