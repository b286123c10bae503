"""Answers that later requests go on from: kept in memory, the oldest dropped first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..bounds import limits


@dataclass(frozen=True)
class Kept:
    """An answer with the conversation that led to it.

    Attributes:
        owner: the client's key: others cannot see it.
        answer: as its API put it. input: the items that its request added.
        history: all messages up to the answer and with it, as runners take them.
        nbytes: an estimate of its memory.
    """

    owner: str
    answer: bytes
    input: list[Any]
    history: list[dict[str, Any]]
    nbytes: int


class Stored:
    """Answers by their id."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._nbytes = 0

    def put(self, id: str, kept: Kept) -> None:
        """Keeps an answer, unless it alone exceeds the limit."""
        if kept.nbytes > limits.serve_stored_bytes:
            return
        self._kept[id] = kept
        self._nbytes += kept.nbytes
        while len(self._kept) > limits.serve_stored or self._nbytes > limits.serve_stored_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._nbytes -= oldest.nbytes

    def get(self, id: str, owner: str) -> Kept | None:
        """An answer of this client; None if there is none, or no longer."""
        found = self._kept.get(id)
        if found is None or found.owner != owner:
            return None
        self._kept.move_to_end(id)
        return found

    def drop(self, id: str, owner: str) -> bool:
        """Forgets an answer; whether there was one."""
        found = self.get(id, owner)
        if found is None:
            return False
        del self._kept[id]
        self._nbytes -= found.nbytes
        return True
