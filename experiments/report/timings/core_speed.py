"""How fast the cores are, from `core_speed.json`: tables and figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from rlgates.atomic import write_atomically
from rlgates.experiments.plots.curves import label_all, new_figure
from rlgates.experiments.plots.styles import MUTED, SERIES
from rlgates.experiments.report.rows import markdown
from rlgates.experiments.runs.files import read_json
from rlgates.registry import CORES, core_names

TABLE_SHAPE = "64x32x64x64"  # of the table of costs, which has its times
README_CORES = tuple(dict.fromkeys(("lstm", "ur_lstm", "f_lstm", *CORES)))  # of the short table
COLUMNS = 3  # of panels
FULL_PAIRS = 15  # fewer are mentioned
RIVALS = {
    "nn.LSTM": "`torch.nn.LSTM` of the same hidden size",
    "equal": "`torch.nn.LSTM` with as many parameters",
    "nn.GRU": "`torch.nn.GRU` of the same hidden size",
    "public": "a public implementation with as many parameters",
    "plain": "the plain loop of the same core",
}
TICKS = (0.01, 0.1, 1, 10)
MINOR_TICKS = tuple(k * tick for tick in TICKS for k in range(2, 10))


class Comparison(NamedTuple):
    """The timing of something against a rival. Times are milliseconds of one run.

    Attributes:
        pairs: how many pairs of runs were timed.
        ratio: median over the pairs of the rival's time over its own: above 1 is faster.
        low, high: its interval, see `bench.pairs.median_interval`.
        ms, least: its own time, median and minimum.
        rival_ms, rival_least: the rival's.
    """

    pairs: int
    ratio: float
    low: float
    high: float
    ms: float
    least: float
    rival_ms: float
    rival_least: float


def read_speed(path: Path) -> dict[str, Any]:
    """Read `core_speed.json`, with a `Comparison` in each case for each rival."""
    content = {"runs": {}, "cores": {}, "others": {}, **(read_json(path) or {})}
    for kind in ("cores", "others"):
        for name, cases in content[kind].items():
            content[kind][name] = {key: _parse_case(case) for key, case in cases.items()}
    return content


def _parse_case(case: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: Comparison(*value) if isinstance(value, list) else value
        for name, value in case.items()
    }


def comparison_with(case: Mapping[str, Any], rival: str) -> Comparison | None:
    """Return a core's comparison with a rival; None if it was not timed."""
    # Where the same hidden size has as many parameters, the two rivals are one.
    comparison = case.get(rival) or (case.get("nn.LSTM") if rival == "equal" else None)
    return comparison if isinstance(comparison, Comparison) else None


