"""Valid requests of all APIs, which are changed at random."""

from __future__ import annotations

import base64
from functools import cache
from random import Random
from typing import Any

from tests.fuzz.images import pictures
from tests.fuzz.parent import ROOT
from tests.fuzz.sounds import sounds

ASSETS = ROOT / "examples" / "assets"
MODELS = {"stories": "stories.gguf", "eyes": "shapes.gguf", "ears": "tones.gguf"}
_USER = {"role": "user", "content": "A story, please."}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
_SAMPLING = {
    "temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 3, "stop": ["x", "END"],
    "frequency_penalty": 0.1, "presence_penalty": 0.1, "repeat_penalty": 1.1,
    "logit_bias": {"5": 1.5}, "n": 1, "max_tokens": 3, "stream": False,
}  # fmt: skip
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
_OPTIONS = {"num_predict": 3, "temperature": 0.5, "top_k": 10, "stop": ["x"]}
_FUNCTION = {"name": "weather", **_TOOL["function"]}  # type: ignore[dict-item]

Body = tuple[str, str, Any]  # method, path, JSON; None for no body

# Requests that are answered without computing.
PATHS = (
    "/", "/health", "/v1/health", "/metrics", "/openapi.json", "/props", "/slots", "/models",
    "/v1/models", "/v1/models/stories", "/v1/models/none", "/tokenizer_info", "/api/tags",
    "/api/ps", "/api/version", "/v1/responses/resp_1", "/v1/responses/x/input_items",
    "/page/page.js", "/page/../app.py", "/page/%2e%2e/app.py", "/absent", "//", "/api/",
    "/v1/messages/x",
)  # fmt: skip
METHODS = (
    *("GET", "GET", "GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "CONNECT"),
    *("TRACE", "PRI", "get", "X" * 300, "G\x7fT"),
)


@cache
def bodies() -> list[Body]:
    """A request of each kind to each endpoint that takes JSON."""
    chat = {"model": "stories", "messages": [{"role": "system", "content": "Be brief."}, _USER]}
    asked = {"model": "stories", "prompt": "Once upon a time", **_SAMPLING}
    ollama = {"model": "stories", "stream": False, "options": _OPTIONS}
    response = {"model": "stories", "input": "Hi", "max_output_tokens": 3, "store": True}
    message = {"model": "stories", "messages": [_USER], "max_tokens": 3, "system": "Be brief."}
    documents = {"query": "a fox", "documents": ["an owl", "the fox"], "model": "stories"}
    called = [
        {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]  # fmt: skip
    blocks = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    posts: list[tuple[str, Any]] = [
        ("/v1/chat/completions", chat | _SAMPLING),
        ("/v1/chat/completions", chat | {"stream": True, "max_tokens": 8, "logprobs": True}),
        ("/v1/chat/completions", chat | {"tools": [_TOOL], "tool_choice": "auto", "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [_USER, *called, _USER], "max_completion_tokens": 2}),
        ("/v1/chat/completions", chat | {"max_tokens": 4, "response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}}),
        ("/v1/chat/completions", chat | {"chat_template": "{{ messages[0].content }}",
            "chat_template_kwargs": {"a": 1}, "max_tokens": 2}),
        ("/v1/chat/completions/input_tokens", chat),
        ("/v1/completions", asked | {"echo": True, "logprobs": 2, "suffix": None}),
        ("/v1/completions", asked | {"prompt": [[1, 5, 9], [7]], "stream": True}),
        ("/v1/completions", asked | {"guided_regex": "[a-z]+"}),
        ("/v1/completions", asked | {"grammar": 'root ::= "a" | "b"'}),
        ("/v1/embeddings", {"model": "stories", "input": ["a", "b c"], "dimensions": 4}),
        ("/v1/embeddings", {"model": "stories", "input": [[1, 2]], "encoding_format": "base64"}),
        ("/v1/responses", response | {"instructions": "Be brief.", "temperature": 0.5}),
        ("/v1/responses", response | {"input": [_USER], "stream": True, "tools": [
            {"type": "function", **_TOOL["function"]}]}),  # type: ignore[dict-item]
        ("/v1/responses/input_tokens", response),
        ("/v1/messages", message | {"stop_sequences": ["x"], "temperature": 0.5, "top_k": 5}),
        ("/v1/messages", message | {"stream": True, "messages": [
            {"role": "user", "content": blocks}], "thinking": {"type": "disabled"}}),
        ("/v1/messages", message | {"tools": [{"name": "weather", "input_schema": _SCHEMA}]}),
        ("/v1/messages/count_tokens", {"model": "stories", "messages": [_USER]}),
        ("/api/chat", ollama | {"messages": [_USER], "format": _SCHEMA}),
        ("/api/chat", ollama | {"messages": [_USER], "stream": True, "tools": [_TOOL]}),
        ("/api/generate", ollama | {"prompt": "Once", "system": "s", "context": [1, 2]}),
        ("/api/generate", ollama | {"prompt": "Once", "raw": True, "stream": True}),
        ("/api/generate", ollama | {"prompt": "Once", "template": "{{ .Prompt }}"}),
        ("/api/embed", {"model": "stories", "input": ["a", "b"], "truncate": True}),
        ("/api/embeddings", {"model": "stories", "prompt": "a"}),
        ("/api/show", {"model": "stories", "verbose": True}),
        ("/api/create", {"model": "made0", "from": "stories", "system": "s", "stream": False,
            "parameters": {"temperature": 0.5}, "messages": [_USER]}),
        ("/api/copy", {"source": "made0", "destination": "made1"}),
        ("/api/pull", {"model": "org/none", "stream": False}),
        ("/api/blobs/sha256:" + "0" * 64, {}),
        ("/tokenize", {"prompt": "a fox", "return_token_strs": True}),
        ("/tokenize", {"messages": [_USER], "add_generation_prompt": True}),
        ("/tokenize", {"content": "a fox", "with_pieces": True, "parse_special": True}),
        ("/detokenize", {"tokens": [1, 2, 3]}),
        ("/apply-template", {"messages": [_USER]}),
        ("/rerank", documents | {"top_n": 1, "return_documents": True}),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c"], "model": "stories"}),
        ("/completion", {"prompt": "Once", "n_predict": 3, "n_probs": 2, "return_tokens": True}),
        ("/completion", {"prompt": "Once", "stream": True, "json_schema": _SCHEMA, "n_keep": 2}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [], "n_predict": 2}),
    ]  # fmt: skip
    deletes: list[Body] = [("DELETE", "/api/delete", {"model": f"made{i}"}) for i in range(2)]
    return [("POST", path, body) for path, body in posts] + deletes


def with_media(random: Random, raw: bytes | None = None) -> Body:
    """A question about a picture or a sound: of these bytes, or a good one."""
    sees = random.random() < 0.7
    if raw is None:
        raw = random.choice(pictures() if sees else sounds())
    data = base64.b64encode(raw).decode()
    user: dict[str, Any] = {"role": "user"}
    ask: dict[str, Any] = {"model": "eyes" if sees else "ears", "messages": [user], "max_tokens": 2}
    if not sees:
        sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        user["content"] = [{"type": "text", "text": "what?"}, sound]
        return "POST", "/v1/chat/completions", ask
    kind = random.randrange(3)
    if kind == 0:
        link = {"url": f"data:image/png;base64,{data}"}
        user["content"] = [{"type": "image_url", "image_url": link}] * random.choice([1, 1, 1, 8])
        return "POST", "/v1/chat/completions", ask
    if kind == 1:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        user["content"] = [{"type": "image", "source": source}]
        return "POST", "/v1/messages", ask
    user |= {"content": "what?", "images": [data]}
    return "POST", "/api/chat", ask | {"stream": False, "options": {"num_predict": 2}}
