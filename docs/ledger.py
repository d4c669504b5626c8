"""The claims of the papers: read from the ledger, and written for the site."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_CELL = re.compile(r"(?<!\\)\|")
_SWEEP = re.compile(r"`rlgates sweep (\w+)`")


class Claim(NamedTuple):
    """A row of the ledger, as Markdown."""

    paper: str
    text: str
    place: str
    paper_setting: str
    ours: str
    test: str
    found: str
    verdict: str
    made_by: str


def read_claims(path: Path) -> list[Claim]:
    """The rows of LEDGER.md.

    Raises:
        ValueError: a row has not as many cells as a claim has.
    """
    claims = []
    for section in re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]:
        paper, _, body = section.partition("\n")
        for line in body.splitlines():
            if not line.startswith("|") or line.startswith(("| claim |", "| --- |")):
                continue
            cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
            if len(cells) != len(Claim._fields) - 1:
                raise ValueError(f"{path.name} has a row of {len(cells)} cells: {line[:60]}")
            claim = Claim(paper, *cells)
            claims.append(claim._replace(verdict=claim.verdict.strip("*")))
    return claims


def claims_table(claims: Iterable[Claim], classes: str = "stacked") -> str:
    """A table of claims; how each was tested unfolds.

    Args:
        claims: the rows.
        classes: of the table; "filterable" gets a filter where there is JavaScript.
    """
    lines = [":::{list-table}", f":class: {classes}", ":header-rows: 1", ""]
    lines += _row("verdict", "paper", "claim", "found here")
    for claim in claims:
        found = (
            claim.found,
            "<details><summary>test and command</summary>",
            f"The paper's setting: {claim.paper_setting}. Ours: {claim.ours}.",
            f"{claim.test}.",
            f"{_SWEEP.sub(_link, claim.made_by)}.",
            "</details>",
        )
        claimed = f"{claim.text} ({claim.place})" if claim.place else claim.text
        lines += _row(
            f"**{claim.verdict}**", claim.paper, claimed, "\n\n".join(filter(None, found))
        )
    return "\n".join((*lines, ":::"))


def _link(match: re.Match[str]) -> str:
    return f"[{match[0]}](../studies/{match[1]}.md)"


def _row(*cells: str) -> list[str]:
    lines = []
    for number, cell in enumerate(cells):
        first, *rest = cell.splitlines()
        lines.append(f"{'  ' if number else '* '}- {first}")
        lines += [f"    {line}" if line else "" for line in rest]
    return lines
