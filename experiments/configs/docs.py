"""What the fields of a config mean: the docstrings below them, for help and config files."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any


def field_docs(config_type: type[Any]) -> dict[str, str]:
    """The docstring of each field by name, in one line; inherited ones included."""
    docs: dict[str, str] = {}
    for owner in reversed(config_type.__mro__[:-1]):
        if not is_dataclass(owner):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for line, text in zip(definition.body, definition.body[1:], strict=False):
            match line, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    docs[name] = " ".join(words.split())
    return {item.name: docs.get(item.name, "") for item in fields(config_type)}
