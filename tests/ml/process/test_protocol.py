"""Bytes that are no message."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections.abc import Iterator
from threading import Thread

import pytest

from ggmodel.errors import ComputeError, DeviceLost
from ggmodel.ml import BackendParams
from ggmodel.ml.process.protocol import (
    FROM_CHILD,
    Answer,
    Channel,
    Event,
    Request,
    Silence,
    Torn,
    encode,
    unpack_error,
)
from tests.fuzz.protocol import Parent, raw

Ends = tuple[Channel, socket.socket, socket.socket]
GREAT = 1 << 62


@pytest.fixture
def ends() -> Iterator[Ends]:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(5)
        yield Channel(here), here, there


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<QI", 3, 0) + b"abc",
        raw("text"),
        raw((True, None)),
        raw(Answer(1, False, None, [])).replace(b"Answer", b"Amswer"),
        raw(Answer("1", False, None, [])),  # type: ignore[arg-type]
        raw(Event(1, "progress", None)),  # type: ignore[arg-type]
        raw(Silence("worker", "1", 2.0)),  # type: ignore[arg-type]
        raw(Request(1, "devices", (), [])),
        raw(BackendParams()),
    ],
)
def test_what_is_no_message_is_torn(ends: Ends, data: bytes):
    channel, _, there = ends
    there.sendall(data)
    with pytest.raises(Torn, match="no message"):
        channel.receive(*FROM_CHILD)


@pytest.mark.parametrize("head", [struct.pack("<QI", GREAT, 0), struct.pack("<QIQ", 9, 1, GREAT)])
def test_memory_follows_what_came(ends: Ends, head: bytes):
    channel, _, there = ends
    there.sendall(head + bytes(9))
    there.close()
    tracemalloc.start()
    with pytest.raises(EOFError):
        channel.receive(*FROM_CHILD)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_large_messages_arrive_whole():
    here, there = socket.socketpair()
    with here, there:
        content = bytes(range(256)) * (40 << 12)  # beyond what is made room for at once
        thread = Thread(target=Channel(there).send, args=(encode(Answer(1, False, content, [])),))
        thread.start()
        assert Channel(here).receive(Answer).content == content
        thread.join(5)


def test_an_unknown_question_loses_the_process(ends: Ends):
    _, here, there = ends
    there.sendall(raw(Event(1, "unknown", ())))
    parent = Parent(here)
    for _ in range(2):
        with pytest.raises(DeviceLost):
            parent.request("devices", timeout=5)


def test_an_interruption_while_a_silence_is_reported_loses_nothing(ends: Ends):
    _, here, there = ends

    class Reporting(Parent):
        def _note_silence(self, silence: Silence | None) -> None:
            if silence is not None:
                raise KeyboardInterrupt

    def answer() -> None:
        channel = Channel(there)
        number = channel.receive(Request).number
        channel.send(encode(Silence("worker", 1.0, 2.0)))
        channel.send(encode(Answer(number, False, "late", [])))
        number = channel.receive(Request).number
        channel.send(encode(Answer(number, False, "good", [])))

    thread = Thread(target=answer, daemon=True)
    thread.start()
    parent = Reporting(here)
    with pytest.raises(KeyboardInterrupt):
        parent.request("devices", timeout=5)
    assert parent.request("devices", timeout=5) == "good"
    thread.join(5)


@pytest.mark.parametrize("packed", [None, 3, (1, 2), (print, (), {}, ""), ("x", (), {}, "")])
def test_an_error_that_is_none_is_one(packed):
    error = unpack_error(packed)
    assert isinstance(error, ComputeError)
    assert "sent no error" in str(error)
