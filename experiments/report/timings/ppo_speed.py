"""The table of how fast RecurrentPPO is, ours and sb3-contrib's, and where its time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlgates.atomic import write_atomically
from rlgates.experiments.report.rows import markdown
from rlgates.experiments.report.timings.core_speed import bench_note, place_text
from rlgates.experiments.runs.files import read_json

SB3_TWO_CORES, SB3_ONE_CORE = "sb3-contrib, two cores", "sb3-contrib, one core"
REFERENCES = {
    SB3_TWO_CORES: SB3_TWO_CORES,
    "rlgates, two cores": SB3_TWO_CORES,
    "rlgates, two cores, chunks of 32": SB3_TWO_CORES,
    "rlgates, two cores, plain loop": SB3_TWO_CORES,
    SB3_ONE_CORE: SB3_ONE_CORE,
    "rlgates, one core": SB3_ONE_CORE,
    "rlgates, one core, chunks of 32": SB3_ONE_CORE,
    "rlgates, one core, plain loop": SB3_ONE_CORE,
}
"""The agents, each with sb3-contrib's agent of the same networks."""
ENV_TITLES = {"cartpole": "CartPole-v1 without velocities", "minigrid": "MiniGrid-MemoryS7-v0"}
PHASES = {
    "environments": "environments",
    "act": "acting",
    "rollout": "rest of the rollout",
    "cores": "cores in updates",
    "loss": "rest of the loss",
    "step": "rest of the backward pass",
    "optimizer": "clipping and optimizer",
    "train": "rest of the update",
}
"""The phases of training that are timed, with their column heads."""


def write_ppo_speed(source: Path, table: Path) -> None:
    """Write a line per environment and agent, and the shares of each phase below."""
    content = read_json(source)
    lines, shares = [], []
    for env, entry in content.items():
        for title, row in entry["agents"].items():
            reference = REFERENCES[title]
            equal, two = (
                f"{median:.1f} [{low:.1f}, {high:.1f}]"
                for median, low, high in (row["times"], row["times_two"])
            )
            lines.append(
                (
                    *(ENV_TITLES[env], title, f"{row['fps']:,.0f}"),
                    "" if reference == title else equal,
                    "" if reference in (title, SB3_TWO_CORES) else two,
                    *(f"{row['rollout']:.0%}", f"{row['train']:.0%}"),
                    "" if row["reward"] is None else f"{row['reward']:.3g}",
                )
            )
            if profile := row.get("profile"):
                cells = (f"{profile[phase]:.0%}" for phase in PHASES)
                shares.append((ENV_TITLES[env], title, *cells))
    heads = (
        *("environment", "agent", "frames per second", "times sb3-contrib, as many cores"),
        *("times sb3-contrib, two cores", "rollout", "training", "last rewards"),
    )
    profiles = markdown(("environment", "agent", *PHASES.values()), shares) if shares else ""
    text = f"{markdown(heads, lines)}\n{profiles}\n{_note(content)}\n"
    write_atomically(table, text.encode())


def _note(content: dict[str, Any]) -> str:
    """Say what is equal, what differs, and where it was measured."""
    runs = [entry["run"] for entry in content.values()]
    rows = [row for entry in content.values() for row in entry["agents"].values()]
    updates = ", ".join(map(str, sorted({row["updates"] for row in rows})))
    threads = ", ".join(dict.fromkeys(place_text(str(run["threads"])) for run in runs))
    first = runs[0]
    # Earlier versions did not note it.
    seeds = "".join(
        f"seed {seed}; " for seed in sorted({run["seed"] for run in runs if "seed" in run})
    )
    size = first["batch_size"]
    return (
        "All agents in turn, iteration by iteration, in one process: medians of "
        f"{first['iterations']} iterations, ratios with their 95 % interval. Rollout, training: "
        "shares of the time. The second table splits the time of further iterations; no part "
        "includes another. Last rewards: mean of the last 100 training episodes. "
        f"`MlpLstmPolicy`, `{first['core']}` of {first['units']} units, {first['n_envs']} "
        f"environments, n_steps {first['n_steps']}, batch_size {size}, {first['n_epochs']} epochs: "
        f"{updates} updates of {size} steps per iteration for each agent. sb3-contrib takes its "
        "batches from the concatenated rollouts, splits them at episode starts and pads the parts; "
        "here a batch is the rollout of one environment, unchanged, or the same number of steps in "
        "chunks of 32 (`chunk_len=32`), beyond which no gradient flows back. "
        f"{threads}; {seeds}{bench_note(runs, 'ppo')}"
    )
