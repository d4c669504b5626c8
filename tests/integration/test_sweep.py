"""`rlgates sweep`: the runs it makes, its tables, what it refuses, and how it resumes."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from support.tiny import TINY, tiny

from rlgates.experiments.cli import main as cli
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.identity import comparison, digest, identity
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.configs.published import PROTOCOLS
from rlgates.experiments.report.outputs import redraw_studies, study_names
from rlgates.experiments.report.rows import to_frame
from rlgates.experiments.report.settings import CHART, study_settings
from rlgates.experiments.report.studies.agents import chance_levels, env_settings, read_curves
from rlgates.experiments.runs.files import read_json, read_table
from rlgates.experiments.runs.jobs import Job, runner_for
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.network.extras import gates_before_and_after
from rlgates.experiments.studies import (
    FORMER_NAMES,
    STUDIES,
    Arm,
    EqualParameters,
    Published,
    Study,
)
from rlgates.experiments.studies.popgym import LEARNING_RATES
from rlgates.experiments.sweep.results import StudyResults
from rlgates.experiments.sweep.sweep import SweepConfig, find_study, run_sweep, study_conditions
from rlgates.experiments.sweep.workers import run_parallel
from rlgates.registry import CORES, core_modules

pytestmark = pytest.mark.usefixtures("in_tmp_path")

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments/results"
ADDING = replace(TINY, task="adding", task_settings={"steps": 4})


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
    shutil.rmtree("runs")  # the second part needs no runs of the first
    assert cli.main(line) == 0
    assert "4 of 8 runs are in results/agents.csv" in capsys.readouterr().out
    results = Path("results")
    names = {file.name for file in results.iterdir()} - {".lock"}
    ends = (".csv", ".json", ".md", ".png", "_curves.csv", "_readme.png")
    assert names == {"SHA256SUMS", *(f"agents{end}" for end in ends)}
    table = read_table(results / "agents.csv")
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
def test_gates_are_recorded_before_and_after_training() -> None:
    sweep = SweepConfig(results="results", tasks=("copy",), jobs=1)
    assert all(outcome.result for outcome in run_sweep("networks", sweep))
    rows = read_table(Path("results/networks_gates.csv"))
    assert [(one["core"], one["seed"], one["variant"], one["unit"]) for one in rows] == [
        ("lstm", seed, "", str(unit)) for seed in ("4", "5") for unit in range(8)
    ]
    pair = gates_before_and_after(replace(TINY, core="lstm", folder="runs/networks"), 4)
    for when, seen in zip(("before", "after"), pair, strict=True):
        forget = seen.on_sequences.forget[0].double()
        means, scales = forget.mean(dim=(0, 1)), -1 / forget.log().mean(dim=(0, 1))
        biases = -1 / seen.of_biases.forget[0].log().flatten()
        columns = {"gate": means, "timescale": scales, "bias_timescale": biases}
        for name, expected in columns.items():
            first = [float(one[f"{name}_{when}"]) for one in rows if one["seed"] == "4"]
            given = torch.tensor(first).double()
            torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-4)
    assert any(one["gate_before"] != one["gate_after"] for one in rows)
    assert {one["bias_timescale_before"] for one in rows} == {
        f"{1 / math.log1p(math.exp(-1)):.5g}"
    }  # bias 1
    assert Path("results/networks_copy_gates.png").read_bytes()[:4] == b"\x89PNG"


def test_finished_runs_are_read_from_their_folders(networks: Study) -> None:
    sweep = SweepConfig(results="results", jobs=1)
    run_sweep("networks", sweep)
    before = {file: file.read_bytes() for file in Path("results").iterdir()}
    shutil.rmtree("results")
    outcomes = run_sweep("networks", sweep)
    assert all(outcome.cached for outcome in outcomes)
    assert {file: file.read_bytes() for file in Path("results").iterdir()} == before
    assert len(outcomes) == 8
    assert networks.seeds == (4, 5)


@pytest.mark.usefixtures("networks")
def test_a_damaged_file_of_a_finished_run_fails_that_run_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep = SweepConfig(results="results", tasks=("copy",), jobs=1)
    run_sweep("networks", sweep)
    shutil.rmtree("results")
    measured, unmeasured = (Path("runs/networks/copy-2-lstm", f"seed-{n}") for n in (4, 5))
    for table in (measured / "gates.csv", unmeasured / "progress.csv"):
        table.write_text(table.read_text().replace("1", "7"))
    (unmeasured / "gates.csv").unlink()
    capsys.readouterr()
    outcomes = run_sweep("networks", sweep)
    errors = {one.job.folder.path: one.error for one in outcomes if one.result is None}
    assert errors.keys() == {measured, unmeasured}
    printed = capsys.readouterr().out
    for folder, name in ((measured, "gates.csv"), (unmeasured, "progress.csv")):
        assert errors[folder].startswith(f"Damaged: {folder / name} is damaged")
        assert f"failed: {errors[folder]}" in printed
    assert len(outcomes) == 6
    assert len(read_table(Path("results/networks.csv"))) == 4
    assert {row["core"] for row in read_table(Path("results/networks.csv"))} == {"lstm", "none"}


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
    rows = read_table(results / "mixture.csv")
    assert [bool(row["env"]) for row in rows] == [bool(row["success"]) for row in rows]
    assert [bool(row["env"]) for row in rows] == [not row["loss"] for row in rows]
    text = (results / "mixture.md").read_text()
    for head in (
        *("Copy, delay 2 | loss", "Passive Match, 1/1/5 steps | success"),
        "Passive T-Maze, 11 steps | success",
    ):
        assert text.count(f"| {head}") == 1
    assert chance_levels(to_frame([row for row in rows if row["env"]])) == {
        "PassiveMatch 1/1/5": 1 / 3,
        "PassiveTMaze 11": 1 / 2,
    }
    before = {file: file.read_bytes() for file in results.iterdir()}
    figures = set(results.glob("*.png"))
    assert {file.name for file in figures} == {"mixture.png", "mixture_copy.png"}
    for file in (*figures, results / "mixture.md"):
        file.unlink()
    redraw_studies(results)
    assert {file: file.read_bytes() for file in results.iterdir()} == before


@pytest.mark.usefixtures("networks")
def test_a_failing_run_does_not_stop_those_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    damaged = Path("runs/networks/copy-2-none/seed-4")
    damaged.mkdir(parents=True)
    (damaged / "checkpoint").write_bytes(b"rubbish")
    line = ["sweep", "networks", "--results", "results", "--jobs", "2"]
    assert cli.main(line) == 1
    printed = capsys.readouterr()
    assert printed.out.count(" of 8") == 8
    assert "copy, delay 2: none seed 4 failed: ValueError: the checkpoint" in printed.out
    manifest_path = damaged / "manifest.json"
    assert f"1 of 8 runs failed: see above, with tracebacks in {manifest_path}" in printed.err
    manifest = json.loads(manifest_path.read_text())
    assert manifest["status"] == "failed"
    assert "is damaged" in manifest["error"]
    assert len(read_table(Path("results/networks.csv"))) == 7
    shutil.rmtree(damaged)
    assert cli.main(line) == 0
    rows = read_table(Path("results/networks.csv"))
    assert len(rows) == 8
    assert {(row["title"], row["variant"]) for row in rows} == {
        *(("copy, delay 2", ""), ("copy, delay 2", "bias 3"), ("adding, steps 4", ""))
    }
    text = Path("results/networks.md").read_text()
    for title in ("Copy, delay 2", "Adding, 4 steps"):
        assert text.count(f"| {title} | loss | worst seed |") == 1
    assert text.count("| `lstm`, bias 3 | ") == 1
    manifest = json.loads(Path("runs/networks/bias_3/copy-2-lstm/seed-5/manifest.json").read_text())
    assert (manifest["status"], manifest["config"]["core"]) == ("finished", "lstm")
    assert manifest["sessions"][0]["threads"] == 1


class _Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os._exit, (7,)

    def __str__(self) -> str:
        return "deadly"


@pytest.mark.slow
def test_a_process_that_dies_fails_its_run_alone() -> None:
    config = replace(TINY, folder="runs")
    deadly = Job(replace(config, task_settings={"delay": _Deadly()}), 0)
    jobs = [Job(config, 0), deadly, Job(config, 1), Job(config, 2)]
    outcomes = {repr(one.job): one for one in run_parallel(jobs, lambda: False, 2)}
    assert [bool(outcomes[repr(job)].result) for job in jobs] == [True, False, True, True]
    assert outcomes[repr(deadly)].error == "the process ended with exit code 7"
    manifest = json.loads(Path("runs/copy-deadly-ur_lstm/seed-0/manifest.json").read_text())
    assert (manifest["status"], manifest["error"]) == ("failed", outcomes[repr(deadly)].error)


def test_runs_that_another_process_has_locked_come_last() -> None:
    config = tiny("runs", total_steps=56, eval_every=None)
    made = run_parallel([Job(config, seed) for seed in (0, 1, 2)], lambda: False, 1)
    with locked(config.run_folder(0)):
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
    assert "core_options.forget_bias was 1.0 and is now 3.0" in capsys.readouterr().err
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
def test_invalid_arguments_are_refused_before_any_work(
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


def test_a_study_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        "from rlgates.experiments.studies import Arm, Study\n"
        "from rlgates.experiments.configs.tiers import task_config\n"
        "STUDY = Study(title='mine', laptop=(Arm(task_config('copy', 'smoke'), ('lstm',)),),\n"
        "              seeds=(1,))\n"
    )
    assert cli.main(["sweep", "mine.py", "--results", "results"]) == 0
    assert "`rlgates sweep mine.py`" in Path("results/mine.md").read_text()
    assert read_json(Path("results/mine.json"))["chart"] == "curves"
    Path("mine.py").write_text("STUDY = 3")
    assert cli.main(["sweep", "mine.py"]) == 2
    assert "mine.py must define STUDY" in capsys.readouterr().err


LEAKY = """
import torch
from torch import nn
from rlgates import Cell, register_core
from rlgates.experiments.studies.popgym import LEARNING_RATES

