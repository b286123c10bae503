"""Clients that send halves, nonsense and too much: the server lives, answers others, and keeps no
memory of it."""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.test_process import ASK, ASSETS, CHAT
from tests.serving import Running, running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

SECONDS = 60.0
MIB = 1 << 20
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n".encode()
HALVES = (
    b"PO",
    HEAD,
    HEAD + b"Content-Length: 100\r\n\r\n",
    HEAD + b'Content-Length: 100\r\n\r\n{"messages": [',
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mes',
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # of TLS
)
# Descriptors of this process and of the server.
COUNT = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200) // len(HALVES)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(str(ASSETS / "stories.gguf"), "--threads", "1", "--gpu-layers", "0") as found:
        yield found


def memory(server: Running) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def answers(server: Running) -> None:
    """Others are served."""
    with httpx.Client(base_url=server.url, timeout=SECONDS) as http:
        found = http.post(CHAT, json={**ASK, "max_tokens": 3}).json()
    assert found["usage"]["completion_tokens"] == 3
    assert server.process.poll() is None


async def connected(server: Running) -> Streams:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def left(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def sent(server: Running, pieces: Iterator[bytes]) -> bytes:
    """The status of the answer to these bytes, the rest of which is not sent once it is there; b""
    where the server hangs up."""
    reader, writer = await connected(server)
    answer = asyncio.ensure_future(reader.readline())
    with suppress(OSError):
        for piece in pieces:
            if answer.done():
                break
            writer.write(piece)
            await writer.drain()
    with suppress(OSError):
        await answer
    await left(writer)
    return b"" if answer.exception() else answer.result()[9:12]


def whole(body: bytes) -> Iterator[bytes]:
    yield HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    for start in range(0, len(body), MIB):
        yield body[start : start + MIB]


def chunks(piece: bytes, count: int) -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for _ in range(count):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)


def endless(start: bytes, piece: bytes) -> Iterator[bytes]:
    yield start
    for _ in range(1000):
        yield piece


async def nested(server: Running) -> None:
    """Ten thousand arrays in each other, from many clients."""
    body = b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    found = await asyncio.gather(*(sent(server, whole(body)) for _ in range(50)))
    assert set(found) == {b"400"}


async def wrong_json(server: Running) -> None:
    """Some of it within the limit of 64 MiB, some beyond."""
    assert await sent(server, whole(b'{"messages": "' + b"a" * (60 * MIB))) == b"400"
    assert await sent(server, whole(b"[" * (60 * MIB))) == b"413"
    large = [sent(server, whole(b"{" * (100 * MIB))), sent(server, chunks(b" " * MIB, 100))]
    # The answer may be lost: a connection that is closed with unread bytes is reset.
    assert set(await asyncio.gather(*large)) <= {b"413", b""}


async def no_ends(server: Running) -> None:
    """Headers and lines that go on and on."""
    starts = (b"", HEAD, HEAD + b"X-Long: ", HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    pieces = (b"A" * 65536, b"X-One: 1\r\n" * 4096)
    work = [sent(server, endless(start, piece)) for start in starts for piece in pieces]
    # The answer may be lost: a connection that is closed with unread bytes is reset.
    assert set(await asyncio.gather(*work)) <= {b"400", b""}


async def noise(server: Running) -> None:
    """Random bytes."""
    dice = random.Random(7)
    work = [sent(server, iter([dice.randbytes(2000), b"\r\n\r\n"])) for _ in range(50)]
    found = await asyncio.gather(*work)
    assert b"400" in found and set(found) <= {b"400", b""}


async def halves(server: Running) -> None:
    """Beginnings of requests; others are served while the clients wait."""
    clients = [await connected(server) for _ in range(COUNT) for _ in HALVES]
    for i, (_, writer) in enumerate(clients):
        writer.write(HALVES[i % len(HALVES)])
    await asyncio.to_thread(answers, server)
    await asyncio.gather(*(left(writer) for _, writer in clients))


@pytest.mark.parametrize("attack", [nested, wrong_json, no_ends, noise, halves])
def test_the_server_lives_and_keeps_nothing(
    server: Running, attack: Callable[[Any], Awaitable[None]]
):
    def run() -> int:
        asyncio.run(asyncio.wait_for(attack(server), SECONDS))  # type: ignore[arg-type]
        answers(server)
        return memory(server)

    first = run()  # buffers of the allocator stay
    assert run() < first + 16 * MIB
