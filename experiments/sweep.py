"""`rlgates sweep`: make what is missing of a study, wherever runs are made, and gather it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlgates.errors import check_choice, check_seeds, unknown
from rlgates.experiments.backends import Backend
from rlgates.experiments.files import alone, check_folder
from rlgates.experiments.jobs import (
    EXTRAS,
    NOT_BEGUN,
    Config,
    Job,
    Outcome,
    check_all,
    kind_of,
    say_not_begun,
    told,
)
from rlgates.experiments.stopping import StopRequest
from rlgates.experiments.studies import STUDIES, Study
from rlgates.experiments.supervised_tiers import TIERS, Tier
from rlgates.experiments.sweep_board import write_board
from rlgates.experiments.sweep_book import Book
from rlgates.experiments.sweep_clock import Clock
from rlgates.experiments.sweep_config import SweepConfig
from rlgates.experiments.sweep_tables import redraw_study
from rlgates.experiments.tune_space import ends, search_space
from rlgates.experiments.workers import processors

JOURNALS = "tune-*.journal"  # of searches, in the folder of a study
# Names that other tables have: what lies beside that of a study ends so, ...
ENDS = ("_curves", *(f"_{extra}" for extra in EXTRAS), "_tune", "_smoke", "_full")
# ... and these are no studies.
MEASURED = (
    *("core_costs", "core_growth", "core_speed", "env_speed", "gate_analysis", "learning"),
    *("parity", "ppo_speed", "saturation", "task_speed"),
)


class Part(NamedTuple):
    """One arm of a study with one core."""

    config: Config
    variant: str
    gates: bool
    horizon: str


def find_study(name: str) -> tuple[str, Study]:
    """The study of that name, or the one called STUDY in a file of Python.

    Returns:
        its name and the study.

    Raises:
        ValueError: there is none, the file fails, or its name is that of a study there is.
    """
    path = Path(name)
    if path.suffix != ".py":
        return check_choice("study", name, STUDIES), STUDIES[name]
    if not path.exists():
        raise ValueError(f"there is no file {name}.")
    if path.stem in (*STUDIES, *MEASURED) or path.stem.endswith(ENDS):
        raise ValueError(f"{name} has the name of a table of rlgates: call it otherwise.")
    try:
        found = runpy.run_path(name).get("STUDY")
    except Exception as error:
        raise ValueError(f"{name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(found, Study):
        raise ValueError(f"{name} must define STUDY, a Study of rlgates.experiments.studies.")
    return path.stem, found


def parts(name: str, study: Study, sweep: SweepConfig) -> list[Part]:
    """All rows of a study with all cores, without the seeds.

    Raises:
        ValueError: nothing is left to be made of a task.
    """
    check_choice("tier", sweep.tier, TIERS)
    small = sweep.tier == "smoke"
    cores = tuple(dict.fromkeys(sweep.cores))
    tier: Literal["laptop", "full"] = "full" if sweep.tier == "full" else "laptop"
    found = [(arm, arm.of(core)) for arm in study.arms(tier, cores) for core in arm.cores]
    titles = [kind_of(arm.config).title(arm.config) for arm in study.arms(tier)]
    wanted: set[str] = set()
    for task in sweep.tasks or ("",):
        meant = {*fitting(name, task, titles)}
        if not any(kind_of(config).title(config) in meant for _, config in found):
            raise ValueError(f"{name} has {task!r}, but not with {', '.join(cores)}.")
        wanted |= meant
    chosen = []
    for arm, config in found:
        kind, variant = kind_of(config), arm.variant
        title = kind.title(config)
        if title not in wanted:
            continue
        if small:  # in which what had different titles may have the same
            config, variant = kind.smoke(config), f"{variant} of {title}".strip()
        slug = re.sub(r"[^\w.=+-]+", "_", variant)
        folder = Path(sweep.folder, file_name(name, sweep.tier), slug)
        changes: dict[str, Any] = {"folder": str(folder), "device": sweep.device or config.device}
        config = replace(config, **changes)
        chosen.append(Part(config, variant, config.core in arm.gates, arm.horizon))
    labels = [
        (kind_of(part.config).title(part.config), part.variant, part.config.core) for part in chosen
    ]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{name} has {' '.join(filter(None, label))} twice: give variants.")
    return chosen


def fitting(name: str, task: str, titles: Sequence[str]) -> list[str]:
    """The title that is asked for, or else those that begin with it.

    Raises:
        ValueError: the study of that name has none.
    """
    found = [task] if task in titles else [one for one in titles if one.startswith(task)]
    if not found:
        raise unknown(f"task of the study {name!r}", task, dict.fromkeys(titles))
    return found


def file_name(name: str, tier: Tier) -> str:
    """Of the folder of a study's runs, and of its tables."""
    return name if tier == "laptop" else f"{name}_{tier}"


