"""The shape of answers: where llama.cpp's server and ours differ, there is a reason."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest

from tests.peers.servers import ASK, GREEDY, PROMPT, STORIES, both, differences, events

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SHORT: Any = {**GREEDY, "max_tokens": 6}
STREAM: Any = {**SHORT, "stream": True, "stream_options": {"include_usage": True}}
SCHEMA: Any = {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}
LONG: Any = [{"role": "user", "content": "a " * 2000}]
REQUESTS: dict[str, tuple[str, Any]] = {
    "chat": (CHAT, {**SHORT, "messages": ASK}),
    "chat likely": (CHAT, {**SHORT, "messages": ASK, "logprobs": True, "top_logprobs": 2}),
    "chat stream": (CHAT, {**STREAM, "messages": ASK}),
    "text": (COMPLETIONS, {**SHORT, "prompt": PROMPT}),
    "text likely": (COMPLETIONS, {**SHORT, "prompt": PROMPT, "logprobs": 2}),
    "text stream": (COMPLETIONS, {**STREAM, "prompt": PROMPT}),
    "own": ("/completion", {**GREEDY, "prompt": PROMPT, "n_predict": 6, "n_probs": 2}),
    "own stream": ("/completion", {**STREAM, "prompt": PROMPT, "n_predict": 6}),
    "response": (RESPONSES, {**GREEDY, "input": "A fox.", "max_output_tokens": 6}),
    "response stream": (RESPONSES, {**STREAM, "input": "A fox.", "max_output_tokens": 6}),
    "message": (MESSAGES, {**SHORT, "messages": ASK[1:]}),
    "message stream": (MESSAGES, {**STREAM, "messages": ASK[1:]}),
    "count": (f"{MESSAGES}/count_tokens", {"messages": ASK[1:]}),
    "tokens": ("/tokenize", {"content": PROMPT, "with_pieces": True}),
    "no tokens": ("/detokenize", {"tokens": []}),
    "template": ("/apply-template", {"messages": ASK}),
    "models": ("/v1/models", None),
    "props": ("/props", None),
    "health": ("/health", None),
    "wrong messages": (CHAT, {"messages": 3}),
    "no messages": (CHAT, {}),
    "wrong part": (CHAT, {"messages": [{"role": "user", "content": [{"type": "x"}]}]}),
    "wrong schema": (CHAT, {"messages": ASK, "response_format": SCHEMA}),
    "too long": (CHAT, {"messages": LONG}),
    "no prompt": (COMPLETIONS, {}),
    "empty prompt": (COMPLETIONS, {"prompt": []}),
    "unknown token": (COMPLETIONS, {"prompt": [10**6]}),
    "wrong tokens": ("/detokenize", {"tokens": ["a"]}),
    "absent": ("/v1/absent", {}),
}
# Where the answers differ (see `differences`), by the name of a request and the place.
REASONS: dict[str, list[str]] = {
    "OpenAI's, which llama-server leaves out": [
        "chat*: +*.logprobs",
        "chat*: +*.refusal",
        "chat stream: +*.usage",
        "text stream: +*.usage",
        "*: +*.usage.completion_tokens_details",
        "*: +*.usage.prompt_tokens_details.audio_tokens",
        "response*: +*",
    ],
    "Anthropic's, which llama-server leaves out": ["message*: +*.usage.*"],
    "an answer that was cut is not completed": ["response*: ~*.completed_at"],
    "OpenAI's first chunk has an empty text": ["chat stream: ~.choices[].delta.content"],
    "OpenAI's log-probabilities have no ids": ["chat likely: -*.id"],
    "OpenAI's log-probabilities of completions are lists by themselves": [
        "text likely: ?.choices[].logprobs.*",
    ],
    "times are in the last chunk with a choice": ["*: ?.timings"],
    "OpenAI's counts come in a chunk of their own": ["text stream: ~.choices[].finish_reason"],
    "samplers have options of their own": ["own*: -.generation_settings.*", "props: -*.params.*"],
    "belongs to llama-server's page, router or options": [
        "props: -.*",
        "models: -.data[].tags",
        "models: -.data[].aliases",
    ],
    "a mode of ours": ["props: +.deterministic"],
    "stands in meta": ["models: -.data[].architecture", "models: +.data[].meta.*"],
    "of ggml's enumerations": ["models: -.data[].meta.*"],
    "the rest of Ollama's list is at /api/tags": ["models: -.models[].*"],
    "the state of each model": ["health: +.models"],
    "which engine computes a model, and whether it is loaded": ["models: +.data[].*"],
    "vLLM's name of the text": ["no tokens: +.prompt"],
    "OpenAI's code is a word or null, its param the field": [
        "*: ~.error.code",
        "*: +.error.param",
    ],
    "OpenAI's error of the context has a code, its numbers stand in the message": [
        "too long: -.error.n_*",
    ],
}


def answer(client: Any, path: str, body: Any) -> tuple[int, Any]:
    """The status and the answer; of a stream, the events but pings that begin and end it."""
    found = client.get(path) if body is None else client.post(path, json=body)
    if not (body and body.get("stream")):
        return found.status_code, found.json()
    told = [event for event in events(found.text) if event.get("type") != "ping"]
    return found.status_code, [told[0], told[1], told[-2], told[-1]]


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[list[int], list[str]]]:
    """By request: both statuses, and where the answers differ."""
    answers: dict[str, tuple[list[int], list[str]]] = {}
    with both(STORIES) as servers:
        for name, (path, body) in REQUESTS.items():
            (status, ours), (other, theirs) = (answer(client, path, body) for client in servers)
            streamed = bool(body) and body.get("stream")
            pairs = zip(ours, theirs, strict=True) if streamed else [(ours, theirs)]
            places = [place for pair in pairs for place in differences(*pair)]
            answers[name] = [status, other], places
    return answers


def explained(name: str, place: str, pattern: str) -> bool:
    """Whether a pattern is of this difference; ? is + or -."""
    literal = pattern.replace("[]", "[[]]")
    return fnmatchcase(f"{name}: {place}", literal)


@pytest.mark.parametrize("name", REQUESTS)
def test_differences_have_reasons(found: dict[str, Any], name: str):
    statuses, places = found[name]
    assert statuses[0] == statuses[1]
    patterns = [one for listed in REASONS.values() for one in listed]
    unknown = [p for p in places if not any(explained(name, p, one) for one in patterns)]
    assert not unknown


def test_no_reason_is_superfluous(found: dict[str, Any]):
    all_places = [(name, place) for name, (_, places) in found.items() for place in places]
    for reason, patterns in REASONS.items():
        for pattern in patterns:
            assert any(explained(*one, pattern) for one in all_places), (reason, pattern)
