"""The bench for a GPU, its pieces on the CPU: what it measures, and what it says of failures."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.interpreted import MISSING, REASON
from support.stretches import stretch
from torch import nn

from rlgates.experiments.bench import gpu as gpu_bench
from rlgates.experiments.bench import gpu_agents, gpu_cores, gpu_learning
from rlgates.experiments.bench.children import Measurement, Outcome, Workers, run_here
from rlgates.experiments.bench.configs import GPU_PARTS, GpuBenchConfig
from rlgates.experiments.cli.main import main
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.report.outputs import redraw_output
from rlgates.experiments.report.readme import fill_in
from rlgates.experiments.runs.files import write_json
from rlgates.nn import LSTM

CPU = torch.device("cpu")


@pytest.fixture
def without_onednn() -> Iterator[None]:
    """Its LSTM fails in bfloat16 on CPUs without AVX-512."""
    enabled, *_ = torch.backends.mkldnn.set_flags(False)
    yield
    torch.backends.mkldnn.set_flags(enabled)


def bench(results: Path, *words: str) -> dict[str, Any]:
    """The results of the bench on the CPU."""
    folders = ["--results", str(results), "--folder", str(results / "runs")]
    assert main(["bench", "gpu", "--device", "cpu", *folders, *words]) == 0
    found: dict[str, Any] = json.loads((results / "gpu_bench.json").read_text())
    return found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu"]) == 2
    assert "torch finds no GPU here" in capsys.readouterr().err


def test_a_wrong_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown part 'speeed'\. Did you mean 'speed'\?"):
        gpu_bench.bench_gpu(GpuBenchConfig(parts=("speeed",), results=str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("minutes", [0, -1.0])
def test_there_must_be_time(tmp_path: Path, minutes: float) -> None:
    with pytest.raises(ValueError, match="minutes must be finite and above 0"):
        gpu_bench.bench_gpu(GpuBenchConfig(device="cpu", minutes=minutes, results=str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_onednn")
def test_it_measures_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that need Triton."""
    monkeypatch.setattr(gpu_bench, "MAIN", ("ur_lstm",))
    monkeypatch.setattr(gpu_bench, "OTHERS", ("mingru",))
    monkeypatch.setattr(gpu_bench, "launch_modes", lambda *_: {"fused_ms": 1.0})
    found = bench(tmp_path, "--cores", "mingru", "--parts", *GPU_PARTS)
    assert {"start", "end", "device", "versions", "git", "shapes"} <= found["about"].keys()
    assert [entry["core"] for entry in found["correct"]] == ["mingru"]
    assert found["correct"][0]["error"] < 1e-5
    assert [entry["resets"] for entry in found["speed"]] == [False, True] * 4
    assert all(entry["speedup"] > 0 for entry in found["speed"])
    for part in ("end_to_end", "environments", "learning"):
        assert all(entry["million_steps_per_second"] > 0 for entry in found[part])
    assert all("precision" in entry for part in GPU_PARTS for entry in found[part])
    assert found["failures"] == found["left_out"] == []
    table = (tmp_path / "gpu_bench.md").read_text()
    assert "| float32 | 1 | " in table
    assert table.count("| `ur_lstm` | (4, 2, 4) | ") == 6
    assert "| `False` | bf16 | " in table
    assert "| `rlgates/PassiveMatch-v0` | 4 | " in table
    assert "| `mingru` | 0 of 5 | never | never | " in table
    assert [entry["seed"] for entry in found["learning"]] == list(gpu_learning.SEEDS)
    assert (tmp_path / "gpu_bench.png").exists()
    page = fill_in("<!-- gpu_bench -->\n<!-- /gpu_bench -->\n", tmp_path)
    assert table.strip() in page


def test_it_runs_to_its_end_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such kernel")

    for name in ("correct", "compare", "launch_modes"):
        monkeypatch.setattr(gpu_bench, name, fail)
    parts = ["--parts", "environments", "ways", "speed", "correct"]
    found = bench(tmp_path, "--cores", "mingru", *parts)
    assert "FAILED: RuntimeError: no such kernel" in capsys.readouterr().out
    assert found["correct"] == found["speed"] == found["ways"] == []
    assert "end_to_end" not in found
    assert found["environments"][0]["million_steps_per_second"] > 0
    assert {failure["part"] for failure in found["failures"]} == {"correct", "speed", "ways"}
    assert all("no such kernel" in failure["error"] for failure in found["failures"])
    table = (tmp_path / "gpu_bench.md").read_text()
    assert "| float32 | 0 |  | `mingru` |" in table
    assert f"{len(found['failures'])} failed" in table


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path) -> None:
    found = bench(tmp_path, "--parts", "environments", "--minutes", "1e-9")
    assert [entry["part"] for entry in found["left_out"]] == ["environments"]
    assert found["environments"] == []


