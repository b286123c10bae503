"""Protocol between server and runner process: messages, failures, timeouts.

A frame is four bytes, the length of the message that follows, the highest first, and the message in
msgpack. Requests have numbers that the client chooses; answers to several may interleave.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ... import errors
from ...bounds import limits
from ...errors import DeviceLost, Error, FormatError, PromptError, PromptTooLong
from ..requests import (
    Adapt,
    Detokenize,
    Embed,
    Event,
    Failure,
    Rank,
    Ranks,
    Render,
    Request,
    Rows,
    SlotCall,
    SlotChanged,
    State,
    Strengths,
    Text,
    Tokenize,
    Tokens,
    Transcribe,
    Transcript,
)

log = logging.getLogger("ggmodel.serve")


def failure_of(error: BaseException) -> Failure:
    """An error as the client is told; one that is none of ggmodel's is a defect, and is logged."""
    if isinstance(error, PromptTooLong):
        return Failure(type(error).__name__, str(error), error.tokens, error.context)
    if isinstance(error, Error):
        return Failure(type(error).__name__, str(error))
    log.error("a request failed with a defect of ggmodel", exc_info=error)
    return Failure("Error", f"ggmodel failed with {type(error).__name__}: {str(error)[:400]}")


def error_of(failure: Failure) -> Error:
    """The error that a process told."""
    kind = getattr(errors, failure.error, Error)
    if kind is PromptTooLong:
        return PromptTooLong(failure.message, failure.tokens, failure.context)
    is_error = isinstance(kind, type) and issubclass(kind, Error)
    return (kind if is_error else Error)(failure.message)


class RemoteRunner(ABC):
    """Methods of `Runner` for a runner that asks another process by their names."""

    @abstractmethod
    async def _ask(self, method: str, request: Any) -> Any: ...

    async def embed(self, request: Embed) -> Rows:
        return await self._ask("embed", request)

    async def rank(self, request: Rank) -> Ranks:
        return await self._ask("rank", request)

    async def tokenize(self, request: Tokenize) -> Tokens:
        return await self._ask("tokenize", request)

    async def detokenize(self, request: Detokenize) -> Text:
        return await self._ask("detokenize", request)

    async def render(self, request: Render) -> Text:
        return await self._ask("render", request)

    async def adapt(self, request: Adapt) -> Strengths:
        return await self._ask("adapt", request)

    async def slot(self, request: SlotCall) -> SlotChanged:
        return await self._ask("slot", request)

    async def transcribe(self, request: Transcribe) -> Transcript:
        return await self._ask("transcribe", request)


LOOKS = 10  # within `limits.runner_silence_seconds`


class Watchdog:
    """Ends the silence of a process, in an event loop.

    Looks are counted, not seconds: there are none while this process stands still itself.

    Args:
        look: called at each look, to ask the process.
        lost: called when it was silent for `limits.runner_silence_seconds`.
    """

    def __init__(self, look: Callable[[], None], lost: Callable[[], None]):
        self._look, self._lost = look, lost
        self._unheard, self._over = 0, False

    def begin(self) -> None:
        """Looks now, and from now on."""
        if self._over:
            return
        if self._unheard == LOOKS:
            self._over = True
            return self._lost()
        self._unheard += 1
        self._look()
        asyncio.get_running_loop().call_later(pause(), self.begin)

    def heard(self) -> None:
        """The process lives."""
        self._unheard = 0

    def end(self) -> None:
        """The process may be silent from now on."""
        self._over = True

    @property
    def long(self) -> bool:
        """Whether looks were in vain."""
        return self._unheard > 1


def silent(process: str) -> DeviceLost:
    """The error of a process that was silent for too long.

    Args:
        process: what it does, for the message.
    """
    return DeviceLost(
        f"the process that {process} was silent for {limits.runner_silence_seconds:g} s "
        "(limits.runner_silence_seconds) and is ended; the model is loaded again with the next "
        "request"
    )


def pause() -> float:
    """Seconds between looks."""
    return limits.runner_silence_seconds / LOOKS


T = TypeVar("T")
VERSION = 1
WINDOW = 64
"""Pieces of an answer that are on their way, at most: more come when `Taken` says so."""
HELLO_BYTES = 4096
"""The most that one who has not said the secret may send."""
_LENGTH = 4

METHODS: dict[str, tuple[type, type | None]] = {
    "generate": (Request, None),
    "embed": (Embed, Rows),
    "rank": (Rank, Ranks),
    "tokenize": (Tokenize, Tokens),
    "detokenize": (Detokenize, Text),
    "render": (Render, Text),
    "adapt": (Adapt, Strengths),
    "slot": (SlotCall, SlotChanged),
    "transcribe": (Transcribe, Transcript),
}
"""Method → its request, and its answer; those of `generate` are events."""