class Leaky(Cell):
    def __init__(self, input_size, hidden_size, rate=0.9):
        super().__init__()
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, hidden_size
        self.rate, self.state_shapes = rate, {"h": (hidden_size,)}
        self.linear = nn.Linear(input_size, hidden_size)

    def project(self, x):
        return self.linear(x)

    def step(self, projected, state):
        h = self.rate * state[0] + (1 - self.rate) * torch.tanh(projected)
        return h, (h,)

    def reset_parameters(self, generator=None):
        nn.init.uniform_(self.linear.weight, -0.5, 0.5, generator=generator)

register_core("leaky", Leaky)
LEARNING_RATES["leaky"] = 0.01
"""


def test_a_core_of_a_users_module_joins_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_memory.py").write_text(LEAKY)
    line = ["sweep", "popgym", "--tier", "smoke", "--seeds", "0", "--jobs", "1"]
    line += ["--tasks", "RepeatFirst, easy", "--cores", "my_memory:leaky", "gru"]
    try:
        assert cli.main(line) == 0
    finally:
        CORES.pop("leaky", None)
        LEARNING_RATES.pop("leaky", None)
        sys.modules.pop("my_memory", None)
    rows = {row["core"]: row for row in read_table(Path("runs/popgym_smoke/popgym_smoke.csv"))}
    assert set(rows) == {"leaky", "gru"}
    assert (rows["leaky"]["state_size"], rows["gru"]["state_size"]) == ("16", "16")
    settings = study_settings(Path("runs/popgym_smoke"), "popgym_smoke")
    assert settings[rows["leaky"]["config"]]["learning_rate"] == 0.01
    line[line.index("my_memory:leaky")] = "no_such:leaky"
    assert cli.main(line) == 2
    assert "no_such cannot be imported" in capsys.readouterr().err


def test_a_study_file_may_register_a_core(capsys: pytest.CaptureFixture[str]) -> None:
    study = """
