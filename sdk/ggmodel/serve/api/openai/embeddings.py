"""/v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any, Literal

from msgspec import Struct
from starlette.routing import Route

from ...asking import called
from ...endpoint import Answers, Call, route
from ...errors import Refused
from ...requests import Embed, Rows
from ...server import Server
from .answered import Embeddings
from .inputs import Input, inputs_of, only_ids
from .shapes import OPENAI


class EmbeddingRequest(Struct):
    """A request. The last line is no field of OpenAI's."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    truncate: bool = False
    keep_alive: float | None = None


def routes(server: Server) -> list[Route]:
    path, answers = "/v1/embeddings", Answers(Embeddings)
    return [route("POST", path, create, server, OPENAI, EmbeddingRequest, answers=answers)]


async def create(call: Call) -> None:
    """Turn texts into rows of numbers, similar ones for similar texts."""
    given = await call.decode(EmbeddingRequest)
    texts = inputs_of(given.input, "input")
    if not all(texts):
        raise Refused("input: a text is empty", param="input")
    if given.dimensions is not None and given.dimensions < 1:
        raise Refused("dimensions: give 1 or more", param="dimensions")
    async with call.server.models.use(given.model, keep_alive=given.keep_alive) as runner:
        texts = [await only_ids(runner, one) for one in texts]
        rows = await runner.embed(
            Embed(texts, truncate=given.truncate, dimensions=given.dimensions)
        )
        name = called(given.model, runner.state)
    count = sum(rows.tokens)
    call.server.metrics.read(runner.name, count)
    data = rows_of(rows, given.encoding_format == "base64")
    await call.json(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(data)
            ],
            "model": name,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
    )


def rows_of(rows: Rows, as_base64: bool) -> list[Any]:
    """Each row as a list of floats, or as base64 of its bytes."""
    size = 4 * rows.width
    parts = [rows.data[i * size : (i + 1) * size] for i in range(rows.count)]
    if as_base64:
        return [base64.b64encode(part).decode() for part in parts]
    return [memoryview(part).cast("f").tolist() for part in parts]
