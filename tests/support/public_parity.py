"""How cores differ from public implementations, for the table of `pytest --public-parity`."""

from __future__ import annotations

import csv
import io
from typing import NamedTuple


class Difference(NamedTuple):
    """A core beside a public implementation with the same weights and inputs.

    Attributes:
        core: name of the core.
        package, version: of the public implementation, as pip knows them.
        dtype: in which both computed.
        largest: difference of a number of the outputs.
        note: what had to be set, switched off or added for the two to be comparable.
    """

    core: str
    package: str
    version: str
    dtype: str
    largest: float
    note: str


PARITY: dict[str, Difference] = {}
"""By core."""


def table() -> str:
    """All of them as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Difference._fields)
    for _, one in sorted(PARITY.items()):
        writer.writerow(one._replace(largest=f"{one.largest:.2g}"))  # type: ignore[arg-type]
    return text.getvalue()
