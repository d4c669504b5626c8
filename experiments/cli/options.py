"""Call a command with the options of a command line."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial, wraps
from itertools import takewhile

import tyro

from rlgates.errors import suggestion, unknown_choice
from rlgates.experiments.cli.help import MAIN
from rlgates.experiments.cli.rules import RULES

Command = Callable[..., int]
_OPTION = re.compile(r"^\W*(--[a-z-]+)", re.MULTILINE)
_BOX = re.compile(r"[─-╿]|-{5,}|\|")
"""What tyro draws around its messages; the second and third without UTF-8."""
ELSEWHERE: Mapping[str, str] = {
    "--lr": "--learning-rate",
    "--layers": "--num-layers",
    "--n-layers": "--num-layers",
    "--num-envs": "--n-envs",
    "--num-steps": "--n-steps",
    "--timesteps": "--total-steps",
}
"""Options by the names that other training scripts have for them."""


def call(name: str, command: Command, words: Sequence[str]) -> int:
    """Call a command with the options in `words`, and return its exit code.

    Raises:
        ValueError: it has no such option, value of an option or subcommand, or takes fewer words.
        SystemExit: `words` ask for help, or a value cannot be read; tyro has printed why.
    """
    said = io.StringIO()
    try:
        with RULES, redirect_stderr(said):
            called, unknown = tyro.cli(
                _later(command), prog=f"rlgates {name}", args=words, return_unknown_args=True
            )
    except SystemExit:
        if (error := _unknown_choice(name, words, said.getvalue())) is not None:
            said = io.StringIO()
            raise error from None
        raise
    finally:
        print(said.getvalue(), end="", file=sys.stderr)
    if unknown:
        raise _unknown(name, command, words, unknown)
    return called()


def _later(command: Command) -> Callable[..., Callable[[], int]]:
    """The command as tyro may call it before all words are known to be right."""

    @wraps(command)
    def later(*args: object, **kwargs: object) -> Callable[[], int]:
        return partial(command, *args, **kwargs)

    return later


def _unknown_choice(name: str, words: Sequence[str], said: str) -> ValueError | None:
    """The error that names the nearest, if tyro has said that a value is none of the choices."""
    said = " ".join(_BOX.sub(" ", said).split())
    if match := re.search(r"invalid choice '(.*)' for argument '(.*)'.*one of \((.*?)\)", said):
        value, option, choices = match.groups()
        return unknown_choice(f"value of {option}", value, re.findall(r"'(.*?)'", choices))
    match = re.search(r"Missing subcommand.* \{(.*?)\}", said)
    if match and words and not words[0].startswith("-"):
        return unknown_choice(f"subcommand of rlgates {name}", words[0], match[1].split(", "))
    return None


def _unknown(
    name: str, command: Command, words: Sequence[str], unknown: Sequence[str]
) -> ValueError:
    before = [*takewhile(lambda word: not word.startswith("-"), words)]
    shown = io.StringIO()
    with RULES, redirect_stdout(shown), suppress(SystemExit):
        tyro.cli(command, prog=f"rlgates {name}", args=[*before, "--help"])
    usage = shown.getvalue()
    program = usage.removeprefix("usage: ").partition(" [")[0]  # with the subcommand of bench
    options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    if not options:
        return ValueError(f"{program} does not take {' '.join(unknown)!r}; see {program} --help.")
    known = _OPTION.findall(usage)
    ours = ELSEWHERE.get(options[0])
    near = f" Did you mean {ours!r}?" if ours in known else suggestion(options[0], known)
    everything = "--help-all" if name in MAIN else "--help"
    return ValueError(
        f"{program} has no option {options[0]!r}.{near} {program} {everything} lists them."
    )
