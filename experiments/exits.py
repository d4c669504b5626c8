"""What a command line ends with: its exit code, and a word on what to do next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlgates.experiments.jobs import Outcome

FINISHED, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def command(name: str) -> str:
    """A command of this environment, so that it can be typed whether it is active or not."""
    if shutil.which(name):
        return name
    path = Path(sys.executable).parent / name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def interrupted() -> int:
    """The exit code of what was stopped and can go on, with a word on how."""
    again = shlex.join([command("rlgates"), *sys.argv[1:]])
    print(f"stopped; the same command goes on: {again}", file=sys.stderr)
    return INTERRUPTED


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """The exit code for how runs ended, with a word on what to do next."""
    if any(outcome.interrupted for outcome in outcomes):
        return interrupted()
    failed = sum(outcome.result is None for outcome in outcomes)
    if failed:
        print(f"{failed} of {len(outcomes)} runs failed; see their manifest.json", file=sys.stderr)
    return FAILED if failed else FINISHED
