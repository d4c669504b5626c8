"""Markdown from docstrings, signatures and the tables of results."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_ENTRY = re.compile(r"([\w*., ]+?):\s+(\S.*)", re.DOTALL)
_CORE = re.compile(r"`([a-z_0-9]+)(?=[`,])")


class Table(NamedTuple):
    """A Markdown table of a file of results, the heading above it and the note below it."""

    title: str
    head: str
    rule: str
    rows: list[str]
    note: str

    def select(self, keep: Callable[[str], bool]) -> Table | None:
        """The table with some of its rows; None without any."""
        rows = [row for row in self.rows if keep(row)]
        return self._replace(rows=rows) if rows else None

    def __str__(self) -> str:
        title = f"**{self.title}**\n\n" if self.title else ""
        note = f"\n\n{self.note}" if self.note else ""
        return title + "\n".join((self.head, self.rule, *self.rows)) + note


def read_tables(path: Path) -> Iterator[Table]:
    """The tables of a Markdown file."""
    blocks = [block.strip() for block in path.read_text().strip().split("\n\n")]
    title = ""
    for block, following in zip(blocks, [*blocks[1:], ""], strict=True):
        if block.startswith("##"):
            title = block.strip("# ")
        elif block.startswith("|"):
            head, rule, *rows = block.splitlines()
            note = "" if following.startswith(("|", "#")) else following
            yield Table(title, head, rule, rows, note)


def cores_in(row: str) -> set[str]:
    """The words in backticks of a row, up to a comma: names of cores among them."""
    return set(_CORE.findall(row))


def table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def fold(summary: str, text: str) -> str:
    """Markdown that unfolds below its summary."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def escape(text: str) -> str:
    """Plain text as Markdown; what stands in backticks is code already."""
    parts = re.split(r"(`+[^`]+`+)", text)
    parts[::2] = [re.sub(r"([\\*_<>\[\]$|])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def prose(doc: str | None) -> str:
    """A docstring as Markdown: its sections as lists, indented equations as code."""
    out: list[str] = []
    for block, is_attached in _blocks(inspect.cleandoc(doc or "")):
        text = textwrap.dedent("\n".join(block))
        if is_attached:
            out[-1] = f"**{out[-1]}**" if " " not in out[-1] else out[-1]
            out.append("\n".join(_entries(text)))
        elif block[0].startswith(" "):
            out.append(f"```text\n{text}\n```")
        else:
            is_list = any(line.startswith("- ") for line in block)
            out.append(escape(text if is_list else " ".join(block)))
    return "\n\n".join(out)


def _blocks(doc: str) -> Iterator[tuple[list[str], bool]]:
    """Paragraphs and indented blocks, and whether a block is right below a paragraph."""
    block: list[str] = []
    is_attached = False
    lines = doc.splitlines()
    for number, line in enumerate(lines):
        is_indented = bool(block) and block[0].startswith(" ")
        following = next((later for later in lines[number + 1 :] if later), "")
        if not line and is_indented and following.startswith(" "):
            block.append(line)
        elif block and (not line or line.startswith(" ") != is_indented):
            yield block, is_attached
            is_attached = bool(line) and not is_indented
            block = [line] if line else []
        elif line:
            block.append(line)
    if block:
        yield block, is_attached


def _entries(text: str) -> Iterator[str]:
    """The entries of a section: a line without indentation begins one."""
    entries: list[str] = []
    for line in text.splitlines():
        if line and (not line.startswith(" ") or not entries):
            entries.append(line)
        elif line:
            entries[-1] += " " + line.strip()
    if not all(_ENTRY.fullmatch(entry) for entry in entries):
        yield escape(" ".join(entries))
        return
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        assert match is not None
        yield f"- `{match[1]}`: {escape(match[2])}"


def signature(member: Any) -> str:
    """The signature of a callable; without self, quotes of annotations, addresses of objects."""
    try:
        text = re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", str(inspect.signature(member)))
        text = re.sub(r"(: |-> )(['\"])(.*?)\2(?=[,)= ]|$)", r"\1\3", text)
        text = re.sub(r"^\((?:self|cls)(, )?", "(", text)
        text = text.removesuffix(" -> None") if inspect.isclass(member) else text
        return re.sub(r"<[^<>]*>", "...", text)
    except (TypeError, ValueError):
        return "()"


def options(factory: Callable[..., Any], names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Names and defaults of some parameters."""
    parameters = inspect.signature(factory).parameters
    return [
        (f"`{name}`", f"`{parameters[name].default!r}`") for name in names if name in parameters
    ]
