"""How the papers trained on the tasks: the PROTOCOLS table.

A name is the task, a dash, and the paper: "copy-gu", "adding-gato-750", "jsb-rru". What a core
starts with belongs to the protocol, too: "forgetting-gu" gives its cores `forget_bias=6.0`.
"""

from __future__ import annotations

from rlgates.errors import check_choice
from rlgates.tasks.protocol import Protocol
from rlgates.tasks.protocols_cores import GATO, RRU
from rlgates.tasks.protocols_gates import GU, OHNO

__all__ = ["PROTOCOLS", "Protocol", "protocols_for"]

PROTOCOLS: dict[str, Protocol] = {**GU, **GATO, **OHNO, **RRU}


def protocols_for(task: str) -> dict[str, Protocol]:
    """The protocols of a task, by name.

    Raises:
        ValueError: there is none (the nearest task that has one is named).
    """
    check_choice("task with a protocol", task, dict.fromkeys(p.task for p in PROTOCOLS.values()))
    return {name: found for name, found in PROTOCOLS.items() if found.task == task}
