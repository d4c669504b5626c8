"""Where the time of an agent goes: its parts, each without those inside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from rlgates.agents import RecurrentPPO
from rlgates.experiments.tables import markdown
from rlgates.kernels import calls

PARTS = {
    "environments": "environments",
    "act": "acting",
    "rollout": "rest of the rollout",
    "cores": "cores in updates",
    "loss": "rest of the loss",
    "step": "rest of the gradient",
    "optimizer": "optimizer",
    "train": "rest of the update",
}
"""The parts, as they are told to people."""


class Clock:
    """Seconds of each part; a part stands still while one inside it runs.

    Attributes:
        seconds: of each part.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._running: list[str] = []
        self._since = 0.0

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose time counts for a part."""

        def run(*args: Any, **kwargs: Any) -> Any:
            # What the cores do for a step in the environment belongs to acting.
            if part == "cores" and "train" not in self._running:
                return function(*args, **kwargs)
            self._switch()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._running.pop()

        return run


@contextmanager
def profiled(model: RecurrentPPO) -> Iterator[Clock]:
    """Clock the parts of a model that learns meanwhile; alone in its process."""
    clock = Clock()
    places: list[tuple[str, Any, str]] = [
        ("environments", model.env, "step"),
        ("act", model.policy, "act"),
        ("rollout", model, "collect_rollouts"),
        ("cores", calls, "forward"),
        ("cores", calls, "backward"),
        ("loss", model, "_loss"),
        ("step", model, "_step_optimizer"),
        ("optimizer", model.policy.optimizer, "step"),
        ("train", model, "train"),
    ]
    with ExitStack() as stack:
        for part, owner, name in places:
            stack.enter_context(patch.object(owner, name, clock.timed(part, getattr(owner, name))))
        yield clock


def profile_table(rows: Iterable[tuple[str, str, Mapping[str, float]]]) -> str:
    """A line for each environment and agent, with the shares of all parts; empty without rows."""
    heads = ("environment", "agent", *PARTS.values())
    lines = [
        [env, agent, *(f"{shares[part]:.0%}" for part in PARTS)] for env, agent, shares in rows
    ]
    return markdown(heads, lines) if lines else ""
