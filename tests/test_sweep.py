"""`rlgates sweep`: what it makes, gathers, refuses, and how it goes on."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_supervise import TINY
from tiny import tiny

from rlgates.experiments import cli
from rlgates.experiments.agent_tables import chances, read_curves
from rlgates.experiments.configs import PRESETS
from rlgates.experiments.files import alone, read_json
from rlgates.experiments.jobs import Job, kind_of
from rlgates.experiments.runs import run_folder
from rlgates.experiments.studies import STUDIES, Arm, Published, Study
from rlgates.experiments.supervised_gates import gates_before_and_after
from rlgates.experiments.sweep import SweepConfig, find_study, parts, run_sweep
from rlgates.experiments.sweep_tables import redraw_studies
from rlgates.experiments.tables import read
from rlgates.experiments.workers import side_by_side
from rlgates.tasks.protocols import PROTOCOLS

ROOT = Path(__file__).parent.parent
ADDING = replace(TINY, task="adding", task_settings={"steps": 4})


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two tiny environments."""
    arms = []
    for env, steps in (("PassiveMatch", 1), ("PassiveMatch", 2)):
        config = tiny("runs", total_steps=112, eval_every=None, env=f"rlgates/{env}-v0")
        settings = {**config.env_settings, "distractor_steps": steps}
        arms.append(Arm(replace(config, env_settings=settings), ("ur_lstm", "none")))
    study = Study(title="tiny agents", laptop=tuple(arms), seeds=(0, 1))
    monkeypatch.setitem(STUDIES, "agents", study)
    return study


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two tiny tasks, one of them twice."""
    arms = (
        Arm(TINY, ("lstm", "none"), gates=("lstm",)),
        Arm(TINY, ("lstm",), {"lstm": {"forget_bias": 3.0}}, "bias 3"),
        Arm(ADDING, ("lstm",)),
    )
    study = Study(title="tiny networks", laptop=arms, seeds=(4, 5))
    monkeypatch.setitem(STUDIES, "networks", study)
    return study


@pytest.mark.usefixtures("agents")
def test_a_study_of_agents(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["sweep", "agents", "--results", "results", "--jobs", "1"]
    assert cli.main([*line, "--tasks", "PassiveMatch 1/1"]) == 0
    printed = capsys.readouterr().out
    assert "[1 of 4, about " in printed
    assert "] ur_lstm on PassiveMatch 1/1/5, seed 0: success 0." in printed
    assert "[4 of 4] none on" in printed
    shutil.rmtree("runs")  # the second part may be made where the first one's runs are not
    assert cli.main(line) == 0
    assert "4 of 8 runs are in results/agents.csv" in capsys.readouterr().out
    results = Path("results")
    names = {file.name for file in results.iterdir()}
    ends = (".csv", ".json", ".md", ".png", "_curves.csv", "_readme.png")
    assert names == {f"agents{end}" for end in ends}
    table = read(results / "agents.csv")
    assert len(table) == 2 * 2 * 2
    assert {"steps_to_0.9", "seconds", "commit", "torch", "command"} <= set(table[0])
    panels = read_curves(results / "agents_curves.csv")
    assert list(panels) == ["PassiveMatch 1/1/5", "PassiveMatch 1/2/5"]
    assert [(run.core, run.seed) for run in panels["PassiveMatch 1/1/5"]] == [
        *(("ur_lstm", 0), ("none", 0), ("ur_lstm", 1), ("none", 1))
    ]
    assert "`rlgates sweep agents`, commit" in (results / "agents.md").read_text()

    # Again: nothing is trained, and everything drawn is the same.
    before = {file: file.read_bytes() for file in results.iterdir()}
    assert cli.main(line) == 0
    assert "8 of 8 runs are in results/agents.csv" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in results.iterdir()} == before
    for file in (*results.glob("*.png"), *results.glob("*.md")):
        file.unlink()
    redraw_studies(results)
    assert {file: file.read_bytes() for file in results.iterdir()} == before


@pytest.mark.usefixtures("networks")
def test_a_study_of_networks_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "networks", "--results", "results", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.count(" of 8") == 8
    rows = read(Path("results/networks.csv"))
    assert len(rows) == 8
    assert {(row["title"], row["variant"]) for row in rows} == {
        *(("copy, delay 2", ""), ("copy, delay 2", "bias 3"), ("adding, steps 4", ""))
    }
    text = Path("results/networks.md").read_text()
    for title in ("copy, delay 2", "adding, steps 4"):
        assert text.count(f"| {title} | loss | worst seed |") == 1
    assert text.count("| `lstm`, bias 3 | ") == 1
    manifest = json.loads(Path("runs/networks/bias_3/copy-2-lstm/seed-5/manifest.json").read_text())
    assert (manifest["status"], manifest["config"]["core"]) == ("finished", "lstm")
    assert manifest["sessions"][0]["threads"] == 1


@pytest.mark.usefixtures("networks")
def test_gates_are_kept_before_and_after() -> None:
    sweep = SweepConfig(results="results", tasks=("copy",), jobs=1)
    assert all(outcome.result for outcome in run_sweep("networks", sweep))
    rows = read(Path("results/networks_gates.csv"))
    assert [(one["core"], one["seed"], one["variant"], one["unit"]) for one in rows] == [
        ("lstm", seed, "", str(unit)) for seed in ("4", "5") for unit in range(8)
    ]
    pair = gates_before_and_after(replace(TINY, core="lstm", folder="runs/networks"), 4)
    assert pair is not None
    for when, seen in zip(("before", "after"), pair, strict=True):
        means = seen.forget[0].double().mean(dim=(0, 1))
        scales = -1 / seen.forget[0].double().log().mean(dim=(0, 1))
        for name, expected in (("gate", means), ("timescale", scales)):
            first = [float(one[f"{name}_{when}"]) for one in rows if one["seed"] == "4"]
            given = torch.tensor(first).double()
            torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-4)
    assert any(one["gate_before"] != one["gate_after"] for one in rows)
    assert Path("results/networks_copy_gates.png").read_bytes()[:4] == b"\x89PNG"


def test_runs_are_gathered_from_their_folders(networks: Study) -> None:
    sweep = SweepConfig(results="results", jobs=1)
    run_sweep("networks", sweep)
    before = {file: file.read_bytes() for file in Path("results").iterdir()}
    shutil.rmtree("results")
    outcomes = run_sweep("networks", sweep)
    assert all(outcome.before for outcome in outcomes)
    assert {file: file.read_bytes() for file in Path("results").iterdir()} == before
    assert len(outcomes) == 8
    assert networks.seeds == (4, 5)


def test_a_study_of_networks_and_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = (
        Arm(TINY, ("lstm",)),
        Arm(tiny("runs", total_steps=112, eval_every=None), ("none",)),
        Arm(tiny("runs", env="rlgates/PassiveTMaze-v0", env_settings={}, n_envs=8), ("lstm",)),
    )
    study = Study(title="tiny mixture", laptop=arms, seeds=(0, 1))
    monkeypatch.setitem(STUDIES, "mixture", study)
    assert len(run_sweep("mixture", SweepConfig(results="results", jobs=1))) == 6
    results = Path("results")
    rows = read(results / "mixture.csv")
    assert [bool(row["env"]) for row in rows] == [bool(row["success"]) for row in rows]
    assert [bool(row["env"]) for row in rows] == [not row["loss"] for row in rows]
    text = (results / "mixture.md").read_text()
    for head in ("copy, delay 2 | loss", "PassiveMatch 1/1/5 | success", "PassiveTMaze 11 | suc"):
        assert text.count(f"| {head}") == 1
    assert chances([row for row in rows if row["env"]]) == {
        "PassiveMatch 1/1/5": 1 / 3,
        "PassiveTMaze 11": 1 / 2,
    }
    before = {file: file.read_bytes() for file in results.iterdir()}
    pictures = set(results.glob("*.png"))
    assert {file.name for file in pictures} == {"mixture.png", "mixture_copy.png"}
    for file in (*pictures, results / "mixture.md"):
        file.unlink()
    redraw_studies(results)
    assert {file: file.read_bytes() for file in results.iterdir()} == before


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.usefixtures("networks")
def test_one_that_fails_does_not_stop_the_others(
    jobs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled = Path("runs/networks/copy-2-none/seed-4")
    spoiled.mkdir(parents=True)
    (spoiled / "checkpoint").write_bytes(b"rubbish")
    line = ["sweep", "networks", "--results", "results", "--jobs", str(jobs)]
    assert cli.main(line) == 1
    printed = capsys.readouterr()
    assert "copy, delay 2: none seed 4 failed: ValueError: the checkpoint" in printed.out
    assert "1 of 8 runs failed; see their manifest.json" in printed.err
    manifest = json.loads((spoiled / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "is damaged" in manifest["error"]
    assert len(read(Path("results/networks.csv"))) == 7
    shutil.rmtree(spoiled)
    assert cli.main(line) == 0
    assert len(read(Path("results/networks.csv"))) == 8


class _Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os._exit, (7,)

    def __str__(self) -> str:
        return "deadly"


def test_a_process_that_dies_takes_no_other_run_with_it() -> None:
    config = replace(TINY, folder="runs")
    deadly = Job(replace(config, task_settings={"delay": _Deadly()}), 0)
    jobs = [Job(config, 0), deadly, Job(config, 1), Job(config, 2)]
    outcomes = {repr(one.job): one for one in side_by_side(jobs, lambda: False, 2)}
    assert [bool(outcomes[repr(job)].result) for job in jobs] == [True, False, True, True]
    assert outcomes[repr(deadly)].error == "the process ended with exit code 7"
    manifest = json.loads(Path("runs/copy-deadly-ur_lstm/seed-0/manifest.json").read_text())
    assert (manifest["status"], manifest["error"]) == ("failed", outcomes[repr(deadly)].error)


def test_what_another_process_is_making_comes_last() -> None:
    config = tiny("runs", total_steps=56, eval_every=None)
    made = side_by_side([Job(config, seed) for seed in (0, 1, 2)], lambda: False, 1)
    with alone(run_folder(config, 0)):
        assert [next(made).job.seed, next(made).job.seed] == [1, 2]
    assert [one.job.seed for one in made] == [0]


@pytest.mark.usefixtures("networks")
def test_another_version_of_a_study_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["sweep", "networks", "--results", "results", "--tasks", "adding", "--jobs", "1"]
    assert cli.main(line) == 0
    before = {file: file.read_bytes() for file in Path("results").iterdir()}
    other = (Arm(replace(ADDING, learning_rate=0.5, batch_size=5), ("lstm",)),)
    monkeypatch.setitem(STUDIES, "networks", Study(title="other", laptop=other))
    assert cli.main(line) == 2
    printed = capsys.readouterr().err
    assert "results/networks.csv holds runs of adding, steps 4 of another version" in printed
    assert "batch_size was 4 and is now 5; learning_rate was 0.004 and is now 0.5" in printed
    assert cli.main([*line, "--cores", "gru"]) == 2  # nor beside those of another core
    optional = (Arm(ADDING, ("lstm",), {"lstm": {"forget_bias": 3.0}}),)
    monkeypatch.setitem(STUDIES, "networks", Study(title="other", laptop=optional))
    assert cli.main(line) == 2
    assert "core_options was '' and is now 'forget_bias=3.0'" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in Path("results").iterdir()} == before


@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("musik", "unknown study 'musik'. Did you mean 'music'?"),
        ("mine.py", "there is no file mine.py"),
        ("networks --tasks ading", "unknown task of the study 'networks' 'ading'"),
        ("networks --cores lstn", "Did you mean 'lstm'"),
        ("networks --seeds 1 1", "one or more different numbers"),
        ("networks --seeds -1", "seed must be at least 0"),
        ("networks --jobs 0", "jobs must be at least 1"),
        ("networks --tier full", "there is no tier 'full'"),
        ("networks --device gpu", "unknown device 'gpu'"),
        ("networks --backend-options a=1", "backend 'local' has no options, got a"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    line: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["sweep", *line.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_study_without_its_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLGATES_DATA", str(tmp_path))
    assert cli.main(["sweep", "music", "--seeds", "0"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("rlgates: error: ")
    assert "the data file music/" in message
    assert not list(tmp_path.iterdir())


def test_a_study_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        "from rlgates.experiments.studies import Arm, Study\n"
        "from rlgates.experiments.supervised_tiers import task_config\n"
        "STUDY = Study(title='mine', laptop=(Arm(task_config('copy', 'smoke'), ('lstm',)),),\n"
        "              seeds=(1,))\n"
    )
    assert cli.main(["sweep", "mine.py", "--results", "results"]) == 0
    assert "`rlgates sweep mine.py`" in Path("results/mine.md").read_text()
    assert read_json(Path("results/mine.json"))["chart"] == "curves"
    Path("mine.py").write_text("STUDY = 3")
    assert cli.main(["sweep", "mine.py"]) == 2
    assert "mine.py must define STUDY" in capsys.readouterr().err


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "--list"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in listed] == list(STUDIES)
    assert ["music", "40", "runs", "Polyphonic", "music"] in [words[:5] for words in listed]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_makes_sense(name: str) -> None:
    study = STUDIES[name]
    for tier in ("smoke", "laptop", "full"):
        if tier == "full" and not study.full:
            assert not study.source, f"{name} repeats {study.source} but has no full tier"
            continue
        found = parts(name, study, SweepConfig(tier=tier))  # type: ignore[arg-type]
        folders = {kind_of(part.config).folder(Job(part.config, 0)) for part in found}
        assert len(folders) == len(found)
    for arm in study.laptop:
        if not isinstance(arm, Published) and getattr(arm.config, "epochs", None) is None:
            for core in arm.cores:  # the others need their data
                kind_of(arm.config).check(arm.of(core))


def test_chosen_cores_are_made_once_in_the_full_tier() -> None:
    found = parts("music", STUDIES["music"], SweepConfig(tier="full", cores=("lstm", "gru")))
    made = [(kind_of(part.config).title(part.config), part.config.core) for part in found]
    tasks = ("jsb", "nottingham", "musedata", "piano")
    assert made == [(task, core) for task in tasks for core in ("lstm", "gru")]


def test_published_settings_are_taken_as_they_are() -> None:
    row = PROTOCOLS["pmnist-gu"]
    arms = list(Published("pmnist-gu", cores=("ur_lstm", "c_lstm")).arms())
    assert [arm.variant for arm in arms] == [f"rate {r:g}" for r in row.rates("lstm")] * 2
    assert {arm.config.hidden_size for arm in arms} == {512}
    assert [arm.config.learning_rate for arm in arms] == [*row.rates("lstm")] * 2
    dropouts = list(Published("nottingham-rru-dropout", cores=("rru",)).arms())
    rates = [arm.of("rru").core_options["dropout"] for arm in dropouts]
    assert rates == [k / 10 for k in range(10)]
    assert len({arm.config.hidden_size for arm in dropouts}) == 1


def test_cores_that_lack_an_option_can_be_compared() -> None:
    arm = Arm(PRESETS["study30"], ("ur_lstm", "dnc"))
    one, other = (arm.of(core) for core in arm.cores)
    assert (one.core_options, other.core_options) == ({"input_scale": 8.0}, {})
    kind = kind_of(one)
    assert kind.digest(one) == kind.digest(other)
    assert kind.digest(one) != kind.digest(replace(one, core_options={"input_scale": 1.0}))


@pytest.mark.parametrize("name", ["passive_match", "match", "all_cores"])
def test_committed_tables_are_of_the_present_studies(name: str) -> None:
    results = ROOT / "experiments" / "results"
    found = parts(*find_study(name), SweepConfig())
    known: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
    expected = {
        (kind_of(part.config).title(part.config), part.variant): kind_of(part.config).digest(
            part.config
        )
        for part in found
    }
    for row in read(results / f"{name}.csv"):
        assert row["config"] == expected[row["title"], row["variant"]]
        assert row["config"] in known


def test_the_threads_do_not_outnumber_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        "rlgates.experiments.sweep.check_all", lambda jobs, **_: seen.extend(jobs) or list[Any]()
    )
    monkeypatch.setattr("rlgates.experiments.backends.side_by_side", lambda *_: (_ for _ in ()))
    wide = Study(title="wide", laptop=(Arm(replace(TINY, threads=64), ("lstm",)),), seeds=(0,))
    monkeypatch.setitem(STUDIES, "wide", wide)
    for jobs in (None, 1, 2, 100):
        run_sweep("wide", SweepConfig(jobs=jobs))
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cpus is not None
    assert [job.config.threads for job in seen] == [
        *(min(64, cpus), min(64, cpus), max(1, cpus // 2), 1)
    ]
