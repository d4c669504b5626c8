"""How tyro reads options: integers such as 1e6, and help without the line breaks of the source."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from rlgates.experiments.configs.docs import field_docs

RULES = ConstructorRegistry()
"""A context in which tyro follows them."""


def parse_integer(text: str) -> int:
    """Read "1000000", "1_000_000" or "1e6".

    Raises:
        ValueError: anything else.
    """
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    raise ValueError(f"expected an integer, such as 1000000 or 1e6, got {text!r}")


@RULES.primitive_rule
def _integer(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: parse_integer(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


@RULES.struct_rule
def _config(info: StructTypeInfo) -> StructConstructorSpec | None:
    # tyro's own rule breaks the help of a field wherever its docstring has a line break.
    if not is_dataclass(info.type):
        return None
    types, docs = get_type_hints(info.type, include_extras=True), field_docs(info.type)
    return StructConstructorSpec(
        instantiate=info.type,
        fields=tuple(
            StructFieldSpec(
                item.name, types[item.name], _default(item, info.default), docs[item.name]
            )
            for item in fields(info.type)
        ),
    )


def _default(item: Field[Any], config: object) -> Any:
    """The default of a field: that of a given config, or else its own."""
    if is_dataclass(config):
        return getattr(config, item.name)
    if item.default_factory is not MISSING:
        return item.default_factory()
    return tyro.MISSING if item.default is MISSING else item.default
