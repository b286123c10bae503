"""A journal of a child in memory that outlives it: the parent reads it after a crash."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_HEAD = struct.Struct("<qqqq")  # number of the case, cases begun, cases done, bytes of text
_SIZE = 1 << 17


class Journal:
    """A small file that both processes have mapped."""

    def __init__(self, path: Path, create: bool = False):
        if create:
            path.write_bytes(bytes(_SIZE))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        self._begun = self._done = self._length = 0
        if create:
            _HEAD.pack_into(self._memory, 0, -1, 0, 0, 0)

    def begin(self, case: int) -> None:
        """Starts an empty page for a case."""
        self._begun, self._length = self._begun + 1, 0
        _HEAD.pack_into(self._memory, 0, case, self._begun, self._done, 0)

    def write(self, line: str) -> None:
        """Adds a line, before what it tells happens."""
        data = (line + "\n").encode(errors="replace")[: _SIZE - _HEAD.size - self._length]
        start = _HEAD.size + self._length
        self._memory[start : start + len(data)] = data
        self._length += len(data)
        struct.pack_into("<q", self._memory, 24, self._length)

    def end(self) -> None:
        """The case did not end the process."""
        self._done += 1
        struct.pack_into("<q", self._memory, 16, self._done)

    @property
    def state(self) -> tuple[int, int, int]:
        """Number of the latest case, -1 before the first; cases begun; cases done."""
        return _HEAD.unpack_from(self._memory, 0)[:3]

    @property
    def text(self) -> str:
        length = _HEAD.unpack_from(self._memory, 0)[3]
        return self._memory[_HEAD.size : _HEAD.size + length].decode(errors="replace")

    def close(self) -> None:
        self._memory.close()
