"""The life of a runner's process: crashes, cancellation, strangers, its parent's death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggmodel.errors import Cancelled, DeviceLost, Error, FormatError, ModelNotFound
from ggmodel.serve.requests import Embed, Event, Started, TokenEvent, Tokenize
from ggmodel.serve.runners.engines import GgmodelRunner
from ggmodel.serve.runners.protocol import (
    HELLO_BYTES,
    WINDOW,
    Hello,
    MethodCall,
    Result,
    Splitter,
    Welcome,
    frame,
    from_runner,
    pack,
)
from tests.children import import_path
from tests.serve.loops import Loop
from tests.serve.runners.asking import answered, generate, text_of
from tests.serve.runners.conftest import STORIES

LONG = {"max_tokens": 500, "logit_bias": {0: -1e9, 1: -1e9, 4: -1e9}}
SECONDS = 20.0


@pytest.fixture(scope="module")
def single(loop: Loop) -> Iterator[GgmodelRunner]:
    """A runner with one sequence."""
    started = loop.run(GgmodelRunner.start(STORIES, {"gpu_layers": 0}))
    yield started
    loop.run(started.close())


@pytest.fixture
def victim(loop: Loop) -> Iterator[GgmodelRunner]:
    """One that a test may end."""
    started = loop.run(GgmodelRunner.start(STORIES, {"gpu_layers": 0}))
    yield started
    loop.run(started.close())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def wait_for_end(pid: int) -> None:
    end = time.monotonic() + SECONDS
    while alive(pid):
        assert time.monotonic() < end, f"process {pid} still runs"
        time.sleep(0.01)


class TestCancelling:
    """An answer that nobody reads stops after `WINDOW` pieces and keeps its sequence; with one
    sequence others then wait for ever."""

    def test_a_closed_answer_frees_its_sequence(self, loop: Loop, single: GgmodelRunner):
        async def ask() -> None:
            for _ in range(3):
                async with aclosing(single.generate(generate(**LONG))) as events:
                    async for event in events:
                        if isinstance(event, TokenEvent):
                            break
                assert single.state.running == 0
            assert text_of((await answered(single, generate()))[1])

        loop.run(ask())

    def test_a_cancelled_task_frees_its_sequence(self, loop: Loop, single: GgmodelRunner):
        async def ask() -> None:
            reading = asyncio.ensure_future(answered(single, generate(**LONG)))
            while single.state.running == 0:
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await answered(single, generate())

        loop.run(ask())

    def test_a_request_that_waits_for_a_sequence(self, loop: Loop, single: GgmodelRunner):
        async def ask() -> None:
            async with aclosing(single.generate(generate(**LONG))) as first:
                await anext(first)
                async with aclosing(single.generate(generate())) as second:
                    assert isinstance(await anext(second), Started)
                    assert (single.state.running, single.state.waiting) == (1, 1)
            await answered(single, generate())

        loop.run(ask())

    def test_calls(self, loop: Loop, single: GgmodelRunner):
        async def ask() -> None:
            calls = [
                asyncio.ensure_future(single.embed(Embed(["dog " * 400] * 20))) for _ in range(12)
            ]
            await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert single.state.running == 0
            assert (await single.tokenize(Tokenize("a"))).ids

        loop.run(ask())


@pytest.mark.slow
def test_who_does_not_read_stops_alone(loop: Loop, runner: GgmodelRunner):
    async def ask() -> None:
        async with aclosing(runner.generate(generate(**LONG))) as slow:
            begun = await anext(slow)
            assert isinstance(begun, Started)
            (waiting,) = runner._open.values()
            for n in range(8):
                assert (await answered(runner, generate(f"{n} dogs", max_tokens=100)))[1]
            unread = [e for e in waiting._answers if isinstance(e, TokenEvent)]
            assert len(unread) <= WINDOW
            pieces = [event async for event in slow if isinstance(event, TokenEvent)]
        _, expected, _ = await answered(runner, generate(**LONG))
        assert [p.id for p in pieces] == [p.id for p in expected]

    loop.run(ask())


async def killed(stream: AsyncGenerator[Event, None], pid: int, number: int) -> None:
    """Reads an answer, and sends its process a signal at the first piece."""
    async for event in stream:
        if isinstance(event, TokenEvent):
            os.kill(pid, number)


class TestCrashes:
    def test_midway(self, loop: Loop, victim: GgmodelRunner):
        async def ask() -> str:
            stream = victim.generate(generate(**LONG))
            await anext(stream)
            waiting = asyncio.ensure_future(answered(victim, generate()))
            with pytest.raises(DeviceLost) as found:
                await killed(stream, victim.pid, signal.SIGKILL)
            with pytest.raises(DeviceLost, match="SIGKILL"):
                await waiting
            assert victim.ended
            with pytest.raises(DeviceLost, match="SIGKILL"):
                await answered(victim, generate())
            with pytest.raises(DeviceLost, match="SIGKILL"):
                await victim.tokenize(Tokenize("a"))
            return str(found.value)

        message = loop.run(ask())
        assert message.startswith(f"the process that computed {STORIES} ended by SIGKILL")
        assert "again" in message
        wait_for_end(victim.pid)

    def test_the_last_words_of_an_abort(self, loop: Loop, victim: GgmodelRunner):
        async def ask() -> None:
            stream = victim.generate(generate(**LONG))
            with pytest.raises(DeviceLost, match="ended by SIGABRT"):
                await killed(stream, victim.pid, signal.SIGABRT)

        loop.run(ask())

    def test_a_closed_runner(self, loop: Loop, victim: GgmodelRunner):
        async def ask() -> None:
            stream = victim.generate(generate(**LONG))
            await anext(stream)
            await asyncio.gather(victim.close(), victim.close())
            with pytest.raises(Cancelled):
                async for _ in stream:
                    pass

        loop.run(ask())
        wait_for_end(victim.pid)

    def test_files_that_cannot_be_loaded(self, loop: Loop, tmp_path: Path):
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(b"no model")
        for name, error in ((str(bad), FormatError), (str(tmp_path / "none.gguf"), Error)):
            with pytest.raises(error):
                loop.run(GgmodelRunner.start(name))
        with pytest.raises(ModelNotFound):
            loop.run(GgmodelRunner.start("no-such-model:here", stored=True))

    def test_it_ends_with_its_parent(self):
        program = (
            "import asyncio, time\n"
            "from ggmodel.serve.runners.engines import GgmodelRunner\n"
            "async def main():\n"
            f"    runner = await GgmodelRunner.start({STORIES!r})\n"
            "    print(runner.pid, flush=True)\n"
            "    time.sleep(100)\n"
            "asyncio.run(main())\n"
        )
        environment = {**os.environ, "PYTHONPATH": import_path()}
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment
        ) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert alive(pid)
            parent.kill()
        wait_for_end(pid)


@pytest.fixture(scope="module")
def by_hand() -> Iterator[int]:
    """The port of `ggmodel runner`, whose secret is "secret"."""
    environment = {**os.environ, "PYTHONPATH": import_path(), "GGMODEL_RUNNER_TOKEN": "secret"}
    command = [sys.executable, "-m", "ggmodel", "runner", STORIES, "--gpu-layers", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        told = [json.loads(next(lines))]
        while told[-1]["event"] != "ready":
            told.append(json.loads(next(lines)))
        assert [one["event"] for one in told] == ["listening", "loading", "ready"]
        yield told[0]["port"]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130


class Stranger:
    """A connection that says what it likes."""

    def __init__(self, port: int, data: bytes | bytearray = b""):
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.socket.settimeout(SECONDS)
        self.splitter = Splitter(1 << 30)
        self.socket.sendall(data)

    def heard(self) -> list[Any]:
        """Messages until the runner ends the connection."""
        found: list[Any] = []
        while data := self._read():
            found += [from_runner.decode(one) for one in self.splitter.feed(data)]
        return found

    def _read(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionError:
            return b""

    def next(self) -> Any:
        while True:
            if found := self.splitter.feed(self._read()):
                return from_runner.decode(found[0])


Meet = Callable[..., Stranger]


@pytest.fixture
def meet(by_hand: int) -> Iterator[Meet]:
    """`meet(data)` is a connection that begins with these bytes, by default with the secret."""
    met: list[Stranger] = []

    def meet(data: bytes | None = None) -> Stranger:
        met.append(Stranger(by_hand, frame(Hello("secret")) if data is None else data))
        if data is None:
            assert isinstance(met[-1].next(), Welcome)
        return met[-1]

    yield meet
    for one in met:
        one.socket.close()


def raw(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class TestStrangers:
    def test_who_knows_the_secret(self, meet: Meet):
        friend = meet()
        friend.socket.sendall(frame(MethodCall(5, "tokenize", pack(Tokenize("a")))))
        answer = friend.next()
        assert isinstance(answer, Result) and (answer.id, answer.failure) == (5, None)

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (frame(Hello("another")), "secret"),
            (frame(Hello("")), "secret"),
            (frame(Hello("secret", version=99)), "version"),
            (frame(MethodCall(1, "tokenize", pack(Tokenize("a")))), "malformed"),
            (raw(b""), "malformed"),
            (raw(b"\xc1" * 50), "malformed"),
            ((HELLO_BYTES + 1).to_bytes(4, "big"), "may come"),
            (b"\xff" * 100, "may come"),
            (b"POST / HTTP/1.1\r\n\r\n", "may come"),
        ],
        ids=range(9),
    )
    def test_who_does_not(self, meet: Meet, data: bytes, reason: str):
        (answer,) = meet(data).heard()
        assert answer.id == 0 and reason in answer.failure.message

    @pytest.mark.parametrize(
        "data",
        [
            raw(b"\xc1"),
            raw(b"nonsense"),
            b"\xff\xff\xff\xff",
            frame(MethodCall(0, "tokenize", pack(Tokenize("a")))),
            frame(MethodCall(1, "close", b"")),
        ],
        ids=range(5),
    )
    def test_garbage_ends_its_own_connection_alone(self, meet: Meet, data: bytes):
        other, friend = meet(), meet()
        friend.socket.sendall(data)
        (answer,) = friend.heard()
        assert answer.id == 0 and answer.failure.error == "FormatError"
        other.socket.sendall(frame(MethodCall(5, "tokenize", pack(Tokenize("a")))))
        assert other.next().id == 5

    @pytest.mark.parametrize(
        "call",
        [
            MethodCall(1, "tokenize", b"\xc1"),
            MethodCall(1, "generate", pack({"prompt": 5})),
            MethodCall(1, "embed", pack({"texts": [[1, "a"]]})),
        ],
        ids=range(3),
    )
    def test_a_malformed_request_fails_alone(self, meet: Meet, call: MethodCall):
        friend = meet()
        friend.socket.sendall(frame(call))
        failed = friend.next()
        assert failed.id == 1 and "malformed" in failed.failure.message
        friend.socket.sendall(frame(MethodCall(2, "tokenize", pack(Tokenize("a")))))
        answer = friend.next()
        assert (answer.id, answer.failure) == (2, None)

    def test_half_open_connections(self, meet: Meet):
        silent = [meet(b"\0" * n) for n in (0, 1, 3, 4)]
        cut = meet()
        cut.socket.sendall(frame(MethodCall(1, "generate", pack(generate(**LONG))))[:-3])
        gone = meet()
        gone.socket.sendall(frame(MethodCall(1, "generate", pack(generate(**LONG)))))
        gone.next()
        gone.socket.close()  # with one sequence, others would wait for it
        friend = meet()
        friend.socket.sendall(frame(MethodCall(7, "generate", pack(generate(max_tokens=1)))))
        assert friend.next().events[0][0] == 7
        assert len(silent) == 4

    def test_who_asks_over_http(self, meet: Meet):
        for path, status in (("/state", b"200"), ("/info", b"200"), ("/nothing", b"404")):
            stranger = meet(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            head = stranger._read().split(b"\r\n")[0]
            assert status in head


def test_a_file_with_texts_that_are_no_utf_8(loop: Loop, tmp_path: Path):
    data = bytearray(Path(STORIES).read_bytes())
    at = data.index(b"general.name") + len("general.name") + 4
    start = at + 8
    end = start + int.from_bytes(data[at:start], "little")
    data[start:end] = b"\xff" * (end - start)
    (path := tmp_path / "bad.gguf").write_bytes(data)

    async def work() -> None:
        runner = await GgmodelRunner.start(str(path), {"gpu_layers": 0})
        async with httpx.AsyncClient() as client:
            state = (await client.get(f"http://127.0.0.1:{runner.port}/state")).json()
        assert runner.state.metadata["general.name"] == "\ufffd" * (end - start)
        assert state["metadata"]["general.name"] == "\ufffd" * (end - start)
        assert (await answered(runner, generate()))[1]
        await runner.close()

    loop.run(work())


def test_a_taken_port(by_hand: int):
    command = [sys.executable, "-m", "ggmodel", "runner", STORIES, "--port", str(by_hand)]
    environment = {**os.environ, "PYTHONPATH": import_path()}
    found = subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS)
    assert found.returncode == 1 and b"cannot be used" in found.stderr
