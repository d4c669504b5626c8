"""The processes of `torchrun -m rlgates train ...`, which make a run together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta

import torch
import torch.distributed as dist

from rlgates.experiments.configs.devices import find_device

TOGETHER = ("train", "demo")
"""The commands that several processes can run."""
TIMEOUT = timedelta(hours=2)
"""How long a process waits for the others: rank 0 evaluates meanwhile."""
_ADDRESS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def processes() -> int:
    """How many processes run this command, by the variables that torchrun sets."""
    return int(os.environ["WORLD_SIZE"]) if all(map(os.environ.get, _ADDRESS)) else 1


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """The process group of torch.distributed inside the block, if there are several processes.

    They use gloo on CPUs and nccl on GPUs, of which each process of a machine has its own.

    Raises:
        ValueError: the device is not there, or a machine has more processes than GPUs.
    """
    if processes() == 1:
        yield
        return
    backend = "gloo"
    if find_device(device).type == "cuda":
        backend, index = "nccl", int(os.environ.get("LOCAL_RANK", "0"))
        if index >= torch.cuda.device_count():
            raise ValueError(
                f"each process needs its own GPU: there are {torch.cuda.device_count()}, and "
                f"this is process {index + 1} of this machine."
            )
        torch.cuda.set_device(index)
    dist.init_process_group(backend, timeout=TIMEOUT)
    yield
    # Not after an error, for which the others may not be there.
    dist.destroy_process_group()


@contextmanager
def only_first_prints() -> Iterator[None]:
    """Silence the standard output of all processes but the first."""
    if processes() == 1 or os.environ["RANK"] == "0":
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield
