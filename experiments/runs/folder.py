"""The folder of a run: its lock, manifest, logs, checkpoint and result."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from stable_baselines3.common.logger import Logger

from rlgates.agents.ranks import ALONE, Ranks
from rlgates.atomic import write_atomically
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.base import RunConfig
from rlgates.experiments.configs.devices import find_device
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.identity import differences, identity, plain
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.files import (
    Damaged,
    forget_digests,
    read_json,
    record_digest,
    write_json,
)
from rlgates.experiments.runs.locks import is_locked
from rlgates.experiments.runs.provenance import now, session
from rlgates.registry import core_modules

FORMAT = 3  # of checkpoints
CONFIGS: dict[str, type[RunConfig]] = {
    config.kind: config for config in (AgentConfig, GymConfig, TaskConfig)
}
_DIGEST = hashlib.sha256().digest_size
# Keys of a manifest. One that was written for a dead process may have the first two alone.
_KEYS = {"status", "sessions", "kind", "config", "seed", "identity"}
_STATUS = ("running", "interrupted", "failed", "finished")
_LOGS = ("progress.csv", "evaluations.npz")
_RESULTS = ("model.rlgates", "model.zip", "last.pt")  # written just before a run is finished
EXTRAS = ("gates", "horizon")
"""What may be measured once a run is finished; each is a table beside its result."""
EndReason = Literal["budget", "goal", "time", "patience", "diverged"]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a finished run reached.

    Attributes:
        ended: why training ended: "budget", "goal" (it was good enough), "time", "patience" (no
            longer improving) or "diverged" (the loss, a gradient or what the network gave was not
            finite).
        seconds: training time.
        steps: training steps of the environments, or updates of a network on a task.
        best_step: when the evaluation during training was best; None: there was none.
    """

    ended: EndReason
    seconds: float
    steps: int
    best_step: int | None


ResultT = TypeVar("ResultT", bound=RunResult)


