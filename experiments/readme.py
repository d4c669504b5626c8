"""The parts of the README that are made from the tables and results."""

from __future__ import annotations

from pathlib import Path

from rlgates.cores import CORES, make_core
from rlgates.envs import TASKS, make_task
from rlgates.experiments.costs import read_costs
from rlgates.experiments.tables import markdown
from rlgates.gates import GATES

SIZE = 64  # inputs and units of the cores that are measured


def cores_table(results: Path) -> str:
    """Every row of CORES, with what its plain gate costs, as a Markdown table."""
    costs = read_costs(results)
    heads = (
        *("core", "what it computes", "gates of the table", "options of its own"),
        *("parameters", "state", "time", "source"),
    )
    lines = []
    for family, row in CORES.items():
        core = make_core(family, SIZE, SIZE)
        gates = [gate for gate in row.gates if gate != row.plain]
        every = {gate for gate in GATES if gate}
        cells = (
            f"`{family}`",
            f"{row.title}: {row.equation}",
            "all" if set(gates) == every else " ".join(f"`{gate}_`" for gate in gates),
            " ".join(f"`{option}`" for option in row.cell.options) or "",
            f"{sum(p.numel() for p in core.parameters()):,}",
            f"{core.state_size:,}",
            costs[family]["relative_time"] if family in costs else "",
            row.source,
        )
        lines.append([cell.replace("|", "\\|") for cell in cells])
    return markdown(heads, lines)


def gates_table() -> str:
    """Every row of GATES as a Markdown table."""
    heads = (
        *("prefix", "gate", "raw gate", "forget bias starts", "effective gates"),
        *("options", "source"),
    )
    lines = []
    for prefix, gate in GATES.items():
        kinds = (kind.replace("_", " ") for kind in (gate.activation, gate.start, gate.auxiliary))
        options = " ".join(f"`{option}`" for option in gate.options)
        name = f"`{prefix}_`" if prefix else "(none)"
        lines.append((name, gate.title, *kinds, options, gate.source))
    return markdown(heads, lines)


def envs_table() -> str:
    """Every row of TASKS as a Markdown table."""
    heads = ("id", "task", "observation", "actions", "steps", "guessing", "presets")
    lines = []
    for env_id, kind in TASKS.items():
        task = make_task(env_id)
        space, presets = task.observation_space, [f"`{preset}`" for preset in kind.presets]
        cells = (
            f"`{env_id}`",
            (kind.__doc__ or "").partition(",")[0],
            f"{space.dtype} {space.shape or space}",
            str(task.action_space.n),
            f"{task.max_episode_length:,}",
            "" if task.chance is None else f"{task.chance:.2f}",
            " ".join(presets if len(presets) < 10 else (presets[0], "...", presets[-1])),
        )
        lines.append(cells)
    return markdown(heads, lines)


def filled_in(text: str, results: Path) -> str:
    """A README with its tables of what there is, and those of the results by their names."""
    parts = {path.stem: path.read_text() for path in results.glob("*.md")}
    parts |= {"cores": cores_table(results), "gates": gates_table(), "envs": envs_table()}
    parts["ledger"] = parts.pop("LEDGER", "").partition("\n\n")[2].partition(". ")[0] + "."
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if begin in text and end in text:
            head, _, rest = text.partition(begin)
            text = f"{head}{begin}\n{part.strip()}\n\n{end}{rest.partition(end)[2]}"
    return text
