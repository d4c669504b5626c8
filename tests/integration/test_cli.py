"""The `rlgates` command: what it says, and its exit codes."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stable_baselines3 import PPO
from support.tiny import tiny

import rlgates
from rlgates import RecurrentPPO
from rlgates.experiments.cli import main as cli
from rlgates.experiments.configs import presets as configs
from rlgates.experiments.configs.base import override, parse_pairs
from rlgates.experiments.configs.docs import field_docs
from rlgates.experiments.configs.presets import smoke
from rlgates.experiments.runs.jobs import Job
from rlgates.experiments.runs.text import steps_text, time_text
from rlgates.experiments.sweep.config import SweepConfig
from rlgates.registry import ALIASES

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def test_version_and_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlgates {rlgates.__version__}\n"
    assert cli.main(["cores"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*rlgates.list_cores(), *ALIASES]
    assert len({len(re.split(r"(?<=  )(?=\S)", line)[0]) for line in lines}) == 1  # one column


def test_commands_start_without_the_packages_of_figures_and_statistics() -> None:
    """They would take a third of the time."""
    code = "import sys, rlgates.experiments.cli.main; print({*sys.modules})"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "'torch'" in loaded
    for package in ("matplotlib", "scipy", "sklearn", "optuna", "selenium"):
        assert f"'{package}'" not in loaded


@pytest.mark.parametrize(
    "command",
    [
        *("", "train", "demo", "sweep", "tune", "figures", "cores", "play", "film", "convert"),
        *("bench", "eval", "export", "init", "task"),
    ],
)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*command.split(), "--help-all"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: rlgates {command}".rstrip())


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: rlgates ")
    assert "--version" in printed


BASH = """
source /dev/stdin
complete_last() {
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  _tyro_rlgates
  echo "${COMPREPLY[@]}"
}
complete_last rlgates sw
complete_last rlgates task --upd
complete_last rlgates bench p
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_tab_completion(capsys: pytest.CaptureFixture[str]) -> None:
    scripts = {}
    for shell in ("bash", "zsh", "fish"):
        assert cli.main(["--print-completion", shell]) == 0
        scripts[shell] = capsys.readouterr().out
    assert len(set(scripts.values())) == 3
    assert cli.main(["--print-completion", "bahs"]) == 2
    assert "unknown shell 'bahs'. Did you mean 'bash'?" in capsys.readouterr().err
    command = ["bash", "--norc", "-c", BASH]
    bash = subprocess.run(
        command, input=scripts["bash"], capture_output=True, text=True, check=True
    )
    assert bash.stdout.splitlines() == ["sweep", "--updates", "ppo"]


def test_ctrl_c_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("trying to pop from empty mode stack")

    monkeypatch.setattr(cli, "find_preset", interrupted)
    assert cli.main(["train"]) == 130


def unread(line: str) -> tuple[int, str]:
    """Exit code and errors of a command whose output is closed at once, as by `head`."""
    command = [sys.executable, "-m", "rlgates", *line.split()]
    pipe, output = os.pipe()
    os.close(pipe)
    ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    os.close(output)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("line", ["task --list", "--version"])
def test_a_closed_pipe_is_no_error(line: str) -> None:
    assert unread(line) == (0, "")


def test_a_run_whose_output_nobody_reads_can_be_continued() -> None:
    line = "task copy --tier smoke --seeds 0 1"
    assert unread(line) == (130, "")
    assert cli.main(line.split()) == 0


