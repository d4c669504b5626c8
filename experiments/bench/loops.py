"""Time the plain loops of cores against each other, as papers time theirs."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

from rlgates import make_core
from rlgates.errors import MAX_WIDTH, check_number, check_size
from rlgates.experiments.bench.configs import LoopBenchConfig
from rlgates.experiments.bench.pairs import Run, compare, row_circumstances
from rlgates.experiments.bench.rivals import Shape, core_run
from rlgates.experiments.configs.base import parse_core
from rlgates.experiments.configs.devices import threads_set
from rlgates.experiments.report.outputs import OUTPUTS, redraw_output
from rlgates.experiments.report.timings.core_speed import TABLE_SHAPE
from rlgates.experiments.runs.files import read_table, write_table
from rlgates.experiments.runs.locks import locked

THREADS = 1  # as the claims of costs say


def bench_loops(config: LoopBenchConfig) -> Path:
    """Time the loops, print a line for each pair of cores, and write `loop_speed.csv`.

    Raises:
        ValueError: an unknown core, a pair that is not two cores, or a number out of range.
    """
    if config.quick:
        config = replace(config, pairs=min(config.pairs, 5), results="runs/quick")
    check_size("pairs", config.pairs)
    for hidden_size in config.hidden_sizes:
        check_size("hidden_sizes", hidden_size, maximum=MAX_WIDTH)
    check_number("seconds", config.seconds, above=0)
    compared = [tuple(pair.split("/")) for pair in config.cores]
    for pair in compared:
        if len(pair) != 2:
            raise ValueError(f"cores are written core/than, got {'/'.join(pair)}.")
        for name in pair:
            parse_core(name)
    (path,) = OUTPUTS["loop_speed"].source_paths(Path(config.results))
    read_table(path)  # if it is damaged, nothing is timed
    load = os.getloadavg()[0]
    usual = Shape(*map(int, TABLE_SHAPE.split("x")))
    for (core, than), hidden_size in product(compared, config.hidden_sizes):
        shape = usual._replace(H=hidden_size)
        with threads_set(THREADS):
            found = compare(_loop(core, shape), _loop(than, shape), config.pairs, config.seconds)
        # The inverses: how much longer the core takes.
        ratio, low, high = 1 / found.ratio, 1 / found.high, 1 / found.low
        row = {
            "core": core,
            "than": than,
            "ratio": f"{ratio:.4g}",
            "low": f"{low:.4g}",
            "high": f"{high:.4g}",
            "milliseconds": str(found.ms),
            "than_milliseconds": str(found.rival_ms),
            "pairs": str(found.pairs),
            "shape": str(shape),
            **row_circumstances(THREADS, load),
        }
        print(
            f"{core} / {than} = {ratio:.3f} [{low:.3f}, {high:.3f}] with {hidden_size} units",
            flush=True,
        )
        with locked(path.parent):
            rows = {(r["core"], r["than"], r["shape"]): r for r in read_table(path)}
            rows[core, than, str(shape)] = row
            write_table(path, list(rows.values()), list(row))
    redraw_output("loop_speed", path.parent)
    return path


def _loop(name: str, shape: Shape) -> Run:
    """Forward and backward pass of the plain loop of a core."""
    family, options = parse_core(name)
    core = make_core(family, shape.I, shape.H, backend="plain", **options)
    return core_run(core, shape, "cpu")
