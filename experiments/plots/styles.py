"""How each core is drawn, everywhere: its colour, dash and marker, by its name alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from matplotlib.colors import to_hex, to_rgb

from rlgates.registry import core_names, list_cores

Dash = str | tuple[int, tuple[float, ...]]
NONE = "none"  # the core without memory
MUTED = "#777777"
INK = "#222222"


class Style(NamedTuple):
    """How a core is drawn."""

    color: str
    dash: Dash
    marker: str


# Colours by gate: Okabe and Ito's, then Tol's, which keep apart with any colour vision.
GATE_COLORS = {
    "": "#0072B2",
    "c": "#D55E00",
    "ur": "#009E73",
    "f": "#CC79A7",
    "om": "#E69F00",
    "u": "#56B4E9",
    "r": "#5B3A29",
    "o": "#999933",
    "or": "#332288",
    "um": "#44AA99",
    "uf": "#882255",
    "ff": "#AA4499",
    "s": "#117733",
}
# Dashes and markers: those of the k-th gate of the LSTM; the other families are shifted against
# it, so that no two cores share colour and dash, or colour and marker.
LINES: tuple[tuple[Dash, str], ...] = (
    ("-", "o"),
    ("--", "s"),
    ("-.", "D"),
    ((0, (5, 1, 1, 1, 1, 1)), "^"),
    ((0, (2, 1)), "v"),
    ((0, (6, 2)), "P"),
    ((0, (4, 1, 1, 1)), "<"),
    ((0, (8, 1)), ">"),
    ((0, (3, 3)), "p"),
    ((0, (8, 1, 2, 1)), "X"),
    ((0, (10, 2, 2, 2, 2, 2)), "h"),
    ((0, (6, 1, 3, 1)), "d"),
    ((0, (12, 3)), "8"),
)
# The colour of each family with its plain gate, and its shift among LINES. The gates of a family
# whose shift goes beyond them are darker.
FAMILIES = {
    "lstm": (GATE_COLORS[""], 0),
    "gru": ("#332288", 3),
    "dilated_gru": ("#332288", 22),
    "janet": ("#882255", 4),
    "mogrifier": ("#44AA99", 10),
    "mingru": ("#E69F00", 9),
    "gilr": ("#5B3A29", 7),
    "rmc": ("#CC79A7", 2),
    "dnc": (INK, 11),
    "rma": ("#D55E00", 6),
    "nru": ("#999933", 6),
    "rru": ("#117733", 7),
    "gato": ("#AA4499", 12),
    "lru": ("#56B4E9", 10),
    "minlstm": ("#661100", 1),
    "elman": ("#AAAA00", 0),
    "indrnn": ("#6699CC", 5),
    "cornn": ("#CCBB44", 2),
    "lem": ("#EECC66", 11),
    "lmu": ("#4477AA", 9),
    "slstm": ("#228833", 16),
    "mlstm": ("#AA3377", 4),
    "transformer": ("#EE3377", 6),
    "gtrxl": ("#0077BB", 7),
    "fwp": ("#DDAA33", 10),
    "deltanet": ("#004488", 12),
    "rwkv7": ("#225522", 6),
    "frame_stack": ("#CC6677", 1),
    "frame_conv": ("#997700", 2),
    "positional": ("#994455", 8),
    "ffm": ("#77AADD", 3),
    "s4d": ("#EE8866", 5),
    "s5": ("#004488", 8),
    "linear_transformer": ("#BB5566", 2),
    "shm": ("#44BB99", 5),
    "rtu": ("#FFAABB", 6),
    "mamba": ("#66CCEE", 1),
    "mamba2": ("#BBCC33", 4),
}
SERIES = tuple(Style(color, *line) for color, line in zip(GATE_COLORS.values(), LINES, strict=True))
"""For what is no core, in order: the styles of the LSTM's gates."""


@cache
def style(label: str) -> Style:
    """The style of a core, given its name, or its name with a variant: "lstm, forget_bias=0".

    It depends on nothing else. A gate is a colour, and so is a family with its plain gate. A
    variant has a shade of its core's colour and another dash; a core that is not rlgates' own has
    some colour and dash.
    """
    name, variant = split_label(label)
    color, place = _place(name)
    if variant:
        # Of the bytes the one that keeps the variants of our studies furthest apart.
        digest = sha256(variant.encode()).digest()
        color = _shade(color, 2 * digest[17] / 255 - 1)
        place += 1 + digest[0] % (len(LINES) - 1)
    elif name == NONE:
        return Style(MUTED, (0, (1, 1)), "X")
    return Style(color, *LINES[place % len(LINES)])


def _place(name: str) -> tuple[str, int]:
    """The colour of a core, and its place among LINES."""
    if name == NONE:
        return MUTED, 0
    family, gate = core_names().get(name, ("", ""))
    if family not in FAMILIES:
        hue, place, *_ = sha256(name.encode()).digest()
        return SERIES[hue % len(SERIES)].color, place
    plain, shift = FAMILIES[family]
    color = plain if name == family else GATE_COLORS[gate]
    if shift >= len(LINES) and name != family:
        color = _shade(color, -0.9)
    return color, shift + list(GATE_COLORS).index(gate)


def _shade(color: str, light: float) -> str:
    """A colour on its way to black (-1), or to white (1)."""
    goal, part = (1.0, 0.65 * light) if light > 0 else (0.0, -0.45 * light)
    red, green, blue = (channel + part * (goal - channel) for channel in to_rgb(color))
    return to_hex((red, green, blue))


def split_label(label: str) -> tuple[str, str]:
    """The core and the variant of a label: "rru, S = 1" -> ("rru", "S = 1")."""
    match = re.match(r"\w+", label)
    name = match[0] if match else label
    return name, label[len(name) :].strip(" ,")


def in_core_order(labels: Iterable[str]) -> list[str]:
    """List each label once, by its core in the order of `list_cores`; other names come last.

    The variants of a core keep their order, after the core without one.
    """
    place = {core: number for number, core in enumerate(list_cores())}

    def rank(label: str) -> tuple[int, bool]:
        core, variant = split_label(label)
        return place.get(core, len(place)), bool(variant)

    return sorted(dict.fromkeys(labels), key=rank)
