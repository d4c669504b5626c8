"""What is drawn against lengths, out of the CSV files of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlgates.experiments.agent_tables import chances, env_settings
from rlgates.experiments.files import write_atomically
from rlgates.experiments.length_figures import Panel, draw_grid, draw_one, table
from rlgates.experiments.tables import Row, heading, key, made_by, ordered, read


def draw_horizon(results: Path, name: str, rows: Sequence[Row]) -> list[Path]:
    """Draw what was learned at one length against the length of the test, if it was measured.

    Args:
        results: folder of the CSV files.
        name: of the study.
        rows: its runs.

    Returns:
        the picture and the table, `<name>_horizon.png` and `.md`; nothing without their CSV file.
    """
    tested = read(results / f"{name}_horizon.csv")
    if not tested:
        return []
    panels = [
        _stretched([row for row in tested if heading(row) == title])
        for title in dict.fromkeys(map(heading, tested))
    ]
    picture, text = (results / f"{name}_horizon.{end}" for end in ("png", "md"))
    draw_grid(panels, picture, "success rate or accuracy")
    keys = set(map(key, tested))
    note = _horizon_note(tested, [row for row in rows if key(row) in keys])
    write_atomically(text, f"{table(panels)}\n{note}\n".encode())
    return [picture, text]


Scores = dict[str, dict[float, list[float]]]


def _panel(
    title: str, axis: str, places: Mapping[float, str], scores: Scores, floor: float | None
) -> Panel:
    """With lengths and cores in an order that does not hang on which run was over first."""
    in_order = {core: scores[core] for core in ordered(scores)}
    return Panel(title, axis, dict(sorted(places.items())), in_order, floor)


def _stretched(rows: Sequence[Row]) -> Panel:
    places: dict[float, str] = {}
    scores: Scores = {}
    for row in rows:
        factor, (setting, value) = int(row["factor"]), row["setting"].split()
        places[factor] = f"×{factor}\n{value}"
        scores.setdefault(row["core"], {}).setdefault(factor, []).append(float(row["score"]))
    floor = float(rows[0]["floor"]) if rows[0]["floor"] else None
    axis = f"{_words(setting)}, ×1 as trained"
    return _panel(heading(rows[0]), axis, places, scores, floor)


def _horizon_note(tested: Sequence[Row], rows: Sequence[Row]) -> str:
    counts = sorted({int(row["count"]) for row in tested})
    floors = {heading(row): row["floor"] for row in tested if row["floor"]}
    without = ", ".join(f"{float(floor):.2f} on {title}" for title, floor in floors.items())
    return (
        f"Trained at ×1, tested at the other lengths with nothing adapted, on "
        f"{' or '.join(f'{count:,}' for count in counts)} fresh episodes or sequences a seed and "
        "length: share of episodes that succeed, or of answers that are right; an answer that is "
        f"no finite number is wrong. {_over(tested)}. Without memory {without}. {made_by(rows)}."
    )


def draw_lengths(results: Path, name: str, rows: Sequence[Row]) -> list[Path]:
    """Draw success against the one setting of the environment in which the runs differ.

    Args:
        results: where the picture and the table, `<name>_lengths.png` and `.md`, are written.
        name: of the study.
        rows: its runs, of agents.

    Returns:
        what was written; nothing if the runs do not differ in just one number.
    """
    setting, lengths = _lengths(rows)
    if not lengths:
        return []
    scores: Scores = {}
    for row, length in zip(rows, lengths, strict=True):
        scores.setdefault(row["core"], {}).setdefault(length, []).append(float(row["success"]))
    places = {length: f"{length:g}" for length in lengths}
    env = rows[0]["env"].rpartition("/")[2].rpartition("-v")[0]
    floor = next(iter(chances(rows).values()))
    fixed = {name: value for name, value in env_settings(rows[0]).items() if name != setting}
    title = ", ".join([env, *(f"{_words(name)} {value}" for name, value in fixed.items())])
    panel = _panel(title, _words(setting), places, scores, floor)
    picture, text = (results / f"{name}_lengths.{end}" for end in ("png", "md"))
    draw_one(panel, picture, "success rate")
    without = "" if floor is None else f" Without memory {floor:.2f}."
    note = (
        f"Success on {int(rows[0]['episodes']):,} fresh episodes a seed. {_over(rows)}.{without} "
        f"{made_by(rows)}."
    )
    write_atomically(text, f"{table([panel])}\n{note}\n".encode())
    return [picture, text]


def _lengths(rows: Sequence[Row]) -> tuple[str, list[float]]:
    """The setting in which alone the runs differ, and its number in each; none if there is none."""
    settings = [env_settings(row) for row in rows]
    names = dict.fromkeys(name for one in settings for name in one)
    columns = {name: [one.get(name) for one in settings] for name in names}
    different = [name for name, column in columns.items() if len(set(column)) > 1]
    if len(different) != 1:
        return "", []
    values = columns[different[0]]
    lengths = [value for value in values if isinstance(value, int | float)]
    numbers = len(lengths) == len(values)
    alone = len(set(map(heading, rows))) == len(set(lengths))
    return different[0], lengths if numbers and alone else []


def _words(setting: str) -> str:
    return setting.replace("_", " ")


def _over(rows: Sequence[Row]) -> str:
    seeds = sorted({int(row["seed"]) for row in rows})
    return (
        f"Interquartile mean over seeds {seeds[0]} to {seeds[-1]}, or as many as there are, with "
        "its 95 % bootstrap interval"
    )
