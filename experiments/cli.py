"""The `rlgates` command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import rlgates
from rlgates.cores import CORES, core_names
from rlgates.experiments import study_commands
from rlgates.experiments.bench_command import bench
from rlgates.experiments.configs import (
    PRESETS,
    LearningConfig,
    Pairs,
    TrainConfig,
    fitting,
    laid_over,
)
from rlgates.experiments.configs import preset as find_preset
from rlgates.experiments.exits import FAILED, FINISHED, INTERRUPTED, WRONG, command, exit_code
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_tiers import Tier, over_tier, tier_base
from rlgates.gates import GATES
from rlgates.tasks import TASKS
from rlgates.tasks.data import use_data

if TYPE_CHECKING:
    from rlgates.experiments.jobs import Outcome

PresetName = Annotated[str, tyro.conf.arg(metavar="{" + ",".join(PRESETS) + "}")]
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, and return its exit code.

    0: done. 1: a run failed, or the demonstration did not reach its goal. 2: a wrong command
    line or config, or a file that cannot be read or written. 130: stopped by Ctrl-C or SIGTERM;
    the same command goes on.
    """
    words = sys.argv[1:] if words is None else list(words)
    if words in (["--version"], ["-V"]):
        print(f"rlgates {rlgates.__version__}")
        return FINISHED
    try:
        code: int = _app(words).cli(
            prog="rlgates",
            description="Memory cores for agents: train them, compare them, draw the curves.",
            args=words,
        )
        return code
    except (ValueError, OSError) as error:
        print(f"rlgates: error: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED


def _app(words: Sequence[str]) -> tyro.extras.SubcommandApp:
    """The commands; what they do by default depends on the preset or task that `words` name."""
    given = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    given.add_argument("--preset", default="default")
    given.add_argument("--smoke", action="store_true")
    known, _ = given.parse_known_args(words)
    base = PRESETS.get(known.preset, TrainConfig())
    show = find_preset("demo-smoke" if known.smoke else "demo")
    app = tyro.extras.SubcommandApp()

    @app.command(name="train")
    def train(
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = base,
        preset: PresetName = "default",
    ) -> int:
        """Train a core, one run for each seed, and see what it reaches.

        A run that was stopped goes on where it was when the command is given again.

        Args:
            preset: settings to begin with; the other options are laid over it.
        """
        find_preset(preset)
        return exit_code(_outcomes(base, config))

    @app.command(name="demo")
    def demo(
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = show, smoke: bool = False
    ) -> int:
        """Train `ur_lstm` on Passive Match within ten minutes: is memory worth it?

        Args:
            smoke: only see that everything runs, in seconds; nothing is learned.
        """
        return _demo(show, config, learn=not smoke)

    task_base = tier_base(words)

    @app.command(name="task")
    def task(
        name: tyro.conf.Positional[str] = "",
        config: Annotated[SupervisedConfig, tyro.conf.arg(name="")] = task_base,
        tier: Tier = "laptop",
        protocol: str | None = None,
        seeds: tuple[int, ...] = (0,),
        jobs: int = 1,
        data_dir: Path | None = None,
        list: bool = False,
    ) -> int:
        """Train a core on a supervised task, and see what it reaches beside published figures.

        A run that was stopped goes on where it was when the command is given again.

        Args:
            name: of the task; --list shows all.
            tier: settings to begin with: to see that it runs, for minutes, or as in the papers.
            protocol: that of one paper, such as "adding-gato-750"; None: the first.
            seeds: one run for each seed.
            jobs: runs at a time, each in a process of its own.
            data_dir: the folder of the data sets, one folder a set; by default that of
                RLGATES_DATA.
            list: show the tasks, with their settings and metrics.
        """
        from rlgates.errors import check_seeds
        from rlgates.experiments.jobs import Job
        from rlgates.experiments.supervised_protocols import about
        from rlgates.experiments.workers import run_all

        if list:
            print("\n".join(_tasks()))
            return FINISHED
        config = over_tier(name, task_base, config)
        check_seeds(seeds)
        use_data(data_dir)
        if tier == "full" or protocol is not None:
            print("\n".join(about(name, protocol, config.core)))
        return exit_code(run_all([Job(config, seed) for seed in seeds], jobs))

    app.command(name="sweep")(study_commands.sweep)
    app.command(name="ledger")(study_commands.ledger)
    app.command(name="tune")(study_commands.tune)
    app.command(name="figures")(study_commands.figures)
    app.command(name="gates")(_gates)
    app.command(name="analyse")(_analyse)
    app.command(name="film")(_film)
    app.command(name="play")(_play)
    app.command(name="cores")(_cores)
    app.command(name="bench")(bench)
    app.command(name="compare")(_compare)
    return app


def _outcomes(base: TrainConfig, config: TrainConfig) -> list[Outcome]:
    """Make the runs of a config, its settings laid over those of the preset."""
    from rlgates.experiments.jobs import Job
    from rlgates.experiments.workers import run_all

    settings = base.env_settings if config.env == base.env else {}
    if config.env_settings is not base.env_settings:
        settings = laid_over(settings, config.env_settings)
    options = fitting(base.core_options, config.core)
    if config.core_options is not base.core_options:
        options = laid_over(options, config.core_options)
    config = replace(config, env_settings=settings, core_options=options)
    return run_all([Job(config, seed) for seed in config.seeds], config.jobs)


def _demo(base: TrainConfig, config: TrainConfig, learn: bool) -> int:
    time = f", at most {config.max_minutes:g} minutes" if config.max_minutes else ""
    print(f"training {config.core} on {config.env}{time}; Ctrl-C saves, the same command goes on")
    outcomes = _outcomes(base, config)
    print(f"curves: {command('tensorboard')} --logdir {shlex.quote(config.folder)}")
    code = exit_code(outcomes)
    if code != FINISHED or not learn:
        return code
    from rlgates.experiments.train import GOAL

    worst = min(outcome.result.success for outcome in outcomes if outcome.result)
    if worst >= GOAL:
        print(f"The goal, {GOAL:.2f}, is reached: the agent remembers.")
        return FINISHED
    print(
        f"The goal, {GOAL:.2f}, was not reached: {worst:.2f}. Some seeds need longer; "
        f"try `{command('rlgates')} demo --seeds 2`, or more --max-minutes in another --folder."
    )
    return FAILED


def _tasks() -> list[str]:
    """A line for each task: its name, its settings, its metric and what it is."""
    lines = []
    for name, task in TASKS.items():
        words = (task.__doc__ or "").strip().partition("\n")[0]
        settings = " ".join(task.settings) or "-"
        lines.append(f"{name:<18} {settings:<24} {task.metric:<12} {words}")
    return lines


def _gates(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional], to: Path = Path("gates.png")
) -> int:
    """Draw the forget gates of finished runs before and after training, one panel a core.

    Args:
        folders: of the runs, such as runs/PassiveMatch-15-30-15-ur_lstm/seed-0.
        to: the picture to write.
    """
    from rlgates.experiments.gate_runs import draw_runs

    if not draw_runs(folders, to):
        raise ValueError("none of these runs has a core with forget gates.")
    print(to)
    return FINISHED


