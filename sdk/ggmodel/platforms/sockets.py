"""Sockets: ports of one's own, waiting, and the connections of a process."""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from .processes import TICK

_HANDLES = 1 << 14  # of Windows; those of connections are among the first, multiples of four
_HANDLE = 4
_LONGEST = 0x7FFF_FFFF  # milliseconds


def own_port(end: socket.socket) -> None:
    """Called before `bind`: a port that was in use a moment ago may be had, one that is in use may
    not. On Windows SO_REUSEADDR would allow the second."""
    if sys.platform == "win32":
        end.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def arrival(end: socket.socket) -> Callable[[float | None], object]:
    """A function that waits, at most so many milliseconds, until something arrives at a socket; its
    result is true if it did. None waits without an end. Ctrl-C ends the wait."""
    if sys.platform != "win32":
        poll = select.poll()
        poll.register(end, select.POLLIN)
        return poll.poll

    def wait(milliseconds: float | None) -> bool:
        deadline = None if milliseconds is None else time.monotonic() + milliseconds / 1000
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            # Windows lets no Ctrl-C into `select`.
            now = TICK if left is None else min(left, TICK or left)
            if select.select([end], [], [], now)[0]:
                return True
            if left is not None and left <= (now or 0.0):
                return False

    return wait


def connections() -> Iterator[tuple[int, socket.socket]]:
    """The sockets of this process, those of libraries too: the system's number, and a duplicate
    that the caller closes."""
    for number in _numbers():
        with suppress(OSError):  # closed since: that of the listing itself always is; no socket
            if sys.platform != "win32":
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    yield number, socket.socket(fileno=os.dup(number))
            else:
                yield number, _duplicate(number)


def _numbers() -> Iterator[int]:
    if sys.platform == "win32":  # which has no list
        yield from range(_HANDLE, _HANDLE * _HANDLES, _HANDLE)
    else:
        yield from map(int, os.listdir("/dev/fd"))


def _duplicate(handle: int) -> socket.socket:
    """Raises OSError for a handle that is no socket."""
    original = socket.socket(fileno=handle)
    try:
        return original.dup()
    finally:
        original.detach()


def limit(end: socket.socket, seconds: float) -> None:
    """Ends each `recv` and `send` on a socket that moves no byte for so long."""
    if sys.platform == "win32":
        value = struct.pack("@L", min(max(1, int(seconds * 1000)), _LONGEST))
    else:
        whole = int(seconds)
        value = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
