"""The table of what each core costs: parity, parameters, state, and time relative to `lstm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlgates import make_core
from rlgates.cores import list_cores
from rlgates.experiments.bench_tables import TABLE_SHAPE
from rlgates.experiments.configs import core_of
from rlgates.experiments.files import write_atomically
from rlgates.experiments.logs import write_rows
from rlgates.experiments.tables import Row, markdown, read

REFERENCE = "lstm"
SIZE = 64  # inputs and units


def write_costs(results: Path, name: str, content: dict[str, Any]) -> None:
    """Put a core's time at the shape of the table, with the fewest threads, into its row."""
    cases = content["cores"][name]
    places = [key.partition("/")[2] for key in cases if key.startswith(f"{TABLE_SHAPE}/")]
    place = min(filter(str.isdecimal, places), key=int, default=None)
    case = cases.get(f"{TABLE_SHAPE}/{place}", {})
    if REFERENCE not in case:
        return
    family, options = core_of(name)
    core, run = make_core(family, SIZE, SIZE, **options), content["runs"][case["run"]]
    steps, rows, _, _ = TABLE_SHAPE.split("x")
    table = read_costs(results)
    table[name] = {
        "core": name,
        "parameters": str(sum(parameter.numel() for parameter in core.parameters())),
        "state_size": str(core.state_size),
        "output_size": str(core.output_size),
        "relative_time": f"{1 / case[REFERENCE].ratio:.3g}",
        "milliseconds": f"{case[REFERENCE].least:.3g}",
        "backend": case["backend"],
        "setting": f"T={steps} B={rows} d={SIZE} threads={place} torch={run['torch']}",
        "commit": run["commit"],
    }
    known = [core for core in list_cores() if core in table]
    ordered = [table[core] for core in dict.fromkeys([*known, *table])]
    write_rows(results / "core_costs.csv", ordered, list(table[name]))


def redraw_costs(results: Path) -> list[Path]:
    """Write the table of costs again from the CSV files; what was written."""
    if not (results / "core_costs.csv").exists():
        return []
    write_atomically(results / "core_costs.md", costs_table(results).encode())
    return [results / "core_costs.md"]


def read_costs(results: Path) -> dict[str, Row]:
    """The rows of `core_costs.csv` by the name of the core."""
    return {row["core"]: row for row in read(results / "core_costs.csv")}


def costs_table(results: Path) -> str:
    """Core by core: parity with its twin, parameters, state, time; from the CSV files."""
    errors = {row["core"]: row for row in read(results / "parity.csv")}
    rows = list(read_costs(results).values())
    errors_of = ("error in float64", "error in float32")
    heads = ("core", *errors_of, "parameters", "state", "output", "time")
    lines = []
    for row in rows:
        error = errors.get(row["core"], {})
        sizes = [f"{int(row[name]):,}" for name in ("parameters", "state_size", "output_size")]
        both = error.get("float64", ""), error.get("float32", "")
        lines.append((f"`{row['core']}`", *both, *sizes, row["relative_time"]))
    settings = "; ".join(dict.fromkeys(row["setting"] for row in rows))
    commits = ", ".join(dict.fromkeys(row["commit"][:7] for row in rows))
    return markdown(heads, lines) + (
        "\nErrors: the largest difference from the NumPy twin in outputs, state and all gradients, "
        "over (1 + |value|): `pytest tests/twins -m 'slow or not slow' --parity "
        "experiments/results/parity.csv`. Time: of a forward and a backward pass, relative to "
        f"`{REFERENCE}` in neighbouring runs ({settings}); native code where a core has it, else "
        f"the plain loop: `rlgates bench cores`, commit {commits}.\n"
    )
