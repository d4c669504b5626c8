"""How the papers trained on the tasks: the PROTOCOLS table.

A name is the task, a dash, and the paper: "copy-gu", "adding-gato-750", "jsb-rru". Initial biases
belong to the protocol, too: "forgetting-gu" gives its cores `forget_bias=6.0`.
"""

from __future__ import annotations

from rlgates.errors import check_choice
from rlgates.experiments.configs.published.gato2020 import GATO2020
from rlgates.experiments.configs.published.gu2020 import GU2020
from rlgates.experiments.configs.published.ohno2022 import OHNO2022
from rlgates.experiments.configs.published.protocol import Protocol
from rlgates.experiments.configs.published.zakovskis2023 import ZAKOVSKIS2023

__all__ = ["PROTOCOLS", "Protocol", "protocols_for"]

PROTOCOLS: dict[str, Protocol] = {**GU2020, **GATO2020, **OHNO2022, **ZAKOVSKIS2023}


def protocols_for(task: str) -> dict[str, Protocol]:
    """The protocols of a task, by name.

    Raises:
        ValueError: the task has none (the nearest task with a protocol is named).
    """
    check_choice("task with a protocol", task, dict.fromkeys(p.task for p in PROTOCOLS.values()))
    return {name: one for name, one in PROTOCOLS.items() if one.task == task}
