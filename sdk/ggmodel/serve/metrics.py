"""Numbers for Prometheus: ours, and the same under the names of llama-server and vLLM."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from .monitoring import note_answer, note_read
from .pool import ListedModel
from .requests import Finished, Ranks, Rows, Steps
from .under_way import UnderWay

_MODELS = 256  # names that are counted apart; requests may spell them as they like
_PROCESSES = 4096  # whose steps are remembered
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_GAPS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
_TOKENS = tuple(float(2**n) for n in range(18))

# Names of other servers → ours, without "ggmodel_". llama-server's are of all models together, as
# its own, which have no labels; vLLM's have the label `model_name`.
_LLAMA_SERVER = {
    "prompt_tokens": "prefilled_tokens",
    "prompt_tokens_cached": "reused_tokens",
    "prompt_seconds": "prefill_seconds",
    "prompt_tokens_seconds": "prefill_speed",
    "tokens_predicted": "completion_tokens",
    "tokens_predicted_seconds": "decode_seconds",
    "predicted_tokens_seconds": "decode_speed",
    "requests_processing": "requests_running",
    "requests_deferred": "requests_waiting",
    "n_tokens_max": "longest_sequence",
    "kv_cache_usage_ratio": "kv_cache_usage",
    "kv_cache_tokens": "kv_cache_tokens",
    "spec_decode_num_draft_tokens": "drafted_tokens",
    "spec_decode_num_accepted_tokens": "accepted_tokens",
    "spec_decode_num_drafts": "drafts",
    "n_decode": "steps",
    "n_busy_slots_per_decode": "sequences_per_step",
}
# It never falls, and llama-server calls it a counter; those of the client's library end in _total.
_GAUGE, _COUNTER = (b"# TYPE llamacpp:n_tokens_max " + kind for kind in (b"gauge", b"counter"))
_ADDED = ("_running", "_waiting", "_tokens")  # gauges that add up
_VLLM = {
    "num_requests_running": "requests_running",
    "num_requests_waiting": "requests_waiting",
    "kv_cache_usage_perc": "kv_cache_usage",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "completion_tokens",
    "prefix_cache_queries": "prompt_tokens",
    "prefix_cache_hits": "reused_tokens",
    "spec_decode_num_draft_tokens": "drafted_tokens",
    "spec_decode_num_accepted_tokens": "accepted_tokens",
    "spec_decode_num_drafts": "drafts",
    "request_success": "answers",
    "time_to_first_token_seconds": "first_token_seconds",
    "inter_token_latency_seconds": "token_gap_seconds",
    "e2e_request_latency_seconds": "answer_seconds",
    "request_queue_time_seconds": "queue_seconds",
    "request_prefill_time_seconds": "prefill_time_seconds",
    "request_decode_time_seconds": "decode_time_seconds",
    "request_prompt_tokens": "prompt_length",
    "request_generation_tokens": "answer_length",
}
_LABELS = {"model": "model_name", "reason": "finished_reason"}  # ours → vLLM's


class _Others:
    """The numbers of a registry under the names of other servers."""

    def __init__(self, own: CollectorRegistry):
        self._own = own

    def collect(self) -> Iterator[Metric]:
        ours = {one.name: one for one in self._own.collect()}
        for name, own in _LLAMA_SERVER.items():
            yield _together(ours[f"ggmodel_{own}"], f"llamacpp:{name}")
        for name, own in _VLLM.items():
            yield _renamed(ours[f"ggmodel_{own}"], f"vllm:{name}")


def _renamed(metric: Metric, name: str) -> Metric:
    other = Metric(name, metric.documentation, metric.type)
    for sample in metric.samples:
        kept = {_LABELS.get(label, label): value for label, value in sample.labels.items()}
        other.add_sample(name + sample.name[len(metric.name) :], kept, sample.value)
    return other


def _together(metric: Metric, name: str) -> Metric:
    """The sum over all models; of speeds, shares and lengths the largest."""
    other = Metric(name, metric.documentation, metric.type)
    values = [sample.value for sample in metric.samples if not sample.name.endswith("_created")]
    sums = metric.type == "counter" or metric.name.endswith(_ADDED)
    value = sum(values) if sums else max(values, default=0.0)
    other.add_sample(name + ("_total" if metric.type == "counter" else ""), {}, value)
    return other


@dataclass
class _Totals:
    """Sums of a model's answers: tokens, the seconds that they took, and steps."""

    prefilled: int = 0
    prefill: float = 0.0
    decoded: int = 0
    decode: float = 0.0
    longest: int = 0
    steps: int = 0
    sequences: int = 0

    def add(self, finished: Finished) -> None:
        prompt, completion = finished.prompt_tokens, finished.completion_tokens
        self.prefilled += max(0, prompt - finished.reused_tokens)
        self.prefill += finished.prompt_seconds
        self.decoded += completion
        self.decode += finished.decode_seconds
        self.longest = max(self.longest, prompt + completion)


