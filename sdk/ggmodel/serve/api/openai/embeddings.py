"""Rows of numbers for texts and token ids: /v1/embeddings, llama-server's /embedding, TEI's
/embed."""

from __future__ import annotations

import asyncio
import base64
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct
from starlette.routing import Route

from ...chat_requests import model_name
from ...endpoint import Answers, Call, Handler, route
from ...errors import Refused
from ...requests import Embed, Rows
from ...server import Server
from .inputs import Input, inputs_of, only_ids
from .schemas import OPENAI, EmbeddingRow, Embeddings, PromptUsage

_INT16 = 32760.0  # the largest value of a row scaled by its maximum, as in llama.cpp


class EmbeddingRequest(Struct):
    """A request. The last line is no field of OpenAI's."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    truncate: bool = False
    keep_alive: float | None = None


class RowsRequest(Struct):
    """A request in llama-server's format; `input` means the same as `content`.

    Attributes:
        embd_normalize: −1 is off, 0 scales the largest value to 32,760, p from 1 on divides by the
            p-norm.
    """

    content: Input | None = None
    input: Input | None = None
    model: str | None = None
    embd_normalize: int = 2


class PlainRequest(Struct):
    """A request in TEI's format."""

    inputs: Input
    model: str | None = None
    normalize: bool = True
    truncate: bool = False
    dimensions: int | None = None
    prompt_name: str | None = None


class TextRows(Struct):
    """The rows of a text: one, or one a token where the server does not pool them."""

    index: int
    embedding: list[list[float]]


def routes(server: Server) -> list[Route]:
    """Its endpoints."""

    def post(path: str, handler: Handler, body: type, kind: Any) -> Route:
        return route("POST", path, handler, server, OPENAI, body, answers=Answers(kind))

    return [
        post("/v1/embeddings", create, EmbeddingRequest, Embeddings),
        post("/embed", create_plain, PlainRequest, list[list[float]]),  # TEI's
        *(  # llama-server's
            post(path, create_rows, RowsRequest, list[TextRows])
            for path in ("/embedding", "/embeddings")
        ),
    ]


async def create(call: Call) -> None:
    """Turn texts into rows of numbers, similar ones for similar texts."""
    params = await call.decode(EmbeddingRequest)
    if params.dimensions is not None and params.dimensions < 1:
        raise Refused("dimensions: give 1 or more", param="dimensions")
    how = Embed([], call.server.settings.one_row, truncate=params.truncate)
    how.dimensions = params.dimensions
    rows, name = await _rows(call, params.model, params.input, how, params.keep_alive)
    count = sum(rows.tokens)
    data = await asyncio.to_thread(rows_of, rows, params.encoding_format == "base64")
    listed = [EmbeddingRow(i, row) for i, row in enumerate(data)]
    await call.json(Embeddings(listed, name, PromptUsage(count, count)))


async def create_plain(call: Call) -> None:
    """Turn texts into rows of numbers, in TEI's format."""
    params = await call.decode(PlainRequest)
    if params.dimensions is not None and params.dimensions < 1:
        raise Refused("dimensions: give 1 or more", param="dimensions")
    how = Embed([], call.server.settings.one_row, params.normalize, params.truncate)
    how.dimensions, how.prompt_name = params.dimensions, params.prompt_name
    rows, _ = await _rows(call, params.model, params.inputs, how, field="inputs")
    await call.json(await asyncio.to_thread(rows_of, rows, False))


async def create_rows(call: Call) -> None:
    """Turn texts into rows of numbers, in llama-server's format."""
    params = await call.decode(RowsRequest)
    given = params.input if params.content is None else params.content
    if given is None:
        raise Refused("content: is missing", param="content")
    pooling, norm = call.server.settings.pooling, params.embd_normalize
    rows, _ = await _rows(call, params.model, given, Embed([], pooling, normalize=norm == 2))
    found, counts = _array(rows), rows.tokens
    if pooling != "none":  # else of any length, as llama-server has it
        counts = [1] * rows.count
        if norm >= 0 and norm != 2:
            found = found / _sizes(found.astype("f8"), norm)
    each = iter(await asyncio.to_thread(_in_json, found))
    await call.json([TextRows(i, [*islice(each, count)]) for i, count in enumerate(counts)])


def _sizes(rows: np.ndarray, norm: int) -> np.ndarray:
    """The size of each row, float64 [n, 1]; 1 for a row of zeros."""
    if norm == 0:
        sizes = np.abs(rows).max(axis=1, keepdims=True) / _INT16
    else:
        sizes = (np.abs(rows) ** norm).sum(axis=1, keepdims=True) ** (1 / norm)
    return np.where(sizes > 0, sizes, 1)


async def _rows(
    call: Call,
    model: str | None,
    given: Input,
    how: Embed,
    keep_alive: float | None = None,
    field: str = "input",
) -> tuple[Rows, str]:
    """The rows of texts, and the model's name.

    Args:
        how: a request without its texts.

    Raises:
        Refused: a text is empty, or there are too many.
    """
    texts = inputs_of(given, field)
    if not all(texts):
        raise Refused(f"{field}: a text is empty", param=field)
    async with call.server.models.use(model, keep_alive=keep_alive) as runner:
        how.texts = [await only_ids(runner, one) for one in texts]  # type: ignore[assignment]
        rows = await runner.embed(how)
        name = model_name(model, runner.state)
    call.server.metrics.read(runner.name, rows)
    return rows, name


def rows_of(rows: Rows, as_base64: bool) -> list[Any]:
    """Each row in JSON, or as base64 of its bytes."""
    found = _array(rows)
    if as_base64:
        return [base64.b64encode(row.tobytes()).decode() for row in found]
    return _in_json(found)


def _array(rows: Rows) -> np.ndarray:
    return np.frombuffer(rows.data, "<f4").reshape(rows.count, rows.width)


def _in_json(found: np.ndarray) -> list[Any]:
    """Each row in JSON, one after the other: between them other threads go on."""
    return [msgspec.Raw(msgspec.json.encode(row.tolist())) for row in found]
