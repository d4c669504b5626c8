"""Horizon generalization: trained at one length, tested at longer ones."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import SETTINGS, TINY, tiny

from rlgates.experiments.cli.exits import FAILED, exit_code
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import smoke
from rlgates.experiments.runs import jobs
from rlgates.experiments.runs.agent.build import build
from rlgates.experiments.runs.agent.evaluate import evaluate, evaluation_seed
from rlgates.experiments.runs.agent.horizon import agent_rows
from rlgates.experiments.runs.agent.train import AgentResult, train
from rlgates.experiments.runs.files import Row, read_table
from rlgates.experiments.runs.horizon import (
    FACTORS,
    check_horizon,
    stretched,
)
from rlgates.experiments.runs.jobs import Job, check_all, run_job
from rlgates.experiments.runs.network.extras import network_rows
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.studies import STUDIES, Arm, Study
from rlgates.experiments.sweep.sweep import SweepConfig, run_sweep
from rlgates.experiments.tasks import Batch, make_task
from rlgates.experiments.tasks.task import accuracy

ADDING = replace(TINY, task="adding", task_settings={"steps": 4})


def numbers(rows: list[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> tuple[AgentConfig, AgentResult]:
    """A finished run of seed 3, whose evaluation draws its actions."""
    config = tiny(tmp_path_factory.mktemp("agent"), eval_every=None, total_steps=112)
    return config, train(config, 3, bar=False)


def test_at_the_length_of_training_the_figures_are_those_of_the_run(tmp_path: Path) -> None:
    config = replace(TINY, core="lstm", folder=str(tmp_path))
    result = TaskRun(config, 0).train()
    rows = network_rows(config, 0, "delay", result)
    assert float(rows[0]["loss"]) == pytest.approx(result.test["loss"], rel=1e-5)
    assert float(rows[0]["score"]) == pytest.approx(result.test["accuracy"], rel=1e-5)
    assert numbers(rows, "factor") == list(FACTORS) == [1, 2, 4, 16]
    assert [row["setting"] for row in rows] == ["delay 2", "delay 4", "delay 8", "delay 32"]
    # Ten symbols, the blanks, ten cues.
    assert numbers(rows, "length") == [22, 24, 28, 52]
    assert numbers(rows, "count") == [config.eval_sequences] * 4
    assert numbers(rows, "floor") == pytest.approx([1 / 8] * 4, rel=1e-5)
    assert [list(row) for row in rows] == [
        ["factor", "setting", "length", "count", "score", "loss", "floor"]
    ] * 4


def test_without_memory_the_length_makes_no_difference(tmp_path: Path) -> None:
    # The cues are all that a core without memory sees where it is asked, and the symbols are
    # drawn before anything that depends on the delay.
    config = replace(TINY, core="none", folder=str(tmp_path))
    rows = network_rows(config, 0, "delay", TaskRun(config, 0).train())
    assert len({row["loss"] for row in rows}) == len({row["score"] for row in rows}) == 1


def test_a_task_without_accuracy_is_scored_by_what_is_saved_of_the_loss(tmp_path: Path) -> None:
    config = replace(ADDING, core="none", folder=str(tmp_path))
    result = TaskRun(config, 0).train()
    for row in network_rows(config, 0, "steps", result):
        assert float(row["score"]) == pytest.approx(max(0, 1 - 6 * float(row["loss"])), abs=1e-5)
        assert float(row["floor"]) == 0
    assert float(row["length"]) == 64


@pytest.mark.parametrize(
    ("core", "options"),
    [
        ("dnc", {"num_slots": 4, "word_size": 4, "num_reads": 1}),
        # Written over many times before the symbols are asked for.
        ("rma", {"latent_size": 4, "num_slots": 5, "top_k": 2}),
        ("c_lstm", {"t_max": 12}),
        *((core, {}) for core in ("nru", "gato", "lru", "ur_mingru", "gru")),
    ],
)
def test_what_a_core_was_told_of_the_length_stays_as_it_is(
    core: str, options: dict[str, Any], tmp_path: Path
) -> None:
    config = replace(
        TINY, core=core, core_options=options, updates=2, folder=str(tmp_path), eval_sequences=8
    )
    rows = network_rows(config, 0, "delay", TaskRun(config, 0).train())
    assert all(math.isfinite(value) for value in numbers(rows, "loss"))
    assert stretched(config, "delay", 16).core_options == options
    assert stretched(config, "delay", 16).task_settings == {"delay": 32}


def test_numbers_that_are_not_finite_are_wrong(tmp_path: Path) -> None:
    batch = Batch(torch.zeros(3, 4, 2), torch.zeros(3, 4, dtype=torch.int64))
    logits = torch.zeros(3, 4, 2)
    logits[..., 0] = 1
    assert accuracy(logits, batch) == 1
    logits[0, 0, 0], logits[1, 1, 1], logits[2, 2, 0] = math.nan, -math.inf, math.inf
    assert accuracy(logits, batch) == 9 / 12

    config = replace(TINY, core="lstm", folder=str(tmp_path))
    run = TaskRun(config, 0)
    with torch.no_grad():
        run.network.decoder.bias.fill_(math.inf)
    result = run.train()
    assert result.best_step is None
    rows = network_rows(config, 0, "delay", result)
    assert numbers(rows, "score") == [0] * 4
    assert [row["loss"] for row in rows] == ["nan"] * 4
    adding = replace(ADDING, core="none", folder=str(tmp_path))
    lost = replace(TaskRun(adding, 0).train(), best_step=None)
    assert numbers(network_rows(adding, 0, "steps", lost), "score") == [0] * 4


def test_an_agent_in_the_episodes_of_its_run(agent: tuple[AgentConfig, AgentResult]) -> None:
    config, result = agent
    rows = agent_rows(config, 3, "distractor_steps")
    first = rows[0]
    assert config.final_episodes == result.episodes == 20
    for column, value in (("score", result.success), ("low", result.low), ("high", result.high)):
        assert float(first[column]) == pytest.approx(value, rel=1e-5)
    assert numbers(rows, "length") == [1 + 1 * factor + 5 for factor in FACTORS]
    assert numbers(rows, "count") == [20] * 4
    assert numbers(rows, "floor") == pytest.approx([1 / 3] * 4, rel=1e-5)
    assert rows == agent_rows(config, 3, "distractor_steps")


@pytest.mark.parametrize("lost", [False, True])
def test_an_agent_whose_memory_is_not_finite_has_failed(lost: bool, tmp_path: Path) -> None:
    # Who always goes north ends on the middle pad, however long the distractor phase is; so does
    # who has no numbers to choose by, for north is the first action.
    config = tiny(tmp_path)
    model, _ = build(config, 3)
    policy: Any = model.policy.requires_grad_(False)
    if lost:
        for parameter in policy.lstm_actor.core.parameters():
            parameter.fill_(math.nan)
    else:
        policy.action_net.bias[0] = 1e3
    folder = config.run_folder(3)
    folder.mkdir(parents=True)
    model.save(folder / "model.rlgates", format="safe")
    final = evaluation_seed(3, final=True)
    rows = agent_rows(config, 3, "distractor_steps")
    if lost:
        assert numbers(rows, "score") == [0] * 4
        with pytest.raises(ValueError, match="not finite"):
            evaluate(model, config, 20, final)
    else:
        seen = evaluate(model, config, 20, final)
        assert 0 < seen.success < 1
        assert numbers(rows, "score") == [seen.success] * 4


@pytest.mark.parametrize(
    ("env", "settings", "setting", "expected"),
    [
        # The corridor, and the step into an arm.
        ("PassiveTMaze", {"corridor_length": 10}, "corridor_length", [11, 21, 41, 161]),
        ("PassiveMatch", PRESETS["study30"].env_settings, "distractor_steps", [60, 90, 150, 510]),
    ],
)
def test_episodes_are_as_long_as_they_should_be(
    env: str, settings: dict[str, Any], setting: str, expected: list[int]
) -> None:
    config = AgentConfig(env=f"rlgates/{env}-v0", env_settings=settings)
    check_horizon(config, setting)
    longer = [stretched(config, setting, factor) for factor in FACTORS]
    found = [one.make_spec().max_episode_length for one in longer]
    assert found == expected
    assert {**longer[3].env_settings, setting: settings[setting]} == settings


def test_settings_that_are_left_out_are_stretched_too() -> None:
    config = AgentConfig(env="rlgates/PassiveTMaze-v0", env_settings={})
    assert stretched(config, "corridor_length", 4).env_settings == {"corridor_length": 40}


@pytest.mark.parametrize(
    ("config", "setting", "message"),
    [
        (TINY, "dilay", "unknown setting for a horizon 'dilay'. Did you mean 'delay'"),
        (TINY, "cues", "unknown setting for a horizon 'cues'.* Allowed: delay"),
        (replace(TINY, task_settings={"delay": 0}), "delay", "Allowed: none"),
        (replace(TINY, task="scifar", task_settings={"pool": 2}), "pool", "sequences are shorter"),
        (tiny("x"), "corridor_length", "unknown setting for a horizon 'corridor_length'"),
        (tiny("x"), "end_on_choice", "unknown setting for a horizon 'end_on_choice'"),
        (tiny("x"), "num_colors", "num_colors must be"),
        (tiny("x", env_settings={**SETTINGS, "crop": 5}), "crop", "crop must be"),
        (
            replace(TINY, task="lte_addition", task_settings={}),
            "length",
            "the loss without memory is not known for 'lte_addition'",
        ),
    ],
)
def test_what_cannot_be_stretched_is_refused_before_any_work(
    config: Any, setting: str, message: str, tmp_path: Path
) -> None:
    job = Job(replace(config, folder=str(tmp_path)), 0, extras=("horizon",), horizon=setting)
    with pytest.raises(ValueError, match=message):
        check_all([job])
    assert not list(tmp_path.iterdir())


def test_inputs_and_outputs_must_not_depend_on_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wider:
        settings = ("delay",)
        baseline, output_size = 1.0, 8

        def __init__(self, delay: int) -> None:
            self.delay = self.input_size = delay

    monkeypatch.setattr(TaskConfig, "make_task", lambda self: Wider(**self.task_settings))
    with pytest.raises(ValueError, match="delay is not a length: inputs or outputs change at 2"):
        check_horizon(TINY, "delay")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A network and an agent, both stretched."""
    monkeypatch.chdir(tmp_path)
    arms = (
        Arm(TINY, ("lstm", "none"), horizon="delay"),
        Arm(tiny("x", total_steps=56), ("lstm",), horizon="distractor_steps"),
    )
    found = Study(title="tiny horizon", laptop=arms, seeds=(4, 5))
    monkeypatch.setitem(STUDIES, "tiny", found)
    return found


