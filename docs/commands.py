"""The options of the `rlgates` command, from its parser."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import tyro
from rendering import escape, table

from rlgates.experiments.cli.main import make_commands

# A second table of options for the environments that are not a batch of rlgates.
OTHER_ENV = ("train", "--env", "CartPole-v1")
HEADS = ("option", "default", "meaning")
_DEFAULT = re.compile(
    r"\s*\((?:default: (?P<value>.*)|(?P<required>required)|[^()]*)\)$", re.DOTALL
)


def parser(name: str, *words: str) -> Any:
    """tyro's parser, as of argparse, of the command `name` with these words."""
    with warnings.catch_warnings():
        # tyro has no other public way to its options yet.
        warnings.simplefilter("ignore", DeprecationWarning)
        return tyro.extras.get_parser(make_commands([name, *words])[name], prog=f"rlgates {name}")


def subcommands(of: Any) -> dict[str, Any]:
    """The parsers of its subcommands by name; none of a command that has options."""
    groups = [action.choices for action in of._actions if isinstance(action.choices, dict)]
    return dict(groups[0]) if groups else {}


def sections() -> Iterator[str]:
    """The sections of the page: a command each."""
    for name in make_commands(["--help"]):
        command = parser(name)
        inner = subcommands(command)
        yield _section("##", name, command)
        for kind, each in inner.items():
            yield _section("###", f"{name} {kind}", each)
        if name == "train":
            other = parser(*OTHER_ENV)
            yield _section("###", "train, in any other environment of gymnasium", other)


def _section(level: str, title: str, command: Any) -> str:
    rows = [_row(action) for action in command._actions if _is_option(action)]
    options = f"{{.stacked}}\n{table(HEADS, rows)}" if rows else ""
    return "\n\n".join(filter(None, (f"{level} {title}", escape(_words(command)), options)))


def _is_option(action: Any) -> bool:
    return "--help" not in action.option_strings and not isinstance(action.choices, dict)


def _words(command: Any) -> str:
    return re.sub(r"\n(?!\n)(?<!\n\n)", " ", (command.description or "").strip())


def _row(action: Any) -> tuple[Any, ...]:
    """Name and values, default, and meaning of an option."""
    text = re.sub(r"\s+", " ", str(action.help or "")).strip()
    text = text[:1].upper() + text[1:]
    match = _DEFAULT.search(text)
    default = ""
    if match:
        text = text[: match.start()]
        default = (
            "required" if match["required"] else f"`{match['value']}`" if match["value"] else ""
        )
    text = escape(text)
    names, values = ", ".join(action.option_strings), str(action.metavar or "")
    if values.startswith("{") and (choices := re.fullmatch(r"\{([^{}|]*)\}", values)):
        text += f" One of {', '.join(f'`{choice}`' for choice in choices[1].split(','))}."
        values = ""
    option = f"{names} {values.replace('{None}|', '')}".strip()
    return f"`{option}`", default, text
