"""Exit codes, with a message on what to do next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlgates.experiments.runs.jobs import Job, JobResult

FINISHED, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
MOST = 3  # failed runs that are named


def command(name: str) -> str:
    """A command as it can be typed: by name if it is on PATH, else by path."""
    if shutil.which(name):
        return name
    path = Path(sys.executable).parent / name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def interrupted() -> int:
    """The exit code of a command that was stopped; prints how to continue."""
    from rlgates.experiments.runs.provenance import program

    first, *rest = program()
    again = shlex.join([command(first), *rest, *sys.argv[1:]])
    print(f"stopped; to continue, run the same command: {again}", file=sys.stderr)
    return INTERRUPTED


def exit_code(job_results: Sequence[JobResult]) -> int:
    """The exit code for the results of runs; prints what to do next if not all succeeded."""
    if any(job_result.interrupted for job_result in job_results):
        return interrupted()
    failed = [job_result.job for job_result in job_results if job_result.result is None]
    if failed:
        paths = [str(job.folder.manifest) for job in failed if _has_error(job)]
        more = f" and {len(paths) - MOST} more" if len(paths) > MOST else ""
        where = f", with tracebacks in {', '.join(paths[:MOST])}{more}" if paths else ""
        print(f"{len(failed)} of {len(job_results)} runs failed: see above{where}", file=sys.stderr)
    return FAILED if failed else FINISHED


def _has_error(job: Job) -> bool:
    """Whether the manifest of a run says how it failed; what else goes wrong is printed alone."""
    from rlgates.experiments.runs.folder import read_manifest

    with suppress(ValueError, OSError):
        return "error" in (read_manifest(job.folder.path) or {})
    return False
