"""The tables of differences: games from their originals, cores from public implementations."""

from __future__ import annotations

from pathlib import Path

from rlgates.atomic import write_atomically
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import markdown, numbers, read_frame


def write_game_parity(source: Path, table: Path) -> None:
    """Write a line per game: how many steps were compared with the original, and differed."""
    rows = read_frame(source)
    lines = []
    for game, levels in rows.groupby("game", sort=False):
        steps, differing = (int(numbers(levels, name).sum()) for name in ("steps", "differing"))
        largest = numbers(levels, "largest").max()
        lines.append(
            (
                title_words(str(game)),
                str(len(levels)),
                f"{steps:,}",
                f"{differing:,}",
                f"{largest:.1g}",
            )
        )
    heads = ("game", "levels", "steps compared", "differing", "largest difference")
    note = (
        "\nObservation, reward and end of each step compared with popgym 1.0.7 and minigrid 3.2, "
        "with the same samples and actions: random actions, and those of a player that gets far "
        "into the game. Libraries round a sine in different ways, and the dynamics of a pole or a "
        "pendulum amplify its last digit. `pytest tests/unit/envs --game-parity "
        "experiments/results/game_parity.csv`.\n"
    )
    write_atomically(table, (markdown(heads, lines) + note).encode())


def write_public_parity(source: Path, table: Path) -> None:
    """Write a line per core: how far its outputs are from those of a public implementation."""
    lines = [
        (
            f"`{row.core}`",
            f"{row.package} {row.version}",
            str(row.dtype),
            f"{float(row.largest):.1g}",
            str(row.note),
        )
        for row in read_frame(source).itertuples()
    ]
    heads = ("core", "public implementation", "precision", "largest difference", "note")
    note = (
        "\nOutputs of a few steps from a zero state, with the same random weights and inputs; in "
        "float32 where the public code rounds to it. Packages that were not installed are left "
        "out. `pytest tests/parity --public-parity experiments/results/public_parity.csv`.\n"
    )
    write_atomically(table, (markdown(heads, lines) + note).encode())
