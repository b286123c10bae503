"""litellm, by way of three APIs."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from common import ARGUMENTS, ASK, COLOUR, PICTURE, RESULT, SEE, ok, scripted, url

litellm.telemetry = False
TOOL = {"type": "function", "function": {"name": "paint", "parameters": COLOUR, "strict": True}}
WAYS = {"openai": "/v1", "hosted_vllm": "/v1", "anthropic": "", "ollama_chat": ""}


def ask(way: str, model: str = "stories", at: str = url, **more: Any) -> Any:
    messages = [{"role": "user", "content": ASK}]
    options = {"messages": messages, "max_tokens": 12, "temperature": 0, "timeout": 60, **more}
    base, key = at + WAYS[way], "none"
    return litellm.completion(model=f"{way}/{model}", api_base=base, api_key=key, **options)


def failure(way: str) -> str:
    """Why a model that is absent does not answer."""
    try:
        return f"it answers {ask(way, 'absent')}"
    except (litellm.exceptions.NotFoundError, litellm.exceptions.APIConnectionError) as error:
        return f"{error}"


texts = set()
for way in WAYS:
    client = f"litellm, {way}/"
    whole = ask(way)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens == 12, (way, whole)
    texts.add(text)
    ok(client, "chat")
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(way, stream=True)]
    assert "".join(pieces) == text and len(pieces) > 5, (way, pieces)
    ok(client, "stream")
    why = failure(way)
    assert "there is no model" in why, (way, why)
    ok(client, "errors")

    able: dict[str, Any] = {"at": scripted, "tools": [TOOL], "max_tokens": 200}
    message = ask(way, **able).choices[0].message
    pieces = list(ask(way, stream=True, **able))
    built = litellm.stream_chunk_builder(pieces).choices[0].message
    for one in (message, built):
        (call,) = one.tool_calls
        assert call.function.name == "paint", (way, one)
        assert json.loads(call.function.arguments) == ARGUMENTS, (way, one)
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    history = [{"role": "user", "content": ASK}, message.model_dump(), result]
    after = ask(way, messages=history, **able).choices[0].message
    assert RESULT in after.content and not after.tool_calls, (way, after)
    ok(client, "tools")

    if way != "ollama_chat":  # no choice of tools there
        found = ask(way, tools=[TOOL], tool_choice="required", max_tokens=60)
        (call,) = found.choices[0].message.tool_calls
        assert call.function.name == "paint", call
        assert json.loads(call.function.arguments)["colour"] in ("red", "blue"), call
        ok(client, "tool choice")

    schema = {"name": "c", "schema": COLOUR, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    found = ask(way, response_format=form, max_tokens=40)
    assert json.loads(found.choices[0].message.content)["colour"] in ("red", "blue"), found
    ok(client, "structured answers")

    link = f"data:image/png;base64,{PICTURE}"
    content = [{"type": "image_url", "image_url": {"url": link}}, {"type": "text", "text": SEE}]
    found = ask(way, "shapes", messages=[{"role": "user", "content": content}])
    assert found.choices[0].message.content and found.usage.prompt_tokens > 20, (way, found)
    ok(client, "pictures")
assert len(texts) == 1, texts  # one model, one text

for way in ("openai", "hosted_vllm", "ollama_chat"):
    provider = way.removesuffix("_chat")
    rows = litellm.embedding(
        model=f"{provider}/stories",
        input=["a dog", "a cat"],
        api_base=url + WAYS[way],
        api_key="none",
    )
    assert len(rows.data) == 2 and len(rows.data[0]["embedding"]) > 8, rows
    ok(f"litellm, {way}/", "embeddings")