def test_a_run_that_goes_on_is_tested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = SweepConfig(results="results", jobs=1)

    def make(max_minutes: float | None) -> list[dict[str, str]]:
        config = replace(TINY, max_minutes=max_minutes)
        arm = Arm(config, ("lstm",), horizon="delay")
        monkeypatch.setitem(STUDIES, "tiny", Study(title="tiny", laptop=(arm,), seeds=(4,)))
        assert [outcome.error for outcome in run_sweep("tiny", sweep)] == [""]
        return read_table(Path("results/tiny_horizon.csv"))

    (before, *_), (same, *_), (after, *_) = make(1e-9), make(1e-9), make(None)
    assert before == same
    assert before["loss"] != after["loss"]
    (row,) = read_table(Path("results/tiny.csv"))
    assert row["ended"] == "budget"


def test_a_failed_test_leaves_the_run_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no more memory")

    job = Job(replace(TINY, folder=str(tmp_path)), 0, extras=("horizon",), horizon="delay")
    with monkeypatch.context() as patch:
        patch.setattr(jobs.runner_for(TINY), "horizon", fails, raising=False)
        result = jobs.run_job(job)
    assert result.error == "RuntimeError: no more memory"
    assert "Traceback" in capsys.readouterr().err
    assert exit_code([result]) == FAILED
    assert capsys.readouterr().err == "1 of 1 runs failed: see above\n"
    assert jobs.run_job(job).cached


