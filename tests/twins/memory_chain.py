"""Memory Chain, slowly: written from the published rules, one episode at a time."""

from __future__ import annotations


class SlowChain:
    """One episode, with the published counter, which advances after each observation."""

    def __init__(
        self, *, context: list[int], query: int, memory_length: int, show_time: bool = True
    ) -> None:
        self.context, self.query = context, query
        self.memory_length = memory_length
        self.show_time = show_time
        self.counter = 0
        self.is_right = False
        self.observation = self.observe()  # at the reset the counter stays where it is

    def observe(self) -> list[float]:
        time = 1 - self.counter / self.memory_length if self.show_time else 0.0
        query = self.query if self.counter == self.memory_length - 1 else 0
        bits = [0] * len(self.context)
        if self.counter == 0:
            bits = [1 if bit else -1 for bit in self.context]
        return [time, query, *bits]

    def look(self) -> list[float]:
        return self.observation

    def step(self, action: int) -> tuple[float, bool]:
        self.observation = self.observe()
        self.counter += 1
        if self.counter <= self.memory_length:
            return 0.0, False
        self.is_right = action == self.context[self.query]
        return (1.0 if self.is_right else -1.0), True

    def metrics(self) -> dict[str, bool]:
        return {"is_success": self.is_right}
