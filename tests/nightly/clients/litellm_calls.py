"""litellm, by way of three APIs: python litellm_calls.py URL ASSETS."""

from __future__ import annotations

import base64
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

litellm.telemetry = False
url, assets = sys.argv[1:]
ASK = [{"role": "user", "content": "Tell me a story about a dog."}]
COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": COLOUR, "strict": True}}
WAYS = {"openai": f"{url}/v1", "hosted_vllm": f"{url}/v1", "anthropic": url, "ollama_chat": url}


def ask(way: str, model: str = "stories", **more: object) -> object:
    options = {"messages": ASK, "max_tokens": 12, "temperature": 0, "timeout": 60, **more}
    base, key = WAYS[way], "none"
    return litellm.completion(model=f"{way}/{model}", api_base=base, api_key=key, **options)


def failure(way: str) -> str:
    """Why a model that is absent does not answer."""
    try:
        return f"it answers {ask(way, 'absent')}"
    except (litellm.exceptions.NotFoundError, litellm.exceptions.APIConnectionError) as error:
        return f"{error}"


texts = set()
for way in WAYS:
    whole = ask(way)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens == 12, (way, whole)
    texts.add(text)
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(way, stream=True)]
    assert "".join(pieces) == text and len(pieces) > 5, (way, pieces)
    why = failure(way)
    assert "there is no model" in why, (way, why)
    print("ok", way)
assert len(texts) == 1, texts  # one model, one text

for way in ("openai", "anthropic"):
    found = ask(way, tools=[TOOL], tool_choice="required", max_tokens=60)
    (call,) = found.choices[0].message.tool_calls
    assert call.function.name == "paint", call
    assert json.loads(call.function.arguments)["colour"] in ("red", "blue"), call
print("ok tools")

form = {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR, "strict": True}}
found = ask("openai", response_format=form, max_tokens=40)
assert json.loads(found.choices[0].message.content)["colour"] in ("red", "blue"), found
found = ask("ollama_chat", response_format=form, max_tokens=40)
assert json.loads(found.choices[0].message.content)["colour"] in ("red", "blue"), found
print("ok structured")

with open(f"{assets}/scene.png", "rb") as file:
    link = f"data:image/png;base64,{base64.b64encode(file.read()).decode()}"
picture = {"type": "image_url", "image_url": {"url": link}}
seen = [{"role": "user", "content": [picture, {"type": "text", "text": "what is in the picture?"}]}]
for way in WAYS:
    found = ask(way, "shapes", messages=seen)
    assert found.choices[0].message.content and found.usage.prompt_tokens > 20, (way, found)
print("ok pictures")

for way, base in (("openai", f"{url}/v1"), ("ollama", url)):
    rows = litellm.embedding(
        model=f"{way}/stories", input=["a dog", "a cat"], api_base=base, api_key="none"
    )
    assert len(rows.data) == 2 and len(rows.data[0]["embedding"]) > 8, rows
print("ok embeddings")
