"""What is written down about a run, so that it can be made again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.files import read_json, write_json

PACKAGES = ("rlgates", "torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib")


def manifest_path(folder: Path) -> Path:
    """Where the manifest of a run is."""
    return folder / "manifest.json"


def begin(folder: Path, config: Mapping[str, Any], seed: int, at: int, threads: int) -> None:
    """Write the manifest of a run that starts, or goes on.

    Args:
        folder: of the run.
        config: as JSON has it.
        seed: of the run.
        at: step or update at which it goes on.
        threads: CPU threads.
    """
    path = manifest_path(folder)
    session = {
        "start": now(),
        "from_step": at,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "threads": threads,
        "versions": versions(),
        "git": git_state(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }
    before = read_json(path) if at else None
    sessions = [*(before["sessions"] if before else []), session]
    content = {"status": "running", "config": dict(config), "seed": seed, "sessions": sessions}
    write_json(path, content)


def end(folder: Path, status: str, **facts: Any) -> None:
    """Write down how a session ended: "finished", "interrupted" or "failed"."""
    path = manifest_path(folder)
    content = read_json(path) or {"sessions": [{}]}
    content["status"] = status
    content["sessions"][-1]["end"] = now()
    write_json(path, {**content, **facts})


def digest(settings: Mapping[str, Any]) -> str:
    """A few letters that differ when settings do, whatever their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def last_session(folder: Path) -> dict[str, Any]:
    """What the numbers of a run depend on besides its config, for a row of a table.

    A run that went on at another commit has both.
    """
    sessions = read_json(manifest_path(folder))["sessions"]
    last = sessions[-1]
    machine = {name: last[name] for name in ("cpus", "threads")}
    found = [session["git"] for session in sessions if session["git"]]
    commits = " ".join(dict.fromkeys(git["commit"] for git in found))
    dirty = any(git["dirty"] for git in found) if found else ""
    return {"commit": commits, "dirty": dirty, **machine, **last["versions"]}


def plain(config: TrainConfig) -> dict[str, Any]:
    """The config as JSON has it: mappings, lists, numbers and text."""
    values: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(config).items()
    }
    if config.algo == "ppo":  # all that earlier versions had
        del values["algo"]
    for key in ("env_settings", "core_options"):
        values[key] = {
            name: list(item) if isinstance(item, tuple) else item
            for name, item in values[key].items()
        }
    return values


def read_config(folder: Path) -> tuple[TrainConfig, int]:
    """The config and the seed of the run in `folder`.

    Raises:
        ValueError: there is no run, or one of another version of rlgates.
    """
    found: dict[str, Any] | None = read_json(manifest_path(folder))
    if found is None or "config" not in found:
        raise ValueError(f"{folder} holds no run: it has no manifest.json with a config.")
    values = {key: _immutable(value) for key, value in found["config"].items()}
    for key in ("env_settings", "core_options"):
        values[key] = {name: _immutable(item) for name, item in values[key].items()}
    try:
        return TrainConfig(**values), found["seed"]
    except TypeError as error:
        raise ValueError(f"{folder} holds a run of another version of rlgates: {error}.") from error


def _immutable(value: Any) -> Any:
    """JSON has lists in place of tuples."""
    return tuple(value) if isinstance(value, list) else value


def result_of(
    folder: Path, config: Mapping[str, Any], seed: int, besides: Iterable[str] = ()
) -> dict[str, Any] | None:
    """The result of the run in `folder`; None if there is no run, or it is not finished.

    Raises:
        ValueError: it is a run with another config; the message names what differs, apart from
            the settings `besides`.
    """
    found: dict[str, Any] | None = read_json(manifest_path(folder))
    if found is None or "config" not in found:
        return None
    then, today = {**found["config"], "seed": found["seed"]}, {**config, "seed": seed}
    same_settings(folder, then, today, besides)
    result: dict[str, Any] | None = found["result"] if found["status"] == "finished" else None
    return result


def same_settings(
    folder: Path, then: Mapping[str, Any], now: Mapping[str, Any], besides: Iterable[str] = ()
) -> None:
    """Refuse to go on in a folder whose run had other settings.

    Raises:
        ValueError: with what differs, apart from the settings `besides`.
    """
    different = [
        f"{key} was {then.get(key, 'as usual')!r} and is now {now.get(key, 'as usual')!r}"
        for key in sorted({*then, *now} - {*besides})
        if then.get(key) != now.get(key)
    ]
    if different:
        raise ValueError(
            f"{folder} holds a run with another config: {'; '.join(different)}. "
            "Choose another --folder, or remove that one."
        )


def versions() -> dict[str, str]:
    """Python and the packages that the numbers depend on."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages}


def git_state() -> dict[str, Any] | None:
    """The commit of the checkout that this code runs from, and whether it has changes."""

    def git(*words: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        return run.stdout.strip()

    # An installed copy may lie inside somebody else's checkout.
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = git("rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(git("status", "--porcelain"))} if commit else None


def now() -> str:
    """The time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
