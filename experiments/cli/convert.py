"""`rlgates convert`: agents of other formats in the safe one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rlgates.experiments.cli.exits import FINISHED


def convert(
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")],
    out: Path | None = None,
    algo: Literal["ppo", "a2c", "maskable"] = "ppo",
    vec_normalize: Path | None = None,
    trust: bool = False,
) -> int:
    """Convert an agent saved by Stable-Baselines3 or sb3-contrib to the safe format.

    This unpickles the file: CODE IN IT RUNS. Do it once, with files that you trust, and not as a
    privileged user. The converted file runs no code when it is loaded.

    Args:
        file: The zip.
        out: The file to write; by default FILE with the ending .rlgates, which may replace FILE.
        algo: Algorithm of the agent.
        vec_normalize: File written by VecNormalize.save, which is unpickled too.
        trust: Run the code in the files. Without this, nothing is read.
    """
    from rlgates.agents import MaskableRecurrentPPO, RecurrentA2C, RecurrentPPO
    from rlgates.agents import convert as convert_agent

    if not trust:
        raise ValueError(
            f"{file} would be unpickled, which runs the code in it: add --trust if you trust it."
        )
    algorithms: dict[str, type[RecurrentPPO | RecurrentA2C]] = {
        "ppo": RecurrentPPO,
        "a2c": RecurrentA2C,
        "maskable": MaskableRecurrentPPO,
    }
    zipped = file.with_name(f"{file.name}.zip")  # the suffix may be left out
    source = zipped if zipped.is_file() and not file.is_file() else file
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {file}.")
    target = source.with_suffix(".rlgates") if out is None else out
    replaced = target.is_file()
    try:
        print(convert_agent(source, out, algorithms[algo], vec_normalize))
    except TypeError as error:  # of a policy that is none of ours
        raise ValueError(f"{source} cannot be converted: {error}") from error
    if replaced:
        print(f"rlgates: warning: {target} existed and was replaced", file=sys.stderr)
    return FINISHED
