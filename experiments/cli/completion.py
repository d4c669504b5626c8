"""Scripts for tab completion."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import Any

import tyro

from rlgates.errors import check_choice

SHELLS = ("bash", "zsh", "fish")


def completion_script(commands: dict[str, Callable[..., Any]], shell: str) -> str:
    """The script of tyro for a shell.

    Raises:
        ValueError: an unknown shell.
    """
    words = ["--tyro-print-completion", check_choice("shell", shell, SHELLS)]
    script = io.StringIO()
    with redirect_stdout(script), suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(commands, prog="rlgates", args=words)
    # Further lines of a description would become completions.
    return "".join(
        line.replace(r"\n", " ") if line.startswith("COMPLETION_SPEC = ") else line
        for line in script.getvalue().splitlines(keepends=True)
    )
