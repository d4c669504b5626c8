"""How long the cores take, each beside the plain LSTM in the same process."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlgates import Core, make_core
from rlgates.cores import list_cores
from rlgates.errors import check_size
from rlgates.experiments.configs import BenchConfig
from rlgates.experiments.files import write_atomically
from rlgates.experiments.logs import write_rows
from rlgates.experiments.manifest import git_state
from rlgates.experiments.tables import Row, read

REFERENCE = "lstm"


def bench(config: BenchConfig) -> Path:
    """Time the cores, print a line for each, and write them into `core_costs.csv`."""
    for name in ("steps", "batch_size", "size", "pairs", "threads"):
        check_size(name, getattr(config, name))
    cores = config.cores or tuple(list_cores())
    made = {name: make_core(name, config.size, config.size) for name in (*cores, REFERENCE)}
    torch.set_num_threads(config.threads)
    x = torch.randn(config.steps, config.batch_size, config.size)
    path = Path(config.results) / "core_costs.csv"
    rows, git = read_costs(path.parent), git_state() or {"commit": ""}
    for name in cores:
        core = made[name]
        ratio, seconds = relative_time(core, made[REFERENCE], x, config.pairs)
        rows[name] = {
            "core": name,
            "parameters": str(sum(parameter.numel() for parameter in core.parameters())),
            "state_size": str(core.state_size),
            "output_size": str(core.output_size),
            "relative_time": f"{ratio:.3g}",
            "milliseconds": f"{1e3 * seconds:.3g}",
            "backend": core.backend_used or "",
            "setting": f"T={config.steps} B={config.batch_size} d={config.size} "
            f"threads={config.threads} torch={torch.__version__}",
            "commit": git["commit"],
        }
        print(f"{name:<14} {ratio:6.2f} x {REFERENCE}  {1e3 * seconds:8.2f} ms", flush=True)
        ordered = [rows[core] for core in list_cores() if core in rows]
        write_rows(path, ordered, list(rows[name]))
    redraw_costs(path.parent)
    return path


def redraw_costs(results: Path) -> list[Path]:
    """Write the table of costs again from the CSV files; what was written."""
    if not (results / "core_costs.csv").exists():
        return []
    write_atomically(results / "core_costs.md", table(results).encode())
    return [results / "core_costs.md"]


def relative_time(core: Core, reference: Core, x: Tensor, pairs: int) -> tuple[float, float]:
    """Median ratio of the times of `pairs` neighbouring runs, and the core's least time."""
    run(core, x), run(reference, x)  # caches and lazy initialisation
    times = np.array([(run(core, x), run(reference, x)) for _ in range(pairs)])
    return float(np.median(times[:, 0] / times[:, 1])), float(times[:, 0].min())


def run(core: Core, x: Tensor) -> float:
    """Seconds of a forward and a backward pass."""
    core.zero_grad()
    start = time.perf_counter()
    outputs, _ = core(x)
    outputs.sum().backward()
    return time.perf_counter() - start


def read_costs(results: Path) -> dict[str, Row]:
    """The rows of `core_costs.csv` by the name of the core."""
    return {row["core"]: row for row in read(results / "core_costs.csv")}


def table(results: Path) -> str:
    """Core by core: parity with its twin, parameters, state, time; from the CSV files."""
    errors = {row["core"]: row for row in read(results / "parity.csv")}
    rows = list(read_costs(results).values())
    lines = [
        "| core | error in float64 | error in float32 | parameters | state | output | time |\n",
        f"|{' --- |' * 7}\n",
    ]
    for row in rows:
        error = errors.get(row["core"], {})
        lines.append(
            f"| `{row['core']}` | {error.get('float64', '')} | {error.get('float32', '')} "
            f"| {int(row['parameters']):,} | {int(row['state_size']):,} "
            f"| {int(row['output_size']):,} | {row['relative_time']} |\n"
        )
    settings = "; ".join(dict.fromkeys(row["setting"] for row in rows))
    commits = ", ".join(dict.fromkeys(row["commit"][:7] for row in rows))
    return "".join(lines) + (
        "\nErrors: the largest difference from the NumPy twin in outputs, state and all gradients, "
        "over (1 + |value|): `pytest tests/twins -m 'slow or not slow' --parity "
        "experiments/results/parity.csv`. Time: of a forward and a backward pass, relative to "
        f"`{REFERENCE}` in neighbouring runs ({settings}); native code where a core has it, else "
        f"the plain loop: `rlgates bench cores`, commit {commits}.\n"
    )
