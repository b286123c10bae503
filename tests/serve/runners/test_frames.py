"""Frames: cut at random, too long, malformed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ggmodel.bounds import limits
from ggmodel.errors import FormatError, PromptError
from ggmodel.serve.requests import Begun, Ended, Failure, Generate, GrammarSpec, Piece, Token
from ggmodel.serve.runners.frames import (
    Call,
    Cancel,
    Events,
    Result,
    Splitter,
    Taken,
    frame,
    from_client,
    from_runner,
    pack,
    requests,
)

GENERATE = Generate(
    ["a", 1, {"type": "image", "image": b"\x00\xff"}],
    {"logit_bias": {5: float("-inf")}, "temperature": 0.5},
    GrammarSpec("json"),
    special=True,
)
TOKEN = Token(3, "x", b"x", -1.5, [Token(4, "\ufffd", b"\xff", -2.0)])
EVENTS = Events(
    [
        (1, Begun([1, -1], "end", [TOKEN])),
        (2, Piece("b", 7, TOKEN)),
        (1, Ended("stop", 2, 3, stop="z")),
        (2, Failure("Busy", "why")),
    ]
)


def test_messages_come_out_as_they_went_in():
    call = Call(1, "generate", pack(GENERATE))
    for message in (call, Cancel(9), Taken(2, 32)):
        assert from_client.decode(frame(message)[4:]) == message
    assert requests["generate"].decode(call.body) == GENERATE
    for message in (Result(1, b"abc"), Result(2, failure=Failure("Error", "x")), EVENTS):
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
        frame(Call(1, "generate", b"x" * 101))


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (Generate("a", {"seed": 2**70}), "more than 64 bits"),
        (Generate([-(2**64)], {}), "more than 64 bits"),
        (Generate("a", {"b": nested(100_000)}), "nested too deeply"),
        (Generate("\ud800", {}), "surrogate"),
    ],
)
def test_a_request_that_no_message_can_hold(request_: Generate, what: str):
    with pytest.raises(PromptError, match=what):
        pack(request_)
