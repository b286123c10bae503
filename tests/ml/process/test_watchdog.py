"""How long silence is borne, with connections inside this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ggmodel.ml.process.protocol import Silence
from ggmodel.ml.process.watchdog import Watchdog

DEADLINE = 20.0  # seconds, against a hang
SECONDS = 2.0  # a silence is reported after half of it


class Ends:
    """A watchdog on one end of a connection.

    Attributes:
        here, there: the ends, of which `here` is watched.
        silences: the silences that it reported.
    """

    here: socket.socket

    def __init__(self, server: socket.socket, seconds: float):
        self.silences: list[Silence] = []
        self.watchdog = Watchdog(seconds, self.silences.append, lambda: None)

        def connect() -> None:
            self.here = socket.create_connection(server.getsockname())

        self.watchdog.add("worker", connect)
        self.there = server.accept()[0]


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_silence_is_told_of_and_then_ends_the_connection(server: socket.socket):
    ends = Ends(server, 0.4)
    with ends.here, ends.there:
        ends.watchdog.begin()
        received: list[bytes] = []
        thread = threading.Thread(target=lambda: received.append(ends.here.recv(1)), daemon=True)
        thread.start()
        thread.join(DEADLINE)
        assert received == [b""]
        assert [silence.given_up for silence in ends.silences] == [False, True]
        assert all(s.endpoint == "worker" and s.allowed == 0.4 for s in ends.silences)


def test_computing_before_a_wait_is_no_silence(server: socket.socket):
    ends = Ends(server, SECONDS)
    with ends.here, ends.there:
        ends.watchdog.begin()
        time.sleep(0.7 * SECONDS)
        threading.Timer(0.2 * SECONDS, ends.there.sendall, [b"x"]).start()
        assert ends.here.recv(1) == b"x"
        ends.watchdog.end()
    assert not ends.silences


def test_sending_for_long_is_no_silence(server: socket.socket):
    ends = Ends(server, SECONDS)
    with ends.here, ends.there:
        ends.here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)

        def read_slowly() -> None:
            until = time.monotonic() + 0.8 * SECONDS
            while ends.there.recv(1 << 14):
                if time.monotonic() < until:
                    time.sleep(0.005)

        thread = threading.Thread(target=read_slowly, daemon=True)
        thread.start()
        ends.watchdog.begin()
        began = time.monotonic()
        while time.monotonic() - began < 0.8 * SECONDS:
            ends.here.sendall(bytes(8 << 20))
        ends.watchdog.end()
        ends.here.shutdown(socket.SHUT_WR)
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert not ends.silences


def allowed(watchdog: Watchdog, tokens: int = 0) -> float:
    watchdog.begin(tokens)
    return watchdog.allowed


def test_steps_that_are_queued_may_take_their_time_in_any_request():
    waits: list[float] = []

    def wait() -> None:
        waits.append(1)
        time.sleep(0.1)

    watchdog = Watchdog(60, print, wait)
    assert allowed(watchdog, 32) == 60 + 4 * 0.25 * 32
    watchdog.ran(32, answered=False)  # nothing is known: it is waited for
    watchdog.end()
    assert len(waits) == 1
    one = (allowed(watchdog, 32) - 60) / 4
    assert 0.1 <= one < DEADLINE
    for n in range(2, 5):
        watchdog.ran(32, answered=False)
        watchdog.end()
        assert allowed(watchdog, 32) == pytest.approx(60 + 4 * n * one)
    watchdog.end()
    assert allowed(watchdog) == pytest.approx(60 + 4 * 3 * one)
    watchdog.end()
    assert len(waits) == 1
    watchdog.begin(4)
    watchdog.ran(4, answered=True)
    watchdog.end()
    assert len(waits) == 2
    assert allowed(watchdog) == 60


def test_a_long_queue_is_waited_for():
    waits: list[int] = []
    watchdog = Watchdog(60, print, lambda: waits.append(1))
    for _ in range(1 + 3 * 32):
        watchdog.begin(32)
        watchdog.ran(32, answered=False)
        watchdog.end()
    assert len(waits) == 4
