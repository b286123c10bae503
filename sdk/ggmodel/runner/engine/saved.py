"""Prefixes in the host's memory: what sequences held whose slots others have taken.

More conversations than slots would otherwise compute each turn from the beginning. A copy takes a
hundredth of the time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from ...model.cache import Saved


@dataclass(eq=False)
class SavedPrefix:
    """A copy of a sequence.

    Attributes:
        tokens: the inputs, numbered by the `InputTable`.
        components: int32 [tokens, k] of positions, for models with some of their own.
        prompted: length of the prompt that it begins with.
        variant: of the sequence.
    """

    tokens: list[int]
    state: Saved
    components: np.ndarray | None
    prompted: int
    variant: Hashable = None

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + 8 * len(self.tokens)  # a list has pointers


class SavedPrefixes:
    """Prefixes up to a number of bytes: those that were used longest ago are dropped.

    Args:
        limit: bytes; 0 saves nothing.
        least: tokens; fewer are computed as fast as they are copied and looked for.

    Attributes:
        nbytes: of all of them.
    """

    def __init__(self, limit: int, least: int = 64):
        self.limit, self.least, self.nbytes = limit, least, 0
        self._all: list[SavedPrefix] = []  # in the order of use

    def __iter__(self) -> Iterator[SavedPrefix]:
        return iter(self._all)

    def wants(self, tokens: list[int], rest: int, variant: Hashable = None) -> bool:
        """Whether a sequence is to be saved before it is cut.

        Args:
            tokens: all that it holds.
            rest: how many of them will be left.
        """
        if not self.limit or len(tokens) - rest < self.least:
            return False
        return not any(self._has(one, tokens, variant) for one in self._all)

    def add(self, one: SavedPrefix) -> None:
        """Takes a prefix in, for those that it goes on from, and for old ones."""
        if one.nbytes > self.limit:
            return
        for other in [x for x in self._all if self._has(one, x.tokens, x.variant)]:
            self._drop(other)
        while self.nbytes + one.nbytes > self.limit:
            self._drop(self._all[0])
        self._all.append(one)
        self.nbytes += one.nbytes

    def find(self, prompt: list[int], held: int, variant: Hashable = None) -> SavedPrefix | None:
        """The one that has most of a prompt, which is used now; None unless it is more than `held`
        by so much that it pays."""
        best, length = None, held + self.least - 1
        for one in self._all:
            if one.variant == variant and (n := common_prefix(one.tokens, prompt)) > length:
                best, length = one, n
        if best is not None:
            self._all.remove(best)
            self._all.append(best)
        return best

    def _has(self, one: SavedPrefix, tokens: list[int], variant: Hashable) -> bool:
        """Whether it begins with these tokens, or with so many that the rest need no copy."""
        missing = len(tokens) - common_prefix(one.tokens, tokens)
        return one.variant == variant and missing < self.least

    def _drop(self, one: SavedPrefix) -> None:
        self._all.remove(one)
        self.nbytes -= one.nbytes


def common_prefix(a: list[int], b: list[int]) -> int:
    """The length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
