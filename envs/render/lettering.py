"""Capital letters of dots, for text in images that are made without a font."""

from __future__ import annotations

import numpy as np

from rlgates.envs.engine.arrays import Array

DOTS = 3  # pixels of a dot

# Letters of 3 x 5 dots: an octal digit is a row of three.
_GLYPHS = (
    "A25755 B65656 C34443 D65556 E74647 F74644 G34553 H55755 I72227 J11152 K55655 L44447 M57755 "
    "N65555 O25552 P65644 Q25563 R65655 S34216 T72222 U55557 V55552 W55775 X55255 Y55222 Z71247 "
    "075557 126227 271747 371317 455711 574717 674757 771122 875757 975717 +02720 -00700 .00002 "
    ":02020 /11244 _00007"
)
_FONT = {
    glyph[0]: np.array([[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in glyph[1:]], bool)
    for glyph in _GLYPHS.split()
}


def length(text: str, dot: int = DOTS) -> int:
    """Pixels from the first dot of a text to its last."""
    return (4 * len(text) - 1) * dot


def write(
    image: Array, text: str, x: int, y: int, color: tuple[int, int, int], dot: int = DOTS
) -> None:
    """Write into an image, from the upper left corner (x, y) on; unknown letters are blank."""
    for letter in text.upper():
        if letter in _FONT:
            dots = _FONT[letter].repeat(dot, axis=0).repeat(dot, axis=1)
            image[y : y + len(dots), x : x + dots.shape[1]][dots] = color
        x += 4 * dot
