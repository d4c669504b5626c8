"""Several processes of torch.distributed on this machine, forked and so quickly made."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 300


def together(size: int, folder: Path, function: Callable[[], Any]) -> list[Any]:
    """What `function` returns in each of `size` ranks, by gloo; a RuntimeError if one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():  # of forks beside threads, in Python 3.12
        warnings.simplefilter("ignore", DeprecationWarning)
        processes = [
            context.Process(target=_rank, args=(rank, size, folder, function), daemon=True)
            for rank in range(size)
        ]
        for process in processes:
            process.start()
    deadline = time.monotonic() + SECONDS
    for process in processes:
        process.join(max(0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    failed = [rank for rank, process in enumerate(processes) if process.exitcode]
    if failed:
        texts = [(folder / f"{rank}.txt").read_text() for rank in failed if _said(folder, rank)]
        raise RuntimeError(f"ranks {failed} of {size} failed:\n" + "\n".join(texts))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _said(folder: Path, rank: int) -> bool:
    return (folder / f"{rank}.txt").exists()


def _rank(rank: int, size: int, folder: Path, function: Callable[[], Any]) -> None:
    gc.freeze()  # garbage of the tests may own threads, which this process does not have
    code = 1
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
        )
        torch.save(function(), folder / f"{rank}.pt")
        dist.destroy_process_group()
        code = 0
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(code)
