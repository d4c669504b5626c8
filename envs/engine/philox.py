"""Counter-based random numbers: words as a function of their purpose, without a generator.

There is no shared stream of random numbers, so the order of sampling cannot matter.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from rlgates.envs.engine.arrays import Array, namespace

Words: TypeAlias = Array | int
MAX_SEED = 2**64 - 1
_MASK = 0xFFFFFFFF
_CHUNK = 2**14  # blocks at a time, which a processor's cache holds


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> list[Words]:
    """Philox4x32-10: four random 32-bit words from four counter words and two key words.

    Words are int64 arrays (or ints) with values in [0, 2**32) and shapes that broadcast. A
    product of two words may wrap to a negative number; the shift and the mask still cut the
    right bits out of it, so no unsigned integers are needed, which not every array library has.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p2 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = ((p2 >> 32) ^ c1 ^ k0) & _MASK, ((p0 >> 32) ^ c3 ^ k1) & _MASK
        c1, c3 = p2 & _MASK, p0 & _MASK
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85  # upper halves are masked above
    return [c0, c1, c2, c3]


class Key(NamedTuple):
    """Which episodes to sample: one seed below 2**64, the other two of shape (B,)."""

    seed: int
    env_index: Array
    episode: Array

    def words(self, count: int, stream: int = 0) -> Array:
        """`count` random 32-bit words for each episode, int64 (B, count).

        Different `stream` numbers give independent words. A larger `count` only appends words.
        """
        xp, most = namespace(self.episode), _CHUNK // (1 + count // 4)
        if xp is np and len(self.episode) > max(1, most):
            cuts = range(0, len(self.episode), max(1, most))
            parts = [
                self._replace(env_index=self.env_index[k:end], episode=self.episode[k:end])
                for k, end in ((k, k + max(1, most)) for k in cuts)
            ]
            return np.concatenate([part.words(count, stream) for part in parts])
        # (1, blocks); (B, 1) each; (B, blocks, 4)
        block = xp.arange(-(-count // 4), device=self.episode.device)[None, :]
        episode, index = self.episode[:, None] & _MASK, self.env_index[:, None]
        counter = (block, episode, self.seed >> 32, stream)
        words: Array = xp.stack(philox(counter, (self.seed & _MASK, index)), axis=-1)
        return words.reshape(words.shape[0], -1)[:, :count]

    def lifetime(self) -> Key:
        """The key of an environment's samples that are shared by all its episodes."""
        return self._replace(episode=namespace(self.episode).zeros_like(self.episode))


def below(words: Array, bound: int) -> Array:
    """Integers uniform in [0, bound), from 32-bit words (the bias is below bound / 2**32)."""
    return (words * bound) >> 32


def fractions(words: Array) -> Array:
    """Uniform multiples of 2**-32 in [0, 1), float64, from 32-bit words."""
    xp = namespace(words)
    numbers: Array = xp.astype(words, xp.float64) * 2.0**-32
    return numbers


def permutations(words: Array) -> Array:
    """A uniform permutation of 0 .. n-1 in each row, from 32-bit words (B, n)."""
    order: Array = namespace(words).argsort(words, axis=1, stable=True)
    return order


def check_seed(seed: int) -> int:
    """`seed` as an int, if it is a whole number in [0, 2**64)."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed must be an integer, got {seed!r} ({type(seed).__name__}).")
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}.")
    return int(seed)


def random_seed() -> int:
    """A seed from the operating system."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