class RunFolder:
    """The folder of one run. One process at a time works in it, see `runs.locks`.

    Its files are `manifest.json`, `progress.csv` and the event files of TensorBoard, and
    `checkpoint` unless the run is finished; `SHA256SUMS` has the digests of the first two. The
    manifest has the config, its identity, the seed, a status ("running", "interrupted", "failed" or
    "finished"), and a record of each session.

    Args:
        config: of the run.
        seed: of the run.
        ranks: that make the run together; on all but the first, nothing is written.
    """

    def __init__(self, config: RunConfig, seed: int, ranks: Ranks = ALONE) -> None:
        self.config, self.seed, self.ranks = config, seed, ranks
        self.path = config.run_folder(seed)

    @property
    def manifest(self) -> Path:
        """The manifest."""
        return self.path / "manifest.json"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint; it exists while the run is not finished, or could have more time."""
        return self.path / "checkpoint"

    @property
    def identity(self) -> dict[str, Any]:
        """The settings and the seed that identify this run."""
        return {**identity(self.config), "seed": self.seed}

    @property
    def is_locked(self) -> bool:
        """Whether a process is working in the folder."""
        return is_locked(self.path)

    def result(self, kind: type[ResultT]) -> ResultT | None:
        """The result of the run, of that kind; None if it is not finished.

        A run that its time limit ended is not, once the config has a higher one.

        Raises:
            Damaged: the manifest is, or it is missing although there are results.
            ValueError: the folder holds a run with another config; the differences are named.
        """
        manifest = read_manifest(self.path)
        if manifest is None and (made := [n for n in _RESULTS if (self.path / n).exists()]):
            raise Damaged(
                f"{self.path} has {made[0]}, but its manifest.json is missing. Put it back, or "
                "remove the folder to start again."
            )
        if manifest is None or "identity" not in manifest:
            return None
        self._check_same("run", manifest["identity"])
        if manifest["status"] != "finished":
            return None
        try:
            result = kind(**_immutable(manifest["result"]))
            then, now = manifest["config"].get("max_minutes"), self.config.max_minutes
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged(
                f"{self.manifest} is damaged: its result does not have the right fields "
                f"({error}). Put it back."
            ) from error
        has_more = then is not None and (now is None or now > then)
        continues = result.ended == "time" and has_more and self.checkpoint.exists()
        return None if continues else result

    def begin(self, step: int) -> None:
        """Write the manifest of a run that starts, or continues at a step."""
        if not self.ranks.is_first:
            return
        # Of a process that was killed while it wrote a file, and of the agent or network before
        # its training went on.
        for left in (*self.path.glob("*.tmp"), *(self.path / f"{name}.csv" for name in EXTRAS)):
            left.unlink(missing_ok=True)
        manifest = read_manifest(self.path) if step else None
        new = session(step, self.config.threads, find_device(self.config.device), self.ranks.size)
        if modules := core_modules(self.config.core):
            new["modules"] = modules
        content = {
            "status": "running",
            "kind": self.config.kind,
            "config": plain(asdict(self.config)),
            "seed": self.seed,
            "identity": self.identity,
            "sessions": [*(manifest["sessions"] if manifest else []), new],
        }
        write_json(self.manifest, content)

    def end(self, status: str, **facts: Any) -> None:
        """Record how a session ended: "finished", "interrupted" or "failed"."""
        if not self.ranks.is_first:
            return
        content = read_manifest(self.path) or {"sessions": [{}]}
        content["status"] = status
        content["sessions"][-1]["end"] = now()
        write_json(self.manifest, {**content, **facts})

    def finish(self, result: RunResult, *, keep_checkpoint: bool = False) -> None:
        """Record the result, and remove the checkpoint unless more time would change it."""
        if not self.ranks.is_first:
            return
        for name in _LOGS:
            if (self.path / name).exists():
                record_digest(self.path / name)
        self.end("finished", result=asdict(result))
        if not keep_checkpoint and result.ended != "time":
            self.checkpoint.unlink(missing_ok=True)

    def provenance(self) -> dict[str, Any]:
        """What the numbers depend on besides the config, as columns of a table.

        A run that continued at another commit has both.
        """
        sessions = read_json(self.manifest)["sessions"]
        last = sessions[-1]
        machine = {name: last[name] for name in ("cpus", "threads", "cpu", "isa", "device")}
        machine["blas"] = last.get("blas", "")  # of a run that began before it was noted
        states = [one["git"] for one in sessions if one["git"]]
        commits = " ".join(dict.fromkeys(git["commit"] for git in states))
        dirty = any(git["dirty"] for git in states) if states else ""
        return {"commit": commits, "dirty": dirty, **machine, **last["versions"]}

    def open_logs(self, saved: Mapping[str, Any] | None) -> Logger:
        """The logger of the run; what was logged after the checkpoint `saved` is removed."""
        if not self.ranks.is_first:
            return Logger(None, [])
        forget_digests(self.path, _LOGS)  # a process may have been killed as it finished the run
        return logs.open_logs(self.path, saved["logs"] if saved else None)

    def save(self, content: Mapping[str, Any], logger: Logger) -> None:
        """Write the checkpoint, with how far the logs go."""
        if not self.ranks.is_first:
            return
        self.write(self.checkpoint, {**content, "logs": logs.position(self.path, logger)})

    def load(self) -> dict[str, Any] | None:
        """The content of the checkpoint; None if there is none.

        Raises:
            ValueError: it is damaged, of another run (what differs is named) or version, or its
                manifest is missing.
        """
        if not self.checkpoint.exists():
            return None
        saved = self.read(self.checkpoint)
        if "config" not in (read_manifest(self.path) or ()):  # which says at most that it failed
            raise ValueError(f"{self.path} has a checkpoint, but its manifest.json is missing.")
        return saved

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Write plain data and tensors of this run to a file of the folder, atomically."""
        write_checkpoint(path, {"identity": self.identity, **content})

    def read(self, path: Path) -> dict[str, Any]:
        """The content of a file written by `write`.

        Raises:
            ValueError: it is damaged, or of another run (what differs is named) or version.
        """
        saved = read_checkpoint(path)
        self._check_same(path.name, saved["identity"])
        return saved

    def _check_same(self, what: str, then: Mapping[str, Any]) -> None:
        if different := differences(then, self.identity):
            raise ValueError(
                f"{self.path} holds a {what} with another config: {different}. "
                "Choose another --folder, or remove that one."
            )


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of the run in `folder`; None if there is none.

    Raises:
        Damaged: it is not what was written, or lacks a key or has others than a manifest has.
        ValueError: it is of another version of rlgates.
    """
    path = folder / "manifest.json"
    manifest: dict[str, Any] | None = read_json(path)
    if manifest is None:
        return None
    keys = set(manifest) - {"result", "error"}
    if keys == {"status", "sessions", "config", "seed"}:
        raise ValueError(f"{folder} holds a run of another version of rlgates.")
    if keys != _KEYS and (keys, manifest.get("status")) != ({"status", "sessions"}, "failed"):
        wrong = ", ".join(sorted(keys ^ _KEYS))
        raise Damaged(f"{path} is damaged: its keys are not those of a manifest ({wrong}).")
    check = (manifest["status"] in _STATUS, isinstance(manifest["sessions"], list))
    if not all(check) or not isinstance(manifest.get("identity", {}), dict):
        raise Damaged(f"{path} is damaged: its status, sessions or identity is invalid.")
    return manifest


def read_config(folder: Path) -> tuple[RunConfig, int]:
    """The config and the seed of the run in `folder`.

    Raises:
        ValueError: there is no run, or one of another version of rlgates.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}.")
    manifest = read_manifest(folder)
    if manifest is None or "config" not in manifest:
        inside = sorted(path.parent for path in folder.glob("*/manifest.json"))
        hint = f" Did you mean {inside[0]}?" if inside else ""
        raise ValueError(f"{folder} holds no run: it has no manifest.json with a config.{hint}")
    try:
        return CONFIGS[manifest["kind"]](**_immutable(manifest["config"])), manifest["seed"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder} holds a run of another version of rlgates: {error}.") from error


def _immutable(value: Any) -> Any:
    """Lists converted back to tuples, which JSON cannot store."""
    if isinstance(value, dict):
        return {name: _immutable(item) for name, item in value.items()}
    return tuple(map(_immutable, value)) if isinstance(value, list) else value


def read_modules(folder: Path) -> list[str]:
    """The modules of the user that registered the core of the run in `folder`."""
    sessions = (read_manifest(folder) or {"sessions": []})["sessions"]
    return [module for session in sessions[-1:] for module in session.get("modules", ())]


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data and tensors to a file, atomically and with a checksum."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    payload = buffer.getvalue()
    write_atomically(path, hashlib.sha256(payload).digest() + payload)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a file written by `write_checkpoint`.

    Raises:
        ValueError: the file is damaged, or of another version of this format.
    """
    content = path.read_bytes()
    digest, payload = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        raise ValueError(
            f"the checkpoint {path} is damaged: its checksum does not match. "
            "Put back a copy of it, or remove its folder to start again."
        )
    saved: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    if saved.get("format") != FORMAT:
        raise ValueError(
            f"the checkpoint {path} has format {saved.get('format')}, expected {FORMAT}: "
            "it was written by another version of rlgates."
        )
    return saved
