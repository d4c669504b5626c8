"""Time the cores in interleaved pairs with torch.nn, their plain loops and other libraries."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rlgates import Core, make_core
from rlgates.errors import check_choice, check_number, check_size
from rlgates.experiments.bench.configs import BenchConfig
from rlgates.experiments.bench.pairs import (
    Run,
    check_threads,
    circumstances,
    compare,
    timed,
    write_results,
)
from rlgates.experiments.bench.references import reference_run, reference_version
from rlgates.experiments.bench.rivals import (
    LIBRARIES,
    Shape,
    core_run,
    equal_units,
    inputs,
    layer_run,
    unavailable_reason,
)
from rlgates.experiments.configs.base import parse_core
from rlgates.experiments.configs.devices import find_device, threads_set
from rlgates.experiments.report.outputs import OUTPUTS, redraw_output
from rlgates.experiments.report.timings.core_speed import TABLE_SHAPE, Comparison, read_speed
from rlgates.experiments.report.timings.tables import REFERENCE, read_costs
from rlgates.experiments.runs.files import write_table
from rlgates.experiments.runs.locks import locked
from rlgates.registry import ALIASES, core_and_gate, list_cores

SIZE = 64  # inputs and units of the cores in the table of costs
QUICK = ("lstm", "ur_lstm", "gru", "mingru")
PROBE = 4  # steps from which the cost of a whole sequence is estimated


def bench(config: BenchConfig) -> Path:
    """Time the cores, print a line for each case, and write `core_speed.json` and its tables.

    Raises:
        ValueError: an unknown core, shape or library, or a number out of range.
    """
    config = quick(config) if config.quick else config
    shapes = check(config)
    places = [str(n) for n in config.threads] if config.device == "cpu" else [config.device]
    results = Path(config.results)
    (path,) = OUTPUTS["core_speed"].source_paths(results)
    content = read_speed(path)
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
            # A case that is left out does not replace an earlier measurement.
            if "left_out" not in measured or f"{shape}/{place}" not in entry:
                entry[f"{shape}/{place}"] = {"run": run, **measured}
            print(f"{name:<22} {shape!s:<15} {place:>4}  {_case_text(measured)}", flush=True)
        write_speed(path, content)
        if kind == "cores":
            write_costs(results, name, content)
    redraw_output("core_costs", results)
    redraw_output("core_speed", results)
    return path


def quick(config: BenchConfig) -> BenchConfig:
    """The config reduced to a minute, with its own results folder."""
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
    """Check a config and return its shapes."""
    check_size("pairs", config.pairs)
    check_number("seconds", config.seconds, above=0)
    check_threads(config.threads)
    find_device(config.device, ("cuda", "cpu"))
    for name in config.cores:
        parse_core(name)
    for name in config.others:
        check_choice("library", name, LIBRARIES)
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
    """Time a core at one shape against each of its rivals."""
    generator = torch.Generator().manual_seed(0)
    family, options = parse_core(name)
    core = make_core(family, shape.I, shape.H, generator=generator, device=config.device, **options)
    reason = excess_reason(core, shape, config)
    if reason:
        return {"left_out": reason}
    run = core_run(core, shape, config.device)
    case: dict[str, Any] = {"backend": core.backend_used}
    for title, rival in _rivals(name, core, shape, config):
        case[title] = compare(run, rival, config.pairs, config.seconds)
    if "public" in case:
        case["public_version"] = reference_version(family)
    return case


def _rivals(name: str, core: Core, shape: Shape, config: BenchConfig) -> Iterator[tuple[str, Run]]:
    """Yield the rivals of a core one by one, since large ones fill the memory."""
    yield "nn.LSTM", layer_run("LSTM", shape, config.device)
    parameters = sum(parameter.numel() for parameter in core.parameters())
    units = equal_units(parameters, shape.I)
    if units != shape.H:
        yield "equal", layer_run("LSTM", shape, config.device, units)
    family = parse_core(name)[0]
    if core_and_gate(family)[0] == "gru":
        yield "nn.GRU", layer_run("GRU", shape, config.device)
    if str(shape) == TABLE_SHAPE:
        reference = make_core(REFERENCE, shape.I, shape.H, device=config.device)
        yield REFERENCE, core_run(reference, shape, config.device)
    sequences = config.device == "cpu" and shape.T > 1
    if sequences and name == family and reference_version(family):
        yield "public", reference_run(family, parameters, shape)
    if core.backend_used != "plain":
        plain = copy.deepcopy(core)
        plain.backend = "plain"
        if not excess_reason(plain, shape, config):
            yield "plain", core_run(plain, shape, config.device)


def other_case(name: str, shape: Shape, config: BenchConfig) -> dict[str, Any]:
    """Time another library's layer against nn.LSTM."""
    reason = unavailable_reason(name, config.device)
    if reason:
        return {"left_out": reason}
    try:
        run = LIBRARIES[name].make(shape, config.device)
    except (RuntimeError, ValueError, ImportError) as error:
        return {"left_out": str(error).splitlines()[0][:80]}
    rival = layer_run("LSTM", shape, config.device)
    comparison = compare(run, rival, config.pairs, config.seconds)
    return {"version": metadata.version(LIBRARIES[name].package), "nn.LSTM": comparison}