from dataclasses import replace
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.studies import Arm, Study
copy = replace(task_config("copy", "smoke"), updates=2)
STUDY = Study(title="Mine", laptop=(Arm(copy, ("gru", CORE)),), seeds=(0,))
"""
    own, beside, copy = (
        Path("deep/own_study.py"),
        Path("deep/beside_study.py"),
        Path("deep/copy.py"),
    )
    own.parent.mkdir()
    own.write_text(f'{LEAKY}CORE = "leaky"{study}')
    beside.write_text(f'import own_study\nCORE = "own_study:leaky"{study}')
    copy.write_text(own.read_text())
    try:
        assert cli.main(["sweep", str(own), "--jobs", "2", "--results", "tables"]) == 0
        assert core_modules("leaky") == ["own_study"]
        assert find_study(str(beside))[1].laptop[0].cores == ("gru", "leaky")
        assert EqualParameters(TINY, ("own_study:leaky",), 999, 3).cores == ("leaky",)
        assert Published("copy-gu", ("own_study:leaky",)).compared == ("leaky",)
        del CORES["leaky"]
        assert cli.main(["sweep", str(copy)]) == 2
        assert "registers cores, but copy is another module: rename it" in capsys.readouterr().err
    finally:
        CORES.pop("leaky", None)
        LEARNING_RATES.pop("leaky", None)
        for name in ("own_study", "beside_study"):
            sys.modules.pop(name, None)
    rows = read_table(Path("tables/own_study.csv"))
    assert sorted(row["core"] for row in rows) == ["gru", "leaky"]  # as they end


def test_the_list_of_studies(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "--list"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in listed] == list(STUDIES)
    assert ["music", "70", "runs", "Polyphonic", "music"] in [words[:5] for words in listed]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_valid(name: str) -> None:
    study = STUDIES[name]
    for tier in ("smoke", "laptop", "full"):
        if tier == "full" and not study.full:
            assert not study.source, f"{name} repeats {study.source} but has no full tier"
            continue
        conditions = study_conditions(name, study, SweepConfig(tier=tier))  # type: ignore[arg-type]
        folders = {condition.config.run_folder(0) for condition in conditions}
        assert len(folders) == len(conditions)
        for config in (condition.config for condition in conditions):
            if tier == "smoke" and isinstance(config, GymConfig):
                runner_for(config).check(config)
    for arm in study.laptop:
        if isinstance(arm, Arm) and getattr(arm.config, "epochs", None) is None:
            for core in arm.cores:  # the others need their data
                arm.of(core).check()


@pytest.mark.parametrize("name", study_names(RESULTS))
def test_runs_in_the_committed_tables_are_those_of_the_study(name: str) -> None:
    # "learning" has runs of a version that had fewer settings.
    results = StudyResults(RESULTS, name, "rlgates sweep")
    tier: Literal["laptop", "full"] = "full" if name.endswith("_full") else "laptop"
    conditions = study_conditions(name, STUDIES[name.removesuffix("_full")], SweepConfig(tier=tier))
    jobs = [Job(row.config, 0, row.variant) for row in conditions]
    results.check(jobs)
    assert results.rows
    changed = [replace(job, config=replace(job.config, learning_rate=0.7)) for job in jobs]
    with pytest.raises(ValueError, match=r"learning_rate was .* and is now 0\.7"):
        results.check(changed)


def test_selected_cores_come_once_in_the_full_tier() -> None:
    conditions = study_conditions(
        "music", STUDIES["music"], SweepConfig(tier="full", cores=("lstm", "gru"))
    )
    made = [(condition.config.title, condition.config.core) for condition in conditions]
    tasks = ("jsb", "nottingham", "musedata", "piano")
    assert made == [(task, core) for task in tasks for core in ("lstm", "gru")]


def test_published_settings_are_used_unchanged() -> None:
    row = PROTOCOLS["pmnist-gu"]
    arms = list(Published("pmnist-gu", cores=("ur_lstm", "c_lstm")).arms())
    assert [arm.variant for arm in arms] == [
        f"rate {r:g}" for r in row.learning_rates_for("lstm")
    ] * 2
    assert {arm.config.hidden_size for arm in arms} == {512}
    assert [arm.config.learning_rate for arm in arms] == [*row.learning_rates_for("lstm")] * 2
    dropouts = list(Published("nottingham-rru-dropout", cores=("rru",)).arms())
    rates = [arm.of("rru").core_options["dropout"] for arm in dropouts]
    assert rates == [k / 10 for k in range(10)]
    assert len({arm.config.hidden_size for arm in dropouts}) == 1


def test_cores_that_lack_an_option_can_be_compared() -> None:
    arm = Arm(PRESETS["study30"], ("ur_lstm", "dnc"))
    one, other = (arm.of(core) for core in arm.cores)
    assert (one.core_options, other.core_options) == ({"input_scale": 8.0}, {})
    assert digest(comparison(one)) == digest(comparison(other))
    assert identity(one) != identity(replace(one, core_options={"input_scale": 1.0}))


@pytest.mark.parametrize("name", ["passive_match", "match", "all_cores"])
def test_committed_tables_are_of_the_present_studies(name: str) -> None:
    conditions = study_conditions(*find_study(name), SweepConfig())
    known = study_settings(RESULTS, name)
    expected = {
        (condition.config.title, condition.variant): digest(comparison(condition.config))
        for condition in conditions
    }
    for row in read_table(RESULTS / f"{name}.csv"):
        assert row["config"] == expected[row["title"], row["variant"]]
        assert row["config"] in known


def test_commands_of_committed_rows_name_studies() -> None:
    """Those of today, or former names, of which `rlgates sweep` says what they are called now."""
    commands = {
        row["command"]
        for name in study_names(RESULTS)
        for row in read_table(RESULTS / f"{name}.csv")
    }
    names = {command.split()[2] for command in commands if command.startswith("rlgates sweep ")}
    assert names >= FORMER_NAMES.keys()
    assert names <= STUDIES.keys() | FORMER_NAMES.keys()
    assert not FORMER_NAMES.keys() & STUDIES.keys()
    assert STUDIES.keys() >= set(FORMER_NAMES.values())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*_curves.csv")), ids=lambda path: path.stem)
def test_committed_settings_are_those_of_the_rows(path: Path) -> None:
    name = path.stem.removesuffix("_curves")
    named = {row["config"] for row in read_table(RESULTS / f"{name}.csv")}
    assert set(study_settings(RESULTS, name)) - {CHART} == named


def test_threads_do_not_outnumber_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    monkeypatch.setattr(
        "rlgates.experiments.sweep.sweep.check_all",
        lambda missing, **_: jobs.extend(missing) or list[Any](),
    )
    monkeypatch.setattr(
        "rlgates.experiments.sweep.backends.run_parallel", lambda *_: (_ for _ in ())
    )
    wide = Study(title="wide", laptop=(Arm(replace(TINY, threads=64), ("lstm",)),), seeds=(0,))
    monkeypatch.setitem(STUDIES, "wide", wide)
    for parallel in (None, 1, 2, 100):
        run_sweep("wide", SweepConfig(jobs=parallel))
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cpus is not None
    assert [job.config.threads for job in jobs] == [
        *(min(64, cpus), min(64, cpus), max(1, cpus // 2), 1)
    ]


def test_figures_are_redrawn_with_the_chart_of_the_study() -> None:
    Path("mine.py").write_text(
        "from rlgates.experiments.studies import Arm, Study\n"
        "from rlgates.experiments.configs.tiers import task_config\n"
        "STUDY = Study(title='mine', laptop=(Arm(task_config('copy', 'smoke'), ('lstm',)),),\n"
        "              seeds=(1,), chart='heat')\n"
    )
    assert cli.main(["sweep", "mine.py", "--results", "results"]) == 0
    made = {path.name: path.read_bytes() for path in Path("results").iterdir()}
    redraw_studies(Path("results"))
    assert made == {path.name: path.read_bytes() for path in Path("results").iterdir()}


def test_settings_of_any_type_survive_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("runs", total_steps=112, eval_every=None)
    settings = {**config.env_settings, "apple_reward": (1.0, 10.0)}
    arm = Arm(replace(config, env_settings=settings), ("none",))
    monkeypatch.setitem(STUDIES, "agents", Study(title="one", laptop=(arm,), seeds=(0,)))
    (outcome,) = run_sweep("agents", SweepConfig(results="results", jobs=1))
    assert not outcome.error
    (row,) = read_table(Path("results/agents.csv"))
    assert env_settings(row) == settings
    words = {"env_settings": "explore_steps=15 distractor_steps=30"}  # of earlier versions
    assert env_settings(words) == {"explore_steps": 15, "distractor_steps": 30}


def test_a_damaged_run_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(title="one", laptop=(Arm(TINY, ("lstm",)),), seeds=(4, 5))
    monkeypatch.setitem(STUDIES, "networks", study)
    sweep = SweepConfig(results="results", jobs=1)
    run_sweep("networks", sweep)
    shutil.rmtree("results")
    (damaged,) = Path("runs").rglob("seed-5/manifest.json")
    damaged.write_text(damaged.read_text()[:50])
    one, other = run_sweep("networks", sweep)
    assert (one.error, one.cached) == ("", True)
    assert f"{damaged} is damaged" in other.error
    assert len(read_table(Path("results/networks.csv"))) == 1


@pytest.mark.parametrize("env", ["PassiveTMaze", "KeyToDoor", "MemoryChain"])
def test_environments_without_a_scripted_player_have_curves_only(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"env": f"rlgates/{env}-v0", "env_settings": {}}
    config = tiny("runs", **settings, total_steps=112, eval_every=None)
    study = Study(title="others", laptop=(Arm(config, ("none",)),), seeds=(0,))
    monkeypatch.setitem(STUDIES, "others", study)
    run_sweep("others", SweepConfig(results="results", jobs=1))
    assert {path.name for path in Path("results").glob("*.png")} == {"others.png"}
