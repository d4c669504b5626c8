"""The journal of a search: what was tried and what it came to, shared by all who take part."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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

from rlgates.experiments.files import alone, held
from rlgates.experiments.studies.space import Range, Space, Value

OWNER, FACTS = "owner", "facts"


class Trial(NamedTuple):
    """What is tried.

    Attributes:
        number: of the trial, from 0 on.
        values: of the parameters.
    """

    number: int
    values: dict[str, Value]


class Told(NamedTuple):
    """What a trial came to.

    Attributes:
        trial: what was tried.
        value: infinite if it diverged; None: the trial failed.
        facts: what else was written down.
    """

    trial: Trial
    value: float | None
    facts: dict[str, Any]


class Journal:
    """A search for the best values of some parameters, kept by Optuna in a file.

    Several processes, on several machines with the same files, can take part at once. What is
    tried next is drawn by a generator that starts anew from the seed and the number of the trial:
    a search that is continued goes on as if it had not stopped, and no two processes try the same
    by having the same seed.

    Args:
        path: the file; beside it, a folder of its stem.
        name: of the search: a file can keep several.
        space: of the parameters.
        higher: whether more is better.
        settings: of all runs of the search; plain data.
        seed: of what is tried.

    Raises:
        ValueError: the file is damaged, or the search is there with other settings.
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
        self.failed = 0  # in this process: they count, lest a disk that is full fail for ever
        self.owner = ""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with self._alone():
            # Whoever uses the file has our lock: what is left of Optuna's own is of a killed one.
            lock = f"{self.path}.lock"
            Path(lock).unlink(missing_ok=True)
            self._check_whole()
            try:
                backend = JournalFileBackend(str(self.path), JournalFileOpenLock(str(self.path)))
                self.storage = JournalStorage(backend)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(self._damaged) from error
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=name,
                direction="maximize" if higher else "minimize",
                load_if_exists=True,
            )
            self._check_settings(json.loads(json.dumps(settings)))

    @property
    def _damaged(self) -> str:
        return (
            f"{self.path} is damaged. Put back a copy of it, or remove it: what was tried is tried "
            "again, and the runs that are there are not made again."
        )

    def _check_whole(self) -> None:
        if self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n"):
            raise ValueError(self._damaged)

    def _check_settings(self, now: dict[str, Any]) -> None:
        then = self.study.user_attrs.get("settings")
        if then is None:
            self.study.set_user_attr("settings", now)
        elif then != now:
            different = "; ".join(
                f"{key} was {then.get(key)!r} and is now {now.get(key)!r}"
                for key in sorted({*then, *now})
                if then.get(key) != now.get(key)
            )
            raise ValueError(
                f"{self.path} holds a search with other settings: {different}. "
                "Choose another --folder, or remove it."
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with alone(self.folder / "lock"):
            yield

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Inside of the block, what this process tries is seen to be under way."""
        self.owner = uuid.uuid4().hex
        folder = self.folder / self.owner
        try:
            with alone(folder):
                yield
        finally:
            with suppress(OSError):
                folder.rmdir()

    def left_behind(self) -> list[Trial]:
        """The trials of processes that are gone, which are now this one's.

        Those that were killed before they knew what to try are given up.
        """
        found = []
        with self._alone():
            for trial in self._trials():
                owner = trial.user_attrs.get(OWNER)
                if trial.state != TrialState.RUNNING or (owner and self._is_there(owner)):
                    continue
                if set(trial.params) == set(self.space):
                    self._note(trial.number, OWNER, self.owner)
                    found.append(self._plain(trial))
                else:
                    self.study.tell(trial.number, state=TrialState.FAIL)
        return found

    def _is_there(self, owner: str) -> bool:
        """Whether the process that took part under that name still does."""
        folder = self.folder / owner
        if held(folder):
            return True
        with suppress(OSError):
            folder.rmdir()
        return False

    def ask(self, trials: int) -> Trial | None:
        """What to try next; None if there are so many trials already.

        Those that failed in another call or process are not counted.
        """
        with self._alone():
            before = self._trials()
            sound = sum(trial.state != TrialState.FAIL for trial in before)
            if sound + self.failed >= trials:
                return None
            drawn = np.random.SeedSequence((self.seed, len(before))).generate_state(1)
            self.study.sampler = optuna.samplers.TPESampler(seed=int(drawn[0]))
            asked = self.study.ask({name: _distribution(v) for name, v in self.space.items()})
            self._note(asked.number, OWNER, self.owner)
            return self._plain(asked)

    def tell(self, trial: Trial, value: float | None, facts: Mapping[str, Any]) -> None:
        """Write down what a trial came to.

        Args:
            trial: that was asked for.
            value: nan if it diverged, the worst there is; None: it failed.
            facts: what else is to be remembered; plain data.
        """
        with self._alone():
            self._note(trial.number, FACTS, dict(facts))
            if value is None:
                self.failed += 1
                self.study.tell(trial.number, state=TrialState.FAIL)
            else:
                self.study.tell(trial.number, self.worst if np.isnan(value) else value)

    def told(self) -> list[Told]:
        """All trials that have ended, the best first; those that failed come last."""
        ended = [
            Told(self._plain(trial), trial.value, trial.user_attrs.get(FACTS, {}))
            for trial in self._trials()
            if trial.state.is_finished() and FACTS in trial.user_attrs
        ]
        sign = -1 if self.worst < 0 else 1
        return sorted(ended, key=lambda one: (one.value is None, sign * (one.value or 0.0)))

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _note(self, number: int, name: str, value: Any) -> None:
        study = self.storage.get_study_id_from_name(self.name)
        trial = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        self.storage.set_trial_user_attr(trial, name, value)

    def _plain(self, trial: FrozenTrial | optuna.Trial) -> Trial:
        values = {name: v.plain(trial.params[name]) for name, v in self.space.items()}
        return Trial(trial.number, values)


def _distribution(values: Any) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution(values.values)
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)
