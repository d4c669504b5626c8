"""Memory environments. Importing this package registers them with gymnasium."""

from __future__ import annotations

from rlgates.deprecation import renamed
from rlgates.envs.adapters import minigrid, popgym
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.engine.spec import EnvSpec
from rlgates.envs.engine.views import View
from rlgates.envs.games.autoencode import Autoencode
from rlgates.envs.games.bandit import MultiarmedBandit
from rlgates.envs.games.battleship import Battleship
from rlgates.envs.games.cartpole import NoisyStatelessCartPole, StatelessCartPole
from rlgates.envs.games.concentration import Concentration
from rlgates.envs.games.count_recall import CountRecall
from rlgates.envs.games.higher_lower import HigherLower
from rlgates.envs.games.key_to_door import KeyToDoor
from rlgates.envs.games.labyrinth import LabyrinthEscape, LabyrinthExplore
from rlgates.envs.games.match import ActiveMatch, PassiveMatch
from rlgates.envs.games.memory_chain import MemoryChain
from rlgates.envs.games.minesweeper import MineSweeper
from rlgates.envs.games.minigrid_memory import MiniGridMemory
from rlgates.envs.games.pendulum import NoisyStatelessPendulum, StatelessPendulum
from rlgates.envs.games.repeat import RepeatFirst, RepeatPrevious
from rlgates.envs.games.tmaze import ActiveTMaze, PassiveTMaze
from rlgates.envs.registration import ENVS, make_env_spec, register_env

__all__ = [
    "ENVS",
    "ActiveMatch",
    "ActiveTMaze",
    "Autoencode",
    "BatchedEnv",
    "Battleship",
    "Concentration",
    "CountRecall",
    "EnvSpec",
    "HigherLower",
    "KeyToDoor",
    "LabyrinthEscape",
    "LabyrinthExplore",
    "MemoryChain",
    "MineSweeper",
    "MiniGridMemory",
    "MultiarmedBandit",
    "NoisyStatelessCartPole",
    "NoisyStatelessPendulum",
    "PassiveMatch",
    "PassiveTMaze",
    "RepeatFirst",
    "RepeatPrevious",
    "StatelessCartPole",
    "StatelessPendulum",
    "View",
    "make_env_spec",
    "register_env",
]

__getattr__ = renamed(__name__, {"Task": "EnvSpec", "TASKS": "ENVS", "make_task": "make_env_spec"})

minigrid.register()
popgym.register()
