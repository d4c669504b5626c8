"""What a study has come to is written down whole, with all that it depends on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import TINY

from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.report.rows import merge_rows, provenance, to_frame
from rlgates.experiments.runs import jobs
from rlgates.experiments.runs.files import Damaged, read_json, read_table, write_json
from rlgates.experiments.runs.folder import RunFolder
from rlgates.experiments.runs.gym.runner import GymRunner
from rlgates.experiments.runs.jobs import Job, JobResult
from rlgates.experiments.sweep import results as sweep_results
from rlgates.experiments.sweep.results import StudyResults
from rlgates.experiments.sweep.sweep import TimeEstimate


def test_a_run_is_in_the_table_when_all_of_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(replace(TINY, core="lstm", folder=str(tmp_path)), 0, extras=("gates",))
    outcome = jobs.run_job(job)
    whole = sweep_results.merge_rows

    def killed(path: Path, rows: Any) -> None:
        if path.name == "some_gates.csv":
            raise KeyboardInterrupt
        whole(path, rows)

    monkeypatch.setattr(sweep_results, "merge_rows", killed)
    with pytest.raises(KeyboardInterrupt):
        StudyResults(tmp_path, "some", "rlgates sweep some").add(outcome)
    monkeypatch.undo()
    book = StudyResults(tmp_path, "some", "rlgates sweep some")
    assert not book.has(job)
    book.add(outcome)
    assert StudyResults(tmp_path, "some", "rlgates sweep some").has(job)
    assert len(read_table(tmp_path / "some_gates.csv")) == TINY.hidden_size


def test_what_a_study_asks_for_later_is_measured_later(tmp_path: Path) -> None:
    job = Job(replace(TINY, core="lstm", folder=str(tmp_path)), 0)
    StudyResults(tmp_path, "some", "rlgates sweep some").add(jobs.run_job(job))
    book = StudyResults(tmp_path, "some", "rlgates sweep some")
    with_gates = replace(job, extras=("gates",))
    assert book.has(job)
    assert not book.has(with_gates)
    outcome = jobs.run_job(with_gates)
    assert outcome.cached, "the run itself is not made again"
    book.add(outcome)
    assert StudyResults(tmp_path, "some", "rlgates sweep some").has(with_gates)
    assert book.has(job)
    for row in book.rows.values():
        del row["measured"]
    assert book.has(with_gates), "tables of earlier versions do not say"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    job = Job(replace(TINY, core="lstm", folder=str(tmp_path)), 0)
    StudyResults(tmp_path, "some", "rlgates sweep some").add(jobs.run_job(job))
    settings, table = tmp_path / "some.json", tmp_path / "some.csv"
    whole = table.read_text()
    (tmp_path / "SHA256SUMS").unlink()  # as earlier versions wrote them
    settings.write_text(settings.read_text()[:20])
    with pytest.raises(Damaged, match=r"some\.json is damaged .*remove it to start again"):
        StudyResults(tmp_path, "some", "rlgates sweep some").check([job])
    for text in (whole[:-1], whole.rpartition(",")[0] + "\n", whole + "a,b\n", f"{whole[:-1]},1\n"):
        table.write_text(text)
        with pytest.raises(Damaged, match=r"some\.csv is damaged: a row is not whole"):
            StudyResults(tmp_path, "some", "rlgates sweep some")


def test_a_run_made_on_a_gpu_elsewhere_is_written_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = GymRunner().smoke(GymConfig(n_envs=1, folder=str(tmp_path)))
    made = jobs.run_job(Job(config, 0))
    elsewhere = JobResult(Job(replace(config, device="cuda"), 0), made.result)
    StudyResults(tmp_path, "some", "rlgates sweep some").add(elsewhere)
    (row,) = read_table(tmp_path / "some.csv")
    assert int(row["parameters"]) > 0


def test_a_run_that_went_on_at_another_commit_names_both(tmp_path: Path) -> None:
    folder = RunFolder(replace(TINY, folder=str(tmp_path)), 0)
    for step in (0, 10):
        folder.begin(step)
    path = folder.manifest
    content = read_json(path)
    for session, commit in zip(content["sessions"], ("a" * 40, "b" * 40), strict=True):
        session["git"] = {"commit": commit, "dirty": commit[0] == "a"}
    write_json(path, content)
    row = {"command": "rlgates sweep some", **folder.provenance()}
    row = {name: str(value) for name, value in row.items()}
    assert provenance(to_frame([row])) == "`rlgates sweep some`, commit aaaaaaa+, bbbbbbb+"


def test_runs_that_a_study_does_not_have_are_not_mixed_with_its_own(tmp_path: Path) -> None:
    job = Job(replace(TINY, core="lstm", folder=str(tmp_path)), 0)
    StudyResults(tmp_path, "some", "rlgates sweep some").add(jobs.run_job(job))
    book = StudyResults(tmp_path, "some", "rlgates sweep some")
    book.check([job])
    longer = Job(replace(job.config, task_settings={"delay": 3}), 0)
    with pytest.raises(ValueError, match="runs of copy, delay 2, which this version of the study"):
        book.check([longer])


def test_a_core_that_the_study_lacks_may_have_a_size_of_its_own(tmp_path: Path) -> None:
    own = Job(replace(TINY, core="lru", hidden_size=6, folder=str(tmp_path)), 0)
    StudyResults(tmp_path, "some", "rlgates sweep some").add(jobs.run_job(own))
    book = StudyResults(tmp_path, "some", "rlgates sweep some")
    lstm, gru = (replace(own.config, core=core, hidden_size=8) for core in ("lstm", "gru"))
    # Where all cores of the study are equally large, that is a setting of the study.
    with pytest.raises(ValueError, match="hidden_size was 6 and is now 8"):
        book.check([Job(lstm, 0), Job(gru, 0)])
    smaller = replace(gru, hidden_size=7)
    book.check([Job(lstm, 0), Job(smaller, 0)])
    with pytest.raises(ValueError, match="updates was"):
        book.check([Job(replace(one, updates=3), 0) for one in (lstm, smaller)])


def test_options_with_blanks_are_told_apart(tmp_path: Path) -> None:
    job = Job(replace(TINY, core="lstm", folder=str(tmp_path)), 0)
    book = StudyResults(tmp_path, "some", "rlgates sweep some")
    book.add(jobs.run_job(job))
    (row,) = book.rows.values()
    row["core_options"] += " widths=[1, 2]"
    with pytest.raises(ValueError, match=r"widths was \[1, 2\]"):
        book.check([job])


def test_the_time_is_told_before_the_first_run_as_far_as_it_is_known(tmp_path: Path) -> None:
    made = [Job(replace(TINY, core=core, folder=str(tmp_path)), 0) for core in ("lstm", "gru")]
    book = StudyResults(tmp_path, "some", "rlgates sweep some")
    assert TimeEstimate(made, 4, book).summary() == "2 runs, 2 at a time"
    book.rows["", "", "", ""] = {"title": "another", "core": "lru", "seconds": "120"}
    assert TimeEstimate(made, 1, book).summary() == "2 runs, 1 at a time, about 4 min 0 s"


def test_a_table_without_git_names_no_commit() -> None:
    assert (
        provenance(to_frame([{"command": "rlgates sweep some", "commit": ""}]))
        == "`rlgates sweep some`"
    )


def test_a_table_has_the_columns_of_all_rows(tmp_path: Path) -> None:
    table, key = tmp_path / "some_curves.csv", {"title": "copy", "core": "lstm"}
    merge_rows(table, [{**key, "seed": "0", "update": "1"}])
    grown = [{"update": "1"}, {"update": "2", "scale": "0.5"}]
    merge_rows(table, [{**key, "seed": "1", **row} for row in grown])
    rows = read_table(table)
    assert [row["scale"] for row in rows] == ["", "", "0.5"]
    assert list(rows[0]) == [*key, "seed", "update", "scale"]
