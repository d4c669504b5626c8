"""What is trained, as plain data: the settings of a run, and the table of presets."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from tyro.constructors import PrimitiveConstructorSpec

from rlgates.cores import check_options, core_options
from rlgates.errors import unknown


def parse_pairs(words: list[str]) -> dict[str, Any]:
    """`["steps=30", "crop=None", "shuffle_pads=env"]` -> names and values.

    A value is read as a Python number, True, False, None or tuple, and else as text. NAME=
    without a value is the empty text, which `laid_over` takes for "leave this one out".

    Raises:
        ValueError: a word without "=".
    """
    pairs: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals):
            raise ValueError(f"expected NAME=VALUE, got {word!r}")
        try:
            pairs[name.replace("-", "_")] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            pairs[name.replace("-", "_")] = text
    return pairs


def laid_over(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `given` in place of what it says; an empty text leaves a name out."""
    return {name: value for name, value in {**base, **given}.items() if value != ""}


def fitting(options: Mapping[str, Any], core: str) -> dict[str, Any]:
    """Those of a preset's options that a core takes: not each of them has input weights to scale.

    Raises:
        ValueError: an unknown core (the nearest is named).
    """
    return {name: value for name, value in options.items() if name in core_options(core)}


def core_of(words: str) -> tuple[str, dict[str, Any]]:
    """The core and its options in words such as "lstm:forget_bias=0.0".

    Raises:
        ValueError: an unknown core or option (the nearest is named).
    """
    core, *pairs = re.split("[:,]", words)
    options = parse_pairs(pairs)
    check_options(core, options)
    return core, options


Pairs = Annotated[
    Mapping[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME=VALUE ...]",
        instance_from_str=parse_pairs,
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda value: [f"{name}={item}" for name, item in value.items()],
    ),
]
"""Named settings of any kind; NAME=VALUE on the command line."""


def match(distractor_steps: int) -> dict[str, Any]:
    """Settings of Passive Match without distractor rewards."""
    return {"explore_steps": 15, "distractor_steps": distractor_steps, "reward_steps": 15}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train one core on one environment. Steps are counted over all environments."""

    env: str = "rlgates/PassiveMatch-v0"
    """Environment id."""
    env_settings: Pairs = field(default_factory=lambda: match(30))
    """Settings of the environment, laid over those of the preset; NAME= leaves one out."""
    core: str = "ur_lstm"
    """Memory core; `rlgates cores` lists them."""
    core_options: Pairs = field(default_factory=lambda: {"input_scale": 8.0})
    """Options of the core, laid over those of the preset that it takes; NAME= leaves one out."""
    hidden_size: int = 64
    """Units of the core."""
    critic: Literal["shared", "separate", "none"] = "shared"
    """What the critic reads: the actor's core (which both train), its own, or no memory."""
    net_arch: tuple[int, ...] = (64,)
    """Hidden layers between the core and the action, and between the core and the value."""
    seeds: tuple[int, ...] = (0,)
    """One run for each seed."""

    total_steps: int = 10_000_000
    """Budget; whole rollouts are made until it is reached."""
    max_minutes: float | None = None
    """Stop after this much training time, too."""
    stop_success: float | None = None
    """Stop when this share of the last `window` training episodes succeeded, too."""
    window: int = 500
    """Training episodes that the reported means are taken over."""

    algo: Literal["ppo", "a2c"] = "ppo"
    """RecurrentPPO, or RecurrentA2C, with Adam and normalized advantages, which makes one update
    of each rollout: `n_epochs`, `n_minibatches` and `clip_range` do nothing then."""
    n_envs: int = 128
    """Environments that are stepped together."""
    n_steps: int | None = None
    """Steps of a rollout in each environment; None: one whole episode."""
    n_epochs: int = 4
    """Passes over a rollout, in PPO."""
    n_minibatches: int = 4
    """Parts of a rollout, each of them one update, in PPO."""
    learning_rate: float = 2e-3
    """Of Adam, constant."""
    gamma: float = 0.95
    """Discount factor."""
    gae_lambda: float = 0.95
    """Trade-off of bias and variance in the advantages."""
    clip_range: float = 0.2
    """Of the policy ratio in PPO."""
    ent_coef: float = 0.2
    """Weight of the entropy bonus."""
    vf_coef: float = 1.0
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are clipped to this norm."""
    reward_scale: float = 0.1
    """Factor on the rewards that the agent learns from; reports are in the env's own unit."""

    eval_every: int | None = 500_000
    """Steps between evaluations during training; None: only at the end."""
    eval_episodes: int = 200
    """Fresh episodes of an evaluation during training."""
    final_episodes: int = 1_000
    """Fresh episodes of the evaluation at the end."""
    eval_deterministic: bool = True
    """Evaluate the likeliest actions; else they are drawn, as in training."""

    checkpoint_every: int = 250_000
    """Steps between checkpoints."""
    folder: str = "runs"
    """Where the folders of the runs are made."""
    jobs: int = 1
    """Runs at a time, each in a process of its own."""
    threads: int = 1
    """CPU threads of each run."""
    device: str = "cpu"
    """"cpu", "cuda" or "auto"."""


