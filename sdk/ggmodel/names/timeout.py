"""The end of connections to a host that takes too long, however it fills its time.

Timeouts of an HTTP library are those of one read: headers and sizes of pieces that come byte by
byte pass them.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

# Connection → scheme and host. Idle ones serve the next request of anybody.
_streams: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()
_lock = threading.Lock()
_OPENED = ("connect_tcp.complete", "start_tls.complete")


class Timeout:
    """Ends the connections to the hosts of its requests at a time; a context manager around the
    requests and what is read of their answers.

    Args:
        end: the time, as time.monotonic gives it.

    Attributes:
        over: whether the time has come.
    """

    def __init__(self, end: float):
        self.over = False
        self._origins = set[tuple[str, str]]()
        self._timer = threading.Timer(max(0.0, end - time.monotonic()), self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Timeout:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def extensions(self, origin: tuple[str, str]) -> dict[str, Any]:
        """The extensions of a request to a host, by which its connection is known."""
        with _lock:
            self._origins.add(origin)

        def trace(event: str, info: dict[str, Any]) -> None:
            if event.endswith(_OPENED):
                with _lock:
                    _streams[info["return_value"]] = origin
            if self.over and not event.endswith(".failed") and "closed" not in event:
                raise ConnectionError("the time is over")

        return {"trace": trace}

    def _cut(self) -> None:
        self.over = True
        with _lock:
            for stream, origin in _streams.items():
                connection = stream.get_extra_info("socket")
                if origin in self._origins and isinstance(connection, socket.socket):
                    # Not SSLSocket's own: what follows would be read as it is, without TLS.
                    with suppress(OSError):
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)
