"""What numbers depend on besides the config: commit, versions, processor."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import rlgates
from rlgates.kernels.cpu.abi import instruction_set

PACKAGES = ("torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib")


def session(step: int, threads: int, device: torch.device, ranks: int = 1) -> dict[str, Any]:
    """One session of a run, as it stands in its manifest."""
    return {
        "start": now(),
        "from_step": step,
        "command": shlex.join([*program(), *sys.argv[1:]]),
        "threads": threads,
        "ranks": ranks,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "versions": versions(),
        "git": git_state(),
        "platform": platform.platform(),
        **machine(),
    }


def machine() -> dict[str, Any]:
    """The processor, and what native code and torch use of it."""
    return {
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "isa": instruction_set(),
        "blas": blas(),
    }


def program() -> list[str]:
    """The words of the command line before its arguments, without folders."""
    path = Path(sys.argv[0])
    if path.name != "__main__.py":
        return [path.name]
    if not torch.distributed.is_torchelastic_launched():
        return ["rlgates"]
    return ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "-m", "rlgates"]


def versions() -> dict[str, str]:
    """Python and the packages that the numbers depend on."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    # A checkout on PYTHONPATH is a package without metadata.
    return {"python": platform.python_version(), "rlgates": rlgates.__version__, **packages}


def git_state() -> dict[str, Any] | None:
    """The commit of the checkout that this code runs from, and whether it has changes."""

    def git(*words: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        return run.stdout.strip()

    # An installed copy may lie inside another project's checkout.
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = git("rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(git("status", "--porcelain"))} if commit else None


def cpu_model() -> str:
    """The processor, such as "AMD EPYC (family 26, model 2)": names alone cover generations."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    # Backwards: of the processors the first one stays.
    facts = {
        key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines[::-1])
    }
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{key.split()[-1]} {facts[key]}" for key in ("cpu family", "model") if key in facts]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def blas() -> str:
    """The library of torch's matrix products and what it may use: "mkl 2024.2, AVX512"."""
    text = torch.__config__.show()
    name = re.search(r"BLAS_INFO=(\w+)", text)
    version = re.search(r"(?:Math Kernel Library|OpenBLAS) (?:Version )?v?([\d.]+)", text)
    found = " ".join(match[1] for match in (name, version) if match)
    return ", ".join(filter(None, (found, torch.backends.cpu.get_cpu_capability())))


def now() -> str:
    """The time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
