"""A model of 135 million parameters behind the APIs: SmolLM2-135M-Instruct in Q4_1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.nightly.table import folder
from tests.serving import running

SKY: Any = [{"role": "user", "content": "Why is the sky blue?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["city", "people"],
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    file = next((folder() / "smollm2").rglob("*.gguf"))
    with running(f"smollm2={file}", "--context-length", "256", "--threads", "1") as server:
        yield server.url


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120, max_retries=0)


def said(client: openai.OpenAI, messages: Any, **options: Any) -> Any:
    asked: Any = {"temperature": 0, "max_tokens": 32, **options}
    return client.chat.completions.create(model="smollm2", messages=messages, **asked)


def test_it_tells_the_same_in_all_apis(client: openai.OpenAI, url: str):
    """Its template and vocabulary are read as they are meant."""
    chat = said(client, SKY)
    claude = anthropic.Anthropic(base_url=url, api_key="none", timeout=120, max_retries=0)
    options: Any = {"extra_body": {"temperature": 0}}
    message = claude.messages.create(
        model="smollm2", messages=SKY, max_tokens=32, **options
    ).content[0]
    response = client.responses.create(
        model="smollm2", input=SKY, temperature=0, max_output_tokens=32
    )
    told = ollama.Client(url).chat("smollm2", SKY, options={"temperature": 0, "num_predict": 32})
    assert isinstance(message, anthropic.types.TextBlock)
    texts = {
        chat.choices[0].message.content,
        message.text,
        response.output_text,
        told.message.content,
    }
    (text,) = texts
    assert text is not None
    assert "light" in text


def test_it_obeys_a_schema(client: openai.OpenAI):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    answer = said(client, SKY, max_tokens=100, response_format=form)
    found = json.loads(answer.choices[0].message.content)
    assert set(found) == {"city", "people"}
    assert isinstance(found["people"], int)


def test_it_calls_a_tool_that_its_template_does_not_know(client: openai.OpenAI):
    asked: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]
    options: Any = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 100}
    message = said(client, asked, **options).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Oslo"},
    )

    result = {"role": "tool", "tool_call_id": call.id, "content": "It is raining in Oslo."}
    history = [*asked, message.model_dump(exclude_none=True), result]
    after = said(client, history, tools=[WEATHER], tool_choice="none").choices[0].message
    assert after.content
    assert not after.tool_calls


def test_a_conversation_outgrows_the_context(client: openai.OpenAI):
    """The system message stays, and the oldest turns go, whole."""
    messages: Any = [{"role": "system", "content": "You are a teacher of geography."}]
    options: Any = {"max_tokens": 8, "extra_body": {"truncation": "auto", "verbose": True}}
    prompts: list[str] = []
    for turn in range(12):
        messages.append({"role": "user", "content": f"Question {turn}: what is a river?"})
        answer = said(client, messages, **options)
        assert answer.choices[0].message.content
        assert answer.usage.total_tokens <= 256
        prompts.append(answer.model_extra["__verbose"]["prompt"])
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    assert all("You are a teacher of geography." in prompt for prompt in prompts)
    assert "Question 0" in prompts[1]
    assert "Question 0" not in prompts[-1]
    assert "Question 10" in prompts[-1]
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        said(client, [*messages, SKY[0]])
