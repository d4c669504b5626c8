"""Files of runs and studies with flipped, missing and foreign parts: an error that names the file.

`--faults N` flips 20 N bits of each file; `make test-faults` does.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny import TINY, stop_after, tiny

from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.agent.train import AgentResult, train
from rlgates.experiments.runs.files import SUMS, Damaged, read_json, read_table, write_table
from rlgates.experiments.runs.folder import RunFolder, read_config, read_manifest
from rlgates.experiments.runs.jobs import Job, check_all, run_job
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.runs.stopping import InterruptedRun
from rlgates.experiments.sweep.results import StudyResults

COMMAND = "rlgates sweep some"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[AgentConfig, AgentResult]:
    """A finished run of an agent."""
    config = tiny(tmp_path_factory.mktemp("made"), total_steps=112, eval_every=None)
    return config, train(config, 0, bar=False)


@pytest.fixture
def copied(made: tuple[AgentConfig, AgentResult], tmp_path: Path) -> AgentConfig:
    """A copy of it."""
    config = replace(made[0], folder=str(tmp_path / "copy"))
    shutil.copytree(made[0].run_folder(0), config.run_folder(0))
    return config


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder with the tables of a study with two runs."""
    for seed in (0, 1):
        job = Job(replace(TINY, core="lstm", folder=str(tmp_path / "runs")), seed)
        StudyResults(tmp_path, "some", COMMAND).add(run_job(job))
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def flips(path: Path, count: int) -> list[bytes]:
    """The content with one bit changed, at random places."""
    whole, generator = path.read_bytes(), random.Random(0)
    damaged = []
    for _ in range(count):
        content = bytearray(whole)
        content[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        damaged.append(bytes(content))
    return damaged


def assert_named(path: Path, contents: list[bytes], read: Callable[[], Any]) -> None:
    """Reading each content is an error with the name of the file; the whole one is read again."""
    whole = path.read_bytes()
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged") as caught:
            read()
        assert str(path) in str(caught.value), content
    path.write_bytes(whole)
    read()


def without_digests(folder: Path) -> None:
    """A folder as earlier versions wrote it."""
    (folder / SUMS).unlink()


def edited(config: AgentConfig, old: str, new: str) -> None:
    path = config.run_folder(0) / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("digests", [True, False], ids=["digests", "without"])
@pytest.mark.parametrize(
    "manifest",
    ["null", "[]", "{}", '{"status": "finished"}', '"text"', "", "{"],
)
def test_a_finished_run_is_not_made_again_over_a_damaged_manifest(
    manifest: str, digests: bool, copied: AgentConfig
) -> None:
    folder = copied.run_folder(0)
    if not digests:
        without_digests(folder)
    (folder / "manifest.json").write_text(manifest)
    before = snapshot(folder)
    job = Job(copied, 0)
    assert check_all([job]) == []
    result = run_job(job)
    assert result.result is None
    assert f"{folder / 'manifest.json'} is damaged" in result.error
    assert snapshot(folder) == before


@pytest.mark.parametrize("key", ["status", "kind", "config", "seed", "identity", "sessions"])
def test_misspelt_keys_of_manifests_of_earlier_versions(key: str, copied: AgentConfig) -> None:
    folder = copied.run_folder(0)
    without_digests(folder)
    edited(copied, f'"{key}"', f'"{key}_"')
    before = snapshot(folder)
    with pytest.raises(Damaged, match=rf"manifest\.json is damaged: .*{key}, {key}_"):
        train(copied, 0)
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("old", "new"), [('"result"', '"resu1t"'), ('"steps"', '"stepz"'), ('"finished"', '"finishe"')]
)
def test_results_of_earlier_versions_are_whole(old: str, new: str, copied: AgentConfig) -> None:
    without_digests(copied.run_folder(0))
    edited(copied, old, new)
    with pytest.raises(Damaged, match=r"manifest\.json is damaged"):
        train(copied, 0)


