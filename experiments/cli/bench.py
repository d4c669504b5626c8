"""`rlgates bench`: one subcommand for each benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlgates.experiments.bench.configs import (
    BenchConfig,
    EnvBenchConfig,
    GpuBenchConfig,
    GrowthConfig,
    LoopBenchConfig,
    PPOBenchConfig,
    TaskBenchConfig,
)


def bench(
    what: Annotated[
        Annotated[BenchConfig, tyro.conf.subcommand("cores")]
        | Annotated[LoopBenchConfig, tyro.conf.subcommand("loops")]
        | Annotated[GrowthConfig, tyro.conf.subcommand("growth")]
        | Annotated[PPOBenchConfig, tyro.conf.subcommand("ppo")]
        | Annotated[EnvBenchConfig, tyro.conf.subcommand("envs")]
        | Annotated[TaskBenchConfig, tyro.conf.subcommand("tasks")]
        | Annotated[GpuBenchConfig, tyro.conf.subcommand("gpu")],
        tyro.conf.arg(name=""),
    ],
) -> int:
    """Measure the speed of cores, agents, environments or tasks; write tables and figures."""
    from rlgates.experiments.bench.cores import bench as bench_cores
    from rlgates.experiments.bench.envs import bench_envs
    from rlgates.experiments.bench.gpu import bench_gpu
    from rlgates.experiments.bench.growth import bench_growth
    from rlgates.experiments.bench.loops import bench_loops
    from rlgates.experiments.bench.ppo import bench_ppo
    from rlgates.experiments.bench.tasks import bench_tasks
    from rlgates.experiments.runs.files import check_folder

    check_folder("results", Path(what.results))
    benches: dict[type, Callable[[Any], Path]] = {
        BenchConfig: bench_cores,
        LoopBenchConfig: bench_loops,
        GrowthConfig: bench_growth,
        PPOBenchConfig: bench_ppo,
        EnvBenchConfig: bench_envs,
        TaskBenchConfig: bench_tasks,
        GpuBenchConfig: bench_gpu,
    }
    print(benches[type(what)](what))
    return 0
