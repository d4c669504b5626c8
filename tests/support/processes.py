"""Commands of `rlgates` in processes that are quickly made, to be killed at any moment."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import math
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlgates.experiments.cli import main as cli

# What commands import when they run: forked processes have it already.
for _module in ("sweep.sweep", "tune.tune", "tune.journal"):
    importlib.import_module(f"rlgates.experiments.{_module}")
for _module in ("matplotlib.pyplot", "torch._dynamo", "torch.utils.tensorboard"):
    importlib.import_module(_module)

SECONDS = 300
KILLS = (*[signal.SIGKILL] * 4, signal.SIGTERM, signal.SIGINT)


class Process(NamedTuple):
    """A forked process.

    Attributes:
        pid: its number.
        log: what it prints.
    """

    pid: int
    log: Path

    def is_running(self) -> bool:
        """Whether it has not ended; if it has, `end` must not be called."""
        return os.waitpid(self.pid, os.WNOHANG) == (0, 0)

    def end(self) -> int:
        """Wait for its end, and return its exit code; minus the signal that killed it.

        After `SECONDS` it is aborted, and says in its log where it was.
        """
        deadline = time.monotonic() + SECONDS
        while (ended := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGABRT)
                deadline = math.inf
            time.sleep(0.01)
        return os.waitstatus_to_exitcode(ended[1])


def start(words: list[str], log: Path, prepare: Callable[[], object] = lambda: None) -> Process:
    """Fork a process that runs the command, after `prepare`; nothing has to be imported again.

    The log is there when this returns, and signals sent from then on reach the command alone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    handled = {signal.SIGINT, signal.SIGTERM}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(output)
        return Process(pid, log)
    gc.freeze()  # garbage of the tests may own threads, which this process does not have
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        faulthandler.enable()
        prepare()
        code = cli.main(words)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def run(words: list[str], log: Path, prepare: Callable[[], object] = lambda: None) -> int:
    """The exit code of a command in a process of its own."""
    return start(words, log, prepare).end()


def limit_files(size: int) -> Callable[[], None]:
    """Files can grow to so many bytes, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def killed(words: list[str], log: Path, longest: float, moments: random.Random) -> int:
    """Start a command, and send it a signal of `KILLS` within `longest` seconds."""
    process = start(words, log)
    time.sleep(moments.uniform(0, longest))
    os.kill(process.pid, moments.choice(KILLS))
    return process.end()
