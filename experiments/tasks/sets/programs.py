"""Small Python programs and their output (Zaremba and Sutskever 2014), for Learning to Execute.

A program is composed operation by operation: each takes the result of the one before as one of
its operands, at a random position, and new numbers as the others. It is evaluated while it is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

VARIABLES = "abcdefghij"
ANSWER = "0123456789-."  # the alphabet of outputs, which end with a full stop
CHARACTERS = ANSWER + "\n ()*+:<=>" + "".join(sorted({*VARIABLES, *"printforxinrangeifelse"}))

Operand = tuple[str, int]  # an expression and its value


class ProgramWriter:
    """A program under construction.

    Args:
        random: the only source of randomness.
        length: numbers are from 1 to 10^length; small numbers (rounds of a loop, factors) from 1
            to 4 length.
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
        """New numbers, with the last result, if any, at a random position."""
        below = self._below
        numbers = [self.lowest + below(self.highest - self.lowest + 1) for _ in range(count)]
        operands = [(str(number), number) for number in numbers]
        if self.last is not None:
            operands[below(count)] = self.last
        return operands

    def variable(self) -> str:
        """A variable that the program does not use yet."""
        return self.unused.pop(self._below(len(self.unused)))

    def _below(self, limit: int) -> int:
        return int(self.random.random() * limit)  # five times as fast as randrange

    def coin_flip(self) -> bool:
        """True with probability 1/2."""
        return self.random.random() < 0.5

    def small(self) -> int:
        """A small number, from 1 to 4 length."""
        return 1 + self._below(self.most_rounds)


def add(writer: ProgramWriter) -> Operand:
    """(a+b)."""
    (a, x), (b, y) = writer.operands(2)
    return f"({a}+{b})", x + y


def add_or_subtract(writer: ProgramWriter) -> Operand:
    """(a+b) or (a-b)."""
    (a, x), (b, y) = writer.operands(2)
    return (f"({a}+{b})", x + y) if writer.coin_flip() else (f"({a}-{b})", x - y)


def multiply(writer: ProgramWriter) -> Operand:
    """(a*small) or (small*a)."""
    ((a, x),) = writer.operands(1)
    small = writer.small()
    return (f"({a}*{small})" if writer.coin_flip() else f"({small}*{a})"), x * small


def assign(writer: ProgramWriter) -> Operand:
    """v=a, then (v+b) or (v-b)."""
    (a, x), (b, y) = writer.operands(2)
    variable = writer.variable()
    writer.lines.append(f"{variable}={a}")
    return (f"({variable}+{b})", x + y) if writer.coin_flip() else (f"({variable}-{b})", x - y)


def loop(writer: ProgramWriter) -> Operand:
    """v=a, then v+=b or v-=b a small number of times."""
    (a, x), (b, y) = writer.operands(2)
    variable, rounds = writer.variable(), writer.small()
    sign = 1 if writer.coin_flip() else -1
    writer.lines.append(f"{variable}={a}")
    writer.lines.append(f"for x in range({rounds}):{variable}{'+' if sign > 0 else '-'}={b}")
    return variable, x + sign * rounds * y


def conditional(writer: ProgramWriter) -> Operand:
    """(a if b<c else d) or (a if b>c else d)."""
    (a, x), (b, y), (c, z), (d, other) = writer.operands(4)
    less = writer.coin_flip()
    holds = y < z if less else y > z
    return f"({a} if {b}{'<' if less else '>'}{c} else {d})", x if holds else other


Operation = Callable[[ProgramWriter], Operand]
LANGUAGES: dict[str, tuple[Operation, ...]] = {
    "addition": (add,),
    "control": (loop, conditional),
    "program": (add_or_subtract, multiply, assign, loop, conditional),
}
MAX_NESTING = len(VARIABLES)  # an operation uses at most one variable
MAX_DIGITS = 15  # a random float64 below 1 has about as many


def write_program(
    random: Random, operations: Sequence[Operation], nesting: int, length: int, exact: bool = False
) -> tuple[str, str]:
    """A program and its output.

    Args:
        random: the only source of randomness.
        operations: the operations of the language.
        nesting: number of operations, at most `MAX_NESTING`.
        length, exact: of the numbers, see `ProgramWriter`.

    Returns:
        the program, whose lines end with a line feed; and its decimal result, with a full stop
        at the end.
    """
    writer = ProgramWriter(random, length, exact)
    for _ in range(nesting):
        writer.last = operations[int(random.random() * len(operations))](writer)
    assert writer.last is not None
    expression, value = writer.last
    if expression[0] == "(":
        expression = expression[1:-1]
    writer.lines.append(f"print({expression})\n")
    return "\n".join(writer.lines), f"{value}."


def longest_answer(nesting: int, length: int) -> int:
    """An upper bound on the characters of an output: digits, a minus and the full stop."""
    number = largest = 10**length
    for _ in range(nesting):
        largest = number + 4 * length * largest
    return len(str(largest)) + 2
