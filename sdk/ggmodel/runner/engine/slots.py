"""Slots: the sequences of the cache, what each holds, and which one serves a request best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...kvcache import Cache
    from .inputs import InputTable
    from .request import Request


@dataclass(eq=False)
class Slot:
    """One sequence of the cache.

    Attributes:
        tokens: what the cache holds of it, by position, numbered as `Places` does; stays when a
            request ends.
        exact: so many of these are as they would be computed now; those behind, left over from a
            context shift, have seen what is forgotten.
        pending: what has to be computed next.
        request: whom it serves. owner: the thread whose own it is, outside of any request.
        used: when it was last taken; larger is later.
    """

    sequence: int
    tokens: list[int] = field(default_factory=list)
    exact: float = math.inf
    pending: list[int] = field(default_factory=list)
    request: Request | None = None
    owner: object = None
    used: int = 0

    def start_over(self, pending: Sequence[int] = ()) -> None:
        """The cache holds nothing of it any more."""
        self.tokens, self.pending, self.exact = [], list(pending), math.inf

    @property
    def free(self) -> bool:
        """Whether it can be given to a request."""
        return self.request is None and self.owner is None

    @property
    def holder(self) -> object:
        """Who has to act before it becomes free; None if it is."""
        return self.owner if self.request is None else self.request.consumer


class Slots:
    """All slots of a cache."""

    def __init__(self, cache: Cache, inputs: InputTable, count: int):
        self._cache, self._inputs = cache, inputs
        self.all = [Slot(n) for n in range(count)]
        self._clock = 0

    @property
    def working(self) -> list[Slot]:
        """Those that serve a request."""
        return [slot for slot in self.all if slot.request is not None]

    def take(self, prompt: Sequence[int] = ()) -> Slot | None:
        """A free slot that holds as much of the prompt as can be had, or nothing; None if all are
        in use. What is not held is in `pending`: at least one token, for there must be an output.

        The longest common prefix decides; where a slot that cannot be taken has a longer one, that
        is shared, at the cost of the free slot that was left alone longest.
        """
        free = [slot for slot in self.all if slot.free]
        if not free:
            return None
        wanted = list(prompt[:-1])
        held_by = {s: self._held(s, wanted) for s in self.all}
        slot = max(free, key=lambda s: (held_by[s], -s.used))
        source = max(self.all, key=lambda s: held_by[s])
        held, shared = held_by[slot], held_by[source]
        if shared > held:
            slot = min(free, key=lambda s: s.used)
            slot.start_over()  # whatever becomes of the cache if Ctrl-C comes
            self._cache.copy_prefix(source.sequence, slot.sequence, shared)
            slot.tokens = source.tokens[:shared]
        else:
            self.cut(slot, held)
        self._clock += 1
        slot.used = self._clock
        slot.pending = list(prompt[len(slot.tokens) :])
        return slot

    def cut(self, slot: Slot, length: int) -> None:
        """Forgets all positions from `length` on, and as many before it as it takes to go on."""
        length = self._cut_at(slot, length)
        self._cache.remove(slot.sequence, length, None)
        del slot.tokens[length:]
        if length <= slot.exact:
            slot.exact = math.inf

    def _cut_at(self, slot: Slot, length: int) -> int:
        if length < self._cache.length(slot.sequence):
            return self._resumed(slot, length)
        return length

    def rewind(self, slot: Slot, length: int) -> None:
        """Forgets all positions from `length` on, and as many before it as it takes; those that
        the slot has tokens of are pending again."""
        at = self._cut_at(slot, length)
        slot.tokens, slot.pending = slot.tokens[:at], slot.tokens[at:] + slot.pending
        self.cut(slot, at)

    def _held(self, slot: Slot, prompt: Sequence[int]) -> int:
        """How much of a prompt a slot has."""
        n = min(common_prefix(slot.tokens, prompt), slot.exact)
        return self._resumed(slot, int(n))

    def _resumed(self, slot: Slot, length: int) -> int:
        """The latest position up to `length` at which the slot can go on with something else."""
        return self._cache.resume_point(slot.sequence, self._inputs.before(slot.tokens, length))

    def release(self, slot: Slot) -> None:
        """The request is done: what the slot holds stays for one that begins alike."""
        slot.request, slot.owner, slot.pending = None, None, []


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many elements two sequences have in common before they differ."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
