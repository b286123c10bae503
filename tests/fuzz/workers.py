"""The port of a worker: garbage, and commands that are nearly right, before and after a greeting.

A client that has greeted is trusted, as docs/distributed.md says: an operand that makes no sense
ends ggml's server. Workers that end without a greeting are findings, and workers that go on without
answering.
"""

from __future__ import annotations

import resource
import socket
import struct
import subprocess
from random import Random
from typing import Any

from tests.conftest import ROOT, rpc_environment_of
from tests.fuzz.damage import damaged
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong
from tests.ml.rpc.conftest import Worker

_PREFIX = ROOT / ".cache" / "ggml-native"
_HELLO, _COUNT = 14, 15
_GREETING = bytes([_HELLO]) + struct.pack("<Q", 24) + bytes(24)
_POINTER = b"POINTER!"  # stands for the buffer that the worker made last
_ANSWERED = 0.3  # seconds that are waited for answers to what may deserve none
_PATIENCE = 15.0  # seconds for the answer to a good client
_MEMORY = 2 << 30
_SIZES = [0, 1, 255, 4096, 1 << 20, 1 << 50, 1 << 62, (1 << 64) - 1]


class Workers(Fuzzer):
    """After each case a good client must be answered by the same worker."""

    name = "workers"
    weight = 0.5
    patience = 90.0
    legal = ()

    def open(self) -> None:
        self._environment = rpc_environment_of(_PREFIX)
        self._worker = self._start()

    def _start(self) -> Worker:
        worker = Worker(["--threads", "1"], self._environment, self.folder)
        worker.wait_until_it_listens()
        _, hard = resource.prlimit(worker.process.pid, resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > _MEMORY:  # it does not share this process's
            resource.prlimit(worker.process.pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        return worker

    def make(self, random: Random) -> dict[str, Any]:
        steps = [_step(random) for _ in range(random.choice([1, 2, 5]))]
        greets = random.random() < 0.8
        kind = random.random()
        if kind < 0.1:
            texts = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02", b"SSH-2.0-x\r\n", bytes(4096)]
            steps = [random.choice([*texts, random.randbytes(3000)])]
        elif kind < 0.4:
            steps[-1] = damaged(random, steps[-1])
        return {"greets": greets, "steps": steps, "waits": random.random() < 0.8}

    def run(self, case: dict[str, Any], note: Note) -> None:
        try:
            self._talk(case)
        except OSError:
            self.counts["cut off"] += 1
        self._check(case["greets"])

    def _talk(self, case: dict[str, Any]) -> None:
        with socket.create_connection((self._worker.host, self._worker.port), 5) as end:
            end.settimeout(_PATIENCE)
            if case["greets"]:
                end.sendall(_GREETING)
                _receive(end)
            end.settimeout(_ANSWERED)
            pointer = bytes(8)
            for step in case["steps"]:
                end.sendall(step.replace(_POINTER, pointer))
                if case["waits"]:
                    answer = end.recv(1 << 16)
                    if step[:1] == b"\0" and len(answer) >= 16:
                        pointer = answer[8:16]

    def _check(self, greeted: bool) -> None:
        """Asks as a good client.

        Raises:
            Wrong: the worker does not answer.
        """
        worker = self._worker
        try:
            with socket.create_connection((worker.host, worker.port), 5) as end:
                end.settimeout(_PATIENCE)
                end.sendall(_GREETING)
                _receive(end)
                end.sendall(bytes([_COUNT]) + bytes(8))
                if len(_receive(end)) != 4:
                    raise Wrong("a worker that gives a wrong answer")
        except OSError as error:
            how = self._replace()
            if not greeted or how == "is deaf":
                raise Wrong(f"a worker that {how}", str(error), worker.err[-1500:]) from None
            self.counts["ended"] += 1
        self.counts["checked"] += 1

    def _replace(self) -> str:
        """Starts another worker; returns what became of the old one."""
        process = self._worker.process
        try:
            how = f"ended with status {process.wait(5)}"
        except subprocess.TimeoutExpired:
            how = "is deaf"
        self._worker.kill()
        self._worker = self._start()
        return how

    def close(self) -> None:
        self._worker.kill()


def _step(random: Random) -> bytes:
    """A command with random operands of about the right size."""
    command = random.choice([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 255])
    pointer = random.choice([_POINTER, _POINTER, bytes(8), random.randbytes(8)])
    if command == 0:
        size = random.choice(_SIZES)
        operands = struct.pack("<IQ", random.choice([0, 0, 1, 2**32 - 1]), size)
    elif command in (1, 2, 11):
        operands = struct.pack("<I", random.choice([0, 1, 2**32 - 1]))
    elif command in (3, 4, 5):
        operands = pointer + b"\x07" * (command == 5)
    else:
        # A tensor: its id, type, buffer, sizes and strides; then whatever follows in a command.
        sizes = [random.choice([0, 1, 4, 2**31, 2**32 - 1]) for _ in range(8)]
        operands = bytes(8) + struct.pack("<I", random.choice([0, 2, 99])) + pointer
        operands += struct.pack("<8I", *sizes) + random.randbytes(
            random.choice([0, 200, 252, 3216])
        )
    claimed = len(operands)
    if random.random() < 0.2:
        claimed = random.choice([claimed + 1, claimed - 1, *_SIZES]) % (1 << 64)
    return bytes([command]) + struct.pack("<Q", claimed) + operands


def _receive(end: socket.socket) -> bytes:
    """An answer: its size and its bytes."""
    size = struct.unpack("<Q", _exactly(end, 8))[0]
    return _exactly(end, min(size, 1 << 20))


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = end.recv(size - len(data))
        if not piece:
            raise ConnectionError("the worker closed the connection")
        data += piece
    return data
