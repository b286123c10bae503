"""The TCP connections that ggml's RPC backend makes, seen from outside of it."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

# A machine that vanishes says nothing. Without these its silence would last for hours.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 3000}


def keep_alive() -> bool:
    """Has the system ask the other ends of all TCP connections of this process for signs of life: a
    silence of three to four seconds ends the connection.

    A socket that listens hands this on to the connections that it accepts (tcp(7)).

    Returns:
        Whether a socket listens.
    """
    listens = False
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the descriptor of the listing itself is gone
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as end:
                    listens |= _keep_alive(end)
    return listens


def _keep_alive(end: socket.socket) -> bool:
    if end.family not in (socket.AF_INET, socket.AF_INET6) or end.type != socket.SOCK_STREAM:
        return False
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return bool(end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
