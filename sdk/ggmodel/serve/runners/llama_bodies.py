"""Requests and events as llama.cpp's server spells them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ...errors import ConfigError, PromptError, Unsupported
from ...names.found import ADVISED
from ..requests import Ended, Generate, Piece, Token

# Options of requests → llama-server's, with ggmodel's defaults.
_SAMPLING: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.0,
    "seed": -1,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
_REST = {"max_tokens", "stop", "logprobs", "top_logprobs", "logit_bias", "num_keep"}


def body_of(request: Generate, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request but for its prompt.

    Args:
        metadata: of the model. llama-server follows its advice where a request says nothing.
    """
    given = dict(request.options)
    for option, value in given.items():
        if option not in _REST and option not in _SAMPLING and value:
            raise ConfigError(f"llama.cpp's server has no option {option}; leave it out")
    advised = {option for key, option in ADVISED.items() if key in metadata}
    defaults = {name: value for name, value in _SAMPLING.items() if name not in advised}
    body = {name: v for name, v in (defaults | given).items() if name in _SAMPLING}
    limit, stop = given.get("max_tokens"), given.get("stop", ())
    biases = given.get("logit_bias") or {}
    body |= {
        "stream": True,
        "return_tokens": True,
        "n_predict": -1 if limit is None else limit,
        "n_keep": given.get("num_keep", 0),
        "stop": [stop] if isinstance(stop, str) else list(stop),
        "logit_bias": [[int(t), False if b == -math.inf else b] for t, b in biases.items()],
    }
    if given.get("logprobs") or given.get("top_logprobs"):
        body["n_probs"] = max(1, given.get("top_logprobs") or 0)
    return body | _grammar(request)


def _grammar(request: Generate) -> dict[str, Any]:
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


def pieces_of(event: Mapping[str, Any], wants: bool, listed: int) -> list[Piece]:
    """The pieces of an event: mostly one, of one token."""
    ids, text = event.get("tokens") or [], event.get("content") or ""
    found = event.get("completion_probabilities") or []
    if not ids:
        return [Piece(text)] if text else []
    first, *more = ids
    tokens = [_token(one, listed) for one in found] if wants else []
    pieces = [Piece(text, first, tokens[0] if tokens else None)]
    return pieces + [
        Piece("", id, tokens[i] if i < len(tokens) else None) for i, id in enumerate(more, 1)
    ]


def _token(one: Mapping[str, Any], listed: int = 0) -> Token:
    data = bytes(one.get("bytes") or one["token"].encode())
    top = [_token(other) for other in (one.get("top_logprobs") or [])[:listed]]
    return Token(one["id"], one["token"], data, one["logprob"], top)


def ended_of(event: Mapping[str, Any]) -> Ended:
    times = event.get("timings") or {}
    return Ended(
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
    row = row[:most]
    length = math.sqrt(sum(x * x for x in row)) if normalize else 1.0
    return [x / (length or 1.0) for x in row]
