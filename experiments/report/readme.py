"""The generated parts of README and docs: tables of cores, gates, environments and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gymnasium import spaces

from rlgates.atomic import write_atomically
from rlgates.envs import ENVS, BatchedEnv, EnvSpec, make_env_spec
from rlgates.envs.engine.actions import ActionSpace
from rlgates.envs.engine.players import play
from rlgates.experiments.report.claims.ledger import judge_claims, verdict_summary
from rlgates.experiments.report.rows import markdown
from rlgates.experiments.report.timings.tables import read_costs
from rlgates.gates import GATES
from rlgates.registry import CORES, make_core

PLAYED = 200  # episodes of each scripted player
SIZE = 64  # inputs and units of the measured cores


def cores_table(results: Path) -> str:
    """CORES as a Markdown table, with the costs of each core with its plain gate."""
    costs = read_costs(results / "core_costs.csv")
    heads = (
        *("core", "what it computes", "gates", "options"),
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
            " ".join(f"`{option}`" for option in row.options) or "",
            f"{sum(p.numel() for p in core.parameters()):,}",
            f"{core.state_size:,}",
            costs[family]["relative_time"] if family in costs else "",
            row.source,
        )
        lines.append([cell.replace("|", "\\|") for cell in cells])
    return markdown(heads, lines)


def gates_table() -> str:
    """GATES as a Markdown table."""
    heads = (
        *("prefix", "gate", "raw gate", "initial forget bias", "effective gates"),
        *("options", "source"),
    )
    lines = []
    for prefix, gate in GATES.items():
        kinds = (kind.replace("_", " ") for kind in (gate.activation, gate.init, gate.auxiliary))
        options = " ".join(f"`{option}`" for option in gate.options)
        name = f"`{prefix}_`" if prefix else "(none)"
        lines.append((name, gate.title, *kinds, options, gate.source))
    return markdown(heads, lines)


def envs_table() -> str:
    """ENVS as a Markdown table, with the returns of scripted players."""
    heads = (
        *("id", "environment", "observation", "actions", "steps", "guessing"),
        *("with memory", "without", "presets"),
    )
    lines = []
    for env_id, kind in ENVS.items():
        spec = make_env_spec(env_id)
        space, presets = spec.observation_space, [f"`{preset}`" for preset in kind.presets]
        cells = (
            f"`{env_id}`",
            (kind.__doc__ or "").partition(",")[0],
            f"{space.dtype} {space.shape or space}",
            _actions(spec.action_space),
            f"{spec.max_episode_length:,}",
            "" if spec.chance is None else f"{spec.chance:.2f}",
            *_players_returns(spec),
            " ".join(presets if len(presets) < 10 else (presets[0], "...", presets[-1])),
        )
        lines.append(cells)
    return markdown(heads, lines)


def _players_returns(spec: EnvSpec) -> list[str]:
    """The mean returns of the scripted players with and without memory, if there are any."""
    try:
        players = spec.memory_player(), spec.reactive_player()
    except NotImplementedError:  # a user's game
        return ["", ""]
    results = (play(BatchedEnv(spec, PLAYED), player, PLAYED) for player in players)
    return [f"{result['episode_return']:.2f}" for result in results]


def _actions(space: ActionSpace) -> str:
    """How many actions there are: 4, 8 x 8 or, of a `Box`, how many numbers."""
    if isinstance(space, spaces.Box):
        return f"{space.shape[0]} real"
    counts = space.nvec.tolist() if isinstance(space, spaces.MultiDiscrete) else [space.n]
    return " x ".join(map(str, counts))


def fill_in(text: str, results: Path) -> str:
    """Replace the parts of README or a page of the docs between its markers by the current tables.

    A part is `<!-- name -->` to `<!-- /name -->`: "cores", "gates", "envs", "ledger", or the name
    of a Markdown file in `results`. A text without markers is returned unchanged.
    """
    parts: dict[str, Callable[[], str]] = {
        **{path.stem: path.read_text for path in results.glob("*.md")},
        "cores": lambda: cores_table(results),
        "gates": gates_table,
        "envs": envs_table,
        "ledger": lambda: f"{verdict_summary(judge_claims(results))}.",
    }
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if begin in text and end in text:
            head, _, rest = text.partition(begin)
            text = f"{head}{begin}\n{part().strip()}\n\n{end}{rest.partition(end)[2]}"
    return text


def fill_in_pages(readme: Path, results: Path) -> Iterator[Path]:
    """Fill in a README and the pages in the folder `docs` beside it; yield those that changed."""
    for page in (readme, *sorted((readme.parent / "docs").rglob("*.md"))):
        text = page.read_text() if page.exists() else ""
        if (filled := fill_in(text, results)) != text:
            write_atomically(page, filled.encode())
            yield page
