"""A SLURM of one machine for tests: sbatch, srun, sacct and scancel as one program.

`install` writes it into a folder under these four names. Job arrays run as local processes, no
more at a time than the array allows; `log` says which tasks started and ended.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scancel")
ARRAY = 7  # the job id of the only array


def install(folder: Path) -> None:
    """Write the commands into the folder, which is to be put on PATH."""
    folder.mkdir()
    for name in COMMANDS:
        command = folder / name
        command.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
        command.chmod(0o755)


def log(folder: Path) -> list[str]:
    """Events in their order: "array 0-1%1", "start 0", "end 0", ..., "cancel"."""
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def _note(folder: Path, event: str) -> None:
    with (folder / "log").open("a") as file:
        file.write(f"{event}\n")


def _sbatch(folder: Path, script: str) -> None:
    """Start the scheduler of the array in the background."""
    array = re.search(r"#SBATCH --array=(0-(\d+)%(\d+))", Path(script).read_text())
    assert array is not None, "only job arrays are known"
    _note(folder, f"array {array[1]}")
    command = [sys.executable, __file__, "schedule", script, array[2], array[3]]
    output = subprocess.DEVNULL
    subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    sys.stdout.write(f"Submitted batch job {ARRAY}\n")


def _schedule(folder: Path, script: str, last: str, parallel: str) -> None:
    """Run the tasks of the array until all have ended or been cancelled."""
    pending = list(range(int(last) + 1))
    running: dict[int, subprocess.Popen[bytes]] = {}
    while pending or running:
        if "cancel" in log(folder):
            for task in pending:
                _note(folder, f"cancelled {task}")
            pending = []
        while pending and len(running) < int(parallel):
            task = pending.pop(0)
            variables = {
                "SLURM_JOB_ID": str(100 + task),
                "SLURM_ARRAY_JOB_ID": str(ARRAY),
                "SLURM_ARRAY_TASK_ID": str(task),
            }
            _note(folder, f"start {task}")
            running[task] = subprocess.Popen(["bash", script], env={**os.environ, **variables})
        for task, process in list(running.items()):
            if process.poll() is not None:
                del running[task]
                _note(folder, f"end {task}")
        time.sleep(0.05)


def _srun(words: list[str]) -> None:
    """Run the command after the options."""
    while words[0].startswith("--"):
        words = words[2:] if words[0] in ("--output", "--error") else words[1:]
    os.execvp(words[0], words)


def _sacct(folder: Path) -> None:
    """Write the states of all tasks that are known."""
    states: dict[str, str] = {}
    names = {"start": "RUNNING", "end": "COMPLETED", "cancelled": "CANCELLED by 0"}
    for event in log(folder):
        kind, _, value = event.partition(" ")
        if kind == "array":
            states = dict.fromkeys(map(str, range(int(value[2:].partition("%")[0]) + 1)), "PENDING")
        elif kind in names:
            states[value] = names[kind]
    sys.stdout.write("JobID|State|NodeList\n")
    for task, state in states.items():
        sys.stdout.write(f"{ARRAY}_{task}|{state}|localhost\n")


def main() -> None:
    """Act as the command that this file is called by."""
    name, words, folder = Path(sys.argv[0]).name, sys.argv[1:], Path(sys.argv[0]).parent
    if words[:1] == ["schedule"]:
        _schedule(folder, *words[1:])
    elif name == "sbatch":
        _sbatch(folder, words[0])
    elif name == "srun":
        _srun(words)
    elif name == "sacct":
        _sacct(folder)
    elif name == "scancel":
        assert words == ["--state=PENDING", str(ARRAY)], words
        _note(folder, "cancel")


if __name__ == "__main__":
    main()
