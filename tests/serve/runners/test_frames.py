"""Frames: cut at random, too long, malformed."""

from __future__ import annotations

import random
import socket
import threading
from typing import Any

import pytest

from ggmodel.bounds import limits
from ggmodel.errors import FormatError, PromptError
from ggmodel.serve.requests import (
    Failure,
    Finished,
    GrammarSpec,
    Request,
    Started,
    State,
    Text,
    Token,
    TokenEvent,
)
from ggmodel.serve.runners import connections
from ggmodel.serve.runners.connections import Pools, Session
from ggmodel.serve.runners.protocol import (
    Cancel,
    Events,
    Hello,
    MethodCall,
    Ping,
    Result,
    Splitter,
    Taken,
    Welcome,
    answers,
    frame,
    from_client,
    from_runner,
    pack,
    pack_answer,
    requests,
)
from ggmodel.serve.runners.work import GenerationEvents

GENERATE = Request(
    ["a", 1, {"type": "image", "image": b"\x00\xff"}],
    {"logit_bias": {5: float("-inf")}, "temperature": 0.5},
    GrammarSpec("json"),
    special=True,
)
TOKEN = Token(3, "x", b"x", -1.5, [Token(4, "\ufffd", b"\xff", -2.0)])
EVENTS = Events(
    [
        (1, Started([1, -1], "end", [TOKEN])),
        (2, TokenEvent("b", 7, TOKEN)),
        (1, Finished("stop", 2, 3, stop="z")),
        (2, Failure("Busy", "why")),
    ]
)


def test_messages_come_out_as_they_went_in():
    call = MethodCall(1, "generate", pack(GENERATE))
    for message in (call, Cancel(9), Taken(2, 32), Ping()):
        assert from_client.decode(frame(message)[4:]) == message
    assert requests["generate"].decode(call.body) == GENERATE
    for message in (Result(1, b"abc"), Result(2, failure=Failure("Error", "x")), EVENTS, Ping()):
        assert from_runner.decode(frame(message)[4:]) == message


@pytest.mark.parametrize("seed", range(20))
def test_bytes_may_be_cut_anywhere(seed: int):
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice((0, 1, 3, 4, 5, 300, 5000))) for _ in range(30)]
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    splitter, found = Splitter(5000), list[bytes]()
    while data:
        count = chance.choice((1, 2, 3, 4, 5, 100, 7000))
        found += splitter.feed(data[:count])
        data = data[count:]
    assert found == bodies


def test_a_message_that_is_too_long_is_refused_by_its_head():
    splitter = Splitter(10)
    assert splitter.feed(b"\0\0\0\x0a" + b"x" * 10) == [b"x" * 10]
    with pytest.raises(FormatError, match="announces 11 bytes"):
        splitter.feed(b"\0\0\0\x0b")


def test_a_message_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "frame_bytes", 100)
    with pytest.raises(FormatError, match="frame_bytes"):
        frame(MethodCall(1, "generate", b"x" * 101))


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (Request("a", {"seed": 2**70}), "more than 64 bits"),
        (Request([-(2**64)], {}), "more than 64 bits"),
        (Request("a", {"b": nested(100_000)}), "nested too deeply"),
        (Request("\ud800", {}), "surrogate"),
    ],
)
def test_a_request_that_no_message_can_hold(request_: Request, what: str):
    with pytest.raises(PromptError, match=what):
        pack(request_)


