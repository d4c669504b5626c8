"""The benchmarks: who is timed, against what, how it is summed up, and what is written down."""

from __future__ import annotations

import csv
import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlgates import make_core
from rlgates.envs import ENVS, make_env_spec
from rlgates.experiments.bench import cores as bench
from rlgates.experiments.bench import growth as growth_bench
from rlgates.experiments.bench import loops as loops_bench
from rlgates.experiments.bench import pairs, rivals
from rlgates.experiments.bench import ppo as ppo_bench
from rlgates.experiments.bench.configs import BenchConfig
from rlgates.experiments.bench.envs import original
from rlgates.experiments.bench.pairs import compare, median_interval, summary
from rlgates.experiments.bench.rivals import Shape, core_run, equal_units, layer_run
from rlgates.experiments.cli.main import main
from rlgates.experiments.configs.devices import threads_set
from rlgates.experiments.report.outputs import OUTPUTS, redraw_output
from rlgates.experiments.report.timings.core_speed import Comparison, read_speed
from rlgates.experiments.report.timings.ppo_speed import REFERENCES, SB3_ONE_CORE, SB3_TWO_CORES
from rlgates.experiments.report.timings.tables import read_costs
from rlgates.experiments.runs.files import read_table
from rlgates.experiments.runs.provenance import machine
from rlgates.registry import CORES

ENV = "rlgates/PassiveMatch-v0"
RESULTS = Path(__file__).parents[3] / "experiments" / "results"


def test_interval_of_a_median_by_hand() -> None:
    # P(Binomial(15, 1/2) <= 3) = 576 / 2 ** 15 = 0.0176, and <= 4 is 0.059: the 4th of each end.
    assert median_interval(np.arange(15.0)[::-1]) == (3, 11)
    assert median_interval([3, 1, 2, 6, 5, 4]) == (1, 6)  # 2 / 2 ** 6 is just below 0.05
    assert median_interval([2, 1, 5]) == (1, 5)
    assert median_interval([7]) == (7, 7)


def test_interval_has_the_median_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).exponential(size=(2_000, 20))
    ends = np.array([median_interval(draw) for draw in draws])
    inside = (ends[:, 0] <= np.log(2)) & (np.log(2) <= ends[:, 1])
    assert 0.94 < inside.mean() < 0.98  # 0.9586 for 20 values


def test_a_summary_is_of_the_pairs_ratios() -> None:
    """And so does not drift with the machine, as the ratio of the medians would."""
    found = summary([(1, 3), (10, 20), (2, 2)])
    assert found == Comparison(3, 2, 1, 3, 2_000, 1_000, 3_000, 2_000)