def show(folder: Path, study: Study, whole: Sequence[Part]) -> None:
    """Write what TensorBoard shows of a study.

    Args:
        folder: of its runs.
        study: the study.
        whole: all of its parts, whatever part is made now.
    """
    configs = [part.config for part in whole]
    if any(folder.glob(JOURNALS)):
        configs += [
            one for config in configs for one in ends(config, search_space(study.space, config))
        ]
    with alone(folder):
        write_board(folder, configs)


def run_sweep(name: str, sweep: SweepConfig) -> list[Outcome]:
    """Make what is missing of a study, and write its tables and pictures.

    Runs that are in the tables, or whose folders say that they are finished, are not made again;
    those that were stopped, or whose process was killed, go on from their last checkpoint. A run
    that fails or diverges is written down and does not stop the others.

    Returns:
        how the runs ended that were not in the tables.

    Raises:
        ValueError: before any work starts, if the study or the grid makes no sense, its data are
            not there, its tables are of another version of it, or a folder cannot be written to.
    """
    words, (name, study) = name, find_study(name)
    seeds = sweep.seeds or study.seeds
    check_seeds(seeds)
    found = parts(name, study, sweep)
    file, folder = file_name(name, sweep.tier), Path(sweep.folder, file_name(name, sweep.tier))
    threads = max(part.config.threads for part in found)
    at_once = len(found) * len(seeds) if sweep.jobs is None else sweep.jobs
    backend = Backend(sweep.backend, at_once, sweep.backend_options, folder)
    if backend.here:  # the runs share the processors
        cpus = processors()
        at_once = max(1, cpus // threads) if sweep.jobs is None else at_once
        threads = max(1, cpus // at_once)
        backend = replace(backend, jobs=at_once)
    jobs = _jobs(found, seeds, threads)
    results = folder if sweep.tier == "smoke" else Path(sweep.results)
    check_folder("results", results)
    check_folder("folder", folder)
    tier = "" if sweep.tier == "laptop" else f" --tier {sweep.tier}"
    book = Book(results, file, f"rlgates sweep {words}{tier}", study.chart)
    whole = parts(name, study, replace(sweep, tasks=(), cores=()))
    book.check([*_jobs(whole, seeds[:1], threads=1), *jobs])
    missing = [job for job in jobs if not book.has(job)]
    if len(missing) < len(jobs):
        print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are in {book.table}", flush=True)
    outcomes = check_all(missing, here=backend.here)
    for outcome in outcomes:
        book.add(outcome)
    left = [job for job in missing if not book.has(job)]
    if left:
        show(folder, study, whole)
    clock = Clock(left, at_once, book)
    if left:
        print(clock.before(), flush=True)
    with StopRequest().listening() as stop, closing(backend.ended(left, stop)) as ended:
        for outcome in ended:
            outcomes.append(outcome)
            if outcome.error == NOT_BEGUN:
                continue
            print(f"[{clock.after(outcome)}] {told(outcome)[0]}", flush=True)
            if outcome.result is not None:
                book.add(outcome)
    say_not_begun(outcomes, len(left))
    with alone(results):
        redraw_study(results, file, study.chart)
    return outcomes


def _jobs(found: Sequence[Part], seeds: Sequence[int], threads: int) -> list[Job]:
    """Seed by seed, so that what is there early covers all cores; at most so many threads each."""
    configs = [replace(part.config, threads=min(part.config.threads, threads)) for part in found]
    return [
        Job(config, seed, part.variant, _extras(part), part.horizon)
        for seed in seeds
        for part, config in zip(found, configs, strict=True)
    ]


def _extras(part: Part) -> tuple[str, ...]:
    return ("gates",) * part.gates + ("horizon",) * bool(part.horizon)
