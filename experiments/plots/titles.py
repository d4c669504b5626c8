"""The titles of tasks and environments in words, for figures and tables."""

from __future__ import annotations

import re

TITLES = {
    "copy": "Copy",
    "copy_aba": "Copy without a marker",
    "adding": "Adding",
    "forgetting": "Adding from saturated gates",
    "lte_addition": "Learning to execute sums",
    "lte_control": "Learning to execute loops and conditionals",
    "lte_program": "Learning to execute programs",
    "smnist": "Sequential MNIST",
    "pmnist": "Permuted MNIST",
    "scifar": "Sequential CIFAR-10",
    "digits": "Small digits pixel by pixel",
    "ptb_words": "Penn Treebank in words",
    "ptb_chars": "Penn Treebank in characters",
    "wikitext2": "WikiText-2",
    "wikitext103": "WikiText-103",
    "enwik8": "Wikipedia in bytes (enwik8)",
    "text8": "Wikipedia in letters (text8)",
    "jsb": "Bach chorales",
    "nottingham": "Nottingham folk tunes",
    "musedata": "MuseData classical music",
    "piano": "Piano-midi.de piano music",
    "imdb": "IMDB reviews",
    "speech_commands": "Speech Commands",
    "icu": "Length of stay in intensive care",
    "PassiveMatch": "Passive Match",
    "ActiveMatch": "Active Match",
    "KeyToDoor": "Key-To-Door",
    "MemoryChain": "Memory Chain",
    "RepeatFirst": "Repeat First",
    "RepeatPrevious": "Repeat Previous",
    "Autoencode": "Autoencode",
    "CountRecall": "Count Recall",
    "Concentration": "Concentration",
    "HigherLower": "Higher Lower",
    "MultiarmedBandit": "Multi-Armed Bandit",
    "MineSweeper": "Mine Sweeper",
    "Battleship": "Battleship",
    "StatelessCartPole": "Stateless Cart-Pole",
    "NoisyStatelessCartPole": "Noisy Stateless Cart-Pole",
    "StatelessPendulum": "Stateless Pendulum",
    "NoisyStatelessPendulum": "Noisy Stateless Pendulum",
    "LabyrinthEscape": "Labyrinth Escape",
    "LabyrinthExplore": "Labyrinth Explore",
    "PassiveTMaze": "Passive T-Maze",
    "ActiveTMaze": "Active T-Maze",
    "MiniGridMemory": "MiniGrid Memory",
}
SQUARED = ("adding", "forgetting")  # whose loss is a mean squared error
_STEPS = re.compile(r"(\w+) (\d+(?:/\d+)*)")


def title_words(title: str) -> str:
    """A title of `AgentConfig` or `TaskConfig` in words.

    "jsb" -> "Bach chorales", "adding, steps 200" -> "Adding, 200 steps", "PassiveMatch 15/30/15,
    A2C" -> "Passive Match, 15/30/15 steps, A2C"; other titles stay.
    """
    name, *settings = title.split(", ")
    steps = _STEPS.fullmatch(name)
    if steps and steps[1] in TITLES:
        name, settings = steps[1], [f"steps {steps[2]}", *settings]
    if name not in TITLES:
        return title
    return ", ".join((TITLES[name], *map(_setting_words, settings)))


def _setting_words(setting: str) -> str:
    """ "steps 200" -> "200 steps", "prefix True" -> "prefix"."""
    name, _, value = setting.partition(" ")
    if name == "steps":
        return f"{value} steps"
    return name if value == "True" else setting.replace("_", " ")


def loss_words(title: str) -> str:
    """The loss of a task with its unit, for an axis."""
    return "squared error" if title.partition(",")[0] in SQUARED else "loss, nats"