@pytest.mark.usefixtures("study")
def test_every_seed_is_tested_at_every_length() -> None:
    sweep = SweepConfig(results="results", jobs=1)
    outcomes = run_sweep("tiny", sweep)
    assert [outcome.error for outcome in outcomes] == [""] * 6
    rows = read_table(Path("results/tiny_horizon.csv"))
    assert len(rows) == 6 * len(FACTORS)
    runs = {(row["title"], row["core"], row["seed"]) for row in rows}
    assert len(runs) == 6
    copy = [row for row in rows if row["title"] == "copy, delay 2"]
    match = [row for row in rows if row["title"] == "PassiveMatch 1/1/5"]
    assert len(copy) + len(match) == len(rows)
    assert all(row["loss"] and not row["low"] for row in copy)
    assert all(row["low"] and not row["loss"] for row in match)
    config = replace(TINY, core="lstm", folder="runs/tiny")
    made = json.loads(Path("runs/tiny/copy-2-lstm/seed-5/manifest.json").read_text())["result"]
    again = network_rows(config, 5, "delay", jobs.runner_for(config).finished(Job(config, 5)))
    mine = [row for row in copy if (row["core"], row["seed"]) == ("lstm", "5")]
    assert [row["score"] for row in mine] == [row["score"] for row in again]
    assert float(mine[0]["score"]) == pytest.approx(made["test"]["accuracy"], rel=1e-5)


