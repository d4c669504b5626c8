"""How fast the cores are, each in interleaved pairs with torch.nn, its plain loop and others."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlgates import Core, make_core
from rlgates.cores import ALIASES, core_names, list_cores
from rlgates.errors import check_choice, check_number, check_size
from rlgates.experiments.bench_configs import BenchConfig
from rlgates.experiments.bench_figures import draw_speeds
from rlgates.experiments.bench_tables import TABLE_SHAPE, read_speed, speed_tables
from rlgates.experiments.configs import core_of
from rlgates.experiments.costs import REFERENCE, redraw_costs, write_costs
from rlgates.experiments.devices import find_device
from rlgates.experiments.files import write_atomically
from rlgates.experiments.pairs import (
    Comparison,
    Run,
    check_threads,
    circumstances,
    compare,
    threads_set,
    timed,
    write_results,
)
from rlgates.experiments.rivals import (
    OTHERS,
    Shape,
    absent,
    core_run,
    equal_units,
    inputs,
    layer_run,
    version,
)

NAME = "core_speed"
QUICK = ("lstm", "ur_lstm", "gru", "mingru")
PROBE = 4  # steps from which the needs of a whole sequence are told beforehand


def bench(config: BenchConfig) -> Path:
    """Time the cores, print a line for each case, and write `core_speed.json` and its tables.

    Raises:
        ValueError: an unknown core, shape or library, or a number out of range.
    """
    config = quick(config) if config.quick else config
    shapes = check(config)
    places = [str(n) for n in config.threads] if config.device == "cpu" else [config.device]
    path = Path(config.results) / f"{NAME}.json"
    content = read_speed(path.parent)
    run = str(max(map(int, content["runs"]), default=0) + 1)
    facts = {"pairs": config.pairs, "seconds": config.seconds}
    content["runs"][run] = circumstances(**facts)
    if config.device == "cuda":
        content["runs"][run]["gpu"] = torch.cuda.get_device_name()
    kinds = [("cores", ALIASES.get(core, core)) for core in config.cores or list_cores()]
    for kind, name in [*kinds, *(("others", name) for name in config.others)]:
        entry = content[kind].setdefault(name, {})
        for shape, place in ((shape, place) for shape in shapes for place in places):
            with threads_set(int(place) if place.isdecimal() else torch.get_num_threads()):
                measured = (core_case if kind == "cores" else other_case)(name, shape, config)
            # What could not be had today does not replace what was measured.
            if "left_out" not in measured or f"{shape}/{place}" not in entry:
                entry[f"{shape}/{place}"] = {"run": run, **measured}
            print(f"{name:<22} {shape!s:<15} {place:>4}  {_words(measured)}", flush=True)
        write_speed(path, content)
        if kind == "cores":
            write_costs(path.parent, name, content)
    redraw_costs(path.parent)
    redraw_speed(path.parent)
    return path


def quick(config: BenchConfig) -> BenchConfig:
    """The same in a minute, beside the results."""
    return replace(
        config,
        cores=config.cores or QUICK,
        shapes=(TABLE_SHAPE, "128x8x64x128", "1x8x64x256"),
        threads=config.threads[:1],
        pairs=min(config.pairs, 5),
        seconds=min(config.seconds, 1.0),
        others=(),
        results="runs/quick",
    )


def check(config: BenchConfig) -> list[Shape]:
    """The shapes, once all that is given has been found usable."""
    check_size("pairs", config.pairs)
    check_number("seconds", config.seconds, above=0)
    check_threads(config.threads)
    find_device(config.device, ("cuda", "cpu"))
    for name in config.cores:
        core_of(name)
    for name in config.others:
        check_choice("library", name, OTHERS)
    if not config.shapes:
        raise ValueError("shapes must not be empty.")
    return [shape_of(text) for text in config.shapes]


def shape_of(text: str) -> Shape:
    """ "128x8x64x256" -> Shape(T=128, B=8, I=64, H=256)."""
    sizes = text.split("x")
    if len(sizes) != 4 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"a shape is written TxBxIxH, such as 128x8x64x256, got {text!r}.")
    return Shape(*map(int, sizes))


def core_case(name: str, shape: Shape, config: BenchConfig) -> dict[str, Any]:
    """A core at one shape, against each of its rivals."""
    generator = torch.Generator().manual_seed(0)
    family, options = core_of(name)
    core = make_core(family, shape.I, shape.H, generator=generator, device=config.device, **options)
    reason = too_much(core, shape, config)
    if reason:
        return {"left_out": reason}
    own = core_run(core, shape, config.device)
    case: dict[str, Any] = {"backend": core.backend_used}
    for title, rival in _rivals(name, core, shape, config):
        case[title] = compare(own, rival, config.pairs, config.seconds)
    return case


def _rivals(name: str, core: Core, shape: Shape, config: BenchConfig) -> Iterator[tuple[str, Run]]:
    """What a core is timed against; made one by one, since large ones fill the memory."""
    yield "nn.LSTM", layer_run("LSTM", shape, config.device)
    parameters = sum(parameter.numel() for parameter in core.parameters())
    units = equal_units(parameters, shape.I)
    if units != shape.H:
        yield "equal", layer_run("LSTM", shape, config.device, units)
    family = core_of(name)[0]
    if core_names()[ALIASES.get(family, family)][0] == "gru":
        yield "nn.GRU", layer_run("GRU", shape, config.device)
    if str(shape) == TABLE_SHAPE:
        reference = make_core(REFERENCE, shape.I, shape.H, device=config.device)
        yield REFERENCE, core_run(reference, shape, config.device)
    if core.backend_used != "plain":
        plain = copy.deepcopy(core)
        plain.backend = "plain"
        if not too_much(plain, shape, config):
            yield "plain", core_run(plain, shape, config.device)


def other_case(name: str, shape: Shape, config: BenchConfig) -> dict[str, Any]:
    """Another library's layer against nn.LSTM."""
    reason = absent(name, config.device)
    if reason:
        return {"left_out": reason}
    try:
        own = OTHERS[name].make(shape, config.device)
    except (RuntimeError, ValueError, ImportError) as error:
        return {"left_out": str(error).splitlines()[0][:80]}
    rival = layer_run("LSTM", shape, config.device)
    comparison = compare(own, rival, config.pairs, config.seconds)
    return {"version": version(name), "nn.LSTM": comparison}


