"""A runner that answers no ping is given up; one that computes, or whose server stood still,
is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ggmodel.bounds import limits
from ggmodel.errors import DeviceLost
from ggmodel.serve.requests import State, Tokenize
from ggmodel.serve.runners.client import RunnerConnection
from ggmodel.serve.runners.protocol import (
    Hello,
    MethodCall,
    Ping,
    Splitter,
    Welcome,
    frame,
    from_client,
    greeting,
)
from tests.serve.loops import Loop

SILENCE = 0.5
STATE = State("ggmodel", "m", "", [], [], 32, 32, 1, 1, 1, 1, 1, "")


class Peer:
    """A stand-in for a runner, whose step never ends.

    Attributes:
        lives: sends pings back.
        calls: requests that have come. pings: pings that have come.
    """

    def __init__(self) -> None:
        self.lives, self.calls, self.pings = True, 0, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter, hello = Splitter(1 << 20), True
        while data := await reader.read(1 << 16):
            for body in splitter.feed(data):
                if hello:
                    assert isinstance(greeting.decode(body), Hello)
                    writer.write(frame(Welcome(STATE)))
                    hello = False
                    continue
                message = from_client.decode(body)
                self.calls += isinstance(message, MethodCall)
                self.pings += isinstance(message, Ping)
                if self.lives and isinstance(message, Ping):
                    writer.write(frame(message))
        writer.close()


Asked = tuple[Peer, RunnerConnection, asyncio.Task[object]]


@asynccontextmanager
async def asked() -> AsyncIterator[Asked]:
    """A peer, the conversation with it, and a request that it computes."""
    peer = Peer()
    async with await asyncio.start_server(peer.serve, "127.0.0.1", 0) as server:
        conversation = RunnerConnection("m")
        await conversation.connect(server.sockets[0].getsockname()[1], "secret")
        request = asyncio.ensure_future(conversation.tokenize(Tokenize("a")))
        while not peer.calls:
            await asyncio.sleep(0.001)
        yield peer, conversation, request
        conversation.disconnect()
        request.cancel()
        await asyncio.wait({request})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "runner_silence_seconds", SILENCE)


def test_a_peer_that_falls_silent(loop: Loop, caplog: pytest.LogCaptureFixture):
    async def work() -> None:
        async with asked() as (peer, conversation, request):
            peer.lives = False
            while not conversation.silent:
                await asyncio.sleep(0.01)
            assert not conversation.ended and not request.done()
            with pytest.raises(DeviceLost, match=r"silent for .*runner_silence_seconds"):
                await request
            with pytest.raises(DeviceLost, match="silent for"):
                await conversation.tokenize(Tokenize("a"))
            assert conversation.ended

    loop.run(work())
    assert "silent for" in caplog.text


def test_a_peer_that_computes_for_long(loop: Loop):
    async def work() -> None:
        async with asked() as (peer, conversation, request):
            await asyncio.sleep(3 * SILENCE)
            assert peer.pings > 5 and not (conversation.ended or request.done())

    loop.run(work())


def test_a_server_that_stood_still_itself(loop: Loop):
    async def work() -> None:
        async with asked() as (peer, conversation, request):
            peer.lives = False
            time.sleep(3 * SILENCE)
            await asyncio.sleep(0)
            assert not (conversation.silent or conversation.ended or request.done())
            peer.lives = True
            await asyncio.sleep(SILENCE)
            assert not conversation.ended

    loop.run(work())
