"""The parts of the README that are made from the tables and results."""

from __future__ import annotations

from pathlib import Path

from rlgates.cores import CORES, core_names, core_options, make_core
from rlgates.gates import GATES

SIZE = 64  # inputs and units of the cores whose parameters are counted


def cores_table() -> str:
    """Every name that `make_core` takes, as a Markdown table."""
    lines = [
        "| core | gate | raw gate | forget bias starts | effective gates | options "
        f"| parameters at {SIZE} inputs, d = {SIZE} | source |",
        f"|{'---|' * 8}",
    ]
    for name, (family, prefix) in core_names().items():
        core = make_core(name, SIZE, SIZE)
        parameters = f"{sum(p.numel() for p in core.parameters()):,}"
        options = ", ".join(f"`{option}`" for option in core_options(name))
        row = CORES[family]
        cells: tuple[str, ...] = (row.title, "", "", "", options, parameters, row.source)
        if row.gates:
            gate = GATES[prefix]
            kinds = (gate.activation, gate.start, gate.auxiliary)
            cells = (gate.title, *(kind.replace("_", " ") for kind in kinds), options, parameters)
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
        if begin in text and end in text:
            head, _, rest = text.partition(begin)
            text = f"{head}{begin}\n{part}\n\n{end}{rest.partition(end)[2]}"
    return text
