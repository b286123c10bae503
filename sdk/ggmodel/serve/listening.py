"""Listens for requests until the process is told to end, and then lets those under way finish."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..bounds import limits
from ..errors import ConfigError
from ..platforms.processes import prepare_to_serve
from ..platforms.sockets import own_port
from .api import make_app
from .api.openai import OPENAI
from .endpoint import JSON
from .errors import Problem
from .server import Server, Settings

_BACKLOG = 2048
_IDLE = 75  # seconds that a connection stays open between two requests


@dataclass(frozen=True)
class Listening:
    """How to listen.

    Attributes:
        certificate, key: files for TLS.
        drain: seconds that requests under way have to finish at the end.
    """

    certificate: str | None = None
    key: str | None = None
    drain: int = 30


def listen(server: Server, how: Listening, ready: Callable[[str], object]) -> None:
    """Serves until SIGTERM or SIGINT; a second SIGINT does not wait for requests.

    Args:
        ready: called with the server's URL once it can be asked.

    Raises:
        ConfigError: the address or the certificate cannot be used.
    """
    with reserved(server.settings, how) as serve:
        serve(server, ready)


@contextmanager
def reserved(
    settings: Settings, how: Listening
) -> Iterator[Callable[[Server, Callable[[str], object]], None]]:
    """Has the address while the block runs, so that nothing is begun for a server that could not
    listen. Gives `listen` without its second argument; raises as it does."""
    if how.key is not None and how.certificate is None:
        raise ConfigError("--tls-key needs --tls-certificate")
    if how.certificate is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(how.certificate, how.key)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"cannot use the certificate {how.certificate}: {error}") from None
    with _bound(settings.host, settings.port) as listening:
        yield partial(_serve, listening, how)


def _serve(
    listening: socket.socket, how: Listening, server: Server, ready: Callable[[str], object]
) -> None:
    prepare_to_serve()
    config = uvicorn.Config(
        make_app(server),
        http=_Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=how.drain,
        limit_concurrency=limits.serve_connections,
        ssl_certfile=how.certificate,
        ssl_keyfile=how.key,
    )
    port = listening.getsockname()[1]
    scheme = "http" if how.certificate is None else "https"
    host = server.settings.host
    host = f"[{host}]" if ":" in host else host
    _Uvicorn(config, lambda: ready(f"{scheme}://{host}:{port}")).run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            own_port(listening)
            listening.bind(address)
            listening.listen(_BACKLOG)  # without that, another process could bind it, too
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen at {host}:{port}: {reason}; give another --host or --port"
        ) from None
    return listening


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


class _Protocol(H11Protocol):
    """Closes a connection on which a request begins and does not arrive, or whose client does not
    take its answer, or sends what is no HTTP."""

    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        answering = cycle is not None and cycle.response_started and not cycle.response_complete
        if cycle is not None:  # what it computes reaches nobody
            cycle.disconnected = True
            cycle.message_event.set()
        if not answering:
            headers = [("content-type", JSON), ("connection", "close")]
            body = msgspec.json.encode(OPENAI.of(Problem(400, msg)))
            for event in (
                h11.Response(status_code=400, headers=headers, reason="Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Whether a part of a request is there that has to become whole in time."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self.conn.trailing_data[0]:
            self._wait()

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(limits.serve_body_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _watch(self, size: int) -> None:
        """Looks in a while whether less than so many bytes are left to send."""

        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left < size:
                self._watch(left)
            else:
                self.transport.abort()

        self._stop_watching()
        self._stuck = self.loop.call_later(limits.serve_send_seconds, look)

    def _stop_watching(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
