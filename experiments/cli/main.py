"""The `rlgates` command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import tyro

import rlgates
from rlgates.errors import UnknownCore, check_choice, check_seeds
from rlgates.experiments.cli import studies as study_commands
from rlgates.experiments.cli import train as train_commands
from rlgates.experiments.cli.bench import bench
from rlgates.experiments.cli.completion import completion_script
from rlgates.experiments.cli.config_file import over_base, read_config_file
from rlgates.experiments.cli.convert import convert
from rlgates.experiments.cli.doctor import doctor
from rlgates.experiments.cli.exits import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    WRONG,
    command,
    exit_code,
)
from rlgates.experiments.cli.help import MAIN, short_help
from rlgates.experiments.cli.options import Command, call
from rlgates.experiments.cli.together import TOGETHER, only_first_prints, processes
from rlgates.experiments.configs.agent import SUCCESS_THRESHOLD, AgentConfig
from rlgates.experiments.configs.base import Pairs
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.modules import without_module
from rlgates.experiments.configs.presets import preset as find_preset
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import Tier, over_tier, tier_base
from rlgates.experiments.tasks import TASKS
from rlgates.experiments.tasks.data.files import set_data_dir
from rlgates.gates import GATES
from rlgates.registry import ALIASES, CORES, core_names

PresetName = Annotated[str, tyro.conf.arg(metavar="{" + ",".join(train_commands.ALL_PRESETS) + "}")]
ConfigFile = Annotated[Path | None, tyro.conf.arg(name="config")]
DESCRIPTION = (
    "Memory cores for agents: train them, compare them, plot the results. "
    "`rlgates --version` prints the version, `rlgates --print-completion bash` a script for tab "
    "completion."
)
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    0: done. 1: a run failed, or the demo did not reach its goal. 2: an invalid command line or
    config, or a file that cannot be read or written. 130: stopped by Ctrl-C or SIGTERM; the same
    command continues.
    """
    words = sys.argv[1:] if words is None else list(words)
    try:
        try:
            with only_first_prints():
                return _main(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # as of `rlgates task --list | head`: nobody reads on
        # At its end Python flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        makes_runs = words[:1] and words[0] in RUNNING and not {"--list", "--help"} & set(words)
        return INTERRUPTED if makes_runs else FINISHED


def _main(words: list[str]) -> int:
    """`main` without the end of its output."""
    if words in (["--version"], ["-V"]):
        print(f"rlgates {rlgates.__version__}")
        return FINISHED
    try:
        words = [_current_option(word) for word in _current_command(words or ["--help"])]
        words = _import_core(words)
        if processes() > 1 and words[:1] and words[0] not in TOGETHER:
            raise ValueError(
                f"{words[0]} cannot run in {processes()} processes: start it without torchrun. "
                f"Those that can: {', '.join(TOGETHER)}."
            )
        _check_values(words)
        if words[:1] and words[0] in MAIN and {"-h", "--help"} & {*words}:
            print(short_help(words[0], _base(words)))
            return FINISHED
        words = ["--help" if word == "--help-all" else word for word in words]
        commands = make_commands(words)
        if words[0] == "--print-completion" and "--help" not in words:
            print(completion_script(commands, " ".join(words[1:])), end="")
            return FINISHED
        if words[0] in ("-h", "--help", "--print-completion"):
            tyro.extras.subcommand_cli_from_dict(
                commands, prog="rlgates", description=DESCRIPTION, args=["--help"]
            )
        name = check_choice("command", words[0], commands)
        return call(name, commands[name], words[1:])
    except BrokenPipeError:
        raise
    except UnknownCore as error:
        print(
            f"rlgates: error: {error.brief} `rlgates cores` lists them; for your own core, put the "
            "module that registers it in front: my_module:my_core.",
            file=sys.stderr,
        )
        return WRONG
    except (ValueError, OSError) as error:
        print(f"rlgates: error: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if _follows_interrupt(error):
            return INTERRUPTED
        raise


def _follows_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: modes of torch may fail as they are left because of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


RUNNING = ("train", "demo", "task", "sweep", "tune")  # commands that make runs
# Options of several values, of which none would mean all of them.
WITH_VALUES = ("--seeds", "--cores", "--tasks", "--parameters")
RENAMED_OPTIONS = {"--save-minutes": "--checkpoint-minutes", "--to": "--out"}


def _current_command(words: list[str]) -> list[str]:
    """The command line, with `sweep learning` for its former name."""
    if words[:1] != ["compare"]:
        return words
    print("rlgates: warning: compare is now sweep learning", file=sys.stderr)
    return ["sweep", "learning", *words[1:]]


def _current_option(word: str) -> str:
    """A word of the command line, with the current name of a renamed option."""
    name, equals, value = word.partition("=")
    option = name.replace("_", "-")
    if option == "--checkpoint-every":
        raise ValueError("--checkpoint-every was removed: use --checkpoint-minutes, a time.")
    if option not in RENAMED_OPTIONS:
        return word
    print(f"rlgates: warning: {name} is now {RENAMED_OPTIONS[option]}", file=sys.stderr)
    return RENAMED_OPTIONS[option] + equals + value


def _import_core(words: Sequence[str]) -> list[str]:
    """The command line with `my_core` for `--core my_module:my_core`; imports the module."""
    if words[0] not in ("train", "demo", "task"):
        return [*words]
    imported = []
    for before, word in pairwise(["", *words]):
        option, equals, value = word.partition("=")
        if before == "--core":
            word = without_module(word)
        elif option == "--core" and equals:
            word = f"--core={without_module(value)}"
        imported.append(word)
    return imported


def _check_values(words: Sequence[str]) -> None:
    """Raise ValueError for an option of `WITH_VALUES` without one."""
    for word, following in pairwise([*words, "--"]):
        if word in WITH_VALUES and following.startswith("--"):
            raise ValueError(f"{word} needs one value or more; leave it out for the default.")


def _base(words: Sequence[str]) -> AgentConfig | GymConfig | TaskConfig:
    """The config whose values are the defaults of the command in `words`."""
    if words[0] == "task":
        return _task_base(words)
    if words[0] == "demo":
        return find_preset("demo-smoke" if "--smoke" in words else "demo")
    return train_commands.train_base(words)


def _task_base(words: Sequence[str]) -> TaskConfig:
    """The config of a task, of its tier or of a run's manifest."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--config", "--tier", "--protocol"):
        parser.add_argument(option, nargs="?")
    known, _ = parser.parse_known_args(words)
    file = known.config
    if words[:1] != ["task"] or file is None:
        return tier_base(words)
    for option in ("tier", "protocol"):
        if getattr(known, option) is not None:
            raise ValueError(f"--config and --{option} exclude each other: choose one.")
    config = read_config_file(Path(file)) if file.endswith(".json") else None
    if not isinstance(config, TaskConfig):
        raise ValueError(f"{file} is not the manifest.json of a run of `rlgates task`.")
    return config


def make_commands(words: Sequence[str]) -> dict[str, Command]:
    """The commands by name; their defaults depend on the preset or task in `words`."""
    base = train_commands.train_base(words)
    if words[:1] == ["train"]:
        train_commands.check_options(words, base)
    demo_base = find_preset("demo-smoke" if "--smoke" in words else "demo")

    def train(config: Any = base, preset: PresetName = "default", file: ConfigFile = None) -> int:
        """Train an agent with a core in any environment of gymnasium, and evaluate it.

        One run for each seed. The same command continues a stopped run.

        Args:
            preset: Default settings, which the other options override.
            file: Default settings: a .toml that `rlgates init` wrote, or a run's manifest.json.
        """
        train_commands.find_preset(preset)
        return train_commands.train(base, config)

    # The fields are those of the config for the environment in `words`.
    train.__annotations__["config"] = Annotated[type(base), tyro.conf.arg(name="")]

    def demo(
        config: Annotated[AgentConfig, tyro.conf.arg(name="")] = demo_base, smoke: bool = False
    ) -> int:
        """Train `ur_lstm` on Passive Match for at most ten minutes.

        Args:
            smoke: Only check, in seconds, that everything runs; nothing is learned.
        """
        return _demo(demo_base, config, learn=not smoke)

    task_base = _task_base(words)

    def task(
        name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")] = "",
        config: Annotated[TaskConfig, tyro.conf.arg(name="")] = task_base,
        tier: Tier = "laptop",
        protocol: str | None = None,
        data_dir: Path | None = None,
        file: ConfigFile = None,
        list: bool = False,
    ) -> int:
        """Train a core on a supervised task, and compare it with published results.

        The same command continues a stopped run.

        Args:
            name: Name of the task; --list shows all.
            tier: Default settings: smoke takes seconds, laptop minutes, full is as published.
            protocol: The protocol of one paper, such as "adding-gato-750"; None: the first.
            data_dir: Folder of the data sets, with a folder for each; RLGATES_DATA by default.
            file: A run's manifest.json, whose settings replace those of the tier.
            list: List the tasks with their settings and metrics.
        """
        from rlgates.experiments.configs.protocols import describe_protocol

        if list:
            print("\n".join(_tasks()))
            return FINISHED
        if file is not None and name not in ("", task_base.task):
            raise ValueError(f"{file} is of the task {task_base.task!r}, not {name!r}.")
        config = over_tier(name or task_base.task, task_base, config)
        check_seeds(config.seeds)
        set_data_dir(data_dir)
        if tier == "full" or protocol is not None:
            print("\n".join(describe_protocol(config.task, protocol, config.core)))
        return exit_code(train_commands.run_seeds(config))

    return {
        "train": train,
        "demo": demo,
        "task": task,
        "sweep": study_commands.sweep,
        "ledger": study_commands.ledger,
        "tune": study_commands.tune,
        "figures": study_commands.figures,
        "gates": _gates,
        "analyse": _analyse,
        "eval": train_commands.evaluate,
        "film": train_commands.film,
        "export": train_commands.export,
        "init": train_commands.init,
        "convert": convert,
        "play": _play,
        "cores": _cores,
        "bench": bench,
        "doctor": doctor,
    }


def _demo(base: AgentConfig, config: AgentConfig, learn: bool) -> int:
    time = f", at most {config.max_minutes:g} minutes" if config.max_minutes else ""
    print(f"training {config.core} on {config.env}{time}; Ctrl-C saves, the same command resumes")
    results = train_commands.run_seeds(over_base(base, config))
    print(f"curves: {command('tensorboard')} --logdir {shlex.quote(config.folder)}")
    code = exit_code(results)
    if code != FINISHED or not learn:
        return code
    worst = min(result.result.success for result in results if result.result)
    if worst >= SUCCESS_THRESHOLD:
        print(f"The agent reached the goal of {SUCCESS_THRESHOLD:.2f}: it remembers.")
        return FINISHED
    print(
        f"The agent reached {worst:.2f}, not the goal of {SUCCESS_THRESHOLD:.2f}. Some seeds need "
        f"longer; try `{command('rlgates')} demo --seeds 2`, or more --max-minutes in another "
        "--folder."
    )
    return FAILED


def _tasks() -> list[str]:
    """A line for each task: name, settings, metric and description."""
    rows = [
        (name, " ".join(task.settings) or "-", task.metric, (task.__doc__ or "").split("\n")[0])
        for name, task in TASKS.items()
    ]
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, whose columns are as wide as their longest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _gates(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional], out: Path = Path("gates.png")
) -> int:
    """Draw the forget gates of finished runs in environments of rlgates, before and after training.

    Args:
        folders: Run folders, such as runs/PassiveMatch-15-30-15-ur_lstm/seed-0.
        out: The PNG to write.
    """
    from rlgates.experiments.runs.agent.gates import draw_runs
    from rlgates.experiments.runs.files import check_folder

    check_folder("out", out.parent)
    if not folders:
        raise ValueError(
            "name one or more run folders, such as runs/PassiveMatch-15-30-15-ur_lstm/seed-0."
        )
    if not draw_runs(folders, out):
        raise ValueError("none of these runs has a core with forget gates.")
    print(out)
    return FINISHED


def _analyse(
    analysis: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ANALYSIS")],
    results: Path = Path("experiments/results"),
) -> int:
    """Draw analyses of gates without training: saturation, and the effect of refine gates.

    Args:
        analysis: "saturation" (Ohno et al. 2022, figure 2) or "gates" (Gu et al. 2020, figure 2).
        results: Folder for the CSV files and figures.
    """
    from rlgates.experiments.report.outputs import analyse

    for path in analyse(analysis, results):
        print(path)
    return FINISHED


def _play(
    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")],
    env_settings: Pairs = NO_SETTINGS,
    preset: str | None = None,
    seed: int | None = None,
    board: bool = False,
) -> int:
    """Play an environment with the keyboard: arrows or WASD for moves, else the number keys.

    The window shows the observation of the agent. R starts the next episode, Q or Esc quits.

    Args:
        env: Environment id, such as rlgates/PassiveMatch-v0; of your own, my_module:me/Env-v0.
        env_settings: Settings of the environment.
        preset: Published settings of the environment, which env-settings override.
        seed: Seed of the first episode; random by default.
        board: Show the whole board as well.
    """
    from rlgates.experiments.show.play import play

    try:
        play(env, env_settings, preset=preset, seed=seed, board=board)
    except (ImportError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    return FINISHED


def _cores() -> int:
    """List the memory cores."""
    rows = []
    for name, (core, gate) in core_names().items():
        row = CORES[core]
        words, source = (row.title, row.source)
        if row.gates:
            words = f"{row.title}, {GATES[gate].title}"
            source = "; ".join(dict.fromkeys((row.source, GATES[gate].source)))
        rows.append((name, words, source))
    rows += [(alias, f"another name of {name}", "") for alias, name in ALIASES.items()]
    print("\n".join(_aligned(rows)))
    return FINISHED
