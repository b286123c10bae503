"""Watches the TCP connections of ggml's RPC backend from outside."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress

from ...platforms.sockets import connections

_INTERVAL = 0.5  # seconds
_KEEP_ALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2}
# Unanswered attempts in a row; the waits between them double from 0.2 seconds on.
_ATTEMPTS = 4


def watch() -> None:
    """From now on about four seconds of silence end any TCP connection of this process. Without
    that, the system waits for hours for a machine that vanished."""
    threading.Thread(target=_watch, name="ggmodel-connections", daemon=True).start()


def _watch() -> None:
    while True:
        for _, end in connections():
            with suppress(OSError), end:  # closed since
                tend(end)
        time.sleep(_INTERVAL)


def tend(end: socket.socket) -> None:
    """Turns keep-alive probes on, and ends a connection whose packets go unanswered.

    Accepted connections inherit the options of the listening socket (tcp(7)).
    """
    if end.family not in (socket.AF_INET, socket.AF_INET6) or end.type != socket.SOCK_STREAM:
        return
    # Probes go out on idle connections only. TCP_USER_TIMEOUT would watch the others, too, but
    # also end those whose other end is too busy to read.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if sys.platform == "linux":
        # tcpi_retransmits and tcpi_probes; each answer resets them.
        resent, probes = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 4)[2:]
        if max(resent, probes) >= _ATTEMPTS:
            end.shutdown(socket.SHUT_RDWR)
