"""Measurements in processes of their own: one that crashes takes no other with it.

An illegal access to memory on a GPU leaves the process that made it without the GPU for good.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

Entry = dict[str, Any]

DONE, FAILED, BROKEN, READY = "done", "failed", "broken", "ready"  # what a worker answers


class Measurement(NamedTuple):
    """Something to measure.

    Attributes:
        part: of the results.
        of: what identifies it there.
        measure: returns the numbers; or, after its preparations, a function that returns them. In
            `Workers.run` that function waits until no other measurement runs. A process must be
            able to pickle `measure`.
    """

    part: str
    of: Entry
    measure: Callable[[], Any]


class Outcome(NamedTuple):
    """The numbers of a measurement, or its error; neither if there was no time for it."""

    measurement: Measurement
    numbers: Entry | None = None
    error: str | None = None


Groups = Iterable[Iterable[Measurement]]


def run_here(groups: Groups, until: float = math.inf) -> Iterator[Outcome]:
    """Make measurements in this process, one after the other.

    Args:
        groups: of measurements.
        until: value of `time.monotonic` after which none begins.
    """
    for measurement in (measurement for group in groups for measurement in group):
        if time.monotonic() > until:
            yield Outcome(measurement)
            continue
        try:
            numbers = measurement.measure()
            yield Outcome(measurement, numbers() if callable(numbers) else numbers)
        except Exception:
            yield Outcome(measurement, error=traceback.format_exc(limit=-4))


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    log: Path

    def stop(self) -> None:
        self.process.kill()  # it may be stuck in a kernel
        self.process.join()
        self.pipe.close()

    def last_words(self) -> str:
        """Why it ended, and the end of what it printed."""
        self.process.join()
        printed = self.log.read_text(errors="replace")[-1000:] if self.log.exists() else ""
        return f"the process ended with exit code {self.process.exitcode}\n{printed}".strip()


@dataclass
class _Task:
    worker: _Worker
    measurement: Measurement
    rest: deque[Measurement]  # of its group
    deadline: float
    is_ready: bool = False

    def answer(self) -> tuple[str, Any] | None:
        """What the worker says; None while it is busy."""
        if self.worker.pipe.poll():
            try:
                kind, value = self.worker.pipe.recv()
            except (EOFError, OSError):
                return BROKEN, self.worker.last_words()
            return kind, value
        if time.monotonic() > self.deadline:
            return BROKEN, "it took too long, and was stopped"
        return None


class Workers:
    """Processes that make measurements; they are kept from one `run` to the next."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._logs = tempfile.TemporaryDirectory()
        self._idle: list[_Worker] = []
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keep(0)
        self._logs.cleanup()

    def run(
        self, groups: Groups, size: int, until: float = math.inf, limit: float = math.inf
    ) -> Iterator[Outcome]:
        """Make measurements and yield what comes of them, as they end.

        If a process dies, or its device does not work any more, a new one goes on with the next
        measurement of the group.

        Args:
            groups: of measurements, which are made one after the other.
            size: groups at a time.
            until: value of `time.monotonic` after which none begins.
            limit: seconds after which one is stopped, not counting its wait for others.
        """
        queue = deque(rest for group in groups if (rest := deque(group)))
        self._keep(size)
        busy: list[_Task] = []
        try:
            while queue or busy:
                if time.monotonic() > until:
                    yield from (Outcome(measurement) for rest in queue for measurement in rest)
                    queue.clear()
                while queue and len(busy) < size:
                    busy.append(self._begin(queue.popleft(), limit))
                if busy and all(task.is_ready for task in busy):
                    self._finish(busy[0], limit)
                _wait(busy)
                for task in tuple(busy):
                    kind, value = task.answer() or (None, None)
                    if kind == READY:
                        task.is_ready, task.deadline = True, math.inf
                    elif kind:
                        busy.remove(task)
                        self._release(task.worker, kind)
                        if task.rest:
                            queue.appendleft(task.rest)
                        done = kind == DONE
                        yield Outcome(task.measurement, *((value, None) if done else (None, value)))
        finally:
            for task in busy:
                task.worker.stop()

    def _keep(self, size: int) -> None:
        while len(self._idle) > size:
            self._idle.pop().stop()

    def _begin(self, group: deque[Measurement], limit: float) -> _Task:
        worker = self._idle.pop() if self._idle else self._start()
        measurement = group.popleft()
        with suppress(OSError):  # it is dead, which is noticed where its answer is awaited
            worker.pipe.send(measurement.measure)
        return _Task(worker, measurement, group, time.monotonic() + limit)

    def _finish(self, task: _Task, limit: float) -> None:
        """Let a task that is ready measure."""
        with suppress(OSError):
            task.worker.pipe.send(None)
        task.is_ready, task.deadline = False, time.monotonic() + limit

    def _release(self, worker: _Worker, kind: str) -> None:
        if kind == BROKEN:
            worker.stop()
        else:
            self._idle.append(worker)

    def _start(self) -> _Worker:
        self._started += 1
        log = Path(self._logs.name) / f"{self._started}.txt"
        pipe, end = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(end, log))
        process.start()
        end.close()  # else its death would not be seen
        return _Worker(process, pipe, log)


def _wait(busy: list[_Task]) -> None:
    """Wait for an answer or a deadline."""
    first = min((task.deadline for task in busy), default=0.0)
    timeout = None if first == math.inf else max(0.0, first - time.monotonic())
    wait([task.worker.pipe for task in busy], timeout)


def _serve(pipe: Connection, log: Path) -> None:
    """Make the measurements that come through the pipe, until it is closed."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    torch.set_num_threads(1)  # the workers share the processors
    while True:
        try:
            measure = pipe.recv()
        except (EOFError, OSError):
            return
        kind, value = _measured(measure, pipe)
        pipe.send((kind, value))
        if kind == BROKEN:
            os._exit(1)  # destructors would use the device


def _measured(measure: Callable[[], Any], pipe: Connection) -> tuple[str, Any]:
    try:
        numbers = measure()
        if callable(numbers):
            pipe.send((READY, None))
            pipe.recv()
            numbers = numbers()
        return DONE, numbers
    except Exception:
        error = traceback.format_exc(limit=-4)
        return (FAILED if _device_works() else BROKEN), error
    finally:
        if torch.cuda.is_initialized() and _device_works():
            torch.cuda.empty_cache()  # the next worker may need the memory


def _device_works() -> bool:
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
