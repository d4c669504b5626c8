"""`rlgates train` and `init`, and what is done with a run: `eval`, `film`, `export`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rlgates.errors import suggestion
from rlgates.experiments.cli.config_file import (
    TrainConfig,
    config_text,
    default_config,
    for_env,
    over_base,
    read_config_file,
)
from rlgates.experiments.cli.exits import FINISHED, exit_code
from rlgates.experiments.cli.together import process_group
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.gym_presets import GYM_PRESETS
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.configs.task import TaskConfig
from rlgates.registry import core_modules

if TYPE_CHECKING:
    from rlgates.experiments.runs.jobs import JobResult

ALL_PRESETS: dict[str, TrainConfig] = {**PRESETS, **GYM_PRESETS}
RunFolder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]


def train_base(words: Sequence[str]) -> TrainConfig:
    """The config that the command line `train ...` starts from: of a file, a preset, or an id.

    Raises:
        ValueError: as `read_config_file`; a file of a run of another command, or with a preset.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--preset", "--config", "--env"):
        parser.add_argument(option)
    if words[:1] != ["train"]:
        return AgentConfig()
    try:
        known, _ = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ValueError(f"{error}.") from error
    base: TrainConfig = ALL_PRESETS.get(known.preset or "default", AgentConfig())
    source = f"the preset {known.preset!r}" if known.preset in ALL_PRESETS else known.config
    if known.config is not None:
        if known.preset is not None:
            raise ValueError("--config and --preset exclude each other: choose one.")
        read = read_config_file(Path(known.config))
        if not isinstance(read, AgentConfig | GymConfig):
            raise ValueError(f"{known.config} belongs to a run of `rlgates task`, not of `train`.")
        base = read
    env_id = known.env or base.env
    if _fit(base, env_id):
        return for_env(base, env_id)
    if source is not None:
        raise _misfit(source, base, env_id)
    return default_config(env_id)


def _fit(config: TrainConfig, env_id: str) -> bool:
    """Whether an environment can be trained with such a config; any can with that of its run."""
    return env_id == config.env or isinstance(config, GymConfig) == GymConfig.takes(env_id)


def _misfit(source: str, config: TrainConfig, env_id: str) -> ValueError:
    """The error for settings of another kind of environment."""
    return ValueError(
        f"{source} is for {config.env}, but {env_id} has other settings: "
        f"`rlgates train --env {env_id} --help` shows them."
    )


def check_options(words: Sequence[str], base: TrainConfig) -> None:
    """Raise ValueError for an option of `train ...` that is for the other kind of environment."""
    other, envs = (
        (AgentConfig, "the environments of rlgates")
        if isinstance(base, GymConfig)
        else (GymConfig, "environments of other packages")
    )
    foreign = {item.name for item in fields(other)} - {item.name for item in fields(base)}
    for word in words:
        option = word.partition("=")[0]
        name = option.removeprefix("--").removeprefix("no-").replace("-", "_")
        if option.startswith("--") and name in foreign:
            raise ValueError(
                f"{option} is only for {envs}: `rlgates train --env ID --help-all` lists the "
                "options for an environment."
            )


def find_preset(name: str) -> TrainConfig:
    """The config of that name.

    Raises:
        ValueError: unknown name (the nearest are named).
    """
    if name not in ALL_PRESETS:  # too many for a message
        near = suggestion(name, ALL_PRESETS, most=3)
        raise ValueError(f"unknown preset {name!r}.{near} `rlgates train --help-all` lists them.")
    return ALL_PRESETS[name]


def run_seeds(config: TrainConfig | TaskConfig) -> list[JobResult]:
    """Make the runs of a config, one for each seed, with all processes of torchrun."""
    from rlgates.experiments.runs.jobs import Job
    from rlgates.experiments.sweep.workers import run_all

    with process_group(config.device):
        modules = tuple(core_modules(config.core))
        jobs = [Job(config, seed, modules=modules) for seed in config.seeds]
        return run_all(jobs, config.jobs)


