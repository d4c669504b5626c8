"""`rlgates bench`: one subcommand for each thing that is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlgates.experiments.bench_configs import (
    BenchConfig,
    EnvBenchConfig,
    GpuBenchConfig,
    GrowthConfig,
    PPOBenchConfig,
    TaskBenchConfig,
)


def bench(
    what: Annotated[
        Annotated[BenchConfig, tyro.conf.subcommand("cores")]
        | Annotated[GrowthConfig, tyro.conf.subcommand("growth")]
        | Annotated[PPOBenchConfig, tyro.conf.subcommand("ppo")]
        | Annotated[EnvBenchConfig, tyro.conf.subcommand("envs")]
        | Annotated[TaskBenchConfig, tyro.conf.subcommand("tasks")]
        | Annotated[GpuBenchConfig, tyro.conf.subcommand("gpu")],
        tyro.conf.arg(name=""),
    ],
) -> int:
    """Measure how long cores, agents or environments take, and write tables and pictures."""
    from rlgates.experiments.bench import bench as bench_cores
    from rlgates.experiments.env_bench import bench_envs
    from rlgates.experiments.gpu_bench import bench_gpu
    from rlgates.experiments.growth_bench import bench_growth
    from rlgates.experiments.ppo_bench import bench_ppo
    from rlgates.experiments.task_bench import bench_tasks

    benches: dict[type, Callable[[Any], Path]] = {
        BenchConfig: bench_cores,
        GrowthConfig: bench_growth,
        PPOBenchConfig: bench_ppo,
        EnvBenchConfig: bench_envs,
        TaskBenchConfig: bench_tasks,
        GpuBenchConfig: bench_gpu,
    }
    print(benches[type(what)](what))
    return 0
