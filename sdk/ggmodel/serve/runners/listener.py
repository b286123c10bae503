"""The port of a runner: connections of the server, and questions that anyone on this machine may
ask over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from ...errors import ConfigError, Error
from ...platforms.sockets import own_port
from ...runner import LoadedModel
from ..requests import Failure, State
from .frames import HELLO_BYTES, Result, frame, lossy
from .session import Pools, Session
from .state import state_of
from .work import Work

_CONNECTIONS = 64
_FIRST_SECONDS = 10.0  # until who connects must have sent something


class Listener:
    """Listens on this machine alone.

    Args:
        token: the secret with which requests begin.
        port: 0 is any that is free.

    Attributes:
        port: the one that it is.

    Raises:
        ConfigError: the port cannot be had.
    """

    def __init__(self, token: str, port: int = 0):
        self._token = token
        self._socket = socket.socket()
        own_port(self._socket)
        try:
            self._socket.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise ConfigError(f"the port {port} cannot be used: {error}") from None
        self._socket.listen(_CONNECTIONS)
        self.port: int = self._socket.getsockname()[1]
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        self._pools = Pools()
        self._loaded: tuple[Work, State, list[dict[str, str]]] | None = None
        threading.Thread(target=self._listen, name="ggmodel-listen", daemon=True).start()

    def ready(self, model: LoadedModel) -> None:
        """From now on requests are taken."""
        devices = [{"id": d.id, "backend": d.library} for d in model.backend.backend_devices()]
        self._loaded = Work(model), state_of(model), devices

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="ggmodel-connection", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(_FIRST_SECONDS)
                first = connection.recv(HELLO_BYTES)
                if first.startswith(b"GET "):
                    self._tell(connection, first)
                elif self._loaded is not None:
                    work, state, _ = self._loaded
                    Session(connection, self._token, work, state, self._pools).serve(first)
                elif first:
                    failure = Failure("Busy", "the model is still being loaded")
                    connection.sendall(frame(Result(0, failure=failure)))
        finally:
            self._places.release()

    # questions

    def _tell(self, connection: socket.socket, head: bytes) -> None:
        """Answers one request of HTTP."""
        while b"\r\n\r\n" not in head and len(head) < HELLO_BYTES:
            more = connection.recv(HELLO_BYTES)
            if not more:
                return
            head += more
        path = head.split(b" ", 2)[1].decode("ascii", "replace")
        known: dict[str, Callable[[], Any]] = {
            "/info": _devices,
            "/active": lambda: [] if self._loaded is None else self._loaded[2],
            "/state": lambda: None if self._loaded is None else self._loaded[1],
        }
        status, body = "404 Not Found", b"null"
        if path in known:
            status = "200 OK"
            try:
                body = _json(known[path]())
            except Error as error:
                status, body = "500 Internal Server Error", _json({"error": str(error)})
        text = (
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(text.encode() + body)


def _json(value: Any) -> bytes:
    if isinstance(value, msgspec.Struct):
        return lossy(msgspec.json.encode, value)
    return json.dumps(value).encode()


def _devices() -> list[dict[str, Any]]:
    """The devices that ggml knows, with their present memory."""
    from ...ml.ggml.discovery import discover

    return [device.to_json() for device in discover(cpu=True)]
