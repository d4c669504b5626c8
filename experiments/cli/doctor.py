"""`rlgates doctor`: what is installed, and which backend runs each core here."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections import defaultdict

import torch

import rlgates
from rlgates.errors import MAX_LENGTH, check_size
from rlgates.experiments.cli.exits import FINISHED
from rlgates.experiments.runs.provenance import cpu_model
from rlgates.experiments.sweep.workers import available_cpus
from rlgates.kernels.cpu.abi import instruction_set
from rlgates.registry import core_names, make_core

PACKAGES = (
    *("torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "safetensors"),
    *("tensorboard", "onnx", "minigrid", "popgym", "ale-py"),
)


def doctor(steps: int = 16, batch_size: int = 8) -> int:
    """Show versions and devices, and which backend runs each core, with the reasons.

    Include its output in bug reports.

    Args:
        steps: Length of the sequences that the cores would run over.
        batch_size: Number of sequences.
    """
    check_size("steps", steps)
    check_size("batch_size", batch_size)
    check_size("steps * batch_size", steps * batch_size, maximum=MAX_LENGTH)
    print(f"rlgates {rlgates.__version__}, Python {platform.python_version()}")
    print(f"{platform.platform()}, {cpu_model()}")
    print(", ".join(f"{name} {_version(name)}" for name in PACKAGES))
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"threads: {torch.get_num_threads()} of torch, OMP_NUM_THREADS {threads}", end=", ")
    print(f"{available_cpus()} processors")
    print(f"native code: {instruction_set() or 'not built'}")
    gpus = torch.cuda.device_count()
    print(f"GPUs: {gpus or 'none'}, CUDA of torch: {torch.version.cuda or 'none'}", end=", ")
    print(f"Triton: {_version('triton')}")
    devices = ["cpu", *(f"cuda:{index}" for index in range(gpus))]
    for device in devices:
        name = "" if device == "cpu" else f" ({torch.cuda.get_device_name(device)})"
        print(f"\n{device}{name}, {steps} steps, batch of {batch_size}, float32:")
        for answer, cores in _answers(device, steps, batch_size).items():
            print(f"  {answer}\n    {' '.join(cores)}")
    return FINISHED


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _answers(device: str, steps: int, batch_size: int) -> dict[str, list[str]]:
    """What `explain_backend` says, and the cores of which it says so."""
    x = torch.zeros(steps, batch_size, 4, device=device)
    episode_starts = torch.zeros(steps, batch_size, dtype=torch.bool, device=device)
    cores = defaultdict(list)
    for name in core_names():
        core = make_core(name, 4, 16, device=device)
        (explanation,) = core.explain_backend(x, episode_starts)
        cores[str(explanation)].append(name)
    return cores
