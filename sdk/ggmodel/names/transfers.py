"""Transfers from the hub: the end of connections that take too long, and files in Xet's storage.

Timeouts of an HTTP library are those of one read: headers and sizes of pieces that come byte by
byte pass them.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import Error

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


def receive(
    content: Any,
    size: int,
    file: Path,
    headers: Mapping[str, str],
    report: Callable[[int], None],
    excess: Error,
) -> None:
    """Writes a file.

    Args:
        content: huggingface_hub's description of it.
        size: in bytes.
        headers: with the token of the hub, which Xet's storage does not get.
        report: called with the bytes that came.
        excess: raised where more bytes come.
    """
    from huggingface_hub.file_download import xet_get
    from huggingface_hub.utils._xet import abort_xet_session

    left = size

    def count(nbytes: int) -> None:
        nonlocal left
        left -= nbytes
        if left < 0:
            abort_xet_session()  # hf_xet goes on whatever its callbacks raise
            raise excess
        report(nbytes)

    try:
        xet_get(
            incomplete_path=file,
            xet_file_data=content,
            headers=dict(headers),
            expected_size=size,
            tqdm_class=_counter(count),
        )
    except Exception:
        if left >= 0:
            raise
    if left < 0:
        raise excess


def _counter(count: Callable[[int], None]) -> type[Any]:
    """A class in place of tqdm's bars, which counts bytes that are written."""

    class Counter:
        total = 0

        def __init__(self, *args: Any, initial: float = 0, **options: Any):
            count(int(initial or 0))

        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

        def update_transfer(self, n: float) -> None:
            """Bytes of the network, whose content `update` counts."""

        def __enter__(self) -> Counter:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __getattr__(self, name: str) -> Callable[..., None]:
            if name.startswith("_"):
                raise AttributeError(name)
            return lambda *args, **options: None

    return Counter
