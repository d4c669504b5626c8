"""The T-Mazes, slowly: written from the published rules, one episode at a time."""

from __future__ import annotations

MOVES = [(1, 0), (0, 1), (-1, 0), (0, -1)]  # right, up, left, down


class SlowTMaze:
    """One episode on a grid with the oracle at (0, 0).

    Args:
        goal: y of the goal, 1 or -1.
    """

    def __init__(
        self,
        *,
        goal: int,
        corridor_length: int,
        oracle_length: int,
        penalty: float,
        goal_reward: float = 1.0,
        distract_reward: float = 0.0,
    ) -> None:
        self.goal = goal
        self.oracle_length = oracle_length
        self.penalty = penalty
        self.goal_reward = goal_reward
        self.distract_reward = distract_reward
        self.end = oracle_length + corridor_length
        self.free = {(x, 0) for x in range(self.end + 1)} | {(self.end, 1), (self.end, -1)}
        self.last_step = corridor_length + 2 * oracle_length + 1
        self.time = 0
        self.x, self.y = oracle_length, 0
        self.visited = False
        self.observation = self.observe()

    def observe(self) -> list[int]:
        if self.x == 0:
            sign = 0 if self.visited else self.goal
            self.visited = True
            return [0, sign]
        return [1, self.y] if self.x == self.end else [0, 0]

    def look(self) -> list[int]:
        return self.observation

    def step(self, action: int) -> tuple[float, bool]:
        self.time += 1
        right, up = MOVES[action]
        if (self.x + right, self.y + up) in self.free:
            self.x, self.y = self.x + right, self.y + up
        self.observation = self.observe()
        if self.time == self.last_step:
            return (self.goal_reward if self.y == self.goal else 0.0), True
        reward = self.penalty if self.x < self.time - self.oracle_length else 0.0
        if self.x == 0:
            reward += self.distract_reward
        return reward, False

    def metrics(self) -> dict[str, bool]:
        return {"is_success": self.y == self.goal, "saw_goal": self.visited}
