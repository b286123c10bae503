"""A thread that writes copies of blocks to a prefix store, behind the computation."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...errors import Error
from ...resources import Closing
from .prefix_files import PrefixFiles

_AHEAD = 256 << 20  # bytes of copies that wait to be written
_KNOWN = 1 << 16  # blocks that are remembered to be on the disk
_CLOSE = 60.0  # seconds that closing waits for what is to be written


class Origin(Protocol):
    """All that the states of a token follow from, besides the tokens before it."""

    def known(self) -> str | None:
        """A digest of it; None where that takes reading the model's files."""
        ...

    def compute(self, cancelled: Callable[[], bool], /) -> str | None:
        """A digest of it; None once it is cancelled.

        Raises:
            Error, OSError: a file has changed, or cannot be read.
        """
        ...


@dataclass(frozen=True)
class Block:
    """A copy of a block.

    Attributes:
        key: see `PrefixPath`.
        parts: see `Saved`.
        before: keys of the blocks before it that are used with it.
    """

    key: str
    parts: Sequence[Sequence[np.ndarray] | None]
    before: Sequence[str]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for part in self.parts for array in part or ())


class PrefixWriter(Closing):
    """Writes blocks in the order in which they come. Some are left out where they come faster than
    the disk takes them.

    Args:
        origin: names the model's folder.

    Attributes:
        root: the folder's name; None until it is known.
        closed: nothing is written any more.
    """

    def __init__(self, files: PrefixFiles, origin: Origin):
        self.files, self.root, self.closed = files, origin.known(), False
        self._known: OrderedDict[str, set[int]] = OrderedDict()  # block → parts on the disk
        self._waiting, self._changed, self._ahead = deque[Block](), threading.Condition(), 0
        self._thread = threading.Thread(
            target=self._run, args=(origin,), name="ggmodel-prefix-writer", daemon=True
        )
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether what waits is so much that no more is taken."""
        return self._ahead > _AHEAD

    def knows(self, key: str) -> bool:
        """Whether a block is on the disk, or will be, as far as is known."""
        return key in self._known

    def note(self, key: str, parts: set[int]) -> None:
        """Notes that these parts of a block are on the disk."""
        self._known[key] = parts
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def check(self, key: str, parts: set[int]) -> None:
        """Forgets a block of which no more than these parts are on the disk, if there were more:
        somebody has removed them."""
        if not self._known.get(key, parts) <= parts:
            self._known.pop(key, None)

    def add(self, block: Block) -> None:
        """Has a block written, soon."""
        self.note(block.key, {i for i, part in enumerate(block.parts) if part is not None})
        with self._changed:
            self._waiting.append(block)
            self._ahead += block.nbytes
            self._changed.notify_all()

    def name(self, key: str, part: int) -> str:
        """The name of a block's file."""
        return f"{self.root}/{key}.{part}"

    def drain(self, timeout: float = _CLOSE) -> bool:
        """Waits until all blocks are written; whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._ahead, timeout)

    def close(self) -> None:
        """Writes what waits to be, and ends the thread; idempotent."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE)

    # in the thread

    def _run(self, origin: Origin) -> None:
        if self.root is None:
            try:
                self.root = origin.compute(lambda: self.closed)
            except (Error, OSError):
                self.closed = True  # a file of the model has changed or is gone
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self.closed)
                if not self._waiting:
                    return
                block = self._waiting.popleft()
            if self.root is not None:
                self._write(block)
            with self._changed:
                self._ahead -= block.nbytes
                self._changed.notify_all()

    def _write(self, block: Block) -> None:
        for part, arrays in enumerate(block.parts):
            name = self.name(block.key, part)
            if arrays is None or self.files.has(name):
                continue
            if not self.files.write(name, arrays):
                self._known.pop(block.key, None)
                return
        # The first block is used last, so that it is removed last.
        parts = range(len(block.parts))
        self.files.touch(self.name(key, part) for part in parts for key in reversed(block.before))
