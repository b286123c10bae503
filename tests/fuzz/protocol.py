"""The protocol between a process and the one that computes for it, damaged in either direction."""

from __future__ import annotations

import socket
import threading
from random import Random
from typing import Any

import numpy as np

from ggmodel.errors import ComputeError, DeviceLost, Error, FormatError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendParams
from ggmodel.ml.process.child import Service
from ggmodel.ml.process.conversation import Conversation, NoAnswer
from ggmodel.ml.process.protocol import (
    Answer,
    Channel,
    Event,
    Record,
    Request,
    describe,
    encode,
    pack_error,
)
from tests.fuzz.damage import damaged
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong
from tests.ml.harness import METADATA

_WAIT = 10.0  # seconds for an answer, or for the end of a thread
_LARGE = np.zeros(1 << 15, np.float32)  # sent apart from its message


def raw(message: Any) -> bytes:
    """The bytes of a message."""
    return b"".join(bytes(piece) for piece in encode(message))


class Parent(Conversation):
    """This end of a conversation, without a process at the other."""

    def check(self) -> None: ...

    def _lose(self) -> Error:
        return DeviceLost("the process ended")

    def _note_ended(self, numbers: list[int]) -> None:
        if not all(isinstance(number, int) for number in numbers):
            raise Wrong("numbers of graphs that are none", numbers)

    def _note_silence(self, silence: Any) -> None: ...


class Answers(Fuzzer):
    """Answers that are damaged: a request ends with the result or an error, and does not wait."""

    name = "answers"
    weight = 0.5
    patience = 30.0
    memory = 512 << 20

    def make(self, random: Random) -> dict[str, Any]:
        error = random.choice([FormatError("damaged"), ComputeError("NaN")])
        messages = [
            Answer(1, False, _LARGE, []),
            Answer(1, True, pack_error(error), [1, 2]),
            Answer(random.choice([0, 1, 7]), False, None, []),
            Event(1, random.choice(["progress", "unknown"]), (0.5,)),
            Record("ggmodel.fuzz", 20, "a line"),
        ]
        sent = [raw(random.choice(messages)) for _ in range(random.choice([1, 2, 4]))]
        if random.random() < 0.9:
            i = random.randrange(len(sent))
            sent[i] = _hurt(random, sent[i])
        return {"sent": sent}

    def run(self, case: dict[str, Any], note: Note) -> None:
        here, there = socket.socketpair()
        with here, there:
            thread = threading.Thread(target=_send_all, args=(there, case["sent"]))
            thread.start()
            try:
                Parent(here).request("devices", timeout=_WAIT, events={"progress": lambda *_: None})
            except NoAnswer:
                raise Wrong("an answer that is waited for, though the socket is closed") from None
            finally:
                here.close()
                thread.join(_WAIT)
            self.counts["answered"] += 1


def _hurt(random: Random, message: bytes) -> bytes:
    """The head, the pickle or what follows is damaged; or it is none at all."""
    kind = random.random()
    if kind < 0.1:
        return random.randbytes(random.choice([1, 12, 200]))
    if kind < 0.3:
        return damaged(random, message[:12]) + message[12:]
    short, rest = message[:400], message[400:]
    return damaged(random, short) + rest


def _send_all(end: socket.socket, messages: list[bytes]) -> None:
    """Sends, and closes; the other end may be gone."""
    try:
        for message in messages:
            end.sendall(message)
        end.shutdown(socket.SHUT_WR)
        while end.recv(1 << 16):  # what is asked meanwhile
            pass
    except OSError:
        pass


class Questions(Fuzzer):
    """Requests that are damaged, after some that are not: the service answers, or ends."""

    name = "questions"
    weight = 0.5
    patience = 30.0
    memory = 512 << 20
    legal = ()

    def make(self, random: Random) -> dict[str, Any]:
        tensors = {"w": np.eye(8, dtype=np.float32), "large": _LARGE}
        source = describe(MemorySource(METADATA, tensors))
        requests = [
            Request(1, "devices", (), []),
            Request(2, "open", (10, source, BackendParams(num_threads=1), "ggml"), []),
            Request(3, "allocate", (10, []), []),
            Request(4, "create_state", (10, 5, (4, 1, 1, 1), 0, 0, None), []),
            Request(5, "read", (10, 5), [99]),
            Request(6, "run", (77, []), [10]),
        ]
        sent = [raw(one) for one in requests[: random.randint(1, len(requests))]]
        if random.random() < 0.5:
            wrong = Request(7, random.choice(["", "nothing", "run", "__init__x"]), (1,) * 3, [])
            sent.append(raw(wrong))
        sent.append(_hurt(random, random.choice(sent)))
        return {"sent": sent}

    def run(self, case: dict[str, Any], note: Note) -> None:
        here, there = socket.socketpair()
        with here, there:
            thread = threading.Thread(target=_send_all, args=(there, case["sent"]))
            thread.start()
            try:
                Service(Channel(here)).serve()
            finally:
                here.close()
                thread.join(_WAIT)
        if thread.is_alive():
            raise Wrong("a service that ended and left its socket open")
        self.counts["ended"] += 1
