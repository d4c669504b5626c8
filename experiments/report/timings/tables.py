"""The tables of timings that are rows of a CSV file: of cores, environments and tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from rlgates.atomic import write_atomically
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import markdown, numbers, read_frame, short_commits
from rlgates.experiments.runs.files import Row, read_table

REFERENCE = "lstm"
FRONT_ENDS = {
    "native": "`BatchedEnv`",
    "sb3": "SB3 `VecEnv`",
    "torch": "torch, CPU",
    "cuda": "torch, GPU",
    "original": "original, `SyncVectorEnv`",
}


def read_costs(path: Path) -> dict[str, Row]:
    """Read the costs of the cores by their name."""
    return {row["core"]: row for row in read_table(path)}


def write_core_costs(costs: Path, parity: Path, table: Path) -> None:
    """Write the table of errors, sizes and times.

    Args:
        costs: `core_costs.csv`.
        parity: `parity.csv`, the errors against the NumPy twins; may be absent.
        table: the Markdown file to write.
    """
    errors = {row["core"]: row for row in read_table(parity)}
    rows = read_frame(costs)
    heads = (
        *("core", "error in float64", "error in float32"),
        *("parameters", "state", "output", "time"),
    )
    lines = []
    for row in rows.to_dict("records"):
        error = errors.get(row["core"], {})
        sizes = [f"{int(row[name]):,}" for name in ("parameters", "state_size", "output_size")]
        both = error.get("float64", ""), error.get("float32", "")
        lines.append((f"`{row['core']}`", *both, *sizes, row["relative_time"]))
    note = (
        "\nErrors: the largest difference from the NumPy twin in outputs, state and all gradients, "
        "over (1 + |value|): `pytest tests/twins -m 'slow or not slow' --parity "
        "experiments/results/parity.csv`. Time: of a forward and a backward pass, relative to "
        f"`{REFERENCE}` in adjacent runs ({'; '.join(rows['setting'].unique())}); with native code "
        "if a core has it, else many steps at once in PyTorch, else the plain loop: `rlgates "
        f"bench cores`, {', '.join(filter(None, rows['cpu'].unique()))}, commit "
        f"{short_commits(rows)}.\n"
    )
    write_atomically(table, (markdown(heads, lines) + note).encode())


def write_loop_speed(source: Path, table: Path) -> None:
    """Write a line per pair of cores."""
    rows = read_frame(source)
    lines = [
        (
            *(f"`{row.core}`", f"`{row.than}`", row.shape.split("x")[-1]),
            *(f"{float(row.ratio):.2f}", f"[{float(row.low):.2f}, {float(row.high):.2f}]"),
            row.pairs,
        )
        for row in rows.itertuples()
    ]
    shapes = ", ".join(f"({shape.replace('x', ', ')})" for shape in rows["shape"].unique())
    note = (
        "\nTime of a forward and a backward pass of the plain loop, relative to that of another "
        f"core, (T, B, inputs, units) = {shapes}: median of interleaved pairs, its 95 % interval, "
        f"and the number of pairs. {_circumstances(rows)}; `rlgates bench loops`, commit "
        f"{short_commits(rows)}.\n"
    )
    heads = "core", "relative to", "units", "ratio", "interval", "pairs"
    write_atomically(table, (markdown(heads, lines) + note).encode())


def write_env_speed(source: Path, table: Path) -> None:
    """Write a line per environment, with a column per front end and number of environments."""
    rows = read_frame(source)
    cells = {
        (row.env, row.front_end, row.num_envs): f"{row.million_steps} M [{row.low}, {row.high}]"
        for row in rows.itertuples()
    }
    columns = list(dict.fromkeys((front_end, num_envs) for _, front_end, num_envs in cells))
    heads = [f"{FRONT_ENDS[front_end]} x {int(size):,}" for front_end, size in columns]
    lines = [
        [f"`{env}`", *(cells.get((env, *column), "") for column in columns)]
        for env in rows["env"].unique()
    ]
    note = (
        "\nMillion steps per second of the whole batch, with random actions and automatic resets: "
        f"median and range of {', '.join(rows['repeats'].unique())} measurements. Original: the "
        f"game of popgym or minigrid. {_circumstances(rows)}; `rlgates bench envs`, commit "
        f"{short_commits(rows)}.\n"
    )
    write_atomically(table, (markdown(["environment", *heads], lines) + note).encode())


def _circumstances(rows: pd.DataFrame) -> str:
    """The machine and the load of rows of timings: "AMD EPYC, threads 1, load before 0.1"."""
    loads = numbers(rows[rows["load"] != ""], "load")
    words = [
        ", ".join(filter(None, rows["cpu"].unique())),
        f"threads {', '.join(filter(None, rows['threads'].unique()))}",
        *(
            [f"load before {', '.join(f'{load:g}' for load in np.unique(loads))}"]
            if len(loads)
            else []
        ),
    ]
    return ", ".join(words)


def write_task_speed(source: Path, table: Path) -> None:
    """Write a line per task."""
    rows = read_frame(source)
    heads = (
        *("task", "units", "batch size", "first batch", "batch", "slowest batch"),
        *("update", "update / batch"),
    )
    lines = [
        (
            *(title_words(row.title), row.hidden_size, row.batch_size, f"{row.first_s} s"),
            f"{float(row.batch_ms):.2f} ms",
            f"{float(row.slowest_batch_ms):.2f} ms",
            f"{float(row.update_ms):,.0f} ms",
            f"{float(row.ratio):,.0f}",
        )
        for row in rows.itertuples()
    ]
    cores = ", ".join(f"`{core}`" for core in rows["core"].unique())
    note = (
        f"\nMedians of at most {rows['updates'].astype(int).max()} updates of {cores} in one "
        "thread, with the settings of the laptop tier. An update is everything but the batch: "
        "forward, backward, optimizer. The first batch includes reading and unpacking the files. "
        f"`rlgates bench tasks`, commit {short_commits(rows)}.\n"
    )
    write_atomically(table, (markdown(heads, lines) + note).encode())
