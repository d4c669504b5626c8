"""Bad input is refused in words before work begins: the table is `bad_inputs.txt`.

Each row runs under limits of time and memory: a size that is only declared is never allocated.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from support.toys import BOX, Masked, Toy, model, toy

import rlgates
from rlgates import MaskableRecurrentPPO, RecurrentA2C, RecurrentPPO, agents, envs, nn
from rlgates.cores import LSTM
from rlgates.envs import wrappers
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env
from rlgates.envs.vector import GymVectorEnv
from rlgates.experiments import tasks
from rlgates.experiments.cli import main as cli

resource = pytest.importorskip("resource")

SECONDS, BYTES = 60, 2**31
TABLE = Path(__file__).parent / "bad_inputs.txt"
MATCH = "rlgates/PassiveMatch-v0"


def table() -> list[tuple[str, str, str]]:
    """The rows: a call, the type of the error, and words of its message."""
    lines = TABLE.read_text().splitlines()
    return [
        (call, *re.findall(r"    (?:([A-Za-z]\w*): )?(.*)", refusal)[0])
        for call, refusal in itertools.pairwise(lines)
        if refusal.startswith("    ")
    ]


CALLS = [row for row in table() if not row[0].startswith("$ ")]
COMMANDS = [(f"{call[2:]}", kind, words) for call, kind, words in table() if call[0] == "$"]


class Own(LSTM):
    """A core that is not registered."""


@dataclass(frozen=True)
class NoId(envs.EnvSpec):  # type: ignore[misc]
    """A game without an id."""


class Unused:
    """A model of another library."""

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError


def started(env: Any) -> Any:
    """The environment after a reset."""
    env.reset(seed=0) if isinstance(env, gym.Env | gym.vector.VectorEnv) else env.reset()
    return env


# What the rows name; lambdas in a row see these alone.
CONSTANTS: dict[str, Any] = {
    **{name: getattr(rlgates, name) for name in ("TVT", "MlpLstmPolicy", *rlgates.__all__)},
    "nn": nn,
    "torch": torch,
    "np": np,
    "gym": gym,
    "spaces": spaces,
    "agents": agents,
    "envs": envs,
    "wrappers": wrappers,
    "tasks": tasks,
    "nan": math.nan,
    "inf": math.inf,
    "Own": Own,
    "LSTM": LSTM,
    "NoId": NoId,
    "SB3": Unused,
    "MATCH": MATCH,
    "make_vec_env": make_vec_env,
    "make_torch_env": make_torch_env,
    "Toy": Toy,
    "BOX": BOX,
    "GymVectorEnv": GymVectorEnv,
    "BatchedEnv": envs.BatchedEnv,
    "toy": toy,
    "RecurrentPPO": RecurrentPPO,
    "RecurrentA2C": RecurrentA2C,
    "ppo": model,
    "MaskableRecurrentPPO": MaskableRecurrentPPO,
    "RolloutBuffer": RolloutBuffer,
    "a2c": functools.partial(model, algorithm=RecurrentA2C),
    "maskable": functools.partial(model, algorithm=MaskableRecurrentPPO),
    "masked": lambda: toy(kind=Masked),
}
MADE_ONCE: dict[str, Callable[[], Any]] = {
    "core": lambda: rlgates.make_core("lstm", 3, 8),
    "packed": lambda: torch.nn.utils.rnn.pack_sequence([torch.zeros(5, 3), torch.zeros(2, 3)]),
    "agent": model,
    "box_agent": lambda: model(env=toy(action=BOX)),
    "sde_agent": lambda: model(env=toy(action=BOX), use_sde=True),
    "env": lambda: started(gym.make(MATCH).unwrapped),
    "chain": lambda: started(gym.make("rlgates/MemoryChain-v0").unwrapped),
    "vector": lambda: started(gym.make_vec(MATCH, num_envs=2)),
    "sb3": lambda: started(make_vec_env(MATCH, 2, seed=0)),
    "torch_env": lambda: started(make_torch_env(MATCH, 2, seed=0)),
    "spec": lambda: envs.make_env_spec(MATCH),
    "gen": torch.Generator,
    "copy": lambda: tasks.make_task("copy", delay=2),
    "aba": lambda: tasks.make_task("copy_aba", delay=2, length=4),
    "digits": lambda: tasks.make_task("digits"),
    "model_copy": lambda: tasks.make_sequence_model(NAMES["copy"], "lstm", 8),
    "model_aba": lambda: tasks.make_sequence_model(NAMES["aba"], "lstm", 8),
}


class Names(dict[str, Any]):
    """`MADE_ONCE`, each made when it is first used: a refused call leaves it as it was."""

    def __missing__(self, name: str) -> Any:
        self[name] = MADE_ONCE[name]()
        return self[name]


NAMES = Names()


class TooLong(BaseException):
    """The limit of time; no `except Exception` catches it."""


@contextmanager
def limits() -> Iterator[None]:
    """No more than `SECONDS`, and `BYTES` of new memory."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    statm = Path("/proc/self/statm")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    if statm.exists():
        now = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files that are not what their names say."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "bad.toml": "gama = 0.9\n",
        "worse.toml": "gamma 0.9\n",
        "typed.toml": 'gamma = "a"\n',
        "notes.txt": "x\n",
        "manifest.json": "{}",
        "bad.py": "STUDY = 1\n",
        "text.zip": "x\n",
        "text.rlgates": "x\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def evaluate(call: str) -> None:
    """Run a row: an expression, or the assignment to an attribute."""
    assigned, equals, value = call.partition(" = ")
    if equals and re.fullmatch(r"\w+\.\w+", assigned):
        name, _, attribute = assigned.partition(".")
        setattr(NAMES[name], attribute, eval(value))
    else:
        eval(call, {**CONSTANTS}, NAMES)


def test_the_table_is_read_whole() -> None:
    rows = [line for line in TABLE.read_text().splitlines() if line and line[0] not in "# "]
    assert len(CALLS) + len(COMMANDS) == len(rows) == len(set(rows)) > 700
    assert len(COMMANDS) > 200


@pytest.mark.parametrize(("call", "kind", "words"), CALLS, ids=[row[0] for row in CALLS])
def test_a_call_is_refused(call: str, kind: str, words: str, folder: Path) -> None:
    NAMES["agent"]  # nothing of it is made under the limits
    for name in MADE_ONCE.keys() & {*re.findall(r"\w+", call)}:
        NAMES[name]
    if "safe.rlgates" in call or "sb3.zip" in call:
        NAMES["agent"].save("safe", format="safe")
        NAMES["agent"].save("sb3")
    before = sorted(folder.iterdir())
    with limits(), pytest.raises(Exception) as refusal:  # noqa: PT011
        evaluate(call)
    assert type(refusal.value).__name__ == kind, refusal.value
    assert words in str(refusal.value)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(("line", "kind", "words"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_command_is_refused(
    line: str, kind: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    with limits():
        try:
            code = cli.main(shlex.split(line)[1:])
        except SystemExit as end:
            assert kind == "usage"
            code = end.code  # type: ignore[assignment]
    assert code == 2
    printed = capsys.readouterr().err
    if kind == "usage":
        assert words in " ".join(re.sub(r"-{5,}|\|", " ", printed).split())
    else:
        assert printed.startswith("rlgates: error: ")
        assert printed.count("\n") == 1
        assert words in printed
    assert "Traceback" not in printed
    left = [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"]
    assert left == before
