"""The tables of how fast the cores are, made from `core_speed.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlgates.cores import CORES, core_names
from rlgates.experiments.files import read_json
from rlgates.experiments.pairs import Comparison
from rlgates.experiments.tables import markdown

TABLE_SHAPE = "64x32x64x64"  # of the table of all cores; its times stand there
README = tuple(dict.fromkeys(("lstm", "ur_lstm", "f_lstm", *CORES)))  # rows of the short table
PAIRS = 15  # fewer are told
RIVALS = {
    "nn.LSTM": "`torch.nn.LSTM` of the same hidden size",
    "equal": "`torch.nn.LSTM` of as many parameters",
    "nn.GRU": "`torch.nn.GRU` of the same hidden size",
    "plain": "the plain loop of the same core",
}


def read_speed(results: Path) -> dict[str, Any]:
    """The content of `core_speed.json`, with a `Comparison` in each case for each rival."""
    content = read_json(results / "core_speed.json") or {}
    content = {"runs": {}, "cores": {}, "others": {}, **content}
    for kind in ("cores", "others"):
        for name, cases in content[kind].items():
            content[kind][name] = {key: _case(case) for key, case in cases.items()}
    return content


def _case(case: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: Comparison(*value) if isinstance(value, list) else value
        for name, value in case.items()
    }


def found(case: Mapping[str, Any], rival: str) -> Comparison | None:
    """How a core fares against a rival."""
    # Where the same hidden size has as many parameters, they are one rival.
    comparison = case.get(rival) or (case.get("nn.LSTM") if rival == "equal" else None)
    return comparison if isinstance(comparison, Comparison) else None


def columns(content: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The shapes, without that of the table of all cores, one step last; and the threads."""
    entries = [entry for kind in ("cores", "others") for entry in content[kind].values()]
    keys = {key.partition("/")[::2] for entry in entries for key in entry}
    shapes = {shape for shape, _ in keys if shape != TABLE_SHAPE}

    def order(shape: str) -> tuple[bool, list[int]]:
        return shape.startswith("1x"), [int(size) for size in shape.split("x")]

    return sorted(shapes, key=order), sorted({place for _, place in keys})


def timed(content: Mapping[str, Any], shapes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The cores that were timed at one of the shapes, in the order of the table of names."""
    there = {name: content["cores"].get(name, {}) for name in core_names()}
    return {
        name: cases
        for name, cases in there.items()
        if any(found(case, "equal") for case in _at(cases, shapes))
    }


def _at(cases: Mapping[str, Any], shapes: Sequence[str]) -> list[Mapping[str, Any]]:
    return [case for key, case in cases.items() if key.partition("/")[0] in shapes]


def head(shape: str) -> str:
    """ "128x8x64x256" -> "(128, 8, 64, 256)", and one step by its name."""
    return ("one step " if shape.startswith("1x") else "") + f"({shape.replace('x', ', ')})"


def place_words(place: str) -> str:
    """ "2" -> "2 threads"."""
    if not place.isdecimal():
        return "GPU"
    return f"{place} thread{'s' * (place != '1')}"


def speed_tables(content: Mapping[str, Any]) -> dict[str, str]:
    """The whole table, and "_short", the one for the README, by the ends of their names."""
    shapes, places = columns(content)
    tried = {name for name, cases in content["cores"].items() if _at(cases, shapes)}
    named = {name: content["cores"][name] for name in core_names() if name in tried}
    parts = []
    for rival, title in RIVALS.items():
        for place in places:
            rows = {**named, **content["others"]} if rival == "nn.LSTM" else named
            lines = _table(rows, shapes, [place], rival, _full)
            if lines:
                parts.append(f"### Against {title}, {place_words(place)}\n\n{lines}\n")
    there = timed(content, shapes)
    few = {name: there[name] for name in README if name in there}
    cells = " and ".join(place_words(place) for place in places)
    brief = _table(few, shapes, places, "equal", _brief) + (
        f"\nSpeed relative to {RIVALS['equal']} ({cells}): forward and backward pass "
        f"over (T, B, inputs, units), or one step without gradients. {SMALL_PRINT} "
        f"{notes(content['runs'].values(), 'cores')}\n"
    )
    whole = "\n".join(parts) + f"\n{LARGE_PRINT} {notes(content['runs'].values(), 'cores')}\n"
    return {"": whole, "_short": brief}


SMALL_PRINT = (
    "Above 1 is faster. The cores take episode starts inside the sequence, `torch.nn` has none. "
    "Medians over interleaved pairs."
)
LARGE_PRINT = (
    "Speed relative to the rival, above 1 is faster: the median over interleaved pairs in one "
    "process with its 95 % interval (order statistics), and in brackets how many pairs if fewer "
    f"than {PAIRS}. Columns are (T, B, inputs, units): forward and backward pass with the "
    "gradients of inputs and weights, float32; one step is without gradients. The cores and "
    "torchrl take episode starts inside the sequence, `torch.nn` and FlashRNN have none. What "
    "was left out would take so long, or so much memory."
)


def _table(
    rows: Mapping[str, Mapping[str, Any]],
    shapes: Sequence[str],
    places: Sequence[str],
    rival: str,
    words: Callable[[Comparison], str],
) -> str:
    """A line for each core, a column for each shape; empty if no core has this rival."""
    lines = []
    for name, cases in rows.items():
        cells = []
        for shape in shapes:
            there = [cases.get(f"{shape}/{place}", {}) for place in places]
            numbers = [found(case, rival) for case in there]
            reasons = dict.fromkeys(case["left_out"] for case in there if "left_out" in case)
            cells.append(
                " / ".join(words(number) if number else "" for number in numbers)
                if any(numbers)
                else "; ".join(reasons)
            )
        if any(found(case, rival) for case in cases.values()) or rival == "nn.LSTM":
            version = "".join(dict.fromkeys(case.get("version", "") for case in cases.values()))
            label = f"`{name}` {version}".rstrip()
            lines.append([label, *cells])
    if not lines or not shapes:
        return ""
    return markdown(["core", *map(head, shapes)], lines)


def _brief(comparison: Comparison) -> str:
    return f"{comparison.ratio:.2f}"


def _full(comparison: Comparison) -> str:
    few = f" ({comparison.pairs})" if comparison.pairs < PAIRS else ""
    return f"{comparison.ratio:.2f} [{comparison.low:.2f}, {comparison.high:.2f}]{few}"


def notes(runs: Iterable[Mapping[str, Any]], what: str) -> str:
    """Machine, versions, load before the start and commit of some runs of a benchmark."""
    runs = list(runs)

    def each(*texts: str) -> str:
        return ", ".join(dict.fromkeys(texts))

    words = (
        each(*(str(run.get("gpu", run["cpu"])) for run in runs)),
        f"{each(*(str(run['cpus']) for run in runs))} CPUs",
        f"load before {each(*(str(run['load'][0]) for run in runs))}",
        f"torch {each(*(run['torch'] for run in runs))}",
        f"{each(*(run['start'][:10] for run in runs))}",
        f"commit {each(*(run['commit'][:7] + '+' * bool(run.get('dirty')) for run in runs))}",
    )
    return f"{'; '.join(words)}: `rlgates bench {what}`."
