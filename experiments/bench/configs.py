"""What is measured, as plain data: the settings of `rlgates bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlgates.envs import ENVS
from rlgates.experiments.tasks import TASKS as SUPERVISED

GPU_PARTS = ("correct", "speed", "ways", "end_to_end", "environments", "learning")
"""The parts of `rlgates bench gpu`, in the order in which they are made."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Time the cores against `torch.nn`, their plain loop and others, in interleaved pairs.

    All cores take hours; results are merged, so a few `--cores` at a time will do.
    """

    cores: tuple[str, ...] = ()
    """Cores to time, with options as in lstm:tied=True; all by default."""
    shapes: tuple[str, ...] = (
        "64x32x64x64",
        "128x8x64x128",
        "128x32x64x256",
        "512x32x10x256",
        "784x50x1x512",
        "1x8x64x256",
    )
    """Steps, batch size, inputs and units, TxBxIxH; with T = 1, one step without gradients."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of CPU threads; each case is timed with each of them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device; threads do not matter on a GPU."""
    pairs: int = 15
    """Timed pairs of a core and each of its rivals; the median of their ratios counts."""
    seconds: float = 20.0
    """Time limit of the pairs with one rival: fewer are made, or none if one run takes longer."""
    others: tuple[str, ...] = (
        "torchrl-pad",
        "torchrl-python",
        "torchrl-scan",
        "torchrl-triton",
        "flashrnn-fused",
        "flashrnn-cuda",
    )
    """LSTMs of other libraries, if installed: name-backend."""
    results: str = "experiments/results"
    """Folder of `core_speed.json` and its tables; cases that are not timed stay."""
    quick: bool = False
    """A few small cases in a minute, written to runs/quick."""


@dataclass(frozen=True, kw_only=True)
class LoopBenchConfig:
    """Time the plain loops of cores against each other, in one CPU thread."""

    cores: tuple[str, ...] = (
        "f_lstm/lstm:tied=True",
        "r_lstm/f_lstm",
        "nru/lstm:tied=True",
        "janet/lstm:tied=True",
    )
    """Pairs of cores, core/than, with options as in lstm:tied=True."""
    hidden_sizes: tuple[int, ...] = (64, 512)
    """Units of both."""
    pairs: int = 201
    """Timed pairs of a run of each; the median of their ratios counts."""
    seconds: float = 60.0
    """Time limit of a pair of cores: fewer runs are made."""
    results: str = "experiments/results"
    """Folder of `loop_speed.csv` and its table; pairs that are not timed stay."""
    quick: bool = False
    """A few runs, written to runs/quick."""


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """Time how the cost of a forward and backward pass grows with steps, batch size and units."""

    rounds: int = 7
    """Measurements of each point, all layers in turn; their median counts."""
    threads: int = 1
    """CPU threads."""
    seconds: float = 10.0
    """A layer that takes longer for one run is not timed at larger sizes."""
    results: str = "experiments/results"
    """Folder of `core_growth.json` and the figure."""
    quick: bool = False
    """Small sizes only, in a minute, written to runs/quick."""


@dataclass(frozen=True, kw_only=True)
class PPOBenchConfig:
    """Time RecurrentPPO of rlgates and of sb3-contrib in frames per second, interleaved."""

    envs: tuple[str, ...] = ("cartpole", "minigrid")
    """cartpole: CartPole-v1 without velocities; minigrid: MiniGrid-MemoryS7-v0, flattened."""
    core: str = "lstm"
    """Core of the rlgates agent; sb3-contrib only has the LSTM."""
    iterations: int = 15
    """Timed iterations of each agent, a rollout and its updates, after one of warm-up."""
    threads: int = 2
    """CPU threads."""
    seed: int = 0
    """Seed of all agents and environments."""
    results: str = "experiments/results"
    """Folder of `ppo_speed.json` and its table; environments that are not timed stay."""
    quick: bool = False
    """Two iterations of one epoch, in a minute, written to runs/quick."""


@dataclass(frozen=True, kw_only=True)
class EnvBenchConfig:
    """Time the environments in steps per second, with random actions and resets."""

    envs: tuple[str, ...] = tuple(ENVS)
    """Environments to time."""
    cases: tuple[str, ...] = ("native:64", "native:1024", "sb3:64")
    """front_end:num_envs; the front ends are native, sb3, torch and cuda; original is the game of
    popgym or minigrid in gymnasium's `SyncVectorEnv`, for those that come from there."""
    repeats: int = 15
    """Measurements of at least an episode; their median counts."""
    results: str = "experiments/results"
    """Folder of `env_speed.csv`; rows that are not timed stay."""


@dataclass(frozen=True, kw_only=True)
class GpuBenchConfig:
    """Check the cores on a GPU, time them against cuDNN, and time agents and environments."""

    parts: tuple[str, ...] = tuple(part for part in GPU_PARTS if part != "learning")
    """Parts to make. correct: errors of the cores; speed: the cores and cuDNN; ways: one launch of
    a kernel for all steps or several a step; end_to_end: whole iterations of PPO; environments;
    learning: agents until they remember. The last is not made by default, as it takes all the time
    that the others leave: make it alone, with five minutes or more."""
    cores: tuple[str, ...] = ()
    """Cores to check, and those that learn; by default all, and ur_lstm and lstm."""
    quick: bool = False
    """Fewer cores and sizes, but for learning."""
    minutes: float | None = None
    """No further measurement begins after this time, at which learning ends; None: ten, or one if
    quick."""
    device: str = "cuda"
    """"cuda", or "cpu": tiny sizes, to test the benchmark itself."""
    num_envs: int = 512
    """Environments of each agent that learns; not on the CPU."""
    distractor_steps: int = 90
    """Steps over which it has to remember; not on the CPU."""
    jobs: int = 5
    """Agents that learn at a time, each in its own process: one alone leaves gaps on a GPU."""
    results: str = "experiments/results"
    """Folder of `gpu_bench.json`, its table and its figure, which are replaced."""
    folder: str = "runs/gpu_bench"
    """Folder of the event files of the agents that learn, for TensorBoard."""


@dataclass(frozen=True, kw_only=True)
class TaskBenchConfig:
    """Time the batches of the supervised tasks, and the updates on them."""

    tasks: tuple[str, ...] = tuple(SUPERVISED)
    """Tasks to time, with the settings of their laptop tier; those without data are skipped."""
    core: str = "lstm"
    """Memory core; a fast one shows best whether data are the bottleneck."""
    data_dir: str | None = None
    """Folder of the data sets, with a folder for each; None: RLGATES_DATA."""
    updates: int = 30
    """Timed updates; their median counts."""
    seconds: float = 20.0
    """No further update of a task begins after this time."""
    results: str = "experiments/results"
    """Folder of `task_speed.csv` and its table; tasks that are not timed stay."""