def test_times_that_are_there_are_in_the_table(tmp_path: Path) -> None:
    """A graph that cannot be recorded, memory and the GPU."""
    of = {"core": "lstm", "precision": "tf32", "T": 128, "B": 128, "H": 256, "resets": True}
    times = {"core_ms": 2.0, "cudnn_ms": 5.0, "speedup": 2.5, "core_graph_ms": 1.0}
    entry = {**of, **times, "core_mib": 1000.4, "cudnn_mib": 3000.0}
    gpu = {"name": "NVIDIA H100", "driver": "550.1"}
    about = {"shapes": [[128, 128, 256]], "gpu": gpu, "versions": {"torch": "2.11"}, "git": None}
    content = {"about": {**about, "start": "2026-01-02T03:04"}, "failures": [], "left_out": []}
    write_json(tmp_path / "gpu_bench.json", {**content, "speed": [entry]})
    (table,) = redraw_output("gpu_bench", tmp_path)
    text = table.read_text()
    assert "| yes | 2.50 (2 / 5 ms) | (1 / fails ms) | 2.0 | 1,000 / 3,000 |" in text
    assert "NVIDIA H100; driver 550.1; torch 2.11; 2026-01-02: `rlgates bench gpu`" in text


def lesson(core: str, seed: int, reached: int | None, success: float) -> dict[str, Any]:
    """The entry of a training with three rollouts of a minute and a million steps."""
    of = {"core": core, "seed": seed, "precision": "tf32", "compile": "reduce-overhead"}
    sizes = {"distractor_steps": 450, "num_envs": 512, "jobs": 5}
    return {
        **of,
        **sizes,
        "ended": "time" if reached is None else "goal",
        "first_s": 42.0,
        "steps_to_0.9": reached and reached * 10**6,
        "seconds_to_0.9": reached and 60.0 * reached,
        "success": success,
        "million_steps_per_second": 1 / 60,
        "curve": {"steps": [1, 2, 3], "seconds": [60, 120, 180], "success": [0.3, 0.9, success]},
    }


def test_how_agents_learned_is_in_the_table_and_the_figure(tmp_path: Path) -> None:
    """Those that never remembered are the last, and those that failed are counted."""
    about = {"shapes": [], "device": "cuda", "versions": {}, "git": None, "start": "2026-01-02"}
    failures = [{"part": "learning", "core": "lstm", "seed": 12, "error": "it took too long"}]
    content: dict[str, Any] = {"about": about, "failures": failures, "left_out": []}
    entries = [lesson("ur_lstm", 10, 2, 0.98), lesson("ur_lstm", 11, 3, 0.97)]
    entries += [lesson("lstm", 10, 2, 1.0), lesson("lstm", 11, None, 0.4)]
    write_json(tmp_path / "gpu_bench.json", {**content, "learning": entries})
    table, figure = redraw_output("gpu_bench", tmp_path)
    text = table.read_text()
    row = "| `ur_lstm` | 2 of 2 | 2 min 30 s [2 min 0 s, 3 min 0 s] | 2.5 [2.0, 3.0] | "
    assert row + "0.97 [0.97, 0.98] | 0.0167 [0.0167, 0.0167] | 42 s [42 s, 42 s] |" in text
    row = "| `lstm` | 1 of 3 | never [2 min 0 s, never] | never [2.0, never] | 0.70 [0.40, 1.00] | "
    assert row in text
    assert "in Passive Match, 15/450/15 steps, 512 environments" in text
    assert figure.name == "gpu_bench.png"
    write_json(tmp_path / "gpu_bench.json", content)
    assert redraw_output("gpu_bench", tmp_path) == [table]
    assert not figure.exists()


def test_a_lesson_has_the_settings_of_the_study() -> None:
    study = PRESETS["study30"]
    for core, options in (("ur_lstm", {"input_scale": 8.0}), ("lru", {})):
        config = gpu_learning.Lesson(1024, 450).config(core, CPU)
        config.check()
        spec: Any = config.make_spec()
        assert (config.core, config.core_options) == (core, options)
        assert (config.rollout_steps, spec.distractor_steps) == (480, 450)
        assert config.window == config.n_envs == 1024
        assert spec.choice_reward == study.reward_scale * 10.0
        for name in ("learning_rate", "gamma", "ent_coef", "n_minibatches", "hidden_size"):
            assert getattr(config, name) == getattr(study, name)


