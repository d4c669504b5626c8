"""What was measured on a GPU: tables of errors, cores beside cuDNN, agents, environments, learning.

How agents learned is a figure, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlgates.atomic import write_atomically
from rlgates.experiments.configs.agent import SUCCESS_THRESHOLD, AgentConfig, match
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.plots.curves import Curve, draw_curves
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import markdown
from rlgates.experiments.runs.files import read_json
from rlgates.experiments.runs.text import time_text

GOALS = {False: 1.0, True: 2.0}
"""How many times as fast as cuDNN a core should be, without and with resets."""
TABLE_CORES = ("ur_lstm", "lstm")


def draw_gpu_bench(source: Path, table: Path, figure: Path) -> None:
    """Write a table for each part that was measured, and where; draw learning curves, if any."""
    content = read_json(source)
    parts = (_errors, _speed, _agents, _environments, _learning)
    tables = [text for part in parts for text in part(content)]
    write_atomically(table, "\n".join([*tables, _note(content)]).encode())
    figure.unlink(missing_ok=True)  # of a former benchmark
    if trainings := content.get("learning"):
        _draw_learning(trainings, figure)


def _errors(content: dict[str, Any]) -> Iterator[str]:
    found = content.get("correct", [])
    failed = [failure for failure in content["failures"] if failure["part"] == "correct"]
    precisions = dict.fromkeys(entry["precision"] for entry in (*found, *failed))
    lines = []
    for precision in precisions:
        right = [entry for entry in found if entry["precision"] == precision]
        wrong = [f"`{entry['core']}`" for entry in failed if entry["precision"] == precision]
        worst = max(right, key=lambda entry: float(entry["error"]), default=None)
        error = f"{worst['error']:.1e} (`{worst['core']}`)" if worst else ""
        lines.append((precision, str(len(right)), error, ", ".join(wrong)))
    if lines:
        yield markdown(("precision", "correct cores", "largest error", "others"), lines)


def _speed(content: dict[str, Any]) -> Iterator[str]:
    shapes = [tuple(shape) for shape in content["about"]["shapes"]]
    lines = [
        (
            f"`{entry['core']}`",
            f"({entry['T']}, {entry['B']}, {entry['H']})",
            entry["precision"],
            "yes" if entry["resets"] else "no",
            *(_beside_cudnn(entry, way) for way in ("", "_graph")),
            f"{GOALS[entry['resets']]:.1f}",
            " / ".join(f"{entry[key]:,.0f}" for key in ("core_mib", "cudnn_mib") if entry.get(key)),
        )
        for entry in content.get("speed", [])
        if entry["core"] in TABLE_CORES and (entry["T"], entry["B"], entry["H"]) in shapes
    ]
    heads = (
        *("core", "(T, B, units)", "precision", "resets", "times cuDNN", "as CUDA graphs", "goal"),
        "MiB",
    )
    if lines:
        yield markdown(heads, lines)


def _beside_cudnn(entry: dict[str, Any], way: str) -> str:
    """The speed-up and both times: "1.20 (2.5 / 3.0 ms)"; what there is of it."""
    times = [entry.get(f"{name}{way}_ms") for name in ("core", "cudnn")]
    if not any(times):
        return ""
    speedup = f"{entry[f'speedup{way}']:.2f} " if all(times) else ""
    return f"{speedup}({' / '.join(f'{ms:.3g}' if ms else 'fails' for ms in times)} ms)"


def _agents(content: dict[str, Any]) -> Iterator[str]:
    lines = [
        (
            f"`{entry['compile']}`",
            entry["precision"],
            str(entry["minibatches"]),
            _rate(entry),
            f"{entry['rollout_ms']:,.0f} ms",
            f"{entry['update_ms']:,.0f} ms",
            f"{entry['mib']:,.0f}" if "mib" in entry else "",
            f"{entry['first_s']:.0f} s",
        )
        for entry in content.get("end_to_end", [])
    ]
    heads = (
        *("compile", "precision", "minibatches", "million steps per second", "rollout", "update"),
        "MiB",
        "first iteration after",
    )
    if lines:
        yield markdown(heads, lines)


def _environments(content: dict[str, Any]) -> Iterator[str]:
    lines = [
        (f"`{entry['env']}`", f"{entry['num_envs']:,}", _rate(entry))
        for entry in content.get("environments", [])
    ]
    if lines:
        yield markdown(("environment", "at a time", "million steps per second"), lines)


def _learning(content: dict[str, Any]) -> Iterator[str]:
    found = content.get("learning", [])
    failed = [failure["core"] for failure in content["failures"] if failure["part"] == "learning"]
    lines = []
    for core in dict.fromkeys((*(entry["core"] for entry in found), *failed)):
        runs = [entry for entry in found if entry["core"] == core]
        seconds, steps, success, rates, first = (
            [run[name] for run in runs]
            for name in (
                *(f"seconds_to_{SUCCESS_THRESHOLD}", f"steps_to_{SUCCESS_THRESHOLD}"),
                *("success", "million_steps_per_second", "first_s"),
            )
        )
        lines.append(
            (
                f"`{core}`",
                f"{len(runs) - seconds.count(None)} of {len(runs) + failed.count(core)}",
                _span(seconds, time_text),
                _span(steps, lambda number: f"{number / 1e6:.1f}"),
                _span(success, lambda share: f"{share:.2f}"),
                _span([rate for rate in rates if rate is not None], lambda rate: f"{rate:.3g}"),
                _span(first, time_text),
            )
        )
    heads = (
        *("core", f"seeds at {SUCCESS_THRESHOLD}", f"time to {SUCCESS_THRESHOLD}"),
        *(f"million steps to {SUCCESS_THRESHOLD}", "last success", "million steps per second"),
        "first rollout after",
    )
    if lines:
        yield markdown(heads, lines)


def _span(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """The median and the range, where None, "never", is more than all numbers."""
    if not values:
        return ""
    numbers = [math.inf if value is None else value for value in values]
    median, low, high = (
        text(number) if math.isfinite(number) else "never"
        for number in (float(np.median(numbers)), min(numbers), max(numbers))
    )
    return low if low == "never" else f"{median} [{low}, {high}]"


def _agent_config(training: dict[str, Any]) -> AgentConfig:
    """What agents learned, with the settings that its title has."""
    return replace(PRESETS["study30"], env_settings=match(training["distractor_steps"]))


def _draw_learning(trainings: Sequence[dict[str, Any]], figure: Path) -> None:
    curves = [
        Curve(
            training["core"],
            training["seed"],
            np.array(training["curve"]["seconds"]),
            np.array(training["curve"]["success"]),
            training["ended"] == "diverged",
        )
        for training in trainings
    ]
    config = _agent_config(trainings[0])
    draw_curves(curves, figure, config.title, config.chance, "seconds of training")


def _learning_note(trainings: Sequence[dict[str, Any]]) -> str:
    """Say what agents learned, and how."""
    if not trainings:
        return ""
    first, config = trainings[0], _agent_config(trainings[0])
    seeds = sorted({training["seed"] for training in trainings})
    study = PRESETS["study30"]
    return (
        f"Learning: agents with the settings of the study of {title_words(study.title)}, in "
        f"{title_words(config.title)}, {first['num_envs']:,} environments on the device, "
        f"{first['precision']}, `compile={first['compile']!r}`; seeds {seeds[0]} to {seeds[-1]}, "
        f"{first['jobs']} at the same time on one device. Success: of the last training episodes; "
        f"training ends at {study.stop_success}, or at the time limit. Time to "
        f"{SUCCESS_THRESHOLD} counts from the start of the first rollout, in which most is "
        "compiled; the last column is the time to the end of that rollout, including building the "
        "agent. Steps per second: of the median iteration of a seed, running next to the others. "
    )


def _rate(entry: dict[str, Any]) -> str:
    low, high = entry["range"]
    return f"{entry['million_steps_per_second']:.3g} [{low:.3g}, {high:.3g}]"


def _note(content: dict[str, Any]) -> str:
    """Say what the numbers are, and where they were measured."""
    about = content["about"]
    gpu, versions, git = about.get("gpu"), about["versions"], about["git"]
    names = ("torch", "triton", "cudnn", "stable-baselines3", "sb3-contrib")
    counts = [
        f"{len(content[key])} {words}"
        for key, words in (("failures", "failed"), ("left_out", "left out for lack of time"))
        if content[key]
    ]
    facts = (
        about["device"] if gpu is None else gpu["name"],
        f"driver {gpu['driver']}" if gpu and gpu["driver"] else "",
        ", ".join(f"{name} {versions[name]}" for name in names if name in versions),
        about["start"][:10],
        f"commit {git['commit'][:7]}{'+' * git['dirty']}" if git else "",
        ", ".join(counts),
    )
    return (
        "Errors: the largest of outputs, final state and all gradients against the plain loop in "
        "float64, over max(1, the largest value). Times cuDNN: time of `torch.nn.LSTM` over that "
        "of the core at the same precision, forward and backward, as many inputs as units; both "
        "times in brackets. With resets, an episode starts at 3 % of the steps, and cuDNN gets the "
        "episodes padded; the time of padding counts, that of computing its indices does not. As "
        "CUDA graphs: recorded once and replayed, without launches from Python. MiB: what a run "
        "adds at its peak, core / cuDNN. Agents: whole iterations of `RecurrentPPO` with one "
        "`ur_lstm` in Passive Match 15/30/15 on the device; their MiB are those of the whole "
        "process, and the seconds to the first iteration were measured while other agents warmed "
        "up. "
        f"{_learning_note(content.get('learning', ()))}Medians, ranges in "
        f"brackets. {'; '.join(filter(None, facts))}: `rlgates bench gpu`.\n"
    )