class Metrics:
    """Counts of a server since its start, and its state when asked.

    Attributes:
        began: seconds since 1970. under_way: answers that are not complete.
    """

    def __init__(self) -> None:
        self.began = time.time()
        self.registry = registry = CollectorRegistry()
        self._all = CollectorRegistry()
        for one in (registry, _Others(registry)):
            self._all.register(one)  # type: ignore[arg-type]
        self.under_way = UnderWay()
        self._names: set[str] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ggmodel_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"ggmodel_{name}", text, ("model",), registry=registry)

        def histogram(
            name: str, text: str, label: str = "model", buckets: Sequence[float] = _SECONDS
        ) -> Histogram:
            return Histogram(f"ggmodel_{name}", text, (label,), registry=registry, buckets=buckets)

        self._requests = counter("requests", "Requests answered", "path", "status")
        self._answers = counter("answers", "Answers, by the reason of their end", "model", "reason")
        self._prompt = counter("prompt_tokens", "Tokens of prompts", "model")
        self._reused = counter(
            "reused_tokens", "Tokens of prompts that were in the prefix cache", "model"
        )
        self._prefilled = counter("prefilled_tokens", "Tokens of prompts computed", "model")
        self._prefill = counter("prefill_seconds", "Time of computing prompts", "model")
        self._completion = counter("completion_tokens", "Tokens generated", "model")
        self._decode = counter("decode_seconds", "Time of generating tokens", "model")
        self._drafted = counter("drafted_tokens", "Draft tokens computed", "model")
        self._accepted = counter("accepted_tokens", "Draft tokens accepted", "model")
        self._drafts = counter("drafts", "Steps of answers with draft tokens", "model")
        self._steps = counter("steps", "Steps of the model", "model")
        self._sequences = counter("step_sequences", "Sequences in all steps", "model")
        self._duration = histogram("request_seconds", "Time of requests", "path")
        self._first = histogram("first_token_seconds", "Time to the first token")
        self._gap = histogram("token_gap_seconds", "Time between tokens", buckets=_GAPS)
        self._answer = histogram("answer_seconds", "Time to the last token")
        self._queue = histogram("queue_seconds", "Time before the first step")
        self._prefill_time = histogram("prefill_time_seconds", "Time of computing a prompt")
        self._decode_time = histogram("decode_time_seconds", "Time of generating an answer")
        self._prompt_length = histogram("prompt_length", "Tokens of a prompt", buckets=_TOKENS)
        self._answer_length = histogram("answer_length", "Tokens of an answer", buckets=_TOKENS)
        self._running = gauge("requests_running", "Sequences in the running batch")
        self._waiting = gauge("requests_waiting", "Requests that wait for a free slot")
        self._parallel = gauge("sequences", "Slots")
        self._nbytes = gauge("model_bytes", "Memory of weights, KV cache and graphs")
        self._cells = gauge("kv_cache_tokens", "Positions that answers under way take")
        self._usage = gauge("kv_cache_usage", "The same as a share of the positions of all slots")
        self._longest = gauge("longest_sequence", "Tokens of the longest prompt with its answer")
        self._prefill_speed = gauge("prefill_speed", "Tokens of prompts a second, on average")
        self._decode_speed = gauge("decode_speed", "Tokens of an answer a second, on average")
        self._batch = gauge("sequences_per_step", "Sequences in a step, on average")
        self._totals: defaultdict[str, _Totals] = defaultdict(_Totals)
        self._told: dict[str, Steps] = {}

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Notes a request that is done.

        Args:
            path: of the route, without its parameters' values.
        """
        self._requests.labels(path, str(status)).inc()
        self._duration.labels(path).observe(seconds)

    def generated(self, model: str, finished: Finished, times: Sequence[float]) -> None:
        """Notes an answer of a model that is complete.

        Args:
            model: its own name; those that requests call it by could be many.
            times: when the request began, and when each token came, in seconds.
        """
        prompt, completion = finished.prompt_tokens, finished.completion_tokens
        first = times[1] if len(times) > 1 else None
        note_answer(model, finished, first)
        model = self._label(model)
        self._answers.labels(model, finished.reason).inc()
        self._prompt.labels(model).inc(prompt)
        self._reused.labels(model).inc(finished.reused_tokens)
        self._prefilled.labels(model).inc(max(0, prompt - finished.reused_tokens))
        self._prefill.labels(model).inc(finished.prompt_seconds)
        self._completion.labels(model).inc(completion)
        self._decode.labels(model).inc(finished.decode_seconds)
        self._drafted.labels(model).inc(finished.drafted)
        self._accepted.labels(model).inc(finished.accepted)
        self._drafts.labels(model).inc(finished.drafts)
        self._note_steps(model, finished.steps)
        self._queue.labels(model).observe(finished.queue_seconds)
        self._prefill_time.labels(model).observe(finished.prompt_seconds)
        self._decode_time.labels(model).observe(finished.decode_seconds)
        self._prompt_length.labels(model).observe(prompt)
        self._answer_length.labels(model).observe(completion)
        self._answer.labels(model).observe(times[-1] - times[0])
        if first is not None:
            self._first.labels(model).observe(first - times[0])
        gap = self._gap.labels(model)
        for before, after in pairwise(times[1:]):
            gap.observe(after - before)
        self._totals[model].add(finished)

    def read(self, model: str, rows: Rows | Ranks) -> None:
        """Notes prompts that were computed without an answer, such as texts to embed."""
        tokens = sum(rows.tokens)
        note_read(model, tokens)
        model = self._label(model)
        self._prompt.labels(model).inc(tokens)
        self._prefilled.labels(model).inc(tokens)
        self._note_steps(model, rows.steps)

    def _note_steps(self, model: str, steps: Steps) -> None:
        told = self._told.pop(steps.process, Steps())
        # Answers may come out of their order.
        count, sequences = max(told.count, steps.count), max(told.sequences, steps.sequences)
        self._told[steps.process] = Steps(steps.process, count, sequences)
        if len(self._told) > _PROCESSES:
            del self._told[next(iter(self._told))]  # silent for longest
        self._steps.labels(model).inc(count - told.count)
        self._sequences.labels(model).inc(sequences - told.sequences)
        totals = self._totals[model]
        totals.steps += count - told.count
        totals.sequences += sequences - told.sequences

    def _label(self, model: str) -> str:
        if model not in self._names:
            if len(self._names) >= _MODELS:
                return "others"
            self._names.add(model)
        return model

    def page(self, models: Iterable[ListedModel]) -> bytes:
        """All numbers in Prometheus' format of text."""
        state_gauges = (self._running, self._waiting, self._parallel, self._nbytes)
        for gauge in (*state_gauges, self._cells, self._usage):
            gauge.clear()
        for model in models:
            if (state := model.state) is None:
                continue
            taken = self.under_way.positions(model.name, state.parallel)
            self._running.labels(model.name).set(state.running)
            self._waiting.labels(model.name).set(state.waiting)
            self._parallel.labels(model.name).set(state.parallel)
            self._nbytes.labels(model.name).set(state.nbytes)
            self._cells.labels(model.name).set(taken)
            whole = state.parallel * state.context_length
            self._usage.labels(model.name).set(min(1.0, taken / whole) if whole else 0.0)
        for model, totals in self._totals.items():
            self._longest.labels(model).set(totals.longest)
            self._prefill_speed.labels(model).set(_ratio(totals.prefilled, totals.prefill))
            self._decode_speed.labels(model).set(_ratio(totals.decoded, totals.decode))
            self._batch.labels(model).set(_ratio(totals.sequences, totals.steps))
        return generate_latest(self._all).replace(_GAUGE, _COUNTER)


def _ratio(count: int, divisor: float) -> float:
    return count / divisor if divisor else 0.0