class Clock:
    """A clock that runs alone when something is run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.order = 0.0, []
        monkeypatch.setattr(pairs.time, "perf_counter", lambda: self.now)

    def takes(self, name: str, seconds: Iterator[float] | float) -> pairs.Run:
        def run() -> None:
            self.order.append(name)
            self.now += seconds if isinstance(seconds, float) else next(seconds)

        return run


def test_each_is_first_in_every_other_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    own = clock.takes("own", iter([9.0, 9.0, 1.0, 10.0, 2.0]))
    rival = clock.takes("rival", iter([7.0, 7.0, 3.0, 20.0, 2.0]))
    assert compare(own, rival, pairs=3, seconds=1e3) == summary([(1, 3), (10, 20), (2, 2)])
    assert clock.order[:4] == ["own", "own", "rival", "rival"]  # not counted
    assert clock.order[4:] == ["own", "rival", "rival", "own", "own", "rival"]


def test_time_ends_the_pairs_and_short_runs_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = compare(clock.takes("own", 1.0), clock.takes("rival", 2.0), pairs=9, seconds=7.5)
    assert found.pairs == 2
    assert compare(clock.takes("own", 4.0), clock.takes("rival", 4.0), 9, seconds=0.1).pairs == 1
    clock.order.clear()
    found = compare(clock.takes("own", 0.002), clock.takes("rival", 0.5), pairs=1, seconds=9)
    assert clock.order == ["own"] * 2 + ["rival"] * 2 + ["own"] * 3 + ["rival"]
    assert (found.ms, found.ratio) == (2, 250)


def test_rounds_have_everything_once_in_drawn_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    runs = {name: clock.takes(name, 0.01 * (k + 1)) for k, name in enumerate("abc")}
    found = pairs.medians(runs, rounds=8, order=random.Random(0))
    assert found["c"] == (30, 30)
    rounds = [tuple(clock.order[k : k + 3]) for k in range(6, len(clock.order), 3)]
    assert len(rounds) == 8
    assert all(set(names) == set("abc") for names in rounds)
    assert len(set(rounds)) > 1


def test_runs_are_what_they_are_said_to_be() -> None:
    core = make_core("gru", 2, 3)
    core_run(core, Shape(4, 5, 2, 3), "cpu")()
    assert all(parameter.grad is not None for parameter in core.parameters())
    step = make_core("gru", 2, 3)
    core_run(step, Shape(1, 5, 2, 3), "cpu")()
    assert all(parameter.grad is None for parameter in step.parameters())
    for kind in ("LSTM", "GRU"):
        layer_run(kind, Shape(4, 5, 2, 3), "cpu")()
        layer_run(kind, Shape(1, 5, 2, 3), "cpu", 7)()
    _, starts = rivals.inputs(Shape(128, 8, 2, 3), "cpu")
    assert starts[1:].any()
    assert not starts.all(0).any()


@pytest.mark.parametrize(("input_size", "parameters"), [(64, 33_280), (10, 627_763), (3, 1)])
def test_the_equal_layer_is_the_nearest(input_size: int, parameters: int) -> None:
    sizes = {
        units: sum(p.numel() for p in torch.nn.LSTM(input_size, units).parameters())
        for units in range(1, 450)
    }
    nearest = min(sizes, key=lambda units: abs(sizes[units] - parameters))
    assert equal_units(parameters, input_size) == nearest


def test_needs_are_told_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    core, shape = make_core("mingru", 8, 16), Shape(4, 32, 8, 16)
    row = 4 * 32 * 16  # bytes of a step's outputs
    assert 2 * row < bench.saved_bytes(core, shape) / 4 < 40 * row
    config = BenchConfig(seconds=60)
    assert bench.excess_reason(core, shape._replace(T=100), config) is None
    monkeypatch.setattr(bench, "memory", lambda: 2**20)
    assert bench.excess_reason(core, shape._replace(T=100), config) == "0 GiB a run"
    slow = bench.excess_reason(core, shape._replace(T=10**9), BenchConfig(seconds=1))
    assert slow is not None
    assert slow.endswith(" s a run")


def made_here(row: dict[str, Any]) -> bool:
    """Whether a row or a run of a benchmark names this machine and what it computes with."""
    facts = {**machine(), "torch": torch.__version__}
    return all(str(row[name]) == str(fact) for name, fact in facts.items())


def bench_words(folder: Path, *words: str) -> list[str]:
    least = ("--threads", "1", "--pairs", "2", "--seconds", "5")
    return ["bench", "cores", "--results", str(folder), *least, *words]


def test_results_grow_and_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "unavailable_reason", lambda name, device: "not installed")
    monkeypatch.setattr("rlgates.experiments.report.timings.core_speed.TABLE_SHAPE", "3x2x4x5")
    monkeypatch.setattr(bench, "TABLE_SHAPE", "3x2x4x5")
    shapes = ("--shapes", "3x2x4x5", "1x2x4x5", "6x2x4x5")
    assert main(bench_words(tmp_path, *shapes, "--cores", "gru", "none")) == 0
    before = read_speed(tmp_path / "core_speed.json")
    assert main(bench_words(tmp_path, *shapes, "--cores", "lstm", "on_lstm", "--others")) == 0
    tied = bench_words(tmp_path, "--shapes", "3x2x4x5", "--cores", "lstm:tied=True", "--others")
    assert main(tied) == 0
    assert "x nn.LSTM (2)" in capsys.readouterr().out

    content = read_speed(tmp_path / "core_speed.json")
    assert content["cores"].keys() == {"gru", "none", "lstm", "om_lstm", "lstm:tied=True"}
    assert content["cores"]["gru"] == before["cores"]["gru"]
    assert set(content["runs"]) == {"1", "2", "3"}
    assert all(map(made_here, content["runs"].values()))
    case = content["cores"]["gru"]["6x2x4x5/1"]
    assert case.keys() == {"run", "backend", "nn.LSTM", "equal", "nn.GRU", "plain"}
    assert "equal" not in content["cores"]["lstm"]["6x2x4x5/1"]  # it is the same layer
    assert "lstm" in content["cores"]["gru"]["3x2x4x5/1"]
    for found in (case["nn.LSTM"], case["plain"]):
        assert found.pairs == 2
        assert found.low <= found.ratio <= found.high
        assert 0 < found.least <= found.ms
    assert (tmp_path / "core_speed.json").stat().st_size < 8_000

    whole = (tmp_path / "core_speed.md").read_text()
    ratio = content["cores"]["lstm"]["6x2x4x5/1"]["nn.LSTM"]
    assert f"| `lstm` | {ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] (2) |" in whole
    assert "| core | (6, 2, 4, 5) | one step (1, 2, 4, 5) |" in whole
    assert "| `torchrl-pad` | not installed | not installed |" in whole
    assert whole.count("| `gru` |") == 4
    assert (tmp_path / "core_speed.png").stat().st_size > 10_000

    rows = read_costs(tmp_path / "core_costs.csv")
    # In the order of the cores, those with options last.
    assert list(rows) == ["lstm", "om_lstm", "gru", "none", "lstm:tied=True"]
    assert rows["lstm:tied=True"]["parameters"] == "24960"
    table = content["cores"]["gru"]["3x2x4x5/1"]["lstm"]
    assert rows["gru"]["relative_time"] == f"{1 / table.ratio:.3g}"
    assert rows["gru"]["setting"].startswith("T=3 B=2 d=64 threads=1 torch=")
    assert rows["gru"]["isa"] == machine()["isa"]
    assert f"; {machine()['isa']}; load before" in whole
    assert f"; {machine()['blas']}; 20" in whole
    assert "| `gru` |  |  | 24,960 | 64 | 64 |" in (tmp_path / "core_costs.md").read_text()


def test_runs_stay_as_long_as_a_case_refers_to_them(tmp_path: Path) -> None:
    path = tmp_path / "core_speed.json"
    case = {"run": "1", "public_run": "3"}
    runs: dict[str, Any] = {run: {} for run in "123"}
    bench.write_speed(path, {"runs": runs, "cores": {"lem": {"4x2x3x8/1": case}}, "others": {}})
    assert set(read_speed(path)["runs"]) == {"1", "3"}


def test_what_was_left_out_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = bench_words(tmp_path, "--shapes", "2x2x2x3", "--cores", "none", "--others")
    assert main(words) == 0
    before = read_speed(tmp_path / "core_speed.json")
    monkeypatch.setattr(bench, "excess_reason", lambda *_: "99 s a run")
    assert main(words) == 0
    assert read_speed(tmp_path / "core_speed.json") == before
    assert main([*words[:-2], "gru"]) == 0
    assert "| `gru` | 99 s a run |" in (tmp_path / "core_speed.md").read_text()


def test_other_libraries_are_asked_for_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    here = rivals.Library(
        "torch", lambda shape, device: core_run(make_core("none", 2, 3), shape, device)
    )
    monkeypatch.setitem(bench.LIBRARIES, "torchrl-pad", here)
    found = bench.other_case("torchrl-pad", Shape(2, 2, 2, 3), BenchConfig(pairs=1))
    assert found["version"] == torch.__version__
    assert found["nn.LSTM"].pairs == 1
    monkeypatch.setitem(bench.LIBRARIES, "torchrl-pad", here._replace(gpu=True))
    assert bench.other_case("torchrl-pad", Shape(2, 2, 2, 3), BenchConfig()) == {
        "left_out": "needs a GPU"
    }
    monkeypatch.setitem(bench.LIBRARIES, "torchrl-pad", here._replace(package="no_such_package"))
    assert rivals.unavailable_reason("torchrl-pad", "cpu") == "not installed"
    assert BenchConfig().others == tuple(rivals.LIBRARIES)


def test_threads_are_set_and_given_back() -> None:
    before = torch.get_num_threads()

    def fails() -> None:
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), threads_set(before + 1):
        fails()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["cores", "--cores", "lstn"], "Did you mean 'lstm'"),
        (["cores", "--shapes", "128x8x64"], "a shape is written TxBxIxH"),
        (["cores", "--shapes", "0x8x64x4"], "a shape is written TxBxIxH"),
        (["cores", "--shapes"], "shapes must not be empty"),
        (["cores", "--threads", "4096"], "threads must be at most"),
        (["cores", "--threads", "0"], "threads must be at least 1, got 0"),
        (["cores", "--threads"], "threads must not be empty"),
        (["cores", "--pairs", "0"], "pairs must be at least 1, got 0"),
        (["cores", "--seconds", "0"], "seconds must be finite and above 0"),
        (["cores", "--others", "torchrl-pads"], "Did you mean 'torchrl-pad'"),
        (["loops", "--cores", "lstm"], "cores are written core/than, got lstm."),
        (["loops", "--cores", "lstm/gru/nru"], "cores are written core/than, got lstm/gru/nru."),
        (["loops", "--cores", "lstm/lstn"], "Did you mean 'lstm'"),
        (["loops", "--pairs", "0"], "pairs must be at least 1, got 0"),
        (["growth", "--rounds", "0"], "rounds must be at least 1"),
        (["growth", "--threads", "4096"], "threads must be at most"),
        (["ppo", "--envs", "cartpoles"], "Did you mean 'cartpole'"),
        (["ppo", "--core", "lstn"], "Did you mean 'lstm'"),
        (["ppo", "--iterations", "0"], "iterations must be at least 1"),
        (["envs", "--envs", "rlgates/PassivMatch-v0"], "Did you mean 'rlgates/PassiveMatch-v0'"),
        (["envs", "--cases", "nativ:64"], "unknown front end 'nativ'. Did you mean 'native'?"),
        (["envs", "--cases", "native"], "cases are written front_end:num_envs, got native:."),
        (["envs", "--repeats", "0"], "repeats must be at least 1, got 0"),
    ],
)
def test_what_is_wrong_is_said_before_work(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", words[0], "--results", str(tmp_path), *words[1:]]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_loops_are_timed_against_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loops_bench, "TABLE_SHAPE", "4x2x3x5")
    words = ["bench", "loops", "--results", str(tmp_path), "--pairs", "7"]
    words += ["--hidden-sizes", "5", "6", "--cores"]
    assert main([*words, "nru/lstm:tied=True", "gru/lstm"]) == 0
    assert main([*words, "gru/lstm"]) == 0
    assert "nru / lstm:tied=True = " in capsys.readouterr().out
    with (tmp_path / "loop_speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["core"], row["than"], row["shape"]) for row in rows] == [
        (*pair, shape)
        for pair in (("nru", "lstm:tied=True"), ("gru", "lstm"))
        for shape in ("4x2x3x5", "4x2x3x6")
    ]
    for row in rows:
        assert float(row["low"]) <= float(row["ratio"]) <= float(row["high"])
        assert row["pairs"] == "7"
        assert made_here(row)
    assert "| `nru` | `lstm:tied=True` | 6 | " in (tmp_path / "loop_speed.md").read_text()


def test_growth_stops_where_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth_bench, "BASE", Shape(4, 2, 3, 5))
    monkeypatch.setattr(growth_bench, "AXES", {"T": (2, 4, 8), "H": (5, 6)})
    lines = {"mingru": ("mingru", "auto"), "torch.nn.LSTM": ("LSTM", "torch.nn")}
    monkeypatch.setattr(growth_bench, "LINES", lines)
    real = growth_bench.medians

    def medians(runs: Any, *rest: Any) -> Any:
        return {**real(runs, *rest), **({"mingru": (6e4, 6e4)} if "mingru" in runs else {})}

    monkeypatch.setattr(growth_bench, "medians", medians)
    assert main(["bench", "growth", "--results", str(tmp_path), "--rounds", "2"]) == 0
    content = json.loads((tmp_path / "core_growth.json").read_text())
    times = content["milliseconds"]
    assert [size for size, *_ in times["T"]["torch.nn.LSTM"]] == [2, 4, 8]
    assert times["H"]["mingru"] == [[5, 6e4, 6e4]]
    assert content["base"] == {"T": 4, "B": 2, "I": 3, "H": 5}
    picture = tmp_path / "core_growth.png"
    first = picture.read_bytes()
    assert redraw_output("core_growth", tmp_path) == [picture]
    assert picture.read_bytes() == first


def test_agents_take_turns_and_make_the_same_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ppo_bench, "SETTINGS", {"n_steps": 16, "batch_size": 16, "n_epochs": 2})
    monkeypatch.setattr(ppo_bench, "UNITS", 4)
    # Seconds of this process alone: agents of milliseconds are compared.
    monkeypatch.setattr(ppo_bench.time, "perf_counter", time.process_time)
    words = ["bench", "ppo", "--envs", "cartpole", "--iterations", "2", "--threads", "1"]
    assert main([*words, "--results", str(tmp_path)]) == 0
    printed = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[:-1]]
    assert [(turn, title[:32].strip()) for _, turn, title in printed] == [
        (turn, title) for turn in "12" for title in ppo_bench.AGENTS
    ]
    found = json.loads((tmp_path / "ppo_speed.json").read_text())["cartpole"]
    assert {row["updates"] for row in found["agents"].values()} == {8 * 2}
    for row in found["agents"].values():
        assert 0.7 < row["rollout"] + row["train"] <= 1
        assert row["fps"] > 0
    theirs, ours, plain = list(found["agents"].values())[:3]
    assert theirs["times"] == [1, 1, 1]
    assert ours["times"][1] <= ours["times"][0] <= ours["times"][2]
    text = (tmp_path / "ppo_speed.md").read_text()
    assert "batch_size 16, 2 epochs: 16 updates of 16 steps" in text
    assert f"| rlgates, two cores | {ours['fps']:,.0f} | {ours['times'][0]:.1f} [" in text
    assert plain["fps"] > 0
    assert theirs["profile"] is None
    assert sum(ours["profile"].values()) == pytest.approx(1, abs=0.01)
    assert all(share > 0 for share in ours["profile"].values())


def test_agents_have_the_same_networks_and_hide_the_velocities() -> None:
    env = ppo_bench.cartpole()
    obs, _ = env.reset(seed=0)
    assert env.observation_space.shape == obs.shape == (2,)
    assert np.array_equal(obs, env.unwrapped.state[[0, 2]].astype(np.float32))
    config = ppo_bench.PPOBenchConfig(core="lstm")
    settings = {"n_steps": 4, "batch_size": 4, "n_epochs": 1}
    sizes: dict[str, set[int]] = {}
    for title in ppo_bench.AGENTS:
        timed = ppo_bench.Timed(title, "cartpole", config, settings)
        count = sum(parameter.numel() for parameter in timed.model.policy.parameters())
        sizes.setdefault(REFERENCES[title], set()).add(count)
    assert all(len(counts) == 1 for counts in sizes.values())
    assert sizes[SB3_TWO_CORES] != sizes[SB3_ONE_CORE]


def test_quick_goes_beside_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = bench.quick(BenchConfig(cores=("none",), pairs=1, seconds=0.1))
    assert made.cores == ("none",)
    assert (made.pairs, made.seconds, made.threads) == (1, 0.1, (1,))
    assert len(bench.check(made)) == 3
    words = ["bench", "cores", "--quick", "--cores", "none", "--pairs", "1"]
    assert main([*words, "--seconds", "0.1"]) == 0
    assert {path.parent for path in tmp_path.rglob("*.*")} == {tmp_path / "runs" / "quick"}


@pytest.mark.parametrize(
    ("name", "table"),
    [
        (name, file)
        for name, output in OUTPUTS.items()
        for file in output.files
        if file.endswith(".md")
        and name not in ("learning", "saturation")
        and output.source_paths(RESULTS)[0].exists()  # those of a GPU may not be there
    ],
)
def test_committed_tables_are_those_of_the_committed_results(
    name: str, table: str, tmp_path: Path
) -> None:
    for path in OUTPUTS[name].source_paths(RESULTS):
        shutil.copy(path, tmp_path)
    redraw_output(name, tmp_path)
    assert (tmp_path / table).read_text() == (RESULTS / table).read_text()


def test_tasks_are_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLGATES_DATA", str(tmp_path))  # where no data are
    words = ["bench", "tasks", "--results", str(tmp_path), "--updates", "3", "--tasks"]
    assert main([*words, "lte_addition", "icu", "enwik8"]) == 0
    assert main([*words, "copy"]) == 0
    printed = capsys.readouterr().out
    assert "icu is left out: the data file physionet2012/" in printed
    assert "enwik8 is left out" in printed
    with (tmp_path / "task_speed.csv").open() as file:
        rows = {row["task"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["copy", "lte_addition"], "in the order of the tasks"
    for row in rows.values():
        batch, update = float(row["batch_ms"]), float(row["update_ms"])
        assert 0 < batch <= float(row["slowest_batch_ms"])
        assert float(row["ratio"]) == pytest.approx(update / batch, rel=0.05)
        assert row["updates"] == "3"
        assert made_here(row)
        assert row["threads"] == "1"
    assert "| Copy, delay 100 | 64 | 32 |" in (tmp_path / "task_speed.md").read_text()
    assert main([*words, "coppy"]) == 2
    assert "Did you mean 'copy'" in capsys.readouterr().err


def test_environments_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "envs", "--results", str(tmp_path), "--repeats", "1", "--envs", ENV]
    assert main([*words, "--cases", "native:2000", "sb3:2000"]) == 0
    assert main([*words, "--cases", "torch:2000"]) == 0
    assert "M steps/s" in capsys.readouterr().out
    with (tmp_path / "env_speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["front_end"] for row in rows] == ["native", "sb3", "torch"]
    assert all(float(row["million_steps"]) > 0 for row in rows)
    assert all(made_here(row) and row["threads"] for row in rows)
    text = (tmp_path / "env_speed.md").read_text()
    heads = ("environment", "`BatchedEnv` x 2,000", "SB3 `VecEnv` x 2,000", "torch, CPU x 2,000")
    assert f"| {' | '.join(heads)} |" in text
    assert f"| `{ENV}` | {rows[0]['million_steps']} M [" in text


def test_the_error_of_every_core_was_measured() -> None:
    rows = {row["core"]: row for row in read_table(RESULTS / "parity.csv")}
    assert set(CORES) <= set(rows)
    assert all(float(row["float64"]) < 1e-11 for row in rows.values())


def test_an_original_that_is_not_installed_is_named_before_anything_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "popgym.envs", None)
    words = ["bench", "envs", "--results", str(tmp_path), "--repeats", "1", "--envs", ENV]
    assert main([*words, "--cases", "native:2", "original:2"]) == 2
    assert f"the original of {ENV} needs popgym" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.csv"))


def test_originals_have_the_limits_of_our_games() -> None:
    pytest.importorskip("minigrid")
    pytest.importorskip("popgym")
    ours = [env_id for env_id in ENVS if original(env_id) is None]
    for name in ("Match", "TMaze", "MemoryChain", "KeyToDoor"):
        assert any(name in env_id for env_id in ours)
    assert len(ENVS) - len(ours) == 16
    made = original("rlgates/MiniGridMemory-v0")
    assert made is not None
    assert made().max_steps == make_env_spec("rlgates/MiniGridMemory-v0").max_episode_length
