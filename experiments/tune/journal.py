"""The journal of a search: an Optuna study in a file, which several processes can share."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from rlgates.experiments.runs.files import Damaged
from rlgates.experiments.runs.locks import is_locked, locked
from rlgates.experiments.studies.space import Range, Space, Value

WORKER, INFO = "worker", "info"  # user attributes of a trial
SEAL = "sha256"  # the last entry of a line
_SEALED = re.compile(rb'(.*),"sha256":"([0-9a-f]{64})"\}\n', re.DOTALL)
# Seconds after which Optuna takes over the lock of a killed process; it is held for one write.
LOCK_GRACE_PERIOD = 5


class Trial(NamedTuple):
    """A trial that is to be evaluated.

    Attributes:
        number: of the trial, from 0 on.
        values: of the parameters.
    """

    number: int
    values: dict[str, Value]


class TrialResult(NamedTuple):
    """A trial that has ended.

    Attributes:
        trial: the trial.
        value: objective; infinite if a run diverged, None if one failed.
        info: what else was recorded.
    """

    trial: Trial
    value: float | None
    info: dict[str, Any]


class CheckedFile(JournalFileBackend):
    """Optuna's file, with the SHA-256 of each line and all lines before it at its end.

    So a line that is changed, missing, moved or of another file is found. Lines of earlier
    versions have none: they are read without that check until the first line that has one.

    Args:
        path: the file.
        lock: Optuna's.
    """

    def __init__(self, path: Path, lock: JournalFileOpenLock) -> None:
        super().__init__(str(path), lock)
        self.path = path
        # Before each line: where it begins, the digest so far, and whether one has been checked.
        self._lines: list[tuple[int, bytes, bool]] = [(0, b"", False)]

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any]]:
        """The lines from this one on.

        Raises:
            Damaged: a line is not what was written; the message says which.
        """
        with self.path.open("rb") as file:
            begin, digest, checked = self._lines[log_number_from]
            file.seek(begin)
            for number, line in enumerate(file, log_number_from):
                if not line.endswith(b"\n"):
                    return  # another process is writing it
                sealed = _SEALED.fullmatch(line)
                content = sealed[1] + b"}" if sealed else line[:-1]
                digest = hashlib.sha256(digest + content).digest()
                if (sealed is None and checked) or (sealed and sealed[2].decode() != digest.hex()):
                    raise self.damaged(f"line {number + 1} is not what was written")
                try:
                    log = json.loads(content)
                except ValueError as error:
                    raise self.damaged(f"line {number + 1}: {error}") from error
                begin, checked = begin + len(line), sealed is not None
                if len(self._lines) == number + 1:
                    self._lines.append((begin, digest, checked))
                yield log

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add lines. The caller keeps other writers away, as `Journal` does."""
        for _ in self.read_logs(len(self._lines) - 1):
            pass
        digest = self._lines[-1][1]
        sealed = []
        for log in logs:
            content = json.dumps(log, separators=(",", ":")).encode()
            digest = hashlib.sha256(digest + content).digest()
            sealed.append({**log, SEAL: digest.hex()})
        super().append_logs(sealed)

    def damaged(self, reason: str) -> Damaged:
        """The error for a damaged file."""
        return Damaged(
            f"{self.path} is damaged: {reason}. Put back a copy of it, or remove it: the same "
            "trials are sampled again, and finished runs are not repeated."
        )

    def cut_unfinished_line(self) -> None:
        """Remove what a process wrote of a line before it was killed."""
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            print(f"{self.path}: its last line was not finished, and is left out", flush=True)
            os.truncate(self.path, end)