@pytest.mark.usefixtures("study")
def test_a_run_that_was_killed_before_it_was_tested_is_tested_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = SweepConfig(results="results", jobs=1, tasks=("copy",), cores=("lstm",), seeds=(4,))
    with monkeypatch.context() as patch:
        patch.setattr(
            "rlgates.experiments.runs.network.runner.network_rows",
            lambda *_: (_ for _ in ()).throw(OSError),
        )
        (failed,) = run_sweep("tiny", sweep)
    assert failed.result is None
    assert not Path("results/tiny.csv").exists()
    monkeypatch.setattr(TaskRun, "learn", lambda _: pytest.fail("it was trained again"))
    (outcome,) = run_sweep("tiny", sweep)
    assert outcome.cached
    assert len(read_table(Path("results/tiny_horizon.csv"))) == len(FACTORS)


def test_measured_once(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    assert study.laptop
    job = Job(replace(TINY, folder="here"), 0, extras=("horizon",), horizon="delay")
    assert run_job(job).error == ""
    monkeypatch.setattr(
        "rlgates.experiments.runs.network.runner.network_rows",
        lambda *_: pytest.fail("tested again"),
    )
    assert run_job(job).error == ""
    assert [outcome.cached for outcome in check_all([job])] == [True]
    shutil.rmtree("here")
    assert check_all([job]) == []


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if study.laptop])
def test_arms_that_ask_for_it_can_be_stretched(name: str) -> None:
    rows = (*STUDIES[name].laptop, *STUDIES[name].full)
    for arm in rows:
        if isinstance(arm, Arm) and arm.horizon:
            check_horizon(arm.config, arm.horizon)
            check_horizon(jobs.runner_for(arm.config).smoke(arm.config), arm.horizon)


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if study.laptop])
def test_all_networks_can_be_made_in_seconds(name: str) -> None:
    for arm in STUDIES[name].laptop:
        if isinstance(arm, Arm) and isinstance(arm.config, TaskConfig):
            smoke(arm.config).check()


@pytest.mark.slow
def test_the_budget_of_the_study_is_enough_to_solve_copy(tmp_path: Path) -> None:
    arm, *_ = STUDIES["horizon"].arms("laptop")
    config = replace(arm.of("ur_lstm"), folder=str(tmp_path))
    assert isinstance(config, TaskConfig)
    result = TaskRun(config, 0).train()
    assert result.ended == "goal"
    scores = numbers(network_rows(config, 0, arm.horizon, result), "score")
    assert scores[0] > 0.95
    assert scores[-1] < scores[0]


def test_stretched_tasks_have_longer_sequences() -> None:
    for factor in FACTORS:
        config = stretched(replace(TINY, task_settings={"delay": 25}), "delay", factor)
        task = make_task(config.task, **config.task_settings)
        batch = next(task.batches("test", 2, torch.Generator().manual_seed(0)))
        assert len(batch.inputs) == 10 + 25 * factor + 10
        assert len(batch.targets) == 10