def _analyse(study: tyro.conf.Positional[str], results: Path = Path("experiments/results")) -> int:
    """Draw what is known of gates without training: how they saturate, what refining does.

    Args:
        study: "saturation" (Ohno et al. 2022, figures 2 and 8) or "gates" (Gu et al. 2020,
            figure 2).
        results: folder for the CSV files and pictures.
    """
    from rlgates.experiments.analysis import analyse

    for path in analyse(study, results):
        print(path)
    return FINISHED


def _film(
    folder: tyro.conf.Positional[Path],
    out: Path | None = None,
    episodes: int = 1,
    fps: float = 8.0,
) -> int:
    """Film the trained agent of a finished run at play, with its gates below the picture.

    Args:
        folder: of the run, such as runs/PassiveMatch-15-30-15-ur_lstm/seed-0.
        out: the film, a .gif, or an .mp4 if ffmpeg is installed; by default film.gif in the folder.
        episodes: fresh episodes to be played.
        fps: steps a second.
    """
    from rlgates.experiments.film import film

    print(film(folder, out, episodes, fps))
    return FINISHED


def _play(
    env: tyro.conf.Positional[str],
    env_settings: Pairs = NO_SETTINGS,
    preset: str | None = None,
    seed: int | None = None,
    board: bool = False,
) -> int:
    """Play an environment with the keyboard: arrows or WASD for moves, else the number keys.

    You see what an agent sees. R starts the next episode, Q or Esc ends the game.

    Args:
        env: id, such as rlgates/PassiveMatch-v0.
        env_settings: settings of the environment.
        preset: published settings of the environment to begin with.
        seed: of the first episode; by default another one each time.
        board: show the whole board, too.
    """
    from rlgates.experiments.play import play

    try:
        play(env, env_settings, preset=preset, seed=seed, board=board)
    except (ImportError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    return FINISHED


def _cores() -> int:
    """List the memory cores that can be named."""
    for name, (core, gate) in core_names().items():
        row = CORES[core]
        words, source = (row.title, row.source)
        if row.gates:
            words = f"{row.title}, {GATES[gate].title}"
            source = "; ".join(dict.fromkeys((row.source, GATES[gate].source)))
        print(f"{name:<14} {words:<40} {source}".rstrip())
    return FINISHED


def _compare(config: Annotated[LearningConfig, tyro.conf.arg(name="")]) -> int:
    """Train agents of rlgates and of sb3-contrib on the same tasks, and draw the curves."""
    from rlgates.experiments.learning import run_learning

    return run_learning(config)


if __name__ == "__main__":
    sys.exit(main())
