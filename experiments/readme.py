"""The parts of the README that are made from the tables and results."""

from __future__ import annotations

from pathlib import Path

from rlgates.cores import CORES, list_cores, make_core
from rlgates.gates import GATES

SIZE = 64  # inputs and units of the cores whose parameters are counted


def cores_table() -> str:
    """Every name that `make_core` takes, as a Markdown table."""
    lines = [
        f"| core | gate | raw gate | forget bias starts | effective gates | parameters at {SIZE} "
        "inputs, d = 64 | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in list_cores():
        core = make_core(name, SIZE, SIZE)
        parameters = f"{sum(p.numel() for p in core.parameters()):,}"
        family = max((family for family in CORES if name.endswith(family)), key=len)
        row = CORES[family]
        cells: tuple[str, ...] = (row.title, "", "", "", parameters, row.source)
        if row.gated:
            gate = GATES[name.removesuffix(family).removesuffix("_")]
            kinds = (gate.activation, gate.start, gate.auxiliary)
            cells = (gate.title, *(kind.replace("_", " ") for kind in kinds), parameters)
            cells = (*cells, gate.source)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def filled_in(text: str, results: Path) -> str:
    """A README with its table of cores, and its results from the tables in a folder."""
    parts = {"cores": cores_table()}
    tables = sorted(results.glob("*.md"))
    if tables:
        parts["results"] = "\n\n".join(path.read_text().strip() for path in tables)
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{part}\n\n{end}{rest.partition(end)[2]}"
    return text
