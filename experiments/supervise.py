"""Train cores on supervised tasks: one run, which can be stopped and go on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.logger import Logger

from rlgates.cores import check_options, make_core
from rlgates.errors import check_number, check_size
from rlgates.experiments import logs, manifest
from rlgates.experiments.checkpoint import FORMAT, read_checkpoint, write_checkpoint
from rlgates.experiments.files import read_json, write_json
from rlgates.experiments.supervised_configs import NOT_LEARNED_FROM, SupervisedConfig
from rlgates.tasks import Generated, Reader, make_task

EVALUATION_SEED = 2**40  # beyond all seeds of training


@dataclass(frozen=True)
class Learned:
    """What a run came to.

    Attributes:
        losses: (update, loss on the evaluation sequences), from before the first update on.
        metrics: the task's further metrics at the end.
        diverged_at: the update whose loss was no finite number, if there was one; the run
            ended there.
    """

    losses: list[tuple[int, float]]
    metrics: dict[str, float]
    baseline: float
    parameters: int
    state_size: int
    seconds: float
    diverged_at: int | None = None


def check(config: SupervisedConfig) -> Generated:
    """The task of a config, if the config makes sense.

    Raises:
        ValueError, TypeError: as `make_task` and `make_core`, or a number below its minimum.
    """
    task = make_task(config.task, **config.task_settings)
    check_options(config.core, config.core_options)
    make_core(config.core, task.input_size, config.hidden_size, **config.core_options)
    for name in ("updates", "batch_size", "eval_every", "eval_sequences", "threads"):
        check_size(name, getattr(config, name))
    for name in ("learning_rate", "max_grad_norm"):
        check_number(name, getattr(config, name), above=0)
    return task


def digest(config: SupervisedConfig) -> str:
    """A few letters that differ when cores cannot be compared: other settings or budget."""
    settings = {
        name: value
        for name, value in asdict(config).items()
        if name not in (*NOT_LEARNED_FROM, "core", "core_options")
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def run_folder(config: SupervisedConfig, seed: int) -> Path:
    """Where the run of that seed is."""
    settings = "-".join(str(value) for value in config.task_settings.values())
    return Path(config.folder) / f"{config.task}-{settings}-{config.core}" / f"seed-{seed}"


class Run:
    """A run: the network, its optimizer, its random numbers and its logs."""

    def __init__(self, config: SupervisedConfig, seed: int) -> None:
        self.config, self.seed, self.task = (
            config,
            check_size("seed", seed, minimum=0),
            check(config),
        )
        self.folder = run_folder(config, seed)
        torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        core = make_core(
            config.core, self.task.input_size, config.hidden_size, **config.core_options
        )
        self.reader = Reader(core, self.task)
        self.optimizer = torch.optim.Adam(self.reader.parameters(), config.learning_rate)
        self.data = torch.Generator().manual_seed(seed)
        held_out = torch.Generator().manual_seed(EVALUATION_SEED + seed)
        self.held_out = self.task.sample(config.eval_sequences, held_out)
        self.update, self.seconds = 0, 0.0
        self.losses: list[tuple[int, float]] = []
        self.metrics: dict[str, float] = {}
        self.diverged_at: int | None = None

    def go(self, stop: Callable[[], bool] = lambda: False) -> Learned | None:
        """Train to the end, or until `stop` says so; what was learned, None if stopped.

        Raises:
            ValueError: the folder holds a run with another config.
        """
        found = read_json(self.folder / "result.json")
        settings = {**_plain(self.config), "seed": self.seed}
        if found is not None and found["config"] == settings:
            return _learned(found["result"])
        logger = self._resume(settings)
        before, start = self.seconds, time.monotonic()
        try:
            while self.update <= self.config.updates and self.diverged_at is None:
                if self.update % self.config.eval_every == 0 or self.update == self.config.updates:
                    self._evaluate(logger)
                    self.seconds = before + time.monotonic() - start
                    self._save(settings, logger)
                    if stop():
                        return None
                if self.update == self.config.updates:
                    break
                self._learn()
        finally:
            logger.close()
        learned = Learned(
            self.losses,
            self.metrics,
            self.task.baseline,
            sum(parameter.numel() for parameter in self.reader.core.parameters()),
            self.reader.core.state_size,
            round(before + time.monotonic() - start, 1),
            self.diverged_at,
        )
        versions = {"versions": manifest.versions(), "git": manifest.git_state()}
        write_json(
            self.folder / "result.json", {"config": settings, "result": asdict(learned), **versions}
        )
        return learned

    def _learn(self) -> None:
        self.reader.train()
        batch = self.task.sample(self.config.batch_size, self.data)
        loss = self.task.loss(self.reader(batch.inputs), batch)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.reader.parameters(), self.config.max_grad_norm)
        self.update += 1
        if not (loss + norm).isfinite():
            self.diverged_at = self.update
            return
        self.optimizer.step()

    @torch.no_grad()
    def _evaluate(self, logger: Logger) -> None:
        self.reader.eval()
        predictions = self.reader(self.held_out.inputs)
        loss = float(self.task.loss(predictions, self.held_out))
        metrics = self.task.metrics(predictions, self.held_out)
        self.metrics = {name: float(value) for name, value in metrics.items()}
        if self.losses and self.losses[-1][0] == self.update:
            return  # evaluated before the run was stopped
        self.losses.append((self.update, loss))
        for name, value in {"loss": loss, **self.metrics}.items():
            logger.record(f"eval/{name}", value)
        logger.dump(self.update)

    def _save(self, settings: dict[str, Any], logger: Logger) -> None:
        content = {
            "format": FORMAT,
            "config": settings,
            "reader": self.reader.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.data.get_state(),
            "noise": torch.get_rng_state(),
            "progress": (self.update, self.seconds, self.losses),
            "logs": logs.position(self.folder, logger),
        }
        write_checkpoint(self.folder / "checkpoint", content)

    def _resume(self, settings: dict[str, Any]) -> Logger:
        """Go on from the last checkpoint, if there is one; the logs as they were then."""
        path = self.folder / "checkpoint"
        saved = read_checkpoint(path) if path.exists() else None
        if saved is not None and saved["config"] != settings:
            raise ValueError(
                f"{self.folder} holds a run with another config: choose another folder, or "
                "remove that one."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        logs.rewind(self.folder, saved["logs"] if saved else None)
        logger = logs.make_logger(self.folder)
        if saved:
            self.reader.load_state_dict(saved["reader"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.data.set_state(saved["data"])
            torch.set_rng_state(saved["noise"])
            self.update, self.seconds, self.losses = saved["progress"]
        return logger


def _plain(config: SupervisedConfig) -> dict[str, Any]:
    values = asdict(config)
    return {name: values[name] for name in values if name not in NOT_LEARNED_FROM}


def _learned(found: dict[str, Any]) -> Learned:
    losses = [(int(update), float(loss)) for update, loss in found["losses"]]
    return Learned(**{**found, "losses": losses})
