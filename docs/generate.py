"""Write the pages of the site that are made of tables, docstrings and committed results.

`make docs` runs it. It writes the folders in `FOLDERS`, which git ignores.
"""

from __future__ import annotations

import contextlib
import csv
import inspect
import itertools
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from commands import sections
from ledger import claims_table, read_claims
from PIL import Image
from rendering import cores_in, escape, fold, options, prose, read_tables, signature, table
from standing import contests, standing
from torch.utils.flop_counter import FlopCounterMode

from rlgates.core import Core
from rlgates.envs import ENVS, BatchedEnv, EnvSpec, make_env_spec
from rlgates.envs.engine.players import play
from rlgates.experiments.configs.published import PROTOCOLS, Protocol
from rlgates.experiments.plots.curves import new_figure
from rlgates.experiments.plots.styles import style
from rlgates.experiments.plots.titles import TITLES
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.studies.study import Study
from rlgates.experiments.tasks import TASKS
from rlgates.gates import ACTIVATIONS, AUXILIARIES, GATES, Gate, timescale
from rlgates.registry import COMMON_OPTIONS, CORES, core_names, make_core

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "experiments" / "results"
FOLDERS = ("api", "cores", "environments", "gates", "studies", "tables", "tasks")
SIZE = 64
FRAMES = 60
SATURATED = 20.0  # a pre-activation at which a sigmoid is 0 or 1
SPEED = "core_speed"

# What the axes of a gate mean; z is the pre-activation, d the number of units.
ACTIVATION_EQUATIONS = {
    "sigmoid": "phi(z) = sigmoid(z)",
    "fast": "phi(z) = sigmoid(sinh(z))",
    "iterated_fast": "phi(z) = sigmoid(sinh(sinh(z)))",
    "softsign": "phi(z) = (softsign(z / 2) + 1) / 2, softsign(y) = y / (1 + |y|)",
    "cumax": "phi(z) = cumsum(softmax(z)) over the units; for input gates 1 - phi(z)",
}
INIT_EQUATIONS = {
    "constant": "phi(b_f) = sigmoid(forget_bias), b_i = 0",
    "chrono": "b_f = log u, u ~ U[1, t_max - 1], b_i = -b_f",
    "uniform": "phi(b_f) ~ U[1/d, 1 - 1/d], b_i = -b_f",
    "zero": "b_f = b_i = 0",
}
AUXILIARY_EQUATIONS = {
    "untied": "f = phi(z_f), i = phi(z_i); a fast or softsign i is a sigmoid",
    "tied": "f = phi(z_f), i = 1 - f",
    "refine": "g = phi(z_f), r = sigmoid(z_r), f = r (1 - (1 - g)^2) + (1 - r) g^2, i = 1 - f",
    "master": (
        "w = phi(z_mf) phi(z_mi), f = sigmoid(z_f) w + phi(z_mf) - w, "
        "i = sigmoid(z_i) w + phi(z_mi) - w"
    ),
}
MODULES = (
    "rlgates",
    "rlgates.nn",
    "rlgates.cores",
    "rlgates.gates",
    "rlgates.kernels",
    "rlgates.agents",
    "rlgates.envs",
    "rlgates.envs.sb3",
    "rlgates.envs.torch",
    "rlgates.envs.wrappers",
    "rlgates.experiments.studies",
    "rlgates.experiments.tasks",
)
# Where a backend runs, and why a core may have none of that name.
BACKENDS = {
    "native": "float32 on a CPU",
    "triton": "float32 on a GPU, with Triton",
    "scan": "everywhere, all steps at once",
    "plain": "everywhere, step by step; the reference for the others",
}
OURS = "Next to it: medians of this library's runs, whose sizes and budgets are those of the study."
NO_BACKEND = ("this core has no", "it has no")


def write(folder: str, name: str, *parts: str) -> None:
    """Write a page."""
    text = "\n\n".join(part for part in parts if part)
    (DOCS / folder / f"{name}.md").write_text(f"{text}\n")


