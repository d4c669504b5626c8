"""Memory environments. Importing this package registers them with gymnasium."""

from __future__ import annotations

import gymnasium

from rlgates.envs import minigrid, popgym
from rlgates.envs.active_match import ActiveMatch
from rlgates.envs.engine import BatchedEnv, Task
from rlgates.envs.keytodoor import KeyToDoor
from rlgates.envs.match import PassiveMatch
from rlgates.envs.memory_chain import MemoryChain
from rlgates.envs.repeat import RepeatFirst, RepeatPrevious
from rlgates.envs.tasks import TASKS, make_task
from rlgates.envs.tmaze import ActiveTMaze, PassiveTMaze
from rlgates.envs.views import View

__all__ = [
    "TASKS",
    "ActiveMatch",
    "ActiveTMaze",
    "BatchedEnv",
    "KeyToDoor",
    "MemoryChain",
    "PassiveMatch",
    "PassiveTMaze",
    "RepeatFirst",
    "RepeatPrevious",
    "Task",
    "View",
    "make_task",
]

for _env_id in TASKS:
    if _env_id not in gymnasium.registry:
        gymnasium.register(
            id=_env_id,
            entry_point="rlgates.envs.gym:TaskEnv",
            vector_entry_point="rlgates.envs.vector:TaskVectorEnv",
            kwargs={"env_id": _env_id},
        )
minigrid.register()
popgym.register()