# May differ when a run is continued: they do not change what is learned.
NOT_LEARNED_FROM = ("seeds", "folder", "jobs", "threads", "checkpoint_every", "max_minutes")


def smoke(config: TrainConfig) -> TrainConfig:
    """The same in a few seconds: everything runs, nothing is learned."""
    settings = dict(config.env_settings)
    if "distractor_steps" in settings:
        distractor = settings["distractor_steps"] // 10
        settings |= {"explore_steps": 2, "distractor_steps": distractor, "reward_steps": 6}
    return replace(
        config,
        env_settings=settings,
        hidden_size=16,
        n_envs=16,
        n_epochs=1,
        n_minibatches=2,
        total_steps=3_000,
        window=50,
        eval_every=1_000,
        eval_episodes=20,
        final_episodes=100,
        checkpoint_every=1_000,
        threads=1,
        folder="runs/smoke",
    )


MINUTE = TrainConfig(total_steps=600_000, ent_coef=0.02, reward_scale=5.0, eval_every=100_000)
STUDY = TrainConfig(stop_success=0.97, eval_every=None, folder="runs/study")
# What is done in the explore phase pays much later.
ACTIVE = replace(STUDY, env="rlgates/ActiveMatch-v0", gamma=0.98, ent_coef=0.1)
# One update a rollout, of as many episodes as a minibatch has in PPO.
A2C: dict[str, Any] = {"algo": "a2c", "n_envs": 32, "learning_rate": 3e-3}
PRESETS: dict[str, TrainConfig] = {
    "default": TrainConfig(),
    "demo": TrainConfig(
        total_steps=20_000_000,
        max_minutes=9.0,
        stop_success=0.97,
        seeds=(200,),
        folder="runs/demo",
    ),
    "showcase": TrainConfig(
        env_settings=match(90), total_steps=20_000_000, threads=2, folder="runs/showcase"
    ),
    # Small tasks on which a core can be judged in a minute.
    "tmaze": replace(
        MINUTE,
        env="rlgates/PassiveTMaze-v0",
        env_settings={"corridor_length": 30},
        gamma=0.99,
        ent_coef=0.05,
    ),
    "chain": replace(MINUTE, env="rlgates/MemoryChain-v0", env_settings={"memory_length": 30}),
    "repeat": replace(MINUTE, env="rlgates/RepeatPrevious-v0", env_settings={"k": 4}),
    "study30": replace(STUDY, total_steps=3_000_000),
    "study90": replace(STUDY, total_steps=6_000_000, env_settings=match(90)),
    "study30_active": replace(ACTIVE, total_steps=6_000_000),
    "study30_a2c": replace(STUDY, **A2C, total_steps=8_000_000),
    "study30_active_a2c": replace(ACTIVE, **A2C, total_steps=8_000_000),
}
PRESETS.update({f"{name}-smoke": smoke(config) for name, config in list(PRESETS.items())})


def preset(name: str) -> TrainConfig:
    """The config of that name.

    Raises:
        ValueError: unknown name (the nearest is named).
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


@dataclass(frozen=True, kw_only=True)
class LearningConfig:
    """Train agents of rlgates and of sb3-contrib on the same tasks, and draw the curves."""

    tasks: tuple[str, ...] = ("cartpole", "tmaze", "minigrid7", "minigrid9")
    """cartpole: CartPole-v1 without velocities; tmaze: a passive T-Maze; minigrid7, minigrid9:
    MiniGrid's memory tasks of these sizes, with a view of 3 cells."""
    agents: tuple[str, ...] = ("sb3-contrib", "lstm:forget_bias=0.0", "ur_lstm", "none")
    """sb3-contrib's RecurrentPPO, and cores of ours, core or core:option=value,...; the LSTM as
    torch.nn.LSTM starts it, for ours has a forget bias of 1."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """One run for each task, agent and seed; what is in the table is not made again."""
    jobs: int = 1
    """Runs at a time, each in a process of its own, with one thread."""
    results: str = "experiments/results"
    """Where `learning.csv` is written, with a table and a picture."""
