"""Spans of OpenTelemetry, recorded by a provider of the tests."""

from __future__ import annotations

import sys
import time
from typing import Any

import httpx
import pytest

trace = pytest.importorskip("opentelemetry.trace")

CHAT = "/v1/chat/completions"
ASKED: Any = {
    "model": "stories",
    "messages": [{"role": "user", "content": "A story, please."}],
    "max_tokens": 5,
    "temperature": 0.5,
    "logit_bias": {"1": -100, "4": -100},
}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Span(trace.NonRecordingSpan):
    """A span that keeps what it is told."""

    def __init__(self, name: str, fields: dict[str, Any]):
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.name, self.fields = name, fields
        self.status: Any = None
        self.ended: int | None = None

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = status

    def end(self, end_time: int | None = None) -> None:
        self.ended = end_time


class Provider(trace.NoOpTracerProvider):
    """Keeps the spans of its tracers."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def get_tracer(self, *_: Any, **__: Any) -> Any:
        return self

    def start_span(self, name: str, **fields: Any) -> Span:
        self.spans.append(Span(name, fields))
        return self.spans[-1]

    def last(self, count: int = 1) -> Span:
        """The last of so many; a span follows the end of its answer."""
        end = time.monotonic() + 10
        while len(self.spans) < count and time.monotonic() < end:
            time.sleep(0.01)
        assert len(self.spans) == count
        return self.spans[-1]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    found = Provider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: found)
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_tells_what_was_asked_and_answered(
    http: httpx.Client, provider: Provider, stream: bool
):
    before = time.time_ns()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    answer = http.post(CHAT, json={**ASKED, "stream": stream}, headers=headers)
    assert answer.status_code == 200
    span = provider.last()
    found = span.fields["attributes"]
    assert span.name == "chat stories" and span.status is None
    assert span.fields["kind"] is trace.SpanKind.SERVER
    assert before <= span.fields["start_time"] < (span.ended or 0) <= time.time_ns()
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "ggmodel",
        "gen_ai.request.model": "stories",
        "gen_ai.response.model": "stories",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
        "http.response.status_code": 200,
        "ggmodel.request.id": "mine",
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["gen_ai.usage.input_tokens"] > 3
    seconds = (span.ended - span.fields["start_time"]) / 1e9  # type: ignore[operator]
    assert 0 < found["gen_ai.response.time_to_first_chunk"] < seconds
    assert "please" not in str(found)
    context = trace.get_current_span(span.fields["context"]).get_span_context()
    assert f"{context.trace_id:032x}" == TRACE and f"{context.span_id:016x}" == PARENT


def test_spans_of_other_operations_and_of_errors(http: httpx.Client, provider: Provider):
    http.post("/v1/embeddings", json={"input": "Hello"})
    rows = provider.last().fields["attributes"]
    assert provider.last().name == "embeddings stories"  # the model's own name
    assert "gen_ai.request.model" not in rows
    assert rows["gen_ai.usage.input_tokens"] > 0 == rows["gen_ai.usage.output_tokens"]
    http.post(CHAT, json={**ASKED, "model": "absent"})
    failed = provider.last(2)
    assert failed.fields["attributes"]["error.type"] == "404"
    assert failed.status.status_code is trace.StatusCode.ERROR
    http.get("/health")
    http.get("/v1/models")
    assert len(provider.spans) == 2


def test_nothing_is_recorded_unless_somebody_wants_it(
    http: httpx.Client, provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    assert http.post(CHAT, json=ASKED).status_code == 200
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert http.post(CHAT, json=ASKED).status_code == 200
    assert not provider.spans
