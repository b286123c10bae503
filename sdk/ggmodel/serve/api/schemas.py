"""Schemas: the OpenAPI document, and the JSON of the root's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.routing import Route

from ..endpoint import EVENTS, JSON, LINES, WARNINGS, Endpoint
from ..pool import Condition
from .openai.schemas import Number, PrefillProgress, PromptUsage, Timings

_REF = "#/components/schemas/{name}"
_ALWAYS = {
    401: "The API key is wrong or missing.",
    403: "The server has another name, or a page of another origin asks.",
    500: "The server or the model failed.",
    503: "The model is away for a moment.",
    504: "The request took too long.",
}
_WITH_PATH = {
    400: "The path is wrong.",
    404: "Nothing has that name.",
}
_WITH_BODY = {
    400: "The request is wrong; the error names the field.",
    404: "No model has that name.",
    408: "The body comes too slowly.",
    413: "The request is too large.",
    429: "Too many requests wait.",
}
_WITH_FORM = {415: "The body is no form."}
_WAITING = (429, 503)  # have Retry-After


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The document of these routes."""
    from ... import __version__

    endpoints = [(one, one.endpoint) for one in routes if isinstance(one.endpoint, Endpoint)]
    schemas, components = _schemas([endpoint for _, endpoint in endpoints])
    paths: dict[str, dict[str, Any]] = {}
    for route, endpoint in endpoints:
        path = re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
        methods = route.methods or set()
        # Starlette adds HEAD to GET.
        for method in sorted(methods - {"HEAD"} if "GET" in methods else methods):
            paths.setdefault(path, {})[method.lower()] = _operation(path, endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ggmodel serve", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each type, and those that they refer to."""
    kinds = [
        kind
        for one in endpoints
        for kind in (one.body, one.answers.form, one.errors.kind, *sum(_answers(one).values(), ()))
    ]
    kinds = list(dict.fromkeys(kind for kind in kinds if kind is not None))
    shown, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    return dict(zip(kinds, shown, strict=True)), components


def _answers(endpoint: Endpoint) -> dict[str, tuple[Any, ...]]:
    """Media type → the types of answers, or of the parts of a stream, an error among them."""
    answers = endpoint.answers
    by_media_type = {name: tuple(kinds) for name, kinds in answers.others.items()}
    for name in {*by_media_type} & {EVENTS, LINES}:
        by_media_type[name] = (*by_media_type[name], endpoint.errors.kind)
    return by_media_type if answers.kind is None else {**by_media_type, JSON: (answers.kind,)}


def _operation(path: str, endpoint: Endpoint, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", path)
    answers = endpoint.answers
    statuses = dict(_ALWAYS)
    if names:
        statuses |= _WITH_PATH
    if endpoint.body is not None or answers.form is not None or endpoint.uploads:
        statuses |= _WITH_BODY
    if answers.form is not None:
        statuses |= _WITH_FORM
    error = {JSON: {"schema": schemas[endpoint.errors.kind]}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            str(answers.status): _success(endpoint, schemas),
            **{str(s): _failure(s, statuses[s], error) for s in sorted(statuses)},
        },
    }
    if names:
        text = {"type": "string"}
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": text} for name in names
        ]
    if body := _body(endpoint, schemas):
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _success(endpoint: Endpoint, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, kinds in _answers(endpoint).items():
        first, *others = [schemas[kind] for kind in kinds]
        content[name] = {"schema": {"anyOf": [first, *others]} if others else first}
    response: dict[str, Any] = {"description": "The answer.", "content": content}
    if endpoint.body is not None:
        text = "Fields and tools of the request that had no effect, where there were any."
        response["headers"] = {WARNINGS: {"description": text, "schema": {"type": "string"}}}
    return response


def _failure(status: int, text: str, error: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": text, "content": error}
    if status in _WAITING:
        seconds = {"description": "Seconds to wait.", "schema": {"type": "integer"}}
        response["headers"] = {"Retry-After": seconds}
    return response


def _body(endpoint: Endpoint, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """The content of requests by its media type."""
    if endpoint.body is not None:
        return {JSON: {"schema": schemas[endpoint.body]}}
    if endpoint.answers.form is not None:
        return {"multipart/form-data": {"schema": schemas[endpoint.answers.form]}}
    if endpoint.uploads:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {}


class Health(Struct):
    """`models`: their names → conditions; left out for who has none of the server's keys."""

    status: Literal["ok"] = "ok"
    models: dict[str, Condition] | UnsetType = UNSET


class TokenPiece(Struct):
    """The text of a token, or its bytes where they are no text."""

    id: int
    piece: str | list[int]


class Tokenized(Struct):
    """The count comes to those who give `prompt` or messages."""

    tokens: list[int | TokenPiece]
    count: int | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Struct):
    prompt: str
    content: str


class TokenizerInfo(Struct, kw_only=True):
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    sep_token: str | UnsetType = UNSET
    cls_token: str | UnsetType = UNSET
    mask_token: str | UnsetType = UNSET
    eot_token: str | UnsetType = UNSET
    chat_template: str | None
    model_max_length: int
    vocab_size: int


class Rendered(Struct):
    prompt: str


class RankedText(Struct):
    text: str


class Ranked(Struct):
    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class RankedList(Struct, tag_field="object", tag="list"):
    model: str
    results: list[Ranked]
    usage: PromptUsage


class RankedPlain(Struct):
    """As TEI's, for a request with `texts`."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class Score(Struct, tag_field="object", tag="score"):
    index: int
    score: float


class ScoreList(Struct, tag_field="object", tag="list"):
    model: str
    data: list[Score]
    usage: PromptUsage


class LikelyId(Struct):
    """A token and how likely it was: with `post_sampling_probs` its probability in the distribution
    that was drawn from, else its log-probability in the model's own."""

    id: int
    token: str
    bytes: list[int]
    logprob: Number | UnsetType = UNSET
    prob: float | UnsetType = UNSET


class IdLogprob(LikelyId):
    """With the likeliest at its place."""

    top_logprobs: list[LikelyId] | UnsetType = UNSET
    top_probs: list[LikelyId] | UnsetType = UNSET


class ContinuedText(Struct, kw_only=True):
    """An answer of llama-server's own endpoint, or the last part of a stream of one."""

    index: int
    content: str
    tokens: list[int] = []
    id_slot: int = -1
    stop: bool = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool = False
    stop_type: Literal["limit", "eos", "word"]
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: list[IdLogprob] | UnsetType = UNSET


class ContinuedPart(Struct):
    """A part of a stream but for the last, which is a `ContinuedText`."""

    content: str
    tokens: list[int]
    tokens_predicted: int
    tokens_evaluated: int
    index: int = 0
    stop: bool = False
    id_slot: int = -1
    completion_probabilities: list[IdLogprob] | UnsetType = UNSET
    prompt_progress: PrefillProgress | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class LoadedAdapter(Struct):
    """A LoRA adapter: its number, its name, and its strength in requests that choose none."""

    id: int
    path: str
    scale: float
    task_name: str = ""
    prompt_prefix: str = ""


class Success(Struct):
    success: bool = True
