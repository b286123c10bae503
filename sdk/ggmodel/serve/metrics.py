"""Numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .pool import Listed
from .request_log import note_tokens
from .requests import Ended

_MODELS = 256  # names that are counted apart; requests may spell them as they like
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts of a server since its start, and its state when asked."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._names: set[str] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ggmodel_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"ggmodel_{name}", text, ("model",), registry=registry)

        def seconds(name: str, text: str, label: str) -> Histogram:
            name = f"ggmodel_{name}_seconds"
            return Histogram(name, text, (label,), registry=registry, buckets=_SECONDS)

        self._requests = counter("requests", "Requests answered", "path", "status")
        self._prompt = counter("prompt_tokens", "Tokens of prompts", "model")
        self._reused = counter(
            "reused_tokens", "Tokens of prompts that were in the prefix cache", "model"
        )
        self._completion = counter("completion_tokens", "Tokens generated", "model")
        self._drafted = counter("drafted_tokens", "Draft tokens computed", "model")
        self._accepted = counter("accepted_tokens", "Draft tokens accepted", "model")
        self._duration = seconds("request", "Time of requests", "path")
        self._first = seconds("first_token", "Time to the first token", "model")
        self._queue = seconds("queue", "Time before the first step", "model")
        self._running = gauge("requests_running", "Sequences in the running batch")
        self._waiting = gauge("requests_waiting", "Requests that wait for a free slot")
        self._parallel = gauge("sequences", "Slots")
        self._nbytes = gauge("model_bytes", "Memory of weights, KV cache and graphs")

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Notes a request that is done.

        Args:
            path: of the route, without its parameters' values.
        """
        self._requests.labels(path, str(status)).inc()
        self._duration.labels(path).observe(seconds)

    def generated(self, model: str, ended: Ended, first: float | None) -> None:
        """Notes an answer of a model that is complete.

        Args:
            model: its own name; those that requests call it by could be many.
            first: seconds to the first token; None without any.
        """
        note_tokens(ended.prompt_tokens, ended.completion_tokens)
        model = self._label(model)
        self._prompt.labels(model).inc(ended.prompt_tokens)
        self._reused.labels(model).inc(ended.reused_tokens)
        self._completion.labels(model).inc(ended.completion_tokens)
        self._drafted.labels(model).inc(ended.drafted)
        self._accepted.labels(model).inc(ended.accepted)
        self._queue.labels(model).observe(ended.queue_seconds)
        if first is not None:
            self._first.labels(model).observe(first)

    def read(self, model: str, tokens: int) -> None:
        """Notes a prompt that was computed without an answer, such as a text to embed."""
        note_tokens(tokens)
        self._prompt.labels(self._label(model)).inc(tokens)

    def _label(self, model: str) -> str:
        if model not in self._names:
            if len(self._names) >= _MODELS:
                return "others"
            self._names.add(model)
        return model

    def page(self, models: Iterable[Listed]) -> bytes:
        """All numbers in Prometheus' format of text."""
        for gauge in (self._running, self._waiting, self._parallel, self._nbytes):
            gauge.clear()
        for model in models:
            if (state := model.state) is None:
                continue
            self._running.labels(model.name).set(state.running)
            self._waiting.labels(model.name).set(state.waiting)
            self._parallel.labels(model.name).set(state.parallel)
            self._nbytes.labels(model.name).set(state.nbytes)
        return generate_latest(self.registry)