def test_a_changed_success_is_not_believed(copied: AgentConfig) -> None:
    folder = copied.run_folder(0)
    success = json.loads((folder / "manifest.json").read_text())["result"]["success"]
    edited(copied, f'"success": {success}', '"success": 0.999')
    with pytest.raises(Damaged, match=r"its SHA-256 is not that in SHA256SUMS"):
        train(copied, 0)
    assert run_job(Job(copied, 0)).result is None


def test_a_finished_run_without_its_manifest_is_left_alone(copied: AgentConfig) -> None:
    folder = copied.run_folder(0)
    (folder / "manifest.json").unlink()
    before = snapshot(folder)
    with pytest.raises(Damaged, match=r"has model.rlgates, but its manifest.json is missing"):
        train(copied, 0)
    assert snapshot(folder) == before


def test_a_finished_run_of_another_version_is_left_alone(copied: AgentConfig) -> None:
    folder = copied.run_folder(0)
    without_digests(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["identity"], manifest["kind"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    before = snapshot(folder)
    with pytest.raises(ValueError, match="holds a run of another version of rlgates"):
        train(copied, 0)
    assert snapshot(folder) == before


def test_runs_of_earlier_versions_are_read(
    copied: AgentConfig, made: tuple[AgentConfig, AgentResult]
) -> None:
    without_digests(copied.run_folder(0))
    assert train(copied, 0) == made[1]
    assert read_config(copied.run_folder(0))[1] == 0
    assert logs.read_rows(copied.run_folder(0) / "progress.csv")


def test_every_flip_in_a_run_is_noticed(
    copied: AgentConfig, request: pytest.FixtureRequest
) -> None:
    count, folder = 20 * request.config.getoption("faults"), copied.run_folder(0)
    table, manifest = folder / "progress.csv", folder / "manifest.json"
    assert_named(table, [*flips(table, count), b""], lambda: logs.read_rows(table))
    assert_named(manifest, flips(manifest, count), lambda: train(copied, 0))


def test_every_flip_in_a_study_is_noticed(study: Path, request: pytest.FixtureRequest) -> None:
    count = 20 * request.config.getoption("faults")
    job = Job(replace(TINY, core="lstm", folder=str(study / "runs")), 0)

    def check() -> None:
        StudyResults(study, "some", COMMAND).check([job])

    table, settings, curves = (study / f"some{end}" for end in (".csv", ".json", "_curves.csv"))
    assert_named(table, [*flips(table, count), table.read_bytes()[:-30]], check)
    assert_named(settings, [*flips(settings, count), b"null"], check)
    assert_named(curves, flips(curves, count), lambda: read_table(curves))


def test_a_damaged_list_of_digests_is_named(study: Path) -> None:
    table, sums = study / "some.csv", study / SUMS
    before = sums.read_bytes()
    for content in (b"", before[:70], before[:-1], b"abc  some.csv\n", before.upper()):
        sums.write_bytes(content)
        with pytest.raises(Damaged, match="SHA256SUMS is damaged"):
            read_table(table)
    sums.unlink()
    assert len(read_table(table)) == 2, "tables of earlier versions have no digest"


@pytest.mark.parametrize("moment", range(6))
def test_a_table_has_its_digest_at_every_moment(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.csv"
    old, new = [{"a": "1"}], [{"a": "2"}]
    if moment % 2:
        path.write_text("a\n1\n")  # of an earlier version
    else:
        write_table(path, old, ["a"])
    replaced = iter(range(9))
    replace_file = os.replace

    def killed(*paths: Any) -> None:
        if next(replaced) == moment // 2:
            raise KeyboardInterrupt
        replace_file(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_table(path, new, ["a"])
    assert read_table(path) == (new if moment // 2 == 2 else old)
    write_table(path, new, ["a"])
    assert read_table(path) == new
    assert len((tmp_path / SUMS).read_text().splitlines()) == 1


def interrupted(config: AgentConfig, seed: int = 0) -> Path:
    """The folder of a run that was stopped after two updates."""
    with pytest.raises(InterruptedRun):
        train(config, seed, stop=stop_after(2), bar=False)
    return config.run_folder(seed)


@pytest.mark.parametrize("name", [logs.EVENTS, "manifest.json", "progress.csv"])
def test_a_deleted_file_of_a_stopped_run_is_noticed(name: str, tmp_path: Path) -> None:
    config = tiny(tmp_path)
    folder = interrupted(config)
    next(folder.glob(name)).unlink()
    before = snapshot(folder)
    with pytest.raises(ValueError, match=r"is missing|holds 0 rows"):
        train(config, 0)
    assert snapshot(folder) == before


def test_flips_in_the_table_of_a_stopped_run_are_noticed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = tiny(tmp_path)
    folder = interrupted(config)
    table = folder / "progress.csv"
    saved = RunFolder(config, 0).load()
    assert saved is not None

    def rewind() -> None:
        logs.rewind(folder, saved["logs"])

    # The end of the last line decides nothing: the row is whole without it, or written again.
    for content in flips(table, 20 * request.config.getoption("faults")):
        if content[-1:] != b"\n":
            continue
        before = table.read_bytes()
        table.write_bytes(content)
        with pytest.raises(ValueError, match=r"progress\.csv"):
            rewind()
        table.write_bytes(before)
    del saved["logs"]["digest"]  # as earlier versions wrote it
    rewind()


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ({"gamma": 0.5}, 0, "gamma was 0.5 and is now 0.95"),
        ({"learning_rate": 0.1}, 0, "learning_rate was 0.1 and is now 0.002"),
        ({}, 1, "seed was 1 and is now 0"),
    ],
)
@pytest.mark.parametrize("whole", [True, False], ids=["folder", "checkpoint"])
def test_the_agent_of_another_run_does_not_go_on(
    changes: dict[str, Any], seed: int, message: str, whole: bool, tmp_path: Path
) -> None:
    config, other = tiny(tmp_path / "one"), tiny(tmp_path / "other", **changes)
    folder, foreign = interrupted(config), interrupted(other, seed)
    if whole:
        shutil.rmtree(folder)
        shutil.copytree(foreign, folder)
    else:
        shutil.copy(foreign / "checkpoint", folder / "checkpoint")
    before = snapshot(folder)
    with pytest.raises(ValueError, match=f"with another config: {message}"):
        train(config, 0)
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ({"learning_rate": 0.1}, 0, "learning_rate was 0.1 and is now 0.004"),
        ({"task_settings": {"delay": 3}}, 0, "task_settings.delay was 3 and is now 2"),
        ({}, 1, "seed was 1 and is now 0"),
    ],
)
def test_the_network_of_another_run_does_not_go_on(
    changes: dict[str, Any], seed: int, message: str, tmp_path: Path
) -> None:
    def stopped(config: TaskConfig, seed: int) -> Path:
        with pytest.raises(InterruptedRun):
            TaskRun(config, seed).train(stop_after(3))
        return config.run_folder(seed)

    config = replace(TINY, folder=str(tmp_path / "one"))
    other = replace(config, folder=str(tmp_path / "other"), **changes)
    shutil.copy(stopped(other, seed) / "checkpoint", stopped(config, 0) / "checkpoint")
    with pytest.raises(ValueError, match=f"with another config: {message}"):
        TaskRun(config, 0).train()


def test_a_manifest_for_a_dead_process(tmp_path: Path) -> None:
    folder = RunFolder(tiny(tmp_path), 0)
    folder.path.mkdir(parents=True)
    folder.end("failed", error="the process ended with exit code -9")
    assert read_manifest(folder.path) == read_json(folder.manifest)
    assert folder.result(AgentResult) is None


def test_a_run_that_was_killed_as_it_finished_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "end", killed)  # the tables have their digests by then
        with pytest.raises(KeyboardInterrupt):
            train(config, 0, bar=False)
    assert "progress.csv" in (config.run_folder(0) / SUMS).read_text()
    train(config, 0, bar=False)
    assert len(logs.read_rows(config.run_folder(0) / "progress.csv")) == 6
