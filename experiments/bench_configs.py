"""What is measured, as plain data: the settings of `rlgates bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlgates.envs import TASKS
from rlgates.tasks import TASKS as SUPERVISED


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Time the cores against `torch.nn`, their plain loop and others, in interleaved pairs.

    All cores take hours: give some `--cores` at a time, and the results grow.
    """

    cores: tuple[str, ...] = ()
    """Cores to be timed, with options as in lstm:tied=True; all of them if none is given."""
    shapes: tuple[str, ...] = (
        "64x32x64x64",
        "128x8x64x128",
        "128x32x64x256",
        "512x32x10x256",
        "784x50x1x512",
        "1x8x64x256",
    )
    """Steps, rows, inputs and units, TxBxIxH; with T = 1, one step without gradients."""
    threads: tuple[int, ...] = (1, 2)
    """CPU threads; each case is timed with each of them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to; threads do not matter on a GPU."""
    pairs: int = 15
    """Timed pairs of a core and each of its rivals; the median of their ratios counts."""
    seconds: float = 20.0
    """Time for the pairs with one rival: fewer are made, or none if one run takes longer."""
    others: tuple[str, ...] = (
        "torchrl-pad",
        "torchrl-python",
        "torchrl-scan",
        "torchrl-triton",
        "flashrnn-fused",
        "flashrnn-cuda",
    )
    """LSTMs of other libraries, where they are installed: name-backend."""
    results: str = "experiments/results"
    """Where `core_speed.json` and its tables are written; what is not timed stays."""
    quick: bool = False
    """A few small cases in a minute, written into runs/quick."""


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """Time how the cost of a forward and backward pass grows with steps, rows and units."""

    rounds: int = 7
    """Times each point is taken, all layers after one another; their median counts."""
    threads: int = 1
    """CPU threads."""
    seconds: float = 10.0
    """A layer that takes longer for a run is not tried on larger ones."""
    results: str = "experiments/results"
    """Where `core_growth.json` and the figure are written."""
    quick: bool = False
    """Small sizes alone, in a minute, written into runs/quick."""


@dataclass(frozen=True, kw_only=True)
class PPOBenchConfig:
    """Count the frames a second of RecurrentPPO, ours and sb3-contrib's, in turn in one process."""

    envs: tuple[str, ...] = ("cartpole", "minigrid")
    """cartpole: CartPole-v1 without velocities; minigrid: MiniGrid-MemoryS7-v0, flattened."""
    core: str = "lstm"
    """Of our agents; sb3-contrib has the LSTM alone."""
    iterations: int = 15
    """Timed iterations of each agent, a rollout and its updates, after one that is not timed."""
    threads: int = 2
    """CPU threads."""
    seed: int = 0
    """Of all agents and environments."""
    results: str = "experiments/results"
    """Where `ppo_speed.json` and its table are written; environments not timed stay."""
    quick: bool = False
    """Two iterations of one epoch, in a minute, written into runs/quick."""


@dataclass(frozen=True, kw_only=True)
class EnvBenchConfig:
    """Count the steps a second of the environments, with random actions and resets."""

    envs: tuple[str, ...] = tuple(TASKS)
    """Environments to be timed."""
    cases: tuple[str, ...] = ("native:64", "native:1024", "sb3:64")
    """front_end:num_envs, with the front ends native, sb3, torch and cuda."""
    repeats: int = 15
    """Timed stretches of at least an episode; their median counts."""
    results: str = "experiments/results"
    """Where `env_speed.csv` is written; rows of what is not timed stay."""


@dataclass(frozen=True, kw_only=True)
class GpuBenchConfig:
    """Check the cores on a GPU, and time them beside cuDNN, and the environments."""

    cores: tuple[str, ...] = ()
    """Cores to be checked; all if none is given."""
    quick: bool = False
    """Fewer cores and sizes."""
    minutes: float | None = None
    """After these no further measurement begins; None: ten, or one if quick."""
    device: str = "cuda"
    """"cuda", or "cpu": tiny sizes, to try the bench itself."""
    results: str = "experiments/results"
    """Where `gpu_bench.json` is written."""


@dataclass(frozen=True, kw_only=True)
class TaskBenchConfig:
    """Time the batches of the supervised tasks beside the updates that are made of them."""

    tasks: tuple[str, ...] = tuple(SUPERVISED)
    """Tasks to be timed, each with the settings of its laptop tier; those without data are left
    out."""
    core: str = "lstm"
    """Memory core: the fastest one waits for data the soonest."""
    data_dir: str | None = None
    """The folder of the data sets, one folder a set; None: that of RLGATES_DATA."""
    updates: int = 30
    """Timed updates; their median counts."""
    seconds: float = 20.0
    """No further update of a task begins after so long."""
    results: str = "experiments/results"
    """Where `task_speed.csv` and its table are written; tasks that are not timed stay."""
