"""/api/embed, and /api/embeddings, its older form."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from starlette.routing import Route

from ....bounds import limits
from ...endpoint import Answers, Call, Handler, route
from ...errors import Refused
from ...requests import Embed, Rows
from ...server import Server
from .answered import Embedded, EmbeddedText
from .options import KeepAlive, keep_alive, options_of
from .shapes import OLLAMA, Clock


class EmbedRequest(Struct, kw_only=True):
    """Texts; without any, a model to be loaded."""

    model: str
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


class EmbeddingRequest(Struct, kw_only=True):
    """One text."""

    model: str
    prompt: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


def routes(server: Server) -> list[Route]:
    def post(path: str, handler: Handler, body: type, kind: type) -> Route:
        return route("POST", path, handler, server, OLLAMA, body, answers=Answers(kind))

    return [
        post("/api/embed", embed, EmbedRequest, Embedded),
        post("/api/embeddings", embedding, EmbeddingRequest, EmbeddedText),
    ]


async def embed(call: Call) -> None:
    """Embed texts, in Ollama's shape."""
    given, clock = await call.decode(EmbedRequest), Clock()
    texts = [given.input] if isinstance(given.input, str) else given.input or []
    if len(texts) > limits.serve_prompts:
        raise Refused(
            f"input: {len(texts)} texts are more than the limit serve_prompts of "
            f"{limits.serve_prompts}",
            param="input",
        )
    wanted = Embed([*texts], truncate=given.truncate is not False, dimensions=given.dimensions)
    rows = await _rows(call, given, wanted, clock)
    await call.json(
        {
            "model": given.model,
            "embeddings": _listed(rows),
            **clock.so_far(),
            "prompt_eval_count": sum(rows.tokens),
        }
    )


async def embedding(call: Call) -> None:
    """Embed one text, in Ollama's older shape."""
    given = await call.decode(EmbeddingRequest)
    texts: list[Any] = [given.prompt] if given.prompt else []
    rows = await _rows(call, given, Embed(texts, normalize=False, truncate=True), Clock())
    await call.json({"embedding": next(iter(_listed(rows)), [])})


async def _rows(
    call: Call, given: EmbedRequest | EmbeddingRequest, wanted: Embed, clock: Clock
) -> Rows:
    _, loading = options_of(given.options)
    stays = keep_alive(given.keep_alive)
    async with call.server.models.use(given.model, keep_alive=stays, **loading) as runner:
        clock.loaded()
        return await runner.embed(wanted) if wanted.texts else Rows(b"", 0, 0, [])


def _listed(rows: Rows) -> list[list[float]]:
    return np.frombuffer(rows.data, "<f4").reshape(rows.count, rows.width).tolist()