@pytest.mark.parametrize(
    "line",
    ["train", "train --env CartPole-v1", "train --preset minigrid_memory", "demo", "task copy"],
)
def test_help_fits_a_screen(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = line.split()[0]
    assert cli.main([*line.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: rlgates {command} [OPTIONS]")
    assert len(printed.splitlines()) <= 30
    assert max(map(len, printed.splitlines())) <= 100
    assert f"rlgates {command} --help-all" in printed
    rows = [row for row in printed.splitlines() if row.startswith("  --")]
    own = ("--preset", "--config", "--list", "--tier")
    for row in rows:
        assert re.search(r" \[.*\]$", row) or row.split()[0] in own
    with pytest.raises(SystemExit):
        cli.main([*line.split(), "--help-all"])
    everything = capsys.readouterr().out
    for name in re.findall(r"^  (--[a-z-]+)", printed, re.MULTILINE):
        assert name in everything
    assert everything.count("\n") > 2 * printed.count("\n")


def test_without_a_name_the_defaults_of_tasks_are_those_of_copy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = []
    for line in (["task", "--help"], ["task", "copy", "--help"]):
        assert cli.main(line) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "In brackets: the default for copy." in printed[0]
    assert "  --device {cpu,cuda,auto}  " in printed[0]


def test_help_is_not_broken_where_the_lines_of_the_source_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        cli.main(["sweep", "--help"])
    printed = capsys.readouterr().out
    for text in field_docs(SweepConfig).values():
        assert f"{text} (default: " in printed


@pytest.mark.parametrize("words", [["cores"], ["train", "--help"]])
def test_output_may_be_closed_at_any_time(words: list[str]) -> None:
    command = [sys.executable, "-u", "-m", "rlgates", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        try:
            assert process.stderr.read() == b""
        except BaseException:  # of the test's time, too
            process.kill()
            raise
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train --core ur_lsmt", "unknown core 'ur_lsmt'. Did you mean 'ur_lstm'"),
        ("train --preset dmo", "unknown preset 'dmo'. Did you mean 'demo'?"),
        ("train --env-settings crop=6", "crop must be odd"),
        ("train --env-settings crop=wide", "crop must be an integer, got 'wide' (str)."),
        ("train --lr 1e-3", "has no option '--lr'. Did you mean '--learning-rate'?"),
        (
            "train --env Recall-v0",
            "If a module of yours registers it, put it in front: my_module:Rec",
        ),
        ("train --n-envs 0", "n_envs must be at least 1, got 0."),
        ("train --preset", "argument --preset: expected one argument."),
        ("train --seeds", "--seeds needs one value or more; leave it out for the default."),
        ("demo --seeds --smoke", "--seeds needs one value or more"),
        ("task copy --seeds", "--seeds needs one value or more"),
        ("sweep music --cores --seeds 1", "--cores needs one value or more"),
        ("sweep music --tasks", "--tasks needs one value or more"),
        ("tune music --parameters", "--parameters needs one value or more"),
        ("train --threads 100000", "threads must be at most 512, got 100000."),
        ("task copy --threads 100000", "threads must be at most 512, got 100000."),
        ("train --folder /proc/runs", "folder /proc/runs cannot be written to: /proc: "),
        ("task copy --folder /dev/null", "folder /dev/null cannot be written to: Not a directory"),
        ("film nowhere --out /proc/film.gif", "out /proc cannot be written to: "),
        ("film nowhere --fps nan", "fps must be finite and above 0, got nan."),
        ("gates nowhere --out /proc/gates.png", "out /proc cannot be written to: "),
        ("trian --core lstm", "unknown command 'trian'. Did you mean 'train'?"),
        ("gates", "name one or more run folders, such as runs/"),
        ("sweep", "the name of a study is needed; rlgates sweep --list shows all."),
        ("sweep musik", "unknown study 'musik'. Did you mean 'music'?"),
        ("figures --results nowhere", "no results in nowhere"),
        ("ledger --results nowhere", "no results in nowhere; `rlgates sweep` makes them."),
        ("ledger --results .", "no results in .; `rlgates sweep` makes them."),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    line: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("rlgates: error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not list(tmp_path.iterdir())


def test_doctor_says_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for package in ("torch", "gymnasium", "sb3-contrib"):
        assert f"{package} {importlib.metadata.version(package)}" in printed
    for word in ("OMP_NUM_THREADS", "native code: ", "GPUs: ", "Triton: ", "processors"):
        assert word in printed
    named = printed.partition("\ncpu, ")[2].split()
    assert set(rlgates.list_cores()) <= {*named}


def test_pairs() -> None:
    words = ["steps=30", "crop=None", "shuffle-pads=env", "apple_reward=(0,1)", "gone="]
    pairs = parse_pairs(words)
    assert pairs == {
        "steps": 30,
        "crop": None,
        "shuffle_pads": "env",
        "apple_reward": (0, 1),
        "gone": "",
    }
    assert override({"gone": 1, "steps": 2, "kept": 3}, pairs).keys() == {
        *("steps", "crop", "shuffle_pads", "apple_reward", "kept")
    }
    with pytest.raises(ValueError, match="expected NAME=VALUE, got 'steps'"):
        parse_pairs(["steps"])


def test_settings_are_laid_over_those_of_the_preset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def run_all(jobs: list[Job], _: int) -> list[object]:
        seen.extend(jobs)
        return []

    monkeypatch.setattr("rlgates.experiments.sweep.workers.run_all", run_all)
    line = (
        "train --preset study90 --env-settings num_apples=0 end_on_choice= --seeds 1 2 --core lstm"
    )
    assert cli.main([*line.split(), "--core-options", "input_scale=", "forget_bias=2"]) == 0
    assert [job.seed for job in seen] == [1, 2]
    config = seen[0].config
    assert config.env_settings == {
        "explore_steps": 15,
        "distractor_steps": 90,
        "reward_steps": 15,
        "num_apples": 0,
    }
    assert config.core_options == {"forget_bias": 2}
    assert config.core == "lstm"
    assert config.folder == configs.PRESETS["study90"].folder


def test_a_preset_of_the_environment_replaces_the_default_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Job] = []
    monkeypatch.setattr(
        "rlgates.experiments.sweep.workers.run_all", lambda jobs, _: seen.extend(jobs) or []
    )
    file = tmp_path / "long.toml"
    file.write_text('env_settings = { preset = "long" }')
    settings = "--env-settings preset=long"
    assert cli.main(f"train {settings} reward_steps=9".split()) == 0
    assert cli.main(["train", "--config", str(file)]) == 0
    assert cli.main(f"train --preset repeat {settings.replace('long', 'hard')}".split()) == 0
    assert cli.main(f"train --preset mine_sweeper {settings.replace('long', 'hard')}".split()) == 0
    assert [job.config.env_settings for job in seen] == [
        {"preset": "long", "reward_steps": 9},
        {"preset": "long"},
        {"preset": "hard"},
        {"preset": "hard", "add_previous_action": True},
    ]


@pytest.mark.parametrize("core", ["rmc", "gru"])
def test_a_core_takes_those_options_of_a_preset_that_it_has(
    core: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    monkeypatch.setattr(
        "rlgates.experiments.sweep.workers.run_all", lambda jobs, _: seen.extend(jobs) or []
    )
    assert cli.main(["train", "--core", core]) == 0
    assert cli.main(["train", "--core", core, "--core-options", "forget_bias=2"]) == 0
    given = {"input_scale": 8.0} if core == "gru" else {}
    assert [job.config.core_options for job in seen] == [given, {**given, "forget_bias": 2}]
    assert cli.main(["train", "--core", "rmcc"]) == 2
    assert "Did you mean 'rmc'" in capsys.readouterr().err


def test_demo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--smoke"]) == 0
    printed = capsys.readouterr().out
    assert f"ur_lstm on {configs.PRESETS['demo-smoke'].env_title}, seed " in printed
    assert "tensorboard --logdir runs/smoke\n" in printed
    assert len(list(Path("runs/smoke").rglob("curve.png"))) == 1


@pytest.mark.parametrize(("goal", "code"), [(0.0, 0), (0.9, 1)])
def test_demo_is_honest(
    goal: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(configs.PRESETS, "demo", tiny("runs"))
    monkeypatch.setattr(cli, "SUCCESS_THRESHOLD", goal)
    assert cli.main(["demo", "--total-steps", "56"]) == code
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert f"{'not ' if code else 'reached '}the goal of {goal:.2f}" in verdict


def test_smoke_runs_differ_from_the_real_ones_in_size_alone() -> None:
    real = configs.PRESETS["study90"]
    short = smoke(real)
    assert short.total_steps < 10**4
    assert (short.core, short.critic, short.gamma) == (real.core, real.critic, real.gamma)
    assert short.folder != real.folder


def test_numbers_as_people_read_them() -> None:
    assert [steps_text(n) for n in (56, 7_680, 1_930_000, 2.5e9)] == [
        *("56", "7.7 k", "1.9 M", "2.5 G")
    ]
    assert [time_text(s) for s in (1.25, 42, 59.7, 130, 3599.6, 3700)] == [
        *("1.2 s", "42 s", "1 min 0 s", "2 min 10 s", "1 h 0 min", "1 h 1 min")
    ]


def test_renamed_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--checkpoint-every", "3"]) == 2
    assert "--checkpoint-every was removed: use --checkpoint-minutes" in capsys.readouterr().err
    assert cli.main(["task", "copy", "--save_minutes=-3"]) == 2
    printed = capsys.readouterr().err
    assert "--save_minutes is now --checkpoint-minutes" in printed
    assert "checkpoint_minutes must be at least 0, got -3.0" in printed
    assert cli.main(["gates", "nowhere", "--to", "/proc/gates.png"]) == 2
    printed = capsys.readouterr().err
    assert "--to is now --out" in printed
    assert "out /proc cannot be written to" in printed


def test_convert_runs_code_only_if_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "agent.zip"
    source.write_bytes((Path(__file__).parents[1] / "golden" / "ppo_ur_lstm.zip").read_bytes())
    assert cli.main(["convert", str(source)]) == 2
    assert "would be unpickled, which runs the code in it: add --trust" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]
    assert cli.main(["convert", str(source), "--trust"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'agent.rlgates'}\n"
    model = RecurrentPPO.load(tmp_path / "agent.rlgates", device="cpu", safe=True)
    assert model.policy.lstm_actor.core.name == "ur_lstm"
    assert cli.main(["convert", str(source), "--trust", "--algo", "a2c"]) == 2
    assert "agent.zip" in capsys.readouterr().err
    assert cli.main(["convert", str(tmp_path / "none.zip"), "--trust"]) == 2
    missing = tmp_path / "none.zip"
    assert capsys.readouterr().err == f"rlgates: error: there is no file {missing}.\n"
    PPO("MlpPolicy", "CartPole-v1", device="cpu").save(missing)  # without a memory
    assert cli.main(["convert", str(missing), "--trust"]) == 2
    words = f"{missing} cannot be converted: the policy must be one of rlgates, such as Mlp"
    assert capsys.readouterr().err.startswith(f"rlgates: error: {words}")
    assert cli.main(["convert", str(tmp_path / "agent"), "--trust"]) == 0
    target = tmp_path / "agent.rlgates"
    assert capsys.readouterr().err == (f"rlgates: warning: {target} existed and was replaced\n")