# from the client


class Hello(Struct, tag=True):
    """The first message of a connection."""

    token: str
    version: int = VERSION


class MethodCall(Struct, tag="Call", array_like=True):
    """A request.

    Attributes:
        body: the request of that method, encoded.
    """

    id: int
    method: str
    body: bytes


class Cancel(Struct, tag=True, array_like=True):
    """Nobody waits for the answer any more."""

    id: int


class Taken(Struct, tag=True, array_like=True):
    """The client has taken events of an answer, and as many more may come."""

    id: int
    count: int


class Ping(Struct, tag=True, array_like=True):
    """Is sent back at once, whatever the model computes."""


# from the runner


class Welcome(Struct, tag=True, array_like=True):
    """The secret is right, and the model is loaded."""

    state: State


class Result(Struct, tag=True, array_like=True):
    """The answer to a request that has only one.

    Attributes:
        body: encoded; empty of one that failed.
    """

    id: int
    body: bytes = b""
    failure: Failure | None = None


class Events(Struct, tag=True, array_like=True):
    """Events of several answers, each with its request's number."""

    events: list[tuple[int, Event | Failure]]


_SURROGATE = re.compile("[\ud800-\udfff]")

_encoder = msgspec.msgpack.Encoder()
greeting = msgspec.msgpack.Decoder(Hello)
from_client = msgspec.msgpack.Decoder(MethodCall | Cancel | Taken | Ping)
from_runner = msgspec.msgpack.Decoder(Welcome | Result | Events | Ping)
requests: dict[str, msgspec.msgpack.Decoder[Any]] = {
    name: msgspec.msgpack.Decoder(kinds[0]) for name, kinds in METHODS.items()
}
answers = {name: msgspec.msgpack.Decoder(kinds[1] or Failure) for name, kinds in METHODS.items()}


def pack(value: Any) -> bytes:
    """A request as the body of a message; raises as `encoded`."""
    return encoded(_encoder.encode, value)


def pack_answer(value: Any) -> bytes:
    """An answer as the body of a message."""
    return lossy(_encoder.encode, value)


def encoded(encode: Callable[[Any], bytes], value: Any) -> bytes:
    """A request as bytes.

    Raises:
        PromptError: a text in it has a lone surrogate, which is no character; a number has more
            than 64 bits; or it is nested too deeply.
    """
    try:
        return encode(value)
    except UnicodeEncodeError as error:
        raise PromptError(
            f"a text of the request holds the lone surrogate U+{ord(error.object[error.start]):04X}"
        ) from None
    except OverflowError:
        raise PromptError("a whole number of the request has more than 64 bits") from None
    except RecursionError:
        raise PromptError("the JSON of the request is nested too deeply") from None


def lossy(encode: Callable[[Any], T], value: Any) -> T:
    """The result of `encode` for a value; U+FFFD stands for lone surrogates, such as those of a
    file's metadata that is no UTF-8."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return encode(_characters(msgspec.to_builtins(value, builtin_types=(bytes,))))


def _characters(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_characters(key): _characters(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_characters(one) for one in value]
    return value


def frame(message: Struct) -> bytearray:
    """The frame of a message.

    Raises:
        FormatError: it exceeds `limits.frame_bytes`, or cannot be encoded.
    """
    data = bytearray()
    try:
        lossy(lambda value: _encoder.encode_into(value, data, _LENGTH), message)
    except (OverflowError, RecursionError) as error:
        raise FormatError(f"a message between server and runner cannot be sent: {error}") from None
    length = len(data) - _LENGTH
    if length > limits.frame_bytes:
        raise FormatError(
            f"a message between server and runner has {length:,} bytes, more than "
            f"{limits.frame_bytes:,} (limits.frame_bytes)"
        )
    data[:_LENGTH] = length.to_bytes(_LENGTH, "big")
    return data


class Splitter:
    """Cuts the bytes of a connection into messages.

    Attributes:
        most: the most bytes of a message; may be changed between two.
    """

    def __init__(self, most: int):
        self.most = most
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """The messages that these bytes complete, still encoded.

        Raises:
            FormatError: a message is longer than `most`.
        """
        self._buffer += data
        messages: list[bytes] = []
        start, size = 0, len(self._buffer)
        while size - start >= _LENGTH:
            length = int.from_bytes(self._buffer[start : start + _LENGTH], "big")
            if length > self.most:
                raise FormatError(f"a message announces {length:,} bytes; {self.most:,} may come")
            end = start + _LENGTH + length
            if end > size:
                break
            with memoryview(self._buffer) as view:
                messages.append(bytes(view[start + _LENGTH : end]))
            start = end
        if start:
            del self._buffer[:start]
        return messages