def test_an_agent_that_has_no_more_time_says_what_it_reached(tmp_path: Path) -> None:
    small = gpu_learning.Lesson(num_envs=4, distractor_steps=3, units=8)
    found = gpu_learning.learning("mingru", 10, small, False, CPU, str(tmp_path), until=0.0)
    assert (found["ended"], found["steps"]) == ("time", 4 * 33)
    assert found["first_s"] >= found["seconds"] > 0
    assert found["steps_to_0.9"] is found["million_steps_per_second"] is None
    (events,) = tmp_path.glob("mingru-10_1/events.out.tfevents.*")
    assert b"rollout/success_rate" in events.read_bytes()


def test_a_course_ends_at_its_goal() -> None:
    """Lucky first episodes do not count; the curve has its first and last points."""
    course = gpu_learning.Course(goal=0.95, until=math.inf)
    successes: deque[bool] = deque(maxlen=20)
    model = SimpleNamespace(num_timesteps=0, ep_success_buffer=successes)
    course.model = cast(Any, model)
    course.on_training_start({}, {})
    while course.on_step() and model.num_timesteps < 1000:
        model.num_timesteps += 1
        successes.append(model.num_timesteps not in range(5, 300))
        course.on_rollout_end()
    found = course.result()
    # The window holds 300 to 317 and two failures, then one.
    assert (found["steps_to_0.9"], found["steps"], course.ended) == (317, 318, "goal")
    assert 0 <= found["seconds_to_0.9"] <= found["seconds"]
    assert found["success"] == 0.95
    steps = found["curve"]["steps"]
    assert (len(steps), steps[0], steps[-1]) == (100, 1, 318)


def test_trainings_share_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GpuBenchConfig(device="cpu", jobs=4)
    monkeypatch.setattr(gpu_bench.time, "monotonic", lambda: 5.0)
    stages = gpu_bench.stages("learning", config, gpu_bench.Sizes.of(config), 65.0)
    limits = [(len(stage.groups), stage.workers, stage.limit) for stage in stages]
    assert [sizes for *sizes, _ in limits] == [[4, 4], [4, 4], [2, 2]]
    # As if no time had passed: a third, a half and all of it.
    assert [limit - gpu_bench.LATE for *_, limit in limits] == [20, 30, 60]


def measurements(*functions: Any) -> list[Measurement]:
    return [Measurement("part", {"k": k}, function) for k, function in enumerate(functions)]


def by_number(outcomes: Any) -> dict[int, Outcome]:
    return {outcome.measurement.of["k"]: outcome for outcome in outcomes}


RIGHT, WRONG = partial(dict, a=1), partial(divmod, 1, 0)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers() as workers:
        yield workers


def test_a_worker_that_dies_stops_no_other(workers: Workers) -> None:
    first = measurements(WRONG, partial(os._exit, 7), RIGHT)
    second = [Measurement("part", {"k": 3}, RIGHT), Measurement("part", {"k": 4}, RIGHT)]
    found = by_number(workers.run([first, second], size=2))
    assert "ZeroDivisionError" in str(found[0].error)
    assert found[1].error == "the process ended with exit code 7"
    assert all(found[k].numbers == {"a": 1} for k in (2, 3, 4))


def test_what_is_prepared_is_measured_in_turn(workers: Workers) -> None:
    """Also where there are fewer workers than measurements, and with one that fails."""
    functions = (stretch, WRONG, stretch, stretch)
    found = by_number(workers.run([[each] for each in measurements(*functions)], size=2))
    assert "ZeroDivisionError" in str(found.pop(1).error)
    times = sorted((outcome.numbers or {} for outcome in found.values()), key=itemgetter("begin"))
    assert times[1]["ready"] < times[0]["begin"]
    assert all(one["end"] <= two["begin"] for one, two in pairwise(times))
    assert by_number(run_here([measurements(stretch)]))[0].numbers


def test_no_time_is_left_for_what_comes_late(workers: Workers) -> None:
    (left,) = workers.run([measurements(RIGHT)], size=2, until=0.0)
    assert left.numbers is left.error is None