def index(folder: str, title: str, intro: str, lines: Iterable[tuple[str, str]]) -> None:
    """Write the first page of a folder, with links to the others."""
    pages = list(lines)
    links = "\n".join(f"- [{words}]({name}.md)" for name, words in pages)
    toctree = "\n".join(("```{toctree}", ":hidden:", "", *(name for name, _ in pages), "```"))
    write(folder, "index", f"# {title}", intro, links, toctree)


def cases(keep: Callable[[str], bool], files: Iterable[Path]) -> str:
    """The rows of results about something; the tables of each file unfold."""
    parts = []
    for path in files:
        chosen = [found.select(keep) for found in read_tables(path)]
        tables = [str(its._replace(note="")) for its in chosen if its]
        if tables:
            whole = f"[All rows, and how they were made](../tables/{path.stem}.md)"
            parts.append(fold(f"Tables of {path.stem}", "\n\n".join((*tables, whole))))
    return "\n\n".join(parts)


def scores() -> list[Path]:
    """The tables of scores: those of studies, and of tests at greater lengths."""
    names = [*sorted(STUDIES), "horizon_horizon"]
    return [path for name in names if (path := RESULTS / f"{name}.md").exists()]


def claims(keep: Callable[[str], bool]) -> str:
    """The rows of the ledger about something."""
    chosen = [claim for claim in read_claims(RESULTS / "LEDGER.md") if keep(" ".join(claim))]
    return f"## Claims\n\n{claims_table(chosen)}" if chosen else ""