def test_texts_that_are_no_characters_can_be_sent():
    metadata = {"a\udcff": ["\ud800b", {"c": "\udfff"}], "n": 2**63, "bytes": b"\xff"}
    state = State("ggmodel", "\udcfe", "", [], [], 1, 1, 1, 1, 1, 1, 1, "")
    state.metadata, state.special_ids = metadata, {"\udc80": 5}
    welcome = from_runner.decode(frame(Welcome(state))[4:])
    assert isinstance(welcome, Welcome) and welcome.state.path == "\ufffd"
    assert welcome.state.special_ids == {"\ufffd": 5}
    metadata["a\ufffd"] = ["\ufffdb", {"c": "\ufffd"}]
    del metadata["a\udcff"]
    assert welcome.state.metadata == metadata
    events = Events([(1, TokenEvent("é\ud83d", 7, TOKEN)), (2, Failure("Error", "\udc00"))])
    found = from_runner.decode(frame(events)[4:])
    assert found == Events([(1, TokenEvent("é\ufffd", 7, TOKEN)), (2, Failure("Error", "\ufffd"))])
    assert answers["render"].decode(pack_answer(Text("\udcffx"))) == Text("\ufffdx")


def test_a_message_that_cannot_be_encoded():
    with pytest.raises(FormatError, match="cannot be sent"):
        frame(Events([(1, Started([2**70]))]))


class Unsendable:
    """In place of `Work` and `Generation`: answers have begun, and nothing follows."""

    def prepare(self, body: Request, check: Any) -> GenerationEvents:
        started = Started([2**70 if body.prompt == [0] else 1] * 80)
        return GenerationEvents(self, started, self, False)  # type: ignore[arg-type]

    def take(self, room: int) -> list[Any]:
        return []

    def watch(self, tell: Any, progress: bool) -> None: ...

    def cancel(self) -> None: ...


def test_events_that_cannot_be_sent_end_their_request_alone():
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    state = State("ggmodel", "", "", [], [], 1, 1, 1, 1, 1, 1, 1, "")
    session = Session(theirs, "", Unsendable(), state, Pools())  # type: ignore[arg-type]
    thread = threading.Thread(target=session.serve, args=(frame(Hello("")),))
    thread.start()
    calls = [MethodCall(id, "generate", pack(Request([id % 2], {}))) for id in (1, 2, 3)]
    with ours:
        ours.sendall(b"".join(map(frame, calls)))
        splitter, events = Splitter(1 << 20), dict[int, Any]()
        while len(events) < 3:
            for body in splitter.feed(ours.recv(1 << 16)):
                message = from_runner.decode(body)
                events |= dict(message.events if isinstance(message, Events) else ())
    thread.join(20)
    assert not thread.is_alive() and session._requests == {}
    assert events[1] == events[3] == Started([1] * 80)
    assert events[2].error == "FormatError" and "cannot be sent" in events[2].message


def test_memory_is_given_back_after_large_requests(monkeypatch: pytest.MonkeyPatch):
    trims: list[None] = []
    monkeypatch.setattr(connections, "give_memory_back", lambda: trims.append(None))
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    state = State("ggmodel", "", "", [], [], 1, 1, 1, 1, 1, 1, 1, "")
    session = Session(theirs, "", Unsendable(), state, Pools())  # type: ignore[arg-type]
    thread = threading.Thread(target=session.serve, args=(frame(Hello("")),))
    thread.start()
    splitter = Splitter(1 << 20)
    small, large = (MethodCall(n, "generate", pack(Request("a" * n, {}))) for n in (1, 2_000_000))

    def trims_after(*messages: Any) -> int:
        """How often until a ping comes back that is sent after these."""
        ours.sendall(b"".join(map(frame, (*messages, Ping()))))
        while True:
            for body in splitter.feed(ours.recv(1 << 16)):
                if isinstance(from_runner.decode(body), Ping):
                    return len(trims)

    with ours:
        counts = [trims_after(message) for message in (small, large, Cancel(large.id))]
        counts += [trims_after() for _ in range(4)]
    thread.join(20)
    assert counts[:2] == [0, 0] and counts[-1] == 2


def test_events_of_many_that_are_too_long_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "frame_bytes", 200)
    session = Session(*[None] * 5)  # type: ignore[arg-type]
    data = session._frame_of([(id, Started([id] * 80)) for id in (1, 2, 3)])
    messages = [from_runner.decode(body) for body in Splitter(200).feed(data)]
    assert messages == [Events([(id, Started([id] * 80))]) for id in (1, 2, 3)]
