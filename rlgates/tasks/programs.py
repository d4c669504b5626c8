"""Small programs and what they print (Zaremba and Sutskever 2014), for Learning to Execute.

A program is put together operation by operation: each takes the result of the one before as one
of its operands, at a random place, and fresh numbers as the others. It is carried out as it is
written, so that its text and its result come at once. The texts are Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

VARIABLES = "abcdefghij"
ANSWER = "0123456789-."  # of which answers are made: a full stop ends them
CHARACTERS = ANSWER + "\n ()*+:<=>" + "".join(sorted({*VARIABLES, *"printforxinrangeifelse"}))

Operand = tuple[str, int]  # an expression and its value


class Writer:
    """A program while it is written.

    Args:
        random: draws all there is to draw.
        length: numbers are drawn from 1 to 10^length; small ones, which count the rounds of a
            loop or multiply, from 1 to 4 length.
        exact: numbers have exactly `length` digits instead.
    """

    def __init__(self, random: Random, length: int, exact: bool = False) -> None:
        self.random = random
        self.lowest = 10 ** (length - 1) if exact else 1
        self.highest = 10**length - 1 if exact else 10**length
        self.most_rounds = 4 * length
        self.lines: list[str] = []
        self.last: Operand | None = None
        self.unused = list(VARIABLES)

    def operands(self, count: int) -> list[Operand]:
        """The last result, if there is one, somewhere among fresh numbers."""
        below = self._below
        numbers = [self.lowest + below(self.highest - self.lowest + 1) for _ in range(count)]
        drawn = [(str(number), number) for number in numbers]
        if self.last is not None:
            drawn[below(count)] = self.last
        return drawn

    def variable(self) -> str:
        """One that is not in use yet."""
        return self.unused.pop(self._below(len(self.unused)))

    def _below(self, limit: int) -> int:
        return int(self.random.random() * limit)  # five times as fast as randrange

    def either(self) -> bool:
        """True half the time."""
        return self.random.random() < 0.5

    def small(self) -> int:
        """A small number."""
        return 1 + self._below(self.most_rounds)


def add(writer: Writer) -> Operand:
    """(a+b)."""
    (a, x), (b, y) = writer.operands(2)
    return f"({a}+{b})", x + y


def add_or_subtract(writer: Writer) -> Operand:
    """(a+b) or (a-b)."""
    (a, x), (b, y) = writer.operands(2)
    return (f"({a}+{b})", x + y) if writer.either() else (f"({a}-{b})", x - y)


def multiply(writer: Writer) -> Operand:
    """(a*small) or (small*a)."""
    ((a, x),) = writer.operands(1)
    small = writer.small()
    return (f"({a}*{small})" if writer.either() else f"({small}*{a})"), x * small


def assign(writer: Writer) -> Operand:
    """v=a, then (v+b) or (v-b)."""
    (a, x), (b, y) = writer.operands(2)
    variable = writer.variable()
    writer.lines.append(f"{variable}={a}")
    return (f"({variable}+{b})", x + y) if writer.either() else (f"({variable}-{b})", x - y)


def loop(writer: Writer) -> Operand:
    """v=a, then v+=b or v-=b some small number of times."""
    (a, x), (b, y) = writer.operands(2)
    variable, rounds = writer.variable(), writer.small()
    sign = 1 if writer.either() else -1
    writer.lines.append(f"{variable}={a}")
    writer.lines.append(f"for x in range({rounds}):{variable}{'+' if sign > 0 else '-'}={b}")
    return variable, x + sign * rounds * y


def choose(writer: Writer) -> Operand:
    """(a if b<c else d) or (a if b>c else d)."""
    (a, x), (b, y), (c, z), (d, other) = writer.operands(4)
    less = writer.either()
    holds = y < z if less else y > z
    return f"({a} if {b}{'<' if less else '>'}{c} else {d})", x if holds else other


Operation = Callable[[Writer], Operand]
LANGUAGES: dict[str, tuple[Operation, ...]] = {
    "addition": (add,),
    "control": (loop, choose),
    "program": (add_or_subtract, multiply, assign, loop, choose),
}
MOST_NESTING = len(VARIABLES)  # an operation takes one variable at most
MOST_DIGITS = 15  # so that every number can be drawn as a part of a float64


def write_program(
    random: Random, operations: Sequence[Operation], nesting: int, length: int, exact: bool = False
) -> tuple[str, str]:
    """A program and what it prints.

    Args:
        random: draws all there is to draw.
        operations: what the program is made of.
        nesting: number of operations, at most `MOST_NESTING`.
        length, exact: of the numbers: see `Writer`.

    Returns:
        the program, whose lines all end with a line feed; and its result in decimal, with a minus
        if it is negative, and a full stop at the end.
    """
    writer = Writer(random, length, exact)
    for _ in range(nesting):
        writer.last = operations[int(random.random() * len(operations))](writer)
    assert writer.last is not None
    expression, value = writer.last
    if expression[0] == "(":
        expression = expression[1:-1]
    writer.lines.append(f"print({expression})\n")
    return "\n".join(writer.lines), f"{value}."


def longest_answer(nesting: int, length: int) -> int:
    """A bound on the characters of an answer: digits, a minus and the full stop."""
    number = largest = 10**length
    for _ in range(nesting):
        largest = number + 4 * length * largest
    return len(str(largest)) + 2
