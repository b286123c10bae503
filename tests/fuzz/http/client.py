"""Sends requests over connections of their own, several clients at a time."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

CLIENTS = 8
ANSWER = 60.0  # seconds for an answer
_UNFINISHED = 0.05  # seconds that the client of an odd request waits for an answer
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z]")


@dataclass
class Exchange:
    """A request and its answers.

    Attributes:
        begin, end: of the monotonic clock.
        statuses: of all answers on the connection.
        complete: the server has ended the connection.
    """

    request: dict[str, Any]
    begin: float = 0.0
    end: float = 0.0
    data: bytes = b""
    statuses: tuple[int, ...] = ()
    complete: bool = False

    def __str__(self) -> str:
        sent = b"".join(self.request["pieces"])
        return (
            f"{self.end - self.begin:.2f} s, {len(sent):,} bytes, statuses {self.statuses}: "
            f"{sent[:300]!r} … {sent[300:][-200:]!r}"
        )


async def exchange(port: int, request: dict[str, Any]) -> Exchange:
    """Sends a request, and reads its answer or leaves."""
    made = Exchange(request, begin=time.monotonic())
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in request["pieces"]:
                writer.write(piece)
                await writer.drain()
                if request["gap"]:
                    await asyncio.sleep(request["gap"])
            whole = request["whole"]
            with suppress(asyncio.TimeoutError):
                reading = _read(reader, made, request["leave"])
                await asyncio.wait_for(reading, ANSWER if whole else _UNFINISHED)
        finally:
            writer.transport.abort()
    made.end = time.monotonic()
    made.statuses = tuple(map(int, _STATUS.findall(made.data)))
    return made


async def _read(reader: asyncio.StreamReader, made: Exchange, most: int | None) -> None:
    data = bytearray()  # an answer may have 150 MB
    try:
        while most is None or len(data) < most:
            try:
                piece = await reader.read(1 << 20)
            except ConnectionError:
                piece = b""
            data += piece
            if not piece:
                made.complete = True
                return
    finally:
        made.data = bytes(data)


async def exchanges(port: int, requests: list[dict[str, Any]]) -> list[Exchange]:
    """Sends requests by `CLIENTS` clients, each the next that nobody has sent."""
    left, made = iter(requests), list[Exchange]()

    async def client() -> None:
        for request in left:
            made.append(await exchange(port, request))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return made
