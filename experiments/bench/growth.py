"""Time how the cost of a forward and backward pass grows with steps, batch size and units."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rlgates import make_core
from rlgates.core import BackendName
from rlgates.errors import check_number, check_size
from rlgates.experiments.bench.configs import GrowthConfig
from rlgates.experiments.bench.pairs import (
    Run,
    check_threads,
    circumstances,
    medians,
    write_results,
)
from rlgates.experiments.bench.rivals import Shape, core_run, layer_run
from rlgates.experiments.configs.devices import threads_set
from rlgates.experiments.report.outputs import OUTPUTS, redraw_output

BASE = Shape(128, 16, 32, 128)
AXES: dict[str, tuple[int, ...]] = {
    "T": (8, 32, 128, 512, 2048),
    "B": (1, 4, 16, 64, 256),
    "H": (16, 32, 64, 128, 256, 512, 1024),
}
# Title: the core and its backend, or the layer of torch.nn.
LINES: dict[str, tuple[str, BackendName | Literal["torch.nn"]]] = {
    "lstm": ("lstm", "auto"),
    "ur_lstm": ("ur_lstm", "auto"),
    "gru": ("gru", "auto"),
    "mingru": ("mingru", "auto"),
    "torch.nn.LSTM": ("LSTM", "torch.nn"),
    "lstm, plain loop": ("lstm", "plain"),
}


def bench_growth(config: GrowthConfig) -> Path:
    """Time all layers along each axis, and write `core_growth.json` and the figure."""
    if config.quick:
        config = replace(config, rounds=min(config.rounds, 2), results="runs/quick")
    check_size("rounds", config.rounds)
    check_number("seconds", config.seconds, above=0)
    check_threads([config.threads])
    (path,) = OUTPUTS["core_growth"].source_paths(Path(config.results))
    content: dict[str, Any] = {
        "run": circumstances(rounds=config.rounds, threads=config.threads),
        "base": BASE._asdict(),
        "milliseconds": {},
    }
    with threads_set(config.threads):
        for axis, sizes in AXES.items():
            if config.quick:
                sizes = sizes[:3]
            content["milliseconds"][axis] = along(axis, sizes, config)
            write_results(path, content)
    redraw_output("core_growth", path.parent)
    return path


def along(axis: str, sizes: tuple[int, ...], config: GrowthConfig) -> dict[str, list[list[float]]]:
    """[size, median of milliseconds, minimum] of each layer along one axis."""
    points: dict[str, list[list[float]]] = {title: [] for title in LINES}
    remaining = dict(LINES)
    for size in sizes:
        shape = BASE._replace(**{axis: size})
        runs = {title: _run(*line, shape) for title, line in remaining.items()}
        for title, (middle, least) in medians(runs, config.rounds, random.Random(0)).items():
            points[title].append([size, middle, least])
            print(f"{axis}={size:<5} {title:<18} {middle:10.3f} ms", flush=True)
            if middle > 1e3 * config.seconds:
                del remaining[title]
    return points


def _run(name: str, backend: BackendName | Literal["torch.nn"], shape: Shape) -> Run:
    if backend == "torch.nn":
        return layer_run(name, shape, "cpu")
    return core_run(make_core(name, shape.I, shape.H, backend=backend), shape, "cpu")