def too_much(core: Core, shape: Shape, config: BenchConfig) -> str | None:
    """Why a run would go beyond `seconds` or half the memory; None if it would not.

    Told from the first steps of the sequence.
    """
    steps = min(shape.T, PROBE)
    probe = shape._replace(T=steps)
    run = core_run(core, probe, config.device)
    run()
    seconds = min(timed(run, 1), timed(run, 1)) * shape.T / steps
    if seconds > config.seconds:
        return f"{seconds:.0f} s a run"
    if shape.T == 1 or config.device != "cpu":
        return None
    size = saved_bytes(core, probe) * shape.T / steps
    return f"{size / 2**30:.0f} GiB a run" if size > memory() / 2 else None


def saved_bytes(core: Core, shape: Shape) -> int:
    """What a forward pass keeps for the way back, without the weights."""
    weights = {parameter.data_ptr() for parameter in core.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x, starts = inputs(shape, "cpu")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        core(x, None, starts)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _words(case: dict[str, Any]) -> str:
    """A case as a line for people."""
    if "left_out" in case:
        return f"left out: {case['left_out']}"
    found = {title: item for title, item in case.items() if isinstance(item, Comparison)}
    first = next(iter(found.values()))
    ratios = (f"{item.ratio:.2f} x {title} ({item.pairs})" for title, item in found.items())
    return f"{first.ms:9.3f} ms  {', '.join(ratios)}"


def write_speed(path: Path, content: dict[str, Any]) -> None:
    """Write the results, with those runs alone that something is left of."""
    entries = [entry for kind in ("cores", "others") for entry in content[kind].values()]
    used = {case["run"] for entry in entries for case in entry.values()}
    runs = {run: facts for run, facts in content["runs"].items() if run in used}
    write_results(path, {**content, "runs": runs})


def redraw_speed(results: Path) -> list[Path]:
    """Write the tables and the picture of the speeds again; what was written."""
    content = read_speed(results)
    if not content["cores"]:
        return []
    written = []
    for name, text in speed_tables(content).items():
        write_atomically(results / f"{NAME}{name}.md", text.encode())
        written.append(results / f"{NAME}{name}.md")
    if draw_speeds(content, results / f"{NAME}.png"):
        written.append(results / f"{NAME}.png")
    return written
