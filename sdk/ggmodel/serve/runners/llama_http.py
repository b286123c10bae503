"""HTTP to llama.cpp's server on this machine: connections, and requests and events in its words."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import h11
import msgspec

from ...errors import (
    Busy,
    ComputeError,
    ConfigError,
    DeviceLost,
    Error,
    PromptError,
    PromptTooLong,
    Unsupported,
)
from ...runner.loading.resolved import SAMPLING_KEYS
from ...runner.sampling import DEFAULTS as SAMPLING
from ..requests import Finished, PromptProgress, Request, Token, TokenEvent
from .protocol import encoded

_READ = 1 << 16  # bytes
_LONGEST = 64 << 20  # bytes of an answer that is no stream, and of a line of one
_ERRORS: dict[int, type[Error]] = {400: PromptError, 501: Unsupported, 503: Busy}


class HTTPPeer:
    """A server that speaks JSON.

    Args:
        name: of its model, for messages.
        token: sent with each request.
    """

    def __init__(self, name: str, port: int, token: str):
        self._name, self._port = name, port
        self._headers = [
            ("Host", "127.0.0.1"),
            ("Authorization", f"Bearer {token}"),
            ("Content-Type", "application/json"),
            ("Connection", "close"),
        ]

    async def ask(self, path: str, body: Any = None) -> Any:
        """The answer to a request; a GET without a body.

        Raises:
            Error: the server refused it. DeviceLost: it does not answer.
        """
        async with self._answered(path, body) as parts:
            data = bytearray()
            async for part in parts:
                data += part
                self._check(len(data))
            return msgspec.json.decode(bytes(data))

    async def events(self, path: str, body: Any) -> AsyncIterator[Any]:
        """The events of a stream (text/event-stream), decoded. Closing it ends the request."""
        async with self._answered(path, body) as parts:
            held = b""
            async for part in parts:
                *lines, held = (held + part).split(b"\n")
                self._check(len(held))
                for line in lines:
                    name, _, value = line.strip().partition(b":")
                    if name == b"error":
                        raise _error(500, value)
                    if name == b"data" and value.strip() != b"[DONE]":
                        event = msgspec.json.decode(value)
                        if isinstance(event, dict) and "error" in event:
                            raise _error(event["error"].get("code", 500), value)
                        yield event

    def _check(self, nbytes: int) -> None:
        if nbytes > _LONGEST:
            raise ComputeError(f"the server of {self._name} sends more than {_LONGEST:,} bytes")

    @asynccontextmanager
    async def _answered(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """The parts of the body of an answer."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError as error:
            raise self._lost(error) from error
        try:
            connection = h11.Connection(h11.CLIENT)
            data = b"" if body is None else encoded(msgspec.json.encode, body)
            method = "GET" if body is None else "POST"
            headers = [*self._headers, ("Content-Length", str(len(data)))]
            request = h11.Request(method=method, target=path, headers=headers)
            for event in (request, h11.Data(data), h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
            await writer.drain()
            head = await _next(connection, reader)
            assert isinstance(head, h11.Response)
            parts = _parts(connection, reader)
            if head.status_code >= 400:
                raise _error(head.status_code, b"".join([part async for part in parts]))
            yield parts
        except (OSError, h11.ProtocolError) as error:
            raise self._lost(error) from error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _lost(self, error: Exception) -> DeviceLost:
        return DeviceLost(f"the process that computes {self._name} does not answer: {error}")


async def _parts(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while isinstance(event := await _next(connection, reader), h11.Data):
        yield bytes(event.data)


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(_READ))
    return event


def _error(status: int, body: bytes) -> Error:
    """An error as llama-server tells it: {"error": {"code": …, "message": …}}."""
    message = body.decode("utf-8", "replace")[:400]
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        answer = json.loads(body)
        error = answer.get("error", answer)
        message = error["message"]
        if error.get("type") == "exceed_context_size_error":
            tokens, context = int(error["n_prompt_tokens"]), int(error["n_ctx"])
            return PromptTooLong(
                f"the prompt has {tokens} tokens, the context {context}", tokens, context
            )
    return _ERRORS.get(status, ComputeError)(f"llama.cpp: {message}")


# Options of requests that have other names in llama-server.
_REST = {"max_tokens", "stop", "logprobs", "top_logprobs", "logit_bias", "num_keep", "truncate"}


def body_of(request: Request, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request but for its prompt.

    Args:
        metadata: of the model. llama-server follows its advice where a request says nothing.
    """
    options = dict(request.options)
    for option, value in options.items():
        if option not in _REST and option not in SAMPLING and value:
            raise ConfigError(f"llama.cpp's server has no option {option}; leave it out")
    in_file = {option for key, option in SAMPLING_KEYS.items() if key in metadata}
    defaults = {name: value for name, value in SAMPLING.items() if name not in in_file}
    body = {name: v for name, v in (defaults | options).items() if name in SAMPLING}
    limit, stop = options.get("max_tokens"), options.get("stop", ())
    biases = options.get("logit_bias") or {}
    body |= {
        "stream": True,
        "return_tokens": True,
        "n_predict": -1 if limit is None else limit,
        "n_keep": options.get("num_keep", 0),
        "stop": [stop] if isinstance(stop, str) else list(stop),
        "logit_bias": [[int(t), False if b == -math.inf else b] for t, b in biases.items()],
    }
    if options.get("logprobs") or options.get("top_logprobs"):
        body["n_probs"] = max(1, options.get("top_logprobs") or 0)
    return body | _grammar(request)


def advised(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Options of requests that say nothing of them."""
    advice = {option: metadata[key] for key, option in SAMPLING_KEYS.items() if key in metadata}
    return SAMPLING | advice


def _grammar(request: Request) -> dict[str, Any]:
    spec = request.grammar
    if spec is None:
        return {}
    if spec.kind in ("json", "json_schema"):
        schema = msgspec.json.decode(spec.text) if spec.kind == "json_schema" else {}
        return {"json_schema": schema or {"type": "object"}}
    if spec.kind == "gbnf":
        return {"grammar": spec.text}
    if spec.kind == "choice":
        texts = msgspec.json.decode(spec.text, type=list[str])
        return {"json_schema": {}} if not texts else {"grammar": _one_of(texts)}
    raise Unsupported(
        f"llama.cpp takes no grammars of kind {spec.kind}; give a JSON schema or GBNF"
    )


def events_of(event: Mapping[str, Any], wants: bool, listed: int) -> list[TokenEvent]:
    """The pieces of an event: mostly one, of one token."""
    ids, text = event.get("tokens") or [], event.get("content") or ""
    probabilities = event.get("completion_probabilities") or []
    if not ids:
        return [TokenEvent(text)] if text else []
    first, *more = ids
    tokens = [_token(one, listed) for one in probabilities] if wants else []
    pieces = [TokenEvent(text, first, tokens[0] if tokens else None)]
    return pieces + [
        TokenEvent("", id, tokens[i] if i < len(tokens) else None) for i, id in enumerate(more, 1)
    ]


def _token(one: Mapping[str, Any], listed: int = 0) -> Token:
    data = bytes(one.get("bytes") or one["token"].encode())
    top = [_token(other) for other in (one.get("top_logprobs") or [])[:listed]]
    return Token(one["id"], one["token"], data, one["logprob"], top)


def progress_of(event: Mapping[str, Any]) -> PromptProgress:
    """A step of the prefill."""
    step = event["prompt_progress"]
    seconds = step["time_ms"] / 1e3
    return PromptProgress(step["total"], step["cache"], step["processed"], seconds)


def finished_of(event: Mapping[str, Any]) -> Finished:
    """The end of an answer, from llama-server's last event."""
    times = event.get("timings") or {}
    return Finished(
        "length" if event.get("stop_type") == "limit" else "stop",
        event["tokens_evaluated"],
        event["tokens_predicted"],
        stop=event.get("stopping_word") or None,
        reused_tokens=times.get("cache_n", 0),
        prompt_seconds=times.get("prompt_ms", 0.0) / 1e3,
        decode_seconds=times.get("predicted_ms", 0.0) / 1e3,
        drafted=times.get("draft_n", 0),
        accepted=times.get("draft_n_accepted", 0),
    )


def as_base64(item: Any) -> str:
    """A media item as llama-server takes it.

    Raises:
        PromptError: it is neither bytes nor a data URL.
    """
    if isinstance(item, str) and item[:5].lower() == "data:":
        return item.partition(",")[2]
    if not isinstance(item, (bytes, bytearray)):
        raise PromptError("an item of a request must be its bytes or a data URL")
    return base64.b64encode(item).decode()


def _one_of(texts: list[str]) -> str:
    """GBNF of a choice."""
    quoted = (msgspec.json.encode(text).decode() for text in texts)
    return "root ::= " + " | ".join(quoted)


def cut_to(row: list[float], most: int, normalize: bool) -> list[float]:
    """The first numbers of an embedding, of length 1 if that is asked for."""
    row = row[:most]
    length = math.sqrt(sum(x * x for x in row)) if normalize else 1.0
    return [x / (length or 1.0) for x in row]