class Journal:
    """A search for the best values of some parameters, kept by Optuna in a file.

    Several processes, on several machines that share the file, can work on a search at once. For
    each trial the sampler gets a new seed, from the seed of the search and the number of the trial.
    So a resumed search continues as if it had never stopped, and two processes with the same seed
    do not sample the same values.

    Two locks guard the file. Ours makes reading the trials, sampling and recording one step. Inside
    of it, Optuna's guards each write against other programs that use the file, such as its
    dashboard; after a process was killed in a write, the next writer waits `LOCK_GRACE_PERIOD`.

    Args:
        path: the journal; beside it, a folder of the same stem holds the locks and the runs.
        name: of the search; a file can hold several.
        space: the parameters.
        higher: whether a higher objective is better.
        settings: of all runs of the search, as plain data.
        seed: of the sampler.

    Raises:
        ValueError: the file is damaged, or holds this search with other settings.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        space: Space,
        higher: bool,
        settings: Mapping[str, Any],
        seed: int,
    ) -> None:
        self.path, self.name, self.space, self.seed = path.absolute(), name, space, seed
        self.worst = -np.inf if higher else np.inf
        self.folder = self.path.with_suffix("")
        self.failed = 0  # failures of this process count as trials, or it might never end
        self.worker = ""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with self._lock():
            lock = JournalFileOpenLock(str(self.path), grace_period=LOCK_GRACE_PERIOD)
            file = CheckedFile(self.path, lock)
            file.cut_unfinished_line()
            try:
                self.storage = JournalStorage(file)
            except Damaged:
                raise
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise file.damaged(f"{type(error).__name__}: {error}") from error
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=name,
                direction="maximize" if higher else "minimize",
                load_if_exists=True,
            )
            self._check_settings(json.loads(json.dumps(settings)))

    def _check_settings(self, settings: dict[str, Any]) -> None:
        before = self.study.user_attrs.get("settings")
        if before is None:
            self.study.set_user_attr("settings", settings)
        elif before != settings:
            differences = "; ".join(
                f"{key} was {before.get(key)!r} and is now {settings.get(key)!r}"
                for key in sorted({*before, *settings})
                if before.get(key) != settings.get(key)
            )
            raise ValueError(
                f"{self.path} holds a search with other settings: {differences}. "
                "Choose another --folder, or remove it."
            )

    def _lock(self) -> AbstractContextManager[None]:
        return locked(self.folder / "lock")

    @contextmanager
    def active_worker(self) -> Iterator[None]:
        """Inside of the block, other processes see that this one works on its trials."""
        self.worker = uuid.uuid4().hex
        folder = self.folder / self.worker
        try:
            with locked(folder):
                yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def claim_stale_trials(self) -> list[Trial]:
        """Take over the running trials of processes that are gone.

        Trials of processes that were killed before all values were sampled are marked as failed.
        """
        claimed = []
        with self._lock():
            for trial in self._trials():
                worker = trial.user_attrs.get(WORKER)
                if trial.state != TrialState.RUNNING or (worker and self._is_active(worker)):
                    continue
                if set(trial.params) == set(self.space):
                    self._set_attribute(trial.number, WORKER, self.worker)
                    claimed.append(self._as_trial(trial))
                else:
                    self.study.tell(trial.number, state=TrialState.FAIL)
        return claimed

    def _is_active(self, worker: str) -> bool:
        folder = self.folder / worker
        if is_locked(folder):
            return True
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def is_complete(self, trials: int) -> bool:
        """Whether there are `trials` of them, those of other processes included.

        Failed trials of other calls and processes do not count.
        """
        successful = sum(trial.state != TrialState.FAIL for trial in self._trials())
        return successful + self.failed >= trials

    def ask(self, trials: int) -> Trial | None:
        """Sample the next trial; None once the search `is_complete`."""
        with self._lock():
            if self.is_complete(trials):
                return None
            seed = np.random.SeedSequence((self.seed, len(self._trials()))).generate_state(1)
            self.study.sampler = optuna.samplers.TPESampler(seed=int(seed[0]))
            trial = self.study.ask({name: _distribution(v) for name, v in self.space.items()})
            self._set_attribute(trial.number, WORKER, self.worker)
            return self._as_trial(trial)

    def tell(self, trial: Trial, value: float | None, info: Mapping[str, Any]) -> None:
        """Record the result of a trial.

        Args:
            trial: the trial.
            value: objective; nan if a run diverged, which counts as the worst; None: it failed.
            info: what else to record, as plain data.
        """
        with self._lock():
            self._set_attribute(trial.number, INFO, dict(info))
            if value is None:
                self.failed += 1
                self.study.tell(trial.number, state=TrialState.FAIL)
            else:
                self.study.tell(trial.number, self.worst if np.isnan(value) else value)

    def results(self) -> list[TrialResult]:
        """All trials that have ended, best first, failed ones last."""
        ended = [
            TrialResult(self._as_trial(trial), trial.value, trial.user_attrs.get(INFO, {}))
            for trial in self._trials()
            if trial.state.is_finished() and INFO in trial.user_attrs
        ]
        sign = -1 if self.worst < 0 else 1
        return sorted(ended, key=lambda one: (one.value is None, sign * (one.value or 0.0)))

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _set_attribute(self, number: int, name: str, value: Any) -> None:
        study = self.storage.get_study_id_from_name(self.name)
        trial = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        self.storage.set_trial_user_attr(trial, name, value)

    def _as_trial(self, trial: FrozenTrial | optuna.Trial) -> Trial:
        values = {name: v.plain(trial.params[name]) for name, v in self.space.items()}
        return Trial(trial.number, values)


def _distribution(values: Any) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution(values.values)
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)