def note_on(core: str) -> str:
    """The note on a core in the guide.

    Raises:
        ValueError: there is none.
    """
    guide = (DOCS / "guides" / "which_core.md").read_text()
    match = re.search(rf"^### {core}\n\n(.*?)(?=\n### |\Z)", guide, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ValueError(f"docs/guides/which_core.md has no note on {core}.")
    return match[1].strip()


def size(core: Core) -> str:
    """The section of a core about its state, parameters and operations."""
    x = torch.zeros(1, 1, SIZE)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        core(x)
    start = core.unpack(core.initial_state(1)) if core.state_size else {}
    parts: list[tuple[Any, ...]] = [
        (f"`{key}`", str(tuple(value.shape[1:])), "not zero" if value.any() else "0")
        for key, value in start.items()
    ]
    words = (
        f"With {SIZE} inputs and {SIZE} units: {sum(p.numel() for p in core.parameters()):,} "
        f"parameters, {counter.get_total_flops():,} floating-point operations per step in matrix "
        f"products, an output of {core.output_size}."
    )
    if not parts:
        return f"## Size and state\n\n{words} It has no state, so nothing is reset."
    resets = (
        f"The state of a sequence is {core.state_size:,} numbers. Where `episode_starts` is true, "
        "it is reset to its initial value before the step, and no gradient flows back beyond it. "
        f"{_learns(core)} [What happens to the state](../guides/state.md)."
    )
    heads = ("part of the state", "shape", "initially")
    return "\n\n".join(("## Size and state", words, table(heads, parts), resets))


def _learns(core: Core) -> str:
    """Say what `learned_state` does, for a core of one layer."""
    cell = core.cells[0]
    if cell.learnable is None or set(cell.learnable) == set(cell.state_shapes):
        return "`learned_state=True` learns that value."
    if not cell.learnable:
        return "`learned_state=True` does nothing here: only this value makes sense."
    parts = ", ".join(f"`{name}`" for name in cell.learnable)
    return (
        f"`learned_state=True` learns that of {parts}; for the others no other value makes sense."
    )


def backends(family: str) -> str:
    """The section of a core about what runs it, and how fast."""
    # Of float64 native code and Triton say why they do not run it: for its type, or never.
    core = make_core(family, SIZE, SIZE, dtype=torch.float64)
    x = torch.zeros(16, 1, SIZE, dtype=torch.float64)
    with (RESULTS / "core_costs.csv").open(newline="") as file:
        measured = {row["core"]: row for row in csv.DictReader(file)}.get(family)
    rows: list[tuple[Any, ...]] = []
    for name, where in BACKENDS.items():
        core.backend = name  # "auto" does not say of those after its choice whether they could run
        (explanation,) = core.explain_backend(x)
        if not explanation.passed_over.get(name, "").startswith(NO_BACKEND):
            is_measured = measured is not None and measured["backend"] == name
            rows.append(
                (f"`{name}`", where, f"{measured['milliseconds']} ms" if is_measured else "")
            )
    setting = "not measured yet" if measured is None else measured["setting"]
    words = (
        f"Time of a forward and a backward pass ({setting}). `core.explain_backend` "
        "says what runs on your machine, and why the others do not."
    )
    heads = ("backend", "runs", "measured")
    return f"## Backends\n\n{words}\n\n{table(heads, rows)}"


def costs(mine: Callable[[str], bool]) -> str:
    """The section of a core about its time, and its error against its twin."""
    measured = next(read_tables(RESULTS / "core_costs.md")).select(mine)
    if measured is None:
        return "## Costs\n\nNot measured yet."
    words = (
        "Time of a forward and a backward pass, relative to `lstm`, and the error against an "
        "independent twin ([all cores](../tables/core_costs.md))."
    )
    return f"## Costs\n\n{words}\n\n{measured}"


def write_cores() -> None:
    """A page for each row of CORES."""
    names = core_names()
    for family, row in CORES.items():
        members = {name for name, (core, _) in names.items() if core == family}

        def mine(line: str, members: set[str] = members) -> bool:
            return bool(cores_in(line) & members)

        core = make_core(family, SIZE, SIZE, backend="plain")
        own = options(row.cell, row.options)
        gates = [f"[`{gate}_`](../gates/{gate}.md)" for gate in row.gates if gate]
        write(
            "cores",
            family,
            f"# {family}: {row.title}",
            f"```text\n{row.equation}\n```",
            f"{row.source}." if row.source else "",
            f"## When to use it\n\n{note_on(family)}\n\nSee [Which core?](../guides/which_core.md)",
            f"## Definition\n\n{prose(row.cell.__doc__)}",
            size(core),
            f"## Options\n\n{table(('option', 'default'), own)}" if own else "## Options",
            f"Of every core: {', '.join(f'`{name}`' for name in COMMON_OPTIONS)}.",
            f"## Gates\n\n{', '.join(gates)}." if gates else "",
            backends(family),
            costs(mine),
            speed(mine),
            f"## Results\n\n{standing(members, RESULTS)}",
            cases(mine, scores()),
            claims(mine),
        )
    lines = [(family, f"`{family}`: {row.title}") for family, row in CORES.items()]
    index("cores", "Cores", "One page each. [All names](../reference/names.md).", lines)


def speed(mine: Callable[[str], bool]) -> str:
    """The section of a core about its speed."""
    measured = cases(mine, [RESULTS / f"{SPEED}.md"])
    return f"## Speed\n\n{measured}" if measured else ""


def write_gates() -> None:
    """A page for each row of GATES; that of the plain gate is `plain`."""
    names = core_names()
    for prefix, row in GATES.items():
        page = prefix or "plain"
        members = {name for name, (_, gate) in names.items() if gate == prefix}

        def mine(line: str, members: set[str] = members) -> bool:
            return bool(cores_in(line) & members)

        defaults = {"forget_bias": "1.0", "t_max": "number of units", "chunk_size": "1"}
        defaults |= {"refine_bias": "'minus_forget'", "tied": "of the core"}
        own: list[tuple[Any, ...]] = [(f"`{name}`", defaults[name]) for name in row.options]
        draw_gate(prefix, DOCS / "gates" / f"{page}.png")
        equations = (
            ACTIVATION_EQUATIONS[row.activation],
            AUXILIARY_EQUATIONS[row.auxiliary],
            INIT_EQUATIONS[row.init],
        )
        lines = "\n".join(equations)
        write(
            "gates",
            page,
            f"# {f'{prefix}_: ' if prefix else ''}{row.title}",
            f"```text\n{lines}\n```",
            f"{row.source}. Maps: {', '.join(AUXILIARIES[row.auxiliary].maps)}.",
            f"![The effective forget gate, and its timescales at the start]({page}.png)",
            effective_range(prefix),
            f"## Options\n\n{table(('option', 'default'), own)}" if own else "",
            "[`rlgates.gates.Gate`](../api/rlgates.md) explains them.",
            f"## Cores\n\n{', '.join(f'`{name}`' for name in names if name in members)}.",
            f"## Results\n\n{standing(members, RESULTS)}",
            cases(mine, scores()),
            claims(mine),
        )
    lines = [
        (key or "plain", f"`{key}_`: {row.title}" if key else row.title)
        for key, row in GATES.items()
    ]
    index("gates", "Gates", "[All gates](../reference/names.md) in one table.", lines)


def effective_range(prefix: str) -> str:
    """The forget gates and timescales that some raw gates can become, as a table.

    Cumax has none, because its gates depend on those of other units; nor have gates that are
    effective as they are.
    """
    from_logit = ACTIVATIONS[GATES[prefix].activation].from_logit
    if from_logit is None or GATES[prefix].auxiliary in ("untied", "tied"):
        return ""
    gate = Gate(prefix, 1)
    main = "mf" if "mf" in gate.maps else "f"
    rows: list[tuple[Any, ...]] = []
    for raw in (0.5, 0.9, 0.99):
        z = from_logit(torch.logit(torch.tensor([raw], dtype=torch.float64)))
        ends = torch.tensor([-SATURATED, SATURATED], dtype=torch.float64)
        choices = [[z] if key == main else list(ends[:, None]) for key in gate.maps]
        found = torch.cat([gate(*choice)[0] for choice in itertools.product(*choices)])
        low, high = found.min(), found.max()
        steps = " to ".join(f"{float(timescale(end)):.4g}" for end in (low, high))
        rows.append((raw, f"{round(float(low), 6):.4g} to {round(float(high), 6):.4g}", steps))
    heads = ("phi(z)", "effective forget gate", "timescale, steps")
    return f"## Effective range\n\n{table(heads, rows)}"


def draw_gate(prefix: str, path: Path) -> None:
    """The effective forget gate over its pre-activation, and the timescales at the start."""
    gate = Gate(prefix, 256)
    biases = gate.initial_biases(torch.Generator().manual_seed(0))
    forget, _ = gate(*biases.values())
    color = style(f"{prefix}_lstm" if prefix else "lstm").color
    with new_figure(path, (8, 3.2), font_size=10, title_size=11) as figure:
        left, right = figure.subplots(1, 2)
        z = torch.linspace(-4, 4, 200)
        if GATES[prefix].activation == "cumax":
            left.plot(np.arange(256), forget, color=color, lw=2)
            left.set(xlabel="unit", ylabel="forget gate at the start")
        else:
            main = "mf" if "mf" in gate.maps else "f"
            has_others = len(gate.maps) > 2 or "r" in gate.maps
            dashes = ((-4.0, "--"), (0.0, "-"), (4.0, "-.")) if has_others else ((0.0, "-"),)
            for other, dash in dashes:
                probe = Gate(prefix, 1)
                inputs = [
                    (z if key == main else torch.full_like(z, other))[:, None] for key in probe.maps
                ]
                label = f"other pre-activations {other:g}"
                left.plot(z, probe(*inputs)[0][:, 0], color=color, ls=dash, lw=2, label=label)
            left.set(xlabel=f"pre-activation z of {main}", ylabel="effective forget gate")
            if has_others:
                left.legend(loc="upper left", fontsize=8)
        left.set(title="Forget gate", ylim=(-0.03, 1.03))
        timescales = (1 / (1 - forget.clamp(max=1 - 1e-6))).sort().values
        right.plot(timescales, np.linspace(0, 1, 256), color=color, lw=2)
        right.set(
            title="Timescales at the start",
            xscale="log",
            xlabel="timescale 1 / (1 - f), steps",
            ylabel="share of 256 units below",
        )


def write_environments() -> None:
    """A page for each row of ENVS, its docstring first."""
    for env_id, kind in ENVS.items():
        spec = make_env_spec(env_id)
        title, _, body = inspect.cleandoc(kind.__doc__ or "").partition("\n")
        presets: list[tuple[Any, ...]] = [
            (f"`{name}`", " ".join(f"`{key}={value!r}`" for key, value in settings.items()))
            for name, settings in kind.presets.items()
        ]
        defaults: list[tuple[Any, ...]] = [
            (f"`{item.name}`", f"`{item.default!r}`")
            for item in fields(kind)
            if item.init and item.default is not MISSING
        ]
        film(spec, DOCS / "environments" / f"{kind.__name__}.gif")
        number = [
            f"Longest episode: {spec.max_episode_length:,} steps.",
            "" if spec.chance is None else f"Success by guessing: {spec.chance:.2f}.",
        ]
        write(
            "environments",
            kind.__name__,
            f"# {title.partition(',')[0]}",
            f"`{env_id}`. {' '.join(number)}",
            f"![An episode of the player with memory]({kind.__name__}.gif)",
            body.strip(),
            f"## Settings and defaults\n\n{table(('setting', 'default'), defaults)}",
            f"## Preset settings\n\n{table(('preset', 'settings'), presets)}" if presets else "",
            "## Players\n\nScripted, 256 episodes with the default settings, seed 0.",
            players(spec),
            f"## Results\n\n{environment_results(env_id) or 'None yet.'}",
        )
    lines = [(kind.__name__, f"`{env_id}`") for env_id, kind in ENVS.items()]
    index("environments", "Environments", "[How to make them](../guides/environments.md).", lines)


def players(spec: EnvSpec) -> str:
    """What the players at the ceiling and at the floor achieve."""
    rows = []
    for words, player in (("memory", spec.memory_player()), ("no memory", spec.reactive_player())):
        found = play(BatchedEnv(spec, num_envs=64, seed=0), player, episodes=256)
        success = found.get("is_success")
        score = "" if success is None else f"{success:.2f}"
        rows.append((words, f"{found['episode_return']:.2f}", score))
    return table(("player", "return", "success"), rows)


def film(spec: EnvSpec, path: Path) -> None:
    """An episode of the player with memory, of at most `FRAMES` images."""
    player = spec.memory_player()
    player.reset(1, seed=0)
    with contextlib.closing(gymnasium.make(spec.env_id, render_mode="rgb_array")) as env:
        obs, _ = env.reset(seed=0)
        images, start, done = [Image.fromarray(np.asarray(env.render()))], np.ones(1, bool), False
        while not done:
            (action,) = player.act(np.asarray(obs)[None], start)
            obs, _, terminated, truncated, _ = env.step(action)
            start, done = np.zeros(1, bool), terminated or truncated
            images.append(Image.fromarray(np.asarray(env.render())))
    images = images[:: -(-len(images) // FRAMES)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=250, loop=0)


def environment_results(env_id: str) -> str:
    """The tables of studies in which the environment is."""
    name = env_id.partition("/")[2].partition("-")[0]
    parts = []
    for path in scores():
        for found in read_tables(path):
            if found.head.startswith(f"| {TITLES[name]}"):
                parts.append(f"From [{path.stem}](../tables/{path.stem}.md):\n\n{found}")
    return "\n\n".join(parts)


def write_tasks() -> None:
    """A page for each row of TASKS."""
    for name, kind in TASKS.items():
        settings: list[tuple[Any, ...]] = list(options(kind, kind.settings))
        task = kind()
        measured = ours(name)
        published: list[tuple[Any, ...]] = [
            (f"`{row.core}`", row.value, row.split, row.source, measured.get(row.core, ""))
            for row in task.published
        ]
        heads = ("core", kind.metric, "split", "source", "ours, test")
        protocols = [protocol(key, row) for key, row in PROTOCOLS.items() if row.task == name]
        found = [
            f"From [{path.stem}](../tables/{path.stem}.md):\n\n{result}"
            for path in scores()
            for result in read_tables(path)
            if re.match(rf"\| {re.escape(TITLES[name])}(,|:| \|)", result.head)
        ]
        direction = "higher is better" if kind.higher_is_better else "lower is better"
        write(
            "tasks",
            name,
            f"# {name}: {TITLES[name]}",
            prose(kind.__doc__),
            f"Metric: `{kind.metric}` ({direction}).",
            f"## Settings\n\n{table(('setting', 'default'), settings)}" if settings else "",
            f"Without memory the loss is {task.baseline:.4g} at best." if task.baseline else "",
            f"## Command\n\n```bash\nrlgates task {name} --core ur_lstm\n```",
            f"## Published\n\n{OURS}\n\n{table(heads, published)}" if published else "",
            "\n\n".join(("## Protocols", "For `--protocol`.", *protocols)) if protocols else "",
            "## Results\n\n" + ("\n\n".join(found) or "None yet."),
        )
    lines = [(name, f"`{name}`: {TITLES[name]}") for name in TASKS]
    index("tasks", "Tasks", "[How to run them](../guides/tasks.md).", lines)


def ours(task: str) -> dict[str, str]:
    """The results of each core on a task in the studies, by the task's metric."""
    found: dict[str, list[str]] = {}
    for contest in contests(RESULTS):
        if contest.metric == TASKS[task].metric and re.match(rf"{task}(,|$)", contest.title):
            for core, median in contest.medians.items():
                text = f"{median:.4g} ([{contest.study}](../studies/{contest.study}.md))"
                found.setdefault(str(core), []).append(text)
    return {core: ", ".join(texts) for core, texts in found.items()}


def protocol(name: str, row: Protocol) -> str:
    """A paper's protocol for a task: what it found, and the settings that it states."""
    hidden = ("task", "cores", "source", "finding")
    settings = [
        (f"`{item.name}`", f"`{value!r}`")
        for item in fields(row)
        if item.name not in hidden and (value := getattr(row, item.name)) not in (None, {}, ())
    ]
    found = f" Found: {escape(row.finding)}." if row.finding else ""
    cores = ", ".join(f"`{core}`" for core in row.cores)
    words = f"`{name}`: {escape(row.source)}; {cores}.{found}"
    return f"{words}\n\n{fold('settings', table(('setting', 'value'), settings))}"


def write_studies() -> None:
    """A page for each row of STUDIES."""
    for name, study in STUDIES.items():
        rows: list[tuple[Any, ...]] = []
        tiers: tuple[Literal["laptop", "full"], ...] = ("laptop", "full")
        for tier in tiers:
            if not getattr(study, tier):
                continue
            arms = study.arms(tier)
            cores = dict.fromkeys(core for arm in arms for core in arm.cores)
            names = " ".join(f"`{core}`" for core in cores)
            rows.append((tier, len(arms), names, study.num_runs(tier)))
        results = RESULTS / f"{name}.md"
        tables = "\n\n".join(map(str, read_tables(results))) if results.exists() else "None yet."
        images = [
            f"![{path.stem}](../../experiments/results/{path.name})"
            for path in sorted(RESULTS.glob(f"{name}*.png"))
            if owner(path.stem) == name and not path.stem.endswith("_readme")
        ]
        others = [
            f"[{path.stem}](../tables/{path.stem}.md)"
            for path in sorted(RESULTS.glob(f"{name}_*.md"))
            if owner(path.stem) == name
        ]
        write(
            "studies",
            name,
            f"# {name}: {escape(study.title)}",
            f"Reproduces: {escape(study.source)}." if study.source else "",
            f"```bash\nrlgates sweep {name}\n```",
            table(("tier", "rows", "cores", "runs"), rows),
            seeds_text(study),
            f"## Results\n\n{tables}",
            "\n\n".join(images),
            f"More tables: {', '.join(others)}." if others else "",
            claims(lambda line, name=name: f"`rlgates sweep {name}`" in line),
        )
    lines = [(name, f"`{name}`: {escape(study.title)}") for name, study in STUDIES.items()]
    index("studies", "Studies", "[How to run them](../guides/studies.md).", lines)


def seeds_text(study: Study) -> str:
    """The seeds of a study, and which of them claims are tested on if some were added."""
    text = f"Seeds {study.seeds[0]} to {study.seeds[-1]}"
    if any(study.seeds_of(arm) != study.seeds for arm in study.arms("laptop")):
        text += ", fewer for some rows of the laptop tier"
    if not study.added:
        return f"{text}."
    first, last = study.added[0], study.added[-1]
    return (
        f"{text}. Of these, {first} to {last} were added after a look at the results of the "
        "others; claims are tested only on the added seeds."
    )


def owner(stem: str) -> str:
    """The study to which a file of results belongs: the longest name that it begins with."""
    return max((name for name in STUDIES if f"{stem}_".startswith(f"{name}_")), key=len, default="")


def write_tables() -> None:
    """A page for each Markdown file of results."""
    paths = sorted(RESULTS.glob("*.md"))
    for path in paths:
        text = path.read_text().strip()
        if path.stem == "LEDGER":
            text = text.partition("\n## ")[0]
            text += f"\n\n{claims_table(read_claims(path), 'stacked filterable')}"
        if not text.startswith("# "):
            text = f"# {path.stem}\n\n{re.sub('^###? ', '## ', text, flags=re.MULTILINE)}"
        write("tables", path.stem, text)
    lines = [(path.stem, path.stem) for path in paths]
    index("tables", "All tables", "As they are committed with the results.", lines)


def write_api() -> None:
    """A page for each public module."""
    documented: dict[int, str] = {}
    for name in MODULES:
        module = import_module(name)
        parts = [f"# {name}", prose(module.__doc__)]
        for member in public(module):
            value = getattr(module, member)
            first = documented.setdefault(id(value), name)
            if first != name:
                parts.append(f"`{member}`: see [{first}]({first}.md).")
            elif inspect.isclass(value) or inspect.isroutine(value):
                parts.append(describe(name, member, value))
            else:
                kind = type(value).__name__
                parts.append(f":::{{py:data}} {member}\n:module: {name}\n\nA {kind}.\n:::")
        write("api", name, *parts)
    index("api", "API", "Everything public, module by module.", [(name, name) for name in MODULES])


def public(module: Any) -> list[str]:
    """The public names of a module, those that are imported on first use included."""
    names = [*getattr(module, "__all__", ()), *getattr(module, "_AGENTS", ())]
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return sorted(dict.fromkeys(names or own))


def describe(module: str, name: str, value: Any) -> str:
    """A class with its public methods, or a function."""
    kind = "class" if inspect.isclass(value) else "function"
    lines = [f"::::{{py:{kind}}} {name}{signature(value)}", f":module: {module}", "", body(value)]
    for method, member in vars(value).items() if kind == "class" else ():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if method.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        what = "property" if isinstance(member, property) else "method"
        arguments = "" if what == "property" else signature(function)
        lines += ["", f":::{{py:{what}}} {method}{arguments}", "", prose(function.__doc__), ":::"]
    return "\n".join((*lines, "::::"))


def body(value: Any) -> str:
    """The docstring of a class or function; that of an environment is a page."""
    if inspect.isclass(value) and issubclass(value, EnvSpec) and "env_id" in vars(value):
        return f"See [its page](../environments/{value.__name__}.md)."
    return prose(value.__doc__)


def write_commands() -> None:
    """The options of every command."""
    words = (
        "`rlgates COMMAND --help` shows the main options, `--help-all` these. A default of `None` "
        "is explained with its option. `rlgates --version` prints the version."
    )
    write("api", "command_line", "# Command line", words, *sections())


def main() -> None:
    """Write all pages again."""
    for folder in FOLDERS:
        shutil.rmtree(DOCS / folder, ignore_errors=True)
        (DOCS / folder).mkdir()
    for step in (
        *(write_cores, write_gates, write_environments, write_tasks, write_studies),
        *(write_tables, write_api, write_commands),
    ):
        step()


if __name__ == "__main__":
    main()
