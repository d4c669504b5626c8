"""Repeat First and Repeat Previous, slowly: written from the published rules, card by card."""

from __future__ import annotations


class SlowRepeat:
    """One episode with a pile of cards and a hand.

    Args:
        suits: of all cards, the first one dealt first.
        k: of Repeat Previous; None for Repeat First.
    """

    def __init__(self, *, suits: list[int], k: int | None = None) -> None:
        self.num_cards = len(suits)
        self.pile = suits[::-1]
        self.k = k
        self.hand = [self.pile.pop()]
        self.answers: list[bool] = []

    def look(self) -> int:
        return self.hand[-1]

    def step(self, action: int) -> tuple[float, bool]:
        reward = 0.0
        if self.k is None:
            self.answers.append(action == self.hand[0])
            reward = 1 / (self.num_cards - 1)
        elif len(self.hand) >= self.k:
            self.answers.append(action == self.hand[-self.k])
            reward = 1 / (self.num_cards - self.k)
        if reward and not self.answers[-1]:
            reward = -reward
        self.hand.append(self.pile.pop())
        return reward, not self.pile

    def metrics(self) -> dict[str, float]:
        right = sum(self.answers)
        return {"is_success": right == len(self.answers), "accuracy": right / len(self.answers)}