def train(base: TrainConfig, config: TrainConfig) -> int:
    """Make the runs of `config`, whose named settings override those of `base`."""
    config = over_base(base, config)
    if isinstance(config, GymConfig):
        try:
            config.check()
        except (TypeError, ImportError) as error:
            raise ValueError(str(error)) from error
        print("\n".join(config.describe()), flush=True)
        config = config.resolved()
    return exit_code(run_seeds(config))


def init(
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")] = Path(
        "rlgates.toml"
    ),
    env: str | None = None,
    preset: str | None = None,
) -> int:
    """Write a config file with all settings and what they mean, for `rlgates train --config`.

    Args:
        file: The TOML to write.
        env: Any environment id of gymnasium; that of the preset by default.
        preset: Settings to start from.
    """
    if file.suffix != ".toml":
        raise ValueError(f"a config is a .toml, got {str(file)!r}.")
    if file.exists():
        raise ValueError(f"{file} already exists: remove it, or choose another name.")
    config = find_preset(preset or "default")
    if env is not None and env != config.env:
        if preset is not None and not _fit(config, env):
            raise _misfit(f"the preset {preset!r}", config, env)
        config = for_env(config, env) if preset is not None else default_config(env)
    if isinstance(config, GymConfig):
        config = config.resolved()
    else:
        config.make_spec()
    file.write_text(config_text(config), encoding="utf-8")
    print(file)
    return FINISHED


def evaluate(
    run: RunFolder,
    episodes: int = 100,
    best: bool = False,
    seed: int | None = None,
    deterministic: bool | None = None,
) -> int:
    """Evaluate the agent of a finished run on fresh episodes.

    Args:
        run: Run folder, such as runs/CartPole-v1-ppo-ur_lstm/seed-0.
        episodes: Number of episodes.
        best: Take the agent of the best evaluation during training, not the last one.
        seed: Seed of the episodes; None: the episodes of the run's final evaluation.
        deterministic: Take the most likely actions; None: as in the run's evaluations.
    """
    from rlgates.experiments.runs.load import load_run

    print(load_run(run, best).evaluate(episodes, seed, deterministic))
    return FINISHED


def film(
    run: RunFolder,
    out: Path | None = None,
    episodes: int = 1,
    fps: float = 8.0,
    best: bool = False,
) -> int:
    """Film the trained agent of a finished run, with its forget gates below the image.

    Args:
        run: Run folder, such as runs/PassiveMatch-15-30-15-ur_lstm/seed-0.
        out: The file, .gif or .mp4 (needs ffmpeg); film.gif in the run folder by default.
        episodes: Number of fresh episodes.
        fps: Steps per second.
        best: Take the agent of the best evaluation during training, not the last one.
    """
    from rlgates.experiments.show.film import film

    print(film(run, out, episodes, fps, best))
    return FINISHED


def export(
    run: RunFolder,
    out: Path | None = None,
    best: bool = False,
    deterministic: bool = True,
) -> int:
    """Export one step of the agent of a finished run to ONNX, with its state as input and output.

    Args:
        run: Run folder, such as runs/CartPole-v1-ppo-ur_lstm/seed-0.
        out: The file; model.onnx in the run folder by default.
        best: Take the agent of the best evaluation during training, not the last one.
        deterministic: Take the most likely actions; else sample them from the input `noise`.
    """
    from rlgates.agents import export_onnx
    from rlgates.experiments.runs.load import load_run

    loaded = load_run(run, best)
    out = run / "model.onnx" if out is None else out
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        print(export_onnx(loaded.model, out, deterministic))
    except ImportError as error:
        raise ValueError(str(error)) from error
    if (statistics := loaded.file.with_suffix(".json")).exists():
        print(f"it expects observations clip((x - mean) / sqrt(var + epsilon)) with {statistics}")
    return FINISHED