def table_columns(content: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the shapes but for `TABLE_SHAPE`, single steps last, and the numbers of threads."""
    entries = [entry for kind in ("cores", "others") for entry in content[kind].values()]
    keys = {key.partition("/")[::2] for entry in entries for key in entry}
    shapes = {shape for shape, _ in keys if shape != TABLE_SHAPE}

    def order(shape: str) -> tuple[bool, list[int]]:
        return shape.startswith("1x"), [int(size) for size in shape.split("x")]

    return sorted(shapes, key=order), sorted({place for _, place in keys})


def timed_cores(content: Mapping[str, Any], shapes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the cores timed at one of the shapes, in the order of `core_names`."""
    cases_of = {name: content["cores"].get(name, {}) for name in core_names()}
    return {
        name: cases
        for name, cases in cases_of.items()
        if any(comparison_with(case, "equal") for case in _at_shapes(cases, shapes))
    }


def _at_shapes(cases: Mapping[str, Any], shapes: Sequence[str]) -> list[Mapping[str, Any]]:
    return [case for key, case in cases.items() if key.partition("/")[0] in shapes]


def shape_head(shape: str) -> str:
    """Format a shape: "128x8x64x256" -> "(128, 8, 64, 256)"; single steps are named."""
    return ("one step " if shape.startswith("1x") else "") + f"({shape.replace('x', ', ')})"


def place_text(place: str) -> str:
    """Name where something ran: "2" -> "2 threads", and any other place is a GPU."""
    if not place.isdecimal():
        return "GPU"
    return f"{place} thread{'s' * (place != '1')}"


def write_speed_tables(content: Mapping[str, Any], full: Path, short: Path) -> None:
    """Write the table of all cores and rivals, and the short one of the README."""
    shapes, places = table_columns(content)
    tried = {name for name, cases in content["cores"].items() if _at_shapes(cases, shapes)}
    named = {name: content["cores"][name] for name in core_names() if name in tried}
    parts = []
    for rival, title in RIVALS.items():
        for place in places:
            rows = {**named, **content["others"]} if rival == "nn.LSTM" else named
            table = _table(rows, shapes, [place], rival, _with_interval)
            if table:
                parts.append(f"### Against {title}, {place_text(place)}\n\n{table}\n")
    timed = timed_cores(content, shapes)
    readme = {name: timed[name] for name in README_CORES if name in timed}
    cells = " and ".join(place_text(place) for place in places)
    made = bench_note(content["runs"].values(), "cores")
    write_atomically(full, ("\n".join(parts) + f"\n{FULL_NOTE} {made}\n").encode())
    note = (
        f"\nSpeed relative to {RIVALS['equal']} ({cells}): forward and backward pass "
        f"over (T, B, inputs, units), or one step without gradients. {SHORT_NOTE} {made}\n"
    )
    table = _table(readme, shapes, places, "equal", lambda comparison: f"{comparison.ratio:.2f}")
    write_atomically(short, (table + note).encode())


SHORT_NOTE = (
    "Above 1 is faster. The cores handle episode starts inside the sequence, `torch.nn` does not. "
    "Medians over interleaved pairs, perhaps only one or two where a run takes seconds: "
    "`core_speed.md` says how many."
)
FULL_NOTE = (
    "Speed relative to the rival, above 1 is faster: the median over interleaved pairs in one "
    "process with its 95 % interval (order statistics), and in brackets the number of pairs if "
    f"below {FULL_PAIRS}. Columns are (T, B, inputs, units): forward and backward pass with the "
    "gradients of inputs and weights, float32; one step is without gradients. The cores and "
    "torchrl handle episode starts inside the sequence; `torch.nn`, FlashRNN and the public "
    "implementations do not. Cases that would take as long, or as much memory, as a cell says were "
    "not timed."
)


def _table(
    rows: Mapping[str, Mapping[str, Any]],
    shapes: Sequence[str],
    places: Sequence[str],
    rival: str,
    text: Callable[[Comparison], str],
) -> str:
    """Format a line per core and a column per shape; empty if no core has this rival."""
    lines = []
    for name, cases in rows.items():
        cells = []
        for shape in shapes:
            at_shape = [cases.get(f"{shape}/{place}", {}) for place in places]
            comparisons = [comparison_with(case, rival) for case in at_shape]
            reasons = dict.fromkeys(case["left_out"] for case in at_shape if "left_out" in case)
            cells.append(
                " / ".join(text(one) if one else "-" for one in comparisons)
                if any(comparisons)
                else "; ".join(reasons)
            )
        timed = any(comparison_with(case, rival) for case in cases.values())
        if any(cells) and (timed or rival == "nn.LSTM"):
            version = "".join(dict.fromkeys(case.get("version", "") for case in cases.values()))
            lines.append([f"`{name}` {version}".rstrip(), *cells])
    if not lines or not shapes:
        return ""
    return markdown(["core", *map(shape_head, shapes)], lines)


def _with_interval(comparison: Comparison) -> str:
    few = f" ({comparison.pairs})" if comparison.pairs < FULL_PAIRS else ""
    return f"{comparison.ratio:.2f} [{comparison.low:.2f}, {comparison.high:.2f}]{few}"


def bench_note(runs: Iterable[Mapping[str, Any]], benchmark: str) -> str:
    """Name the machine, load, versions, dates and commits of the runs of a benchmark."""
    runs = list(runs)

    def distinct(*texts: str) -> str:
        return ", ".join(dict.fromkeys(texts))

    parts = (
        distinct(*(str(run.get("gpu", run["cpu"])) for run in runs)),
        f"{distinct(*(str(run['cpus']) for run in runs))} CPUs",
        distinct(*(run["isa"] for run in runs if run.get("isa"))),
        f"load before {distinct(*(str(run['load'][0]) for run in runs))}",
        f"torch {distinct(*(run['torch'] for run in runs))}",
        distinct(*(run["blas"] for run in runs if run.get("blas"))),
        f"{distinct(*(run['start'][:10] for run in runs))}",
        f"commit {distinct(*(run['commit'][:7] + '+' * bool(run.get('dirty')) for run in runs))}",
    )
    return f"{'; '.join(filter(None, parts))}: `rlgates bench {benchmark}`."


def draw_core_speed(source: Path, full: Path, short: Path, figure: Path) -> None:
    """Write the tables and the figure of `core_speed.json`."""
    content = read_speed(source)
    if content["cores"]:
        write_speed_tables(content, full, short)
        plot_speeds(content, figure)


def plot_speeds(content: Mapping[str, Any], path: Path) -> None:
    """Draw speeds relative to an nn.LSTM of as many parameters: a panel a shape, a row a core.

    Each gate of a core is a dot; its plain gate has a black rim, and its plain loop is a bar.
    Cores that were timed at one of several shapes alone are left to the tables. Nothing is written
    where no core was timed.
    """
    names = core_names()
    shapes, places = table_columns(content)
    panels_of = Counter(core for shape in shapes for core in timed_cores(content, [shape]))
    least = min(2, max(panels_of.values(), default=0))
    cores = {
        core: cases
        for core, cases in timed_cores(content, shapes).items()
        if panels_of[core] >= least
    }
    families = [core for core in CORES if any(names[name][0] == core for name in cores)]
    if not shapes or not families:
        return
    columns = min(COLUMNS, len(shapes))
    lines = -(-len(shapes) // columns)
    size = (0.4 + 3.4 * columns, 0.6 + (1.0 + 0.26 * len(families)) * lines)
    with new_figure(path, size, font_size=9, title_size=9.5) as figure:
        grid = figure.subplots(lines, columns, sharey=True, sharex=True, squeeze=False).ravel()
        panels = grid[: len(shapes)]
        for axes in grid[len(shapes) :]:
            axes.remove()
        for axes, shape in zip(panels, shapes, strict=True):
            axes.axvline(1, color="#222222", lw=0.9, ls=(0, (4, 3)), zorder=1)
            for name, cases in cores.items():
                y = families.index(names[name][0])
                plain = name == names[name][0]
                for k, place in enumerate(places):
                    shift = 0.44 * ((k + 0.5) / len(places) - 0.5)
                    case = cases.get(f"{shape}/{place}", {})
                    _plot_core(axes, case, y + shift, SERIES[k % len(SERIES)].color, plain)
            axes.set_title(shape_head(shape), loc="left")
            _set_ratio_axis(axes)
            axes.set_xlabel("speed relative to torch.nn.LSTM")
            axes.set_ylabel("core")
            if not cores.keys() <= timed_cores(content, [shape]).keys():
                font: Any = {"color": MUTED, "ha": "left", "va": "bottom"}
                axes.text(0.03, 0.03, "not measured: the others", transform=axes.transAxes, **font)
        panels[0].set_yticks(range(len(families)), families)
        panels[0].set_ylim(len(families) - 0.5, -0.5)
        label_all(panels)
        colors = [SERIES[k % len(SERIES)].color for k in range(len(places))]
        handles = [
            *(
                panels[0].plot([], [], "o", color=color, label=place_text(place))[0]
                for color, place in zip(colors, places, strict=True)
            ),
            *panels[0].plot([], [], "o", mfc="none", mec="black", label="with its plain gate"),
            *panels[0].plot([], [], "|", ms=9, mew=1.6, color=MUTED, label="its plain loop"),
        ]
        words = "against torch.nn.LSTM of as many parameters; bar: interval of the median"
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=len(handles),
            title=words,
            title_fontsize=9,
        )


def _plot_core(axes: Axes, case: Mapping[str, Any], y: float, color: str, plain: bool) -> None:
    """Plot one core at one shape, with its interval."""
    speed, loop = comparison_with(case, "equal"), comparison_with(case, "plain")
    if speed is None:
        return
    axes.plot([speed.low, speed.high], [y, y], color=color, lw=1, alpha=0.5)
    rim: Any = {"mec": "black", "mew": 1.0, "zorder": 4} if plain else {"mec": "none", "alpha": 0.6}
    axes.plot(speed.ratio, y, "o", ms=5, color=color, **rim)
    if loop is not None and plain:
        axes.plot(speed.ratio / loop.ratio, y, "|", ms=9, mew=1.6, color=MUTED)


def _set_ratio_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(FixedLocator(MINOR_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="both", color="#e5e5e5", lw=0.7)
    axes.set_axisbelow(True)
