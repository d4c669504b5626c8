"""Several runs, one after the other or side by side, that stop and fail each for itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from rlgates.experiments import manifest
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.files import read_json
from rlgates.experiments.runs import check, run_folder
from rlgates.experiments.train import InterruptedRun, Result, describe, finished, train

Run = tuple[TrainConfig, int]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with a result, or with the reason why there is none.

    Attributes:
        before: the result is of an earlier call; nothing was done.
    """

    config: TrainConfig
    seed: int
    result: Result | None = None
    error: str = ""
    interrupted: bool = False
    before: bool = False


class StopRequest:
    """Turns Ctrl-C and SIGTERM into a request; the second one ends the process at once."""

    def __init__(self) -> None:
        self.made = False

    def __call__(self) -> bool:
        return self.made

    def handle(self, _: int, __: FrameType | None) -> None:
        """The signal handler."""
        if self.made:
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(130)
        self.made = True
        if multiprocessing.parent_process() is None:
            text = "\nstopping after this update, and saving; once more to stop at once\n"
            os.write(sys.stderr.fileno(), text.encode())

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Handle the signals inside of the block."""
        # Only the main thread may; elsewhere the caller sees to its own interrupts.
        numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, self.handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_all(runs: Sequence[Run], jobs: int = 1) -> list[Outcome]:
    """Make the runs, `jobs` at a time, and print a line for each that ends.

    Runs that were finished before are looked up; those that were stopped go on. With more than
    one job each run has a process of its own. A run that fails is written down in its manifest
    and does not stop the others. After Ctrl-C or SIGTERM the present runs are saved, and the
    others are not begun.

    Raises:
        ValueError: before any work starts, if a config makes no sense or a folder holds a run
            with another config.
    """
    outcomes: list[Outcome | None] = []
    for config, seed in runs:
        try:
            check(config)
        except TypeError as error:
            raise ValueError(str(error)) from error
        done = finished(config, seed)
        outcomes.append(Outcome(config, seed, done, before=True) if done else None)
    for outcome in outcomes:
        if outcome:
            _tell(outcome)
    left = [k for k, outcome in enumerate(outcomes) if outcome is None]
    with StopRequest().listening() as stop:
        if jobs > 1 and len(left) > 1:
            made = _side_by_side([runs[k] for k in left], jobs, stop)
        else:
            made = [_one(*runs[k], stop) for k in left]
        for k, outcome in zip(left, made, strict=True):
            outcomes[k] = outcome
    return [outcome for outcome in outcomes if outcome]


def _one(config: TrainConfig, seed: int, stop: Any, bar: bool | None = None) -> Outcome:
    """Make a run in this process, if it is not too late."""
    if stop():
        return Outcome(config, seed, interrupted=True)
    try:
        outcome = Outcome(config, seed, train(config, seed, stop=stop, bar=bar))
    except InterruptedRun as reason:
        outcome = Outcome(config, seed, error=str(reason), interrupted=True)
    except Exception as error:
        manifest.end(run_folder(config, seed), "failed", error=traceback.format_exc())
        outcome = Outcome(config, seed, error=f"{type(error).__name__}: {error}")
    if multiprocessing.parent_process() is None:
        _tell(outcome)
    return outcome


def _child(config: TrainConfig, seed: int, event: Any) -> None:
    """What a process of its own does; the parent reads the manifest afterwards."""
    parent = multiprocessing.parent_process()
    with StopRequest().listening() as stop:

        def stop_here() -> bool:
            return stop() or event.is_set() or (parent is not None and not parent.is_alive())

        _one(config, seed, stop_here, bar=False)


def _side_by_side(runs: Sequence[Run], jobs: int, stop: StopRequest) -> list[Outcome]:
    """Each run in a fresh process, `jobs` at a time."""
    context = multiprocessing.get_context("spawn")
    event = context.Event()
    waiting = list(range(len(runs)))
    running: dict[int, BaseProcess] = {}
    outcomes: dict[int, Outcome] = {}
    while running or (waiting and not stop()):
        while waiting and len(running) < jobs and not stop():
            k = waiting.pop(0)
            process = context.Process(target=_child, args=(*runs[k], event))
            process.start()
            running[k] = process
        if stop():
            event.set()
        wait([process.sentinel for process in running.values()], timeout=0.5)
        for k in [k for k, process in running.items() if not process.is_alive()]:
            outcomes[k] = _ended(*runs[k], running.pop(k).exitcode)
            _tell(outcomes[k])
    outcomes.update({k: Outcome(*runs[k], interrupted=True) for k in waiting})
    return [outcomes[k] for k in range(len(runs))]


def _ended(config: TrainConfig, seed: int, exitcode: int | None) -> Outcome:
    """The outcome of a run in another process, from what it left behind."""
    folder = run_folder(config, seed)
    if exitcode != 0:
        manifest.end(folder, "failed", error=f"the process ended with exit code {exitcode}")
    found = read_json(manifest.manifest_path(folder))
    if found is None:  # stopped before it began
        return Outcome(config, seed, interrupted=True)
    if found["status"] == "finished":
        return Outcome(config, seed, Result(**found["result"]))
    if found["status"] == "interrupted":
        return Outcome(config, seed, error=f"saved in {folder}", interrupted=True)
    last = found.get("error", "").strip().rpartition("\n")[2]
    return Outcome(config, seed, error=last)


def _tell(outcome: Outcome) -> None:
    config, seed = outcome.config, outcome.seed
    if outcome.result is not None:
        made = " (made before)" if outcome.before else ""
        print(describe(config, seed, outcome.result) + made, flush=True)
    else:
        how = "stopped" if outcome.interrupted else "failed"
        print(f"{config.core} seed {seed} {how}: {outcome.error}", flush=True)
