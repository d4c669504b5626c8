"""Memory environments. Importing this package registers them with gymnasium."""

from __future__ import annotations

import gymnasium

from rlgates.envs.engine import BatchedEnv, Task
from rlgates.envs.match import PassiveMatch
from rlgates.envs.tasks import TASKS, make_task

__all__ = ["TASKS", "BatchedEnv", "PassiveMatch", "Task", "make_task"]

for _env_id in TASKS:
    if _env_id not in gymnasium.registry:
        gymnasium.register(
            id=_env_id, entry_point="rlgates.envs.gym:TaskEnv", kwargs={"env_id": _env_id}
        )
