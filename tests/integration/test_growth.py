"""Hundreds of updates, and several agents at once, in one process: memory and handles do not grow.

`--faults N` makes N times as many updates; `make test-faults` does.
"""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import tiny

from rlgates import RecurrentPPO, make_core
from rlgates.envs.sb3 import make_vec_env
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs.agent.build import build
from rlgates.experiments.runs.network.train import TaskRun

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
UPDATES = 300
MEBIBYTES = 8  # memory of the allocators, which does not grow with the number of updates


def memory() -> int:
    """What this process has allocated and used, in bytes; pages of files come and go."""
    status = Path("/proc/self/status").read_text()
    return 1024 * sum(map(int, re.findall(r"^(?:RssAnon|VmSwap):\s*(\d+) kB", status, re.M)))


def held() -> tuple[int, int, int]:
    """Open files, threads and Python objects."""
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    return files, threading.active_count(), len(gc.get_objects())


def assert_steady(update: Callable[[], object], updates: int) -> None:
    """The second half of the updates takes no memory, and leaves no files, threads or objects."""
    for _ in range(updates // 2):
        update()
    files, threads, objects = held()
    before = memory()
    for _ in range(updates // 2):
        update()
    grown = held()
    assert grown[:2] == (files, threads)
    assert grown[2] - objects < updates // 10
    assert memory() - before < MEBIBYTES * 2**20


@linux
@pytest.mark.parametrize(("core", "algo"), [("ur_lstm", "ppo"), ("mingru", "a2c")])
def test_updates_of_an_agent(
    core: str, algo: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {"core": core, "core_options": {}, "n_envs": 4, "n_epochs": 1, "algo": algo}
    model, _ = build(tiny(tmp_path, **settings), 0)
    model._setup_learn(10**9)
    callback = model._init_callback(None)
    assert model.env is not None

    def update() -> None:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model.train()
        model.logger.dump(model.num_timesteps)

    assert_steady(update, UPDATES * request.config.getoption("faults"))


@linux
@pytest.mark.parametrize("core", ["ur_lstm", "nru", "gato"])
def test_updates_of_a_network(core: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    config = TaskConfig(
        core=core, task_settings={"delay": 2}, hidden_size=8, batch_size=4, folder=str(tmp_path)
    )
    run = TaskRun(config, 0)
    assert_steady(run.learn, UPDATES * request.config.getoption("faults"))


@linux
def test_many_runs_in_one_process(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    names = iter(range(10**9))

    def make() -> None:
        config = TaskConfig(
            core="lstm",
            task_settings={"delay": 2},
            hidden_size=8,
            batch_size=4,
            updates=2,
            eval_sequences=8,
            folder=str(tmp_path / str(next(names))),
        )
        TaskRun(config, 0).train()

    assert_steady(make, 20 * request.config.getoption("faults"))


def in_threads(works: list[Callable[[], Any]]) -> list[Any]:
    """What each of the functions returns, all of them running at once."""
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []
    begin = threading.Barrier(len(works))

    def work(index: int) -> None:
        try:
            begin.wait()
            results[index] = works[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return results


def fitted(core: str, seed: int) -> list[torch.Tensor]:
    """The weights of a core after 30 updates, from its own random numbers alone."""
    generator = torch.Generator().manual_seed(seed)
    module = make_core(core, 3, 8, generator=generator)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(30):
        x = torch.randn(12, 4, 3, generator=generator)
        starts = torch.rand(12, 4, generator=generator) < 0.1
        optimizer.zero_grad()
        module(x, None, starts)[0].square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize(
    "cores",
    [("ur_lstm",) * 4, ("gru", "nru", "rru", "mogrifier"), ("gato", "mingru", "lru", "rmc")],
)
def test_cores_in_threads_learn_as_one_after_the_other(cores: tuple[str, ...]) -> None:
    alone = [fitted(core, seed) for seed, core in enumerate(cores)]
    works = [lambda core=core, seed=seed: fitted(core, seed) for seed, core in enumerate(cores)]
    for one, other in zip(alone, in_threads(works), strict=True):
        assert all(map(torch.equal, one, other))


def test_agents_in_threads_leave_the_process_as_it_was() -> None:
    """Their random numbers are those of the process, so that each is another one than alone."""
    checks, threads = torch.distributions.Distribution._validate_args, torch.get_num_threads()

    def learned(core: str) -> RecurrentPPO:
        env = make_vec_env("rlgates/RepeatPrevious-v0", 4, seed=0)
        options: dict[str, Any] = {"core": core, "lstm_hidden_size": 8}
        model = RecurrentPPO("MlpLstmPolicy", env, n_steps=16, batch_size=32, policy_kwargs=options)
        return model.learn(640)

    models = in_threads([lambda core=core: learned(core) for core in ("ur_lstm", "gru", "nru")])
    for model in models:
        assert model.num_timesteps == 640
        assert all(parameter.isfinite().all() for parameter in model.policy.parameters())
    assert torch.distributions.Distribution._validate_args is checks
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
