"""Bodies of requests: read within limits, and texts in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from ..bounds import limits
from .errors import Refused, wrong_body

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_LARGE = 1 << 20  # bytes that take a noticeable time to read as JSON
# Bytes and seconds that a refused client has to notice. A connection that is closed with unread
# bytes may take the answer with it.
_UNREAD, _LINGER = 1 << 20, 1.0


# Fields that leave the answer as it is: accounts, storage, caches.
_WITHOUT_EFFECT = frozenset(
    "user metadata client_metadata store service_tier safety_identifier prompt_cache_key "
    "prompt_cache_retention cache_control cache_prompt".split()
)
_NOTHING = frozenset((b"null", b"false", b"[]", b'""'))
# An empty object asks for nothing here. Elsewhere it may switch something on, with usual options.
_MAPS = frozenset(
    "chat_template_kwargs context_management extra_body extra_headers logit_bias "
    "mm_processor_kwargs options stream_options vllm_xargs".split()
)


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Bodies:
    """Reads bodies; all that are read at a time share a limit, besides that of each."""

    def __init__(self) -> None:
        self.held = 0

    async def read(self, receive: Receive, length: str | None) -> bytes:
        """The body of a request; `release` its length when its request is done.

        Args:
            length: as the header tells it.

        Raises:
            Refused: it is too large, too slow, or others take all memory.
            ClientGone: it ends in the middle.
        """
        if length is not None and length.isdigit() and int(length) > limits.serve_body_bytes:
            raise _too_large()
        data = bytearray()
        filling = asyncio.ensure_future(self._fill(data, receive))
        try:  # `wait_for` before Python 3.12 loses a cancellation when the last byte comes
            if not (await asyncio.wait({filling}, timeout=limits.serve_body_seconds))[0]:
                raise Refused("the body of the request comes too slowly", 408)
            filling.result()
        except BaseException:
            filling.cancel()
            self.held -= len(data)
            raise
        return bytes(data)

    def release(self, body: bytes) -> None:
        self.held -= len(body)

    async def _fill(self, data: bytearray, receive: Receive) -> None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            if len(data) + len(piece) > limits.serve_body_bytes:
                raise _too_large()
            if self.held + len(piece) > limits.serve_bodies_bytes:
                raise Refused("other requests take all memory for bodies; try again", 503)
            data += piece
            self.held += len(piece)
            more = message.get("more_body", False)


class EndsUnread:
    """Ends connections on which a request is answered before the end of its body, as an ASGI
    application around another: the rest is not read."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] != "http" or not _has_body(scope):
            return await self._app(scope, receive, send)
        ended = early = False

        async def received() -> MutableMapping[str, Any]:
            nonlocal ended
            message = await receive()
            ended = ended or not message.get("more_body", False)
            return message

        async def sent(message: MutableMapping[str, Any]) -> None:
            nonlocal early
            if message["type"] == "http.response.start":
                early = not ended
                if early:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            elif early and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await _skip(received)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, received, sent)


def _has_body(scope: Any) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def _skip(receive: Receive) -> None:
    """Reads a little more of a body, until the client has gone."""

    async def skip() -> None:
        left, more = _UNREAD, True
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message.get("more_body", False)

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(skip(), _LINGER)


async def decoded(body: bytes, kind: type[T]) -> T:
    """A body as JSON of a type.

    Raises:
        Refused: it is no such JSON; names the field.
    """
    try:
        if len(body) < _LARGE:
            return _decoded(body, kind)
        return await asyncio.to_thread(_decoded, body, kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise wrong_body(error) from None


def _decoded(body: bytes, kind: type[T]) -> T:
    values = escapes = 0
    for start in range(0, len(body), _LARGE):  # one count of all would keep other threads waiting
        values += sum(body.count(sign, start, start + _LARGE) for sign in (b",", b"[", b"{"))
        escapes += body.count(b"\\", start, start + _LARGE)
    for what, count in (("values", values), ("escapes", escapes)):
        most = getattr(limits, name := f"serve_json_{what}")
        if count > most:
            raise Refused(
                f"the JSON of the request has too many {what} (the limit {name} is {most:,})", 413
            )
    return msgspec.json.decode(body, type=kind)


async def ignored(body: bytes, kind: type) -> list[str]:
    """The fields of a JSON object that its type lacks, and that ask for something.

    Args:
        kind: of the body, which was read as such.

    Raises:
        Refused: it has a text that is no UTF-8, which reading it as such passed over.
    """
    try:
        if len(body) < _LARGE:
            return _ignored(body, kind)
        return await asyncio.to_thread(_ignored, body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise wrong_body(error) from None


def _ignored(body: bytes | msgspec.Raw, kind: Any) -> list[str]:
    fields, names = _fields(kind), list[str]()
    for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items():
        if name not in fields:
            idle = bytes(value) in _NOTHING or (name in _MAPS and bytes(value) == b"{}")
            names += [name] * (name not in _WITHOUT_EFFECT and not idle)
        elif (inner := _struct(fields[name])) and bytes(value) != b"null":
            names += [f"{name}.{one}" for one in _ignored(value, inner)]
    return names


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of the fields of a kind of object by their names in JSON."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _struct(kind: Any) -> Any:
    """The object that a field may be, where it is one or nothing."""
    is_union = get_origin(kind) in (Union, UnionType)
    kinds = [one for one in (get_args(kind) if is_union else [kind]) if one is not NoneType]
    is_struct = len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], Struct)
    return kinds[0] if is_struct else None


def _too_large() -> Refused:
    return Refused(
        f"the request is larger than the limit serve_body_bytes of {limits.serve_body_bytes:,}; "
        "send smaller images or fewer texts",
        413,
        code="request_too_large",
    )


def text_of(value: object, where: str) -> str:
    """A value of a request, which has to be a text.

    Raises:
        Refused: it is none.
    """
    if not isinstance(value, str):
        raise Refused(f"{where}: expected a text, got {type(value).__name__}", param=where)
    return value


def field_text(fields: Mapping[str, Any], name: str, where: str) -> str:
    """See `text_of`; of a field."""
    return text_of(fields.get(name), f"{where}.{name}")
