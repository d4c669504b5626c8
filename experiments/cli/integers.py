"""Integers on the command line and in files of settings may be written as 1e6."""

from __future__ import annotations

from contextlib import suppress

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

INTEGERS = ConstructorRegistry()
"""A context in which tyro reads them."""


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


@INTEGERS.primitive_rule
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
