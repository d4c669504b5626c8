"""The settings of `rlgates bench`, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlgates.envs import ENVS
from rlgates.experiments.tasks import TASKS as SUPERVISED

GPU_PARTS = ("correct", "speed", "ways", "end_to_end", "environments", "learning")
"""The parts of `rlgates bench gpu`, in the order in which they are made."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Time the cores against `torch.nn`, plain loops and other libraries, in interleaved pairs.

    All cores take hours. Results are merged, so you can time a few `--cores` at a time.
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
    """Device; on a GPU `threads` has no effect."""
    pairs: int = 15
    """Timed pairs of a core and each of its rivals; the median of their ratios is reported."""
    seconds: float = 20.0
    """Time limit of the pairs with one rival, after which no more are timed; none if one run takes
    longer."""
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
    """Folder of `core_speed.json` and its tables; results of cases not timed are kept."""
    quick: bool = False
    """Time a few small cases, in a minute, and write to runs/quick."""


@dataclass(frozen=True, kw_only=True)
class LoopBenchConfig:
    """Time the plain loops of cores against each other, in one CPU thread."""

    cores: tuple[str, ...] = (
        "f_lstm/lstm:tied=True",
        "r_lstm/f_lstm",
        "nru/lstm:tied=True",
        "janet/lstm:tied=True",
    )
    """Pairs of cores to compare, separated by a slash, with options as in lstm:tied=True."""
    hidden_sizes: tuple[int, ...] = (64, 512)
    """Units of both cores."""
    pairs: int = 201
    """Timed pairs of runs; the median of their ratios is reported."""
    seconds: float = 60.0
    """Time limit of a pair of cores, after which no more runs are timed."""
    results: str = "experiments/results"
    """Folder of `loop_speed.csv` and its table; results of pairs not timed are kept."""
    quick: bool = False
    """Time a few runs, and write to runs/quick."""


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """Time how the cost of a forward and backward pass grows with steps, batch size and units."""

    rounds: int = 7
    """Measurements of each point, all layers in turn; their median is reported."""
    threads: int = 1
    """CPU threads."""
    seconds: float = 10.0
    """A layer that needs more than this for one run is not timed at larger sizes."""
    results: str = "experiments/results"
    """Folder of `core_growth.json` and the figure."""
    quick: bool = False
    """Time only small sizes, in a minute, and write to runs/quick."""


@dataclass(frozen=True, kw_only=True)
class PPOBenchConfig:
    """Time RecurrentPPO of rlgates and of sb3-contrib in frames per second, interleaved."""

    envs: tuple[str, ...] = ("cartpole", "minigrid")
    """cartpole: CartPole-v1 without velocities; minigrid: MiniGrid-MemoryS7-v0, flattened."""
    core: str = "lstm"
    """Core of the rlgates agent; sb3-contrib only has the LSTM."""
    iterations: int = 15
    """Timed iterations of each agent (a rollout and its updates), after one for warm-up."""
    threads: int = 2
    """CPU threads."""
    seed: int = 0
    """Seed of all agents and environments."""
    results: str = "experiments/results"
    """Folder of `ppo_speed.json` and its table; results of environments not timed are kept."""
    quick: bool = False
    """Time two iterations of one epoch, in a minute, and write to runs/quick."""


@dataclass(frozen=True, kw_only=True)
class EnvBenchConfig:
    """Time the environments in steps per second, with random actions and resets."""

    envs: tuple[str, ...] = tuple(ENVS)
    """Environments to time."""
    cases: tuple[str, ...] = ("native:64", "native:1024", "sb3:64")
    """front_end:num_envs. The front ends are native, sb3, torch and cuda; original is the game of
    popgym or minigrid itself, in gymnasium's `SyncVectorEnv`."""
    repeats: int = 15
    """Measurements of at least one episode; their median is reported."""
    results: str = "experiments/results"
    """Folder of `env_speed.csv`; results of environments not timed are kept."""


@dataclass(frozen=True, kw_only=True)
class GpuBenchConfig:
    """Check the cores on a GPU, time them against cuDNN, and time agents and environments."""

    parts: tuple[str, ...] = tuple(part for part in GPU_PARTS if part != "learning")
    """Parts to run. correct: errors of the cores; speed: the cores and cuDNN; ways: one kernel
    launch for all steps or several per step; end_to_end: whole iterations of PPO; environments;
    learning: agents until they remember. The last does not run by default, as it takes all the time
    that the others leave: run it alone, with five minutes or more."""
    cores: tuple[str, ...] = ()
    """Cores to check and to train; by default all are checked, and ur_lstm and lstm are trained."""
    quick: bool = False
    """Fewer cores and sizes, except for learning."""
    minutes: float | None = None
    """No further measurement starts after this time, and learning ends then; None: ten, or one with
    quick."""
    device: str = "cuda"
    """"cuda", or "cpu": tiny sizes, to test the benchmark itself."""
    num_envs: int = 512
    """Environments of each agent that learns; not on the CPU."""
    distractor_steps: int = 90
    """Steps over which each agent has to remember; not on the CPU."""
    jobs: int = 5
    """Agents that learn at the same time, each in its own process: one alone leaves a GPU idle at
    times."""
    results: str = "experiments/results"
    """Folder of `gpu_bench.json`, its table and its figure, which are overwritten."""
    folder: str = "runs/gpu_bench"
    """Folder of the event files of the agents that learn, for TensorBoard."""


@dataclass(frozen=True, kw_only=True)
class TaskBenchConfig:
    """Time the batches of the supervised tasks, and the updates on them."""

    tasks: tuple[str, ...] = tuple(SUPERVISED)
    """Tasks to time, with the settings of the laptop tier; those without data are skipped."""
    core: str = "lstm"
    """Memory core; a fast one shows best whether data are the bottleneck."""
    data_dir: str | None = None
    """Folder of the data sets, with a folder for each; None: RLGATES_DATA."""
    updates: int = 30
    """Timed updates; their median is reported."""
    seconds: float = 20.0
    """No further update of a task starts after this time."""
    results: str = "experiments/results"
    """Folder of `task_speed.csv` and its table; results of tasks not timed are kept."""
