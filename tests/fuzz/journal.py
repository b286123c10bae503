"""A journal of a child in memory that outlives it: the parent reads it after a crash."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_HEAD = struct.Struct("<qqq")  # number of the program, programs done, bytes of text
_SIZE = 1 << 17


class Journal:
    """A small file that both processes have mapped."""

    def __init__(self, path: Path, create: bool = False):
        if create:
            path.write_bytes(bytes(_SIZE))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        self._done = self._length = 0
        if create:
            self.begin(-1)

    def begin(self, program: int) -> None:
        """Starts an empty page for a program."""
        self._length = 0
        _HEAD.pack_into(self._memory, 0, program, self._done, 0)

    def write(self, line: str) -> None:
        """Adds a call, before it is made."""
        data = (line + "\n").encode()[: _SIZE - _HEAD.size - self._length]
        start = _HEAD.size + self._length
        self._memory[start : start + len(data)] = data
        self._length += len(data)
        struct.pack_into("<q", self._memory, 16, self._length)

    def end(self) -> None:
        """The program ended well."""
        self._done += 1
        struct.pack_into("<q", self._memory, 8, self._done)

    @property
    def program(self) -> int:
        return _HEAD.unpack_from(self._memory, 0)[0]

    @property
    def done(self) -> int:
        return _HEAD.unpack_from(self._memory, 0)[1]

    @property
    def text(self) -> str:
        length = _HEAD.unpack_from(self._memory, 0)[2]
        return self._memory[_HEAD.size : _HEAD.size + length].decode(errors="replace")

    def close(self) -> None:
        self._memory.close()