def excess_reason(core: Core, shape: Shape, config: BenchConfig) -> str | None:
    """Why a run would exceed `seconds` or half the memory; None if it would not.

    Estimated from the first steps of the sequence.
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
    """Bytes of the tensors saved for the backward pass, without the weights."""
    weights = {parameter.data_ptr() for parameter in core.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x, episode_starts = inputs(shape, "cpu")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        core(x, None, episode_starts)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _case_text(case: dict[str, Any]) -> str:
    """A case as text."""
    if "left_out" in case:
        return f"left out: {case['left_out']}"
    rivals = {title: item for title, item in case.items() if isinstance(item, Comparison)}
    first = next(iter(rivals.values()))
    ratios = (f"{item.ratio:.2f} x {title} ({item.pairs})" for title, item in rivals.items())
    return f"{first.ms:9.3f} ms  {', '.join(ratios)}"


def write_speed(path: Path, content: dict[str, Any]) -> None:
    """Write the results without runs that no case refers to.

    The `public_run` of a case is that of its public implementation, where it was timed apart.
    """
    entries = [entry for kind in ("cores", "others") for entry in content[kind].values()]
    cases = [case for entry in entries for case in entry.values()]
    used = {case[key] for case in cases for key in ("run", "public_run") if key in case}
    runs = {run: facts for run, facts in content["runs"].items() if run in used}
    write_results(path, {**content, "runs": runs})


def write_costs(results: Path, name: str, content: dict[str, Any]) -> None:
    """Put a core's time at `TABLE_SHAPE`, with the fewest threads, into `core_costs.csv`."""
    cases = content["cores"][name]
    places = [key.partition("/")[2] for key in cases if key.startswith(f"{TABLE_SHAPE}/")]
    place = min(filter(str.isdecimal, places), key=int, default=None)
    case = cases.get(f"{TABLE_SHAPE}/{place}", {})
    if REFERENCE not in case:
        return
    family, options = parse_core(name)
    core, run = make_core(family, SIZE, SIZE, **options), content["runs"][case["run"]]
    steps, batch_size, _, _ = TABLE_SHAPE.split("x")
    path = OUTPUTS["core_costs"].source_paths(results)[0]
    row = {
        "core": name,
        "parameters": str(sum(parameter.numel() for parameter in core.parameters())),
        "state_size": str(core.state_size),
        "output_size": str(core.output_size),
        "relative_time": f"{1 / case[REFERENCE].ratio:.3g}",
        "milliseconds": f"{case[REFERENCE].least:.3g}",
        "backend": case["backend"],
        "setting": f"T={steps} B={batch_size} d={SIZE} threads={place} torch={run['torch']}",
        "commit": run["commit"],
        **{fact: str(run.get(fact, "")) for fact in ("cpu", "cpus", "isa", "blas")},
    }
    with locked(results):
        table = {**read_costs(path), name: row}
        known = [core for core in list_cores() if core in table]
        rows = [table[core] for core in dict.fromkeys([*known, *table])]
        write_table(path, rows, list(row))
