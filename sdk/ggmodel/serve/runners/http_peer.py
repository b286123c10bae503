"""Requests over HTTP to a server on this machine, a connection each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import h11
import msgspec

from ...errors import Busy, ComputeError, DeviceLost, Error, PromptError, Unsupported
from .frames import encoded

_READ = 1 << 16  # bytes
_LONGEST = 64 << 20  # bytes of an answer that is no stream, and of a line of one
_ERRORS: dict[int, type[Error]] = {400: PromptError, 501: Unsupported, 503: Busy}


class HTTPPeer:
    """A server that speaks JSON.

    Args:
        name: of its model, for messages.
        token: sent with each request.
    """

    def __init__(self, name: str, port: int, token: str):
        self._name, self._port = name, port
        self._headers = [
            ("Host", "127.0.0.1"),
            ("Authorization", f"Bearer {token}"),
            ("Content-Type", "application/json"),
            ("Connection", "close"),
        ]

    async def ask(self, path: str, body: Any = None) -> Any:
        """The answer to a request; a GET without a body.

        Raises:
            Error: the server refused it. DeviceLost: it does not answer.
        """
        async with self._answered(path, body) as parts:
            data = bytearray()
            async for part in parts:
                data += part
                self._check(len(data))
            return msgspec.json.decode(bytes(data))

    async def events(self, path: str, body: Any) -> AsyncIterator[Any]:
        """The events of a stream (text/event-stream), decoded. Closing it ends the request."""
        async with self._answered(path, body) as parts:
            held = b""
            async for part in parts:
                *lines, held = (held + part).split(b"\n")
                self._check(len(held))
                for line in lines:
                    name, _, value = line.strip().partition(b":")
                    if name == b"error":
                        raise _error(500, value)
                    if name == b"data" and value.strip() != b"[DONE]":
                        event = msgspec.json.decode(value)
                        if isinstance(event, dict) and "error" in event:
                            raise _error(event["error"].get("code", 500), value)
                        yield event

    def _check(self, nbytes: int) -> None:
        if nbytes > _LONGEST:
            raise ComputeError(f"the server of {self._name} sends more than {_LONGEST:,} bytes")

    @asynccontextmanager
    async def _answered(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """The parts of the body of an answer."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError as error:
            raise self._lost(error) from error
        try:
            connection = h11.Connection(h11.CLIENT)
            data = b"" if body is None else encoded(msgspec.json.encode, body)
            method = "GET" if body is None else "POST"
            headers = [*self._headers, ("Content-Length", str(len(data)))]
            request = h11.Request(method=method, target=path, headers=headers)
            for event in (request, h11.Data(data), h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
            await writer.drain()
            head = await _next(connection, reader)
            assert isinstance(head, h11.Response)
            parts = _parts(connection, reader)
            if head.status_code >= 400:
                raise _error(head.status_code, b"".join([part async for part in parts]))
            yield parts
        except (OSError, h11.ProtocolError) as error:
            raise self._lost(error) from error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _lost(self, error: Exception) -> DeviceLost:
        return DeviceLost(f"the process that computes {self._name} does not answer: {error}")


async def _parts(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while isinstance(event := await _next(connection, reader), h11.Data):
        yield bytes(event.data)


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(_READ))
    return event


def _error(status: int, body: bytes) -> Error:
    """An error as llama-server tells it: {"error": {"code": …, "message": …}}."""
    message = body.decode("utf-8", "replace")[:400]
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        told = json.loads(body)
        message = told.get("error", told)["message"]
    return _ERRORS.get(status, ComputeError)(f"llama.cpp: {message}")