@pytest.mark.slow
def test_a_worker_that_prints_or_hangs_says_so(
    workers: Workers, capfd: pytest.CaptureFixture[str]
) -> None:
    killed = partial(os.system, "echo words; kill -9 $PPID")
    found = by_number(workers.run([measurements(killed, RIGHT)], size=2))
    slow = by_number(workers.run([measurements(partial(time.sleep, 60))], size=2, limit=0.5))
    assert found[0].error == "the process ended with exit code -9\nwords"
    assert found[1].numbers == {"a": 1}
    assert slow[0].error == "it took too long, and was stopped"
    assert "words" not in capfd.readouterr().out


@pytest.mark.parametrize("name", ["gato", "shm", "dnc"])
def test_cores_that_draw_or_sort_are_compared(name: str) -> None:
    assert gpu_cores.correct(name, "float32", CPU, (5, 2, 3, 33))["error"] < 1e-4


def test_a_wrong_core_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu_cores.correct("mingru", "float32", CPU, (3, 2, 3, 4))
    assert right["error"] < 1e-5
    monkeypatch.setattr(gpu_cores, "TOLERANCES", {"float32": 0.0})
    with pytest.raises(AssertionError, match="'error'"):
        gpu_cores.correct("mingru", "float32", CPU, (3, 2, 3, 4))


@pytest.mark.parametrize("limit", [2**30, 4 * 4 * 7 * 2])
def test_padded_episodes_are_those_of_a_core_with_resets(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece of the batch, and in several of at most two episodes."""
    monkeypatch.setattr(gpu_cores, "MAX_NUMBERS", limit)
    generator = torch.Generator().manual_seed(0)
    starts = torch.rand(7, 5, generator=generator) < 0.2
    starts[:, 0] = False  # one of 7 steps
    slots, shape = gpu_cores.padding(starts, 4)
    episodes = 5 + int(starts[1:].sum())
    assert shape == ((1, 7, episodes) if limit == 2**30 else (-(-episodes // 2), 7, 2))
    lstm = nn.LSTM(3, 4)
    same = LSTM.from_torch(lstm)
    x = torch.randn(7, 5, 3, generator=generator)
    padded = torch.stack(gpu_cores.split(lstm, x, slots, shape))
    outputs = padded.flatten(0, 2)[slots].view(7, 5, 4)
    torch.testing.assert_close(outputs, same(x, episode_starts=starts)[0])


def test_a_core_is_timed_beside_cudnn() -> None:
    for resets in (False, True):
        found = gpu_cores.compare("mingru", "float32", 3, 2, 4, resets, CPU, repeats=5)
        assert found["backend"]
        for name in ("core_ms", "cudnn_ms", "speedup"):
            assert found[name] > 0
        low, high = found["core_range"]
        assert low <= found["core_ms"] <= high


@pytest.mark.usefixtures("without_onednn")
def test_a_large_batch_of_cudnn_is_split_without_resets_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gpu_cores.pieces(128, 4096, 1024) == 2
    assert gpu_cores.pieces(128, 4096, 256) == 1
    monkeypatch.setattr(gpu_cores, "MAX_NUMBERS", 1)
    assert gpu_cores.compare("mingru", "bf16", 3, 2, 4, False, CPU, 1)["cudnn_ms"] > 0


def test_an_agent_that_is_not_compiled_is_no_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(*_: Any, **__: Any) -> None:
        warnings.warn("compile=True has no effect, training goes on without", stacklevel=1)

    monkeypatch.setattr(gpu_agents.RecurrentPPO, "learn", learn)
    with pytest.raises(UserWarning, match="no effect"):
        gpu_agents.end_to_end(False, "tf32", CPU, gpu_agents.Training(2, 4, 3, 1))


@pytest.mark.skipif(MISSING, reason=REASON)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_are_checked() -> None:
    assert gpu_cores.correct("ur_lstm", "tf32", CPU, (2, 2, 3, 4))["backend"] == "triton"


@pytest.mark.slow
@pytest.mark.skipif(MISSING, reason=REASON)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_are_timed_both_ways() -> None:
    for precision in ("tf32", "bf16"):
        found = gpu_cores.launch_modes(precision, 4, 2, 4, CPU, repeats=1)
        for name in ("launches_ms", "fused_ms"):
            assert found[name] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("precision", gpu_bench.PRECISIONS)
@pytest.mark.parametrize("resets", [False, True])
def test_graphs_are_timed_on_a_gpu(precision: str, resets: bool) -> None:
    found = gpu_cores.compare("ur_lstm", precision, 16, 32, 64, resets, torch.device("cuda"), 3)
    assert not [name for name in found if name.endswith("_error")]
    for name in ("core_ms", "cudnn_ms", "core_graph_ms", "cudnn_graph_ms", "speedup_graph"):
        assert found[name] > 0
