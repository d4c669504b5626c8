"""What `rlgates sweep` is given: what it refuses before any work, and what it takes."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny import TINY

from rlgates.experiments.cli import main as cli
from rlgates.experiments.report.outputs import is_reserved
from rlgates.experiments.runs.files import read_table
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.studies import STUDIES, Arm, Study
from rlgates.experiments.sweep.sweep import SweepConfig, study_conditions

pytestmark = pytest.mark.usefixtures("in_tmp_path")


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tiny tasks; the title of one begins like that of the other."""
    longer = replace(TINY, task_settings={"delay": 20})
    arms = tuple(Arm(config, ("lstm", "none")) for config in (TINY, longer))
    monkeypatch.setitem(STUDIES, "networks", Study(title="tiny", laptop=arms, seeds=(0, 1)))


@pytest.mark.parametrize("option", ["results", "folder"])
@pytest.mark.parametrize("given", ["taken", "taken/below"])
def test_a_folder_that_is_a_file_is_refused(
    option: str, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("as before")
    assert cli.main(["sweep", "networks", f"--{option}", given]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"rlgates: error: {option} {given}")
    assert ": it is not a folder.\n" in printed
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]
    assert Path("taken").read_text() == "as before"


@pytest.mark.parametrize("command", [["sweep"], ["tune", "--task", "copy, delay 2"]])
def test_a_folder_that_cannot_be_written_to_is_refused(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(dir: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("rlgates.experiments.runs.files.tempfile.TemporaryFile", closed)
    assert cli.main([*command, "networks", "--results", "new"]) == 2
    message = "rlgates: error: results new cannot be written to: .: Read-only file system.\n"
    assert capsys.readouterr().err == message


def test_a_file_that_cannot_be_read_is_an_error_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("results/some.csv").mkdir(parents=True)
    Path("results/some.json").write_text("{}")
    assert cli.main(["figures", "--results", "results"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rlgates: error: ")
    assert printed.endswith(": 'results/some.csv'\n")


@pytest.mark.parametrize(
    "name",
    [
        *("all_cores", "all_cores_full", "networks_smoke", "learning", "mine_tune", "my_gates"),
        *("core_speed_short", "environments", "LEDGER"),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_a_file_with_the_name_of_a_study_is_refused(
    command: str, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "studies"
    folder.mkdir()
    (folder / f"{name}.py").write_text("raise AssertionError")
    assert cli.main([command, f"studies/{name}.py"]) == 2
    message = f"studies/{name}.py has the name of a table of rlgates: choose another one.\n"
    assert capsys.readouterr().err == f"rlgates: error: {message}"


def test_the_tables_that_are_no_studies_are_known() -> None:
    results = Path(__file__).parents[3] / "experiments" / "results"
    stems = {path.stem for end in ("csv", "json") for path in results.glob(f"*.{end}")}
    assert {stem for stem in stems if not is_reserved(stem)} <= STUDIES.keys()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "laptop=Arm(COPY, ('lstm',))",
            "TypeError: laptop must be a tuple of rows, such as Arm(...)",
        ),
        ("laptop=(Arm(COPY, ('lstm')),)", "TypeError: cores must be a tuple of names, got 'lstm'"),
        ("laptop=(Arm(COPY, ()),)", "ValueError: cores must be one or more names, got none"),
        ("laptop=(Arm('copy', ('lstm',)),)", "TypeError: config must be a config of a task or env"),
        ("laptop=ROW, seeds=3", "TypeError: seeds must be a tuple of numbers, got 3."),
        (
            "laptop=ROW, added=(5,)",
            "ValueError: added seeds must be among (0, 1, 2, 3, 4), got (5,).",
        ),
        (
            "laptop=(Arm(COPY, ('lstm',), seeds=(5,)),)",
            "ValueError: a row's seeds must be among (0, 1, 2, 3, 4), got (5,).",
        ),
        (
            "laptop=(Arm(COPY, ('lstm',), seeds=5),)",
            "TypeError: seeds must be a tuple of numbers, got 5.",
        ),
        ("laptop=ROW, seeds=(0, 0)", "ValueError: seeds must be one or more different numbers"),
        (
            "laptop=(Arm(GymConfig(env='CartPole-v1'), ('lstm',)),), chart='benchmark'",
            "ValueError: chart 'benchmark' draws shares of the best return: set best_return of "
            "CartPole-v1.",
        ),
        ("laptop=ROW, chart='curve'", "ValueError: unknown chart 'curve'. Did you mean 'curves'?"),
        (
            "laptop=(Arm(COPY, ('lstm',), gates=('gru',)),)",
            "ValueError: unknown core whose gates are kept 'gru'. Allowed: lstm.",
        ),
        (
            "laptop=(Arm(COPY, ('lstm',), {'lstm': {'forget_bais': 1}}),)",
            "ValueError: unknown option of core 'lstm': 'forget_bais'. Did you mean 'forget_bias'?",
        ),
        (
            "laptop=(Published('copy-gu', changes={'updats': 3}),)",
            "ValueError: unknown setting 'updats'. Did you mean 'updates'?",
        ),
    ],
)
def test_slips_in_a_study_are_said(
    row: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(
        "from rlgates.experiments.studies import Arm, Published, Study\n"
        "from rlgates.experiments.configs.gym import GymConfig\n"
        "from rlgates.experiments.configs.tiers import task_config\n"
        "COPY = task_config('copy', 'smoke')\n"
        "ROW = (Arm(COPY, ('lstm',)),)\n"
        f"STUDY = Study(title='mine', {row})\n"
    )
    assert cli.main(["sweep", "mine.py"]) == 2
    assert capsys.readouterr().err.startswith(f"rlgates: error: mine.py fails: {message}")


def test_a_core_that_a_task_lacks_is_said() -> None:
    title = "PassiveMatch 15/30/15, A2C"
    with pytest.raises(ValueError, match="match has 'PassiveMatch 15/30/15, A2C', but not with om"):
        study_conditions("match", STUDIES["match"], SweepConfig(cores=("om_lstm",), tasks=(title,)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("STUDY = 1 / 0", "ZeroDivisionError: division by zero"),
        ("STUDY = (", "SyntaxError: '(' was never closed (mine.py, line 1)"),
    ],
)
def test_a_file_that_fails_is_named(
    text: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Path("mine.py").write_text(text)
    assert cli.main(["sweep", "mine.py"]) == 2
    assert capsys.readouterr().err == f"rlgates: error: mine.py fails: {message}\n"
    assert [file.name for file in tmp_path.iterdir()] == ["mine.py"]


def test_the_command_below_a_table_can_be_typed() -> None:
    config = "TaskConfig(core='none', task='copy', task_settings={'delay': 1}, updates=2)"
    Path("my study.py").write_text(
        "from rlgates.experiments.configs.task import TaskConfig\n"
        "from rlgates.experiments.studies import Arm, Study\n"
        f"STUDY = Study(title='mine', laptop=(Arm({config}, ('none',)),), seeds=(0,))\n"
    )
    assert cli.main(["sweep", "my study.py", "--jobs", "1", "--tier", "smoke"]) == 0
    table = Path("runs/my study_smoke/my study_smoke.md").read_text()
    assert "`rlgates sweep 'my study.py' --tier smoke`" in table


def test_titles_with_commas_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "networks", "--tasks", "parity"]) == 2
    assert "Allowed: copy, delay 2; copy, delay 20.\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tasks", "made"),
    [
        ((), ["copy, delay 2", "copy, delay 20"]),
        (("copy",), ["copy, delay 2", "copy, delay 20"]),
        (("copy, delay 2",), ["copy, delay 2"]),
        (("copy, delay 2", "copy, delay 20"), ["copy, delay 2", "copy, delay 20"]),
    ],
)
def test_a_whole_title_means_that_task_alone(tasks: tuple[str, ...], made: list[str]) -> None:
    sweep = SweepConfig(tasks=tasks, cores=("gru",))
    found = study_conditions("networks", STUDIES["networks"], sweep)
    assert [part.config.title for part in found] == made


def test_a_row_may_have_fewer_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    study = STUDIES["networks"]
    few, every = replace(study.laptop[0], seeds=(1,)), study.laptop[1]  # type: ignore[type-var]
    study = replace(study, laptop=(few, every))
    monkeypatch.setitem(STUDIES, "networks", study)
    assert study.num_runs("laptop") == 2 + 4
    assert all(arm.seeds == (0,) for row in STUDIES["popgym"].laptop[-2:] for arm in row.arms())
    line = ["sweep", "networks", "--results", "results", "--jobs", "1"]
    assert cli.main(line) == 0

    def seeds() -> dict[str, list[str]]:
        made: dict[str, list[str]] = {}
        for row in read_table(Path("results/networks.csv")):
            made.setdefault(f"{row['title']}: {row['core']}", []).append(row["seed"])
        return made

    assert {title: sorted(found) for title, found in seeds().items()} == {
        f"copy, delay {delay}: {core}": found
        for delay, found in ((2, ["1"]), (20, ["0", "1"]))
        for core in ("lstm", "none")
    }
    assert cli.main([*line, "--seeds", "0", "--tasks", "copy, delay 2"]) == 0  # asked for
    assert len(seeds()["copy, delay 2: lstm"]) == 2


def test_a_core_that_is_given_twice_is_made_once() -> None:
    found = study_conditions(
        "networks", STUDIES["networks"], SweepConfig(cores=("gru", "lstm", "gru"))
    )
    assert [part.config.core for part in found] == ["gru", "lstm"] * 2


def test_conditions_with_one_label_are_refused() -> None:
    faster = replace(TINY, learning_rate=2 * TINY.learning_rate)
    study = Study(title="tiny", laptop=(Arm(TINY, ("lstm", "gru")), Arm(faster, ("gru",))))
    message = "networks has copy, delay 2 gru twice: give variants."
    with pytest.raises(ValueError, match=f"^{message}$"):
        study_conditions("networks", study, SweepConfig())
    study = replace(study, laptop=(study.laptop[0], replace(study.laptop[1], variant="faster")))
    assert len(study_conditions("networks", study, SweepConfig())) == 3


def test_runs_that_were_not_begun_are_counted_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    learn = TaskRun.learn

    def interrupted(self: TaskRun) -> None:
        learn(self)
        if self.seed == 1:  # seed 0 is done with both cores on both tasks
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TaskRun, "learn", interrupted)
    line = ["sweep", "networks", "--results", "results", "--jobs", "1"]
    assert cli.main([*line, "--seeds", "0", "1", "2", "3"]) == 130
    begun, *printed = capfd.readouterr().out.splitlines()
    assert begun == "16 runs, 1 at a time"
    assert len(printed) == 4 + 1 + 1 + 1
    assert printed[4].startswith("[5 of 16, about ")
    assert " seed 1 stopped: at " in printed[4]
    assert printed[5] == "11 of 16 runs were not started"
    assert printed[6] == "tables: results/networks.md, results/networks.csv"


def test_the_tables_are_named_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["sweep", "networks", "--jobs", "1", "--seeds", "0", "--cores", "none"]
    for _ in range(2):  # also where all runs are in them
        assert cli.main([*line, "--results", "results"]) == 0
        *_, last = capsys.readouterr().out.splitlines()
        assert last == "tables: results/networks.md, results/networks.csv"
    assert cli.main([*line, "--tier", "smoke"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    folder = "runs/networks_smoke/networks_smoke"
    assert last == f"tables: {folder}.md, {folder}.csv"


def test_tables_that_no_run_is_in_are_not_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: TaskRun) -> None:
        raise OSError("no space")

    monkeypatch.setattr(TaskRun, "learn", fail)
    line = ["sweep", "networks", "--jobs", "1", "--seeds", "0", "--results", "results"]
    assert cli.main(line) == 1
    assert "tables" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "line", ["sweep match --seeds 0", "sweep networks --seeds", "tune networks --seeds"]
)
def test_a_seed_that_is_too_large_is_refused(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main([*line.split(), "4294967296"]) == 2
    message = "rlgates: error: seed must be below 2**32, got 4294967296.\n"
    assert capsys.readouterr().err == message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("study", "core", "variants"),
    [
        (
            "adding_lengths",
            "lstm",
            [""] * 4 + ["forget bias 0"] * 4,
        ),  # not the rows in which GATO lacks a part
        ("adding_lengths", "gato", [""] * 4 + ["s' = 0", "s' = increment"]),
        ("adding_lengths", "lru", [""] * 4),
        ("match", "c_lstm", ["", ""]),  # without A2C, where the study does not have it
        ("match", "om_gru", [""] * 4),
        ("rru_ablation", "lstm", [""]),
    ],
)
def test_a_chosen_core_is_in_the_rows_that_are_about_it(
    study: str, core: str, variants: list[str]
) -> None:
    arms = STUDIES[study].arms("laptop", (core,))
    assert [arm.variant for arm in arms] == variants
    assert {arm.cores for arm in arms} == {(core,)}


def test_a_core_that_fits_no_row_is_refused() -> None:
    only = Study(title="one", laptop=(Arm(TINY, ("lstm",), {"lstm": {"forget_bias": 3.0}}),))
    with pytest.raises(ValueError, match="the study compares lstm, not 'gru'"):
        only.arms("laptop", ("gru",))
