"""Spans of OpenTelemetry, one a request to a model, where a program has set OpenTelemetry up.

Nothing is imported and nothing costs time unless the process has a provider of tracers, as
`opentelemetry-instrument` makes one. Names are those of the semantic conventions for generative AI.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .monitoring import RequestRecord

_CHAT, _TEXT, _ROWS = "chat", "text_completion", "embeddings"
_OPERATIONS = {
    "/v1/chat/completions": _CHAT,
    "/v1/responses": _CHAT,
    "/responses": _CHAT,
    "/v1/messages": _CHAT,
    "/api/chat": _CHAT,
    "/v1/completions": _TEXT,
    "/completion": _TEXT,
    "/completions": _TEXT,
    "/infill": _TEXT,
    "/api/generate": _TEXT,
    "/v1/embeddings": _ROWS,
    "/embeddings": _ROWS,
    "/embedding": _ROWS,
    "/api/embed": _ROWS,
    "/api/embeddings": _ROWS,
}
_OPTIONS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "frequency_penalty",
    "presence_penalty",
)


def record_span(scope: Mapping[str, Any], request: RequestRecord) -> None:
    """Records the span of a request that has ended, if its path has a model answer and a provider
    of tracers exists. The header `traceparent` names its parent."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    operation = _OPERATIONS.get(scope["path"])
    if trace is None or operation is None:
        return
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):  # nobody has set one
        return
    from opentelemetry.propagate import extract

    from .. import __version__

    now, elapsed = time.time_ns(), time.monotonic() - request.began
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    model = request.model or request.answered
    span = provider.get_tracer("ggmodel", __version__).start_span(
        f"{operation} {model}".rstrip(),
        context=extract(headers),
        kind=trace.SpanKind.SERVER,
        start_time=now - int(elapsed * 1e9),
        attributes=_attributes(operation, scope, request),
    )
    if request.status >= 400:
        span.set_status(trace.Status(trace.StatusCode.ERROR))
    span.end(now)


def _attributes(operation: str, scope: Mapping[str, Any], request: RequestRecord) -> dict[str, Any]:
    host, port = scope.get("server") or ("", None)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "ggmodel",
        "gen_ai.request.model": request.model or None,
        "gen_ai.response.model": request.answered or None,
        "gen_ai.usage.input_tokens": request.read,
        "gen_ai.usage.output_tokens": request.written,
        "gen_ai.response.time_to_first_chunk": request.first,
        "http.request.method": scope["method"],
        "http.response.status_code": request.status,
        "url.path": scope["path"],
        "server.address": host or None,
        "server.port": port,
        "error.type": str(request.status) if request.status >= 400 else None,
        "ggmodel.request.id": request.id,
    }
    if request.finished:
        reused = sum(one.reused_tokens for one in request.finished)
        attributes["gen_ai.usage.cache_read.input_tokens"] = reused
        reasons = [one.reason for one in request.finished]
        attributes["gen_ai.response.finish_reasons"] = reasons
    for name in _OPTIONS:
        attributes[f"gen_ai.request.{name}"] = request.options.get(name)
    return {name: value for name, value in attributes.items() if value is not None}
