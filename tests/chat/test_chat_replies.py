"""Replies of `LoadedModel.chat`: reasoning, calls, values, tools that are called."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import pytest
from typing_extensions import TypedDict

import ggmodel
from ggmodel import ChatCompletion, Grammar, Sampler
from ggmodel.errors import ConfigError, GrammarError, PromptError, Unsupported
from ggmodel.runner import ChatStream, LoadedModel

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
# A template with reasoning, whose family calls functions between tags.
HERMES = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{{ m.tool_calls | default('') }}\n{% endfor %}"
    "{# <tool_call> <think> #}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    with ggmodel.load(ASSETS / "stories.gguf", context_length=1024) as loaded:
        yield loaded


class Says(Sampler):
    """Makes a model say some texts, one a request."""

    def __init__(self, model: LoadedModel, *texts: str):
        super().__init__(temperature=0)
        assert model.tokenizer is not None
        self._end = min(model.tokenizer.eog)
        self._texts = [model.tokenize(text, add_special=False) for text in texts]
        self._start: int | None = None

    def begin(self, prompt: Any = (), *, constraint: Any = None) -> Any:
        self._start = None
        return super().begin(prompt, constraint=constraint)

    def adjust(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        if self._start is None:
            self._start, self._now = len(history), self._texts.pop(0)
        at, logits = len(history) - self._start, np.full_like(logits, -50)
        logits[self._now[at] if at < len(self._now) else self._end] = 50
        return logits


def weather(town: str) -> str:
    """The weather of a town.

    Args:
        town: its name
    """
    if town != "Oslo":
        raise LookupError(f"{town} is no town")
    return "It snows."


def test_a_plain_reply_is_all_that_was_written(model: LoadedModel):
    reply = model.chat("Tell me a story.", temperature=0, max_tokens=12)
    assert isinstance(reply, ChatCompletion)
    assert reply == reply.raw
    assert (reply.reasoning, reply.tool_calls, reply.parsed, reply.messages) == ("", (), None, [])
    assert reply.message() == {"role": "assistant", "content": str(reply)}


def test_reasoning_and_calls(model: LoadedModel):
    said = f"<think>\nRome?\n</think>\n\nLet me see.\n{CALL}"
    options: dict[str, Any] = {"template": HERMES, "tools": [weather]}
    reply = model.chat("Is it cold?", sampler=Says(model, said), **options)
    assert str(reply) == "Let me see."
    assert reply.reasoning == "Rome?"
    (call,) = reply.tool_calls
    assert (call.name, json.loads(call.arguments), len(call.id)) == ("weather", {"town": "Oslo"}, 9)
    assert reply.raw.strip() == said
    message = reply.message()
    assert message["reasoning_content"] == "Rome?"
    assert message["tool_calls"][0]["function"]["arguments"] == {"town": "Oslo"}
    assert model.parse_reply(reply, tools=[weather], template=HERMES).reasoning == "Rome?"


def test_piece_by_piece(model: LoadedModel):
    said = f"<think>\nRome?\n</think>\n\nLet me see.\n{CALL}"
    options: dict[str, Any] = {"template": HERMES, "tools": [weather]}
    stream = model.chat("Is it cold?", stream=True, sampler=Says(model, said), **options)
    assert isinstance(stream, ChatStream)
    pieces = list(stream)
    assert "".join(pieces) == "Let me see."
    assert "".join(piece.reasoning for piece in pieces) == "Rome?"
    assert stream.finish_reason == "stop"
    assert stream.reply.tool_calls[0].name == "weather"
    assert stream.reply.tool_calls[0].id == stream.reply.tool_calls[0].id
    assert [p.token for p in pieces if p.token][-1] == stream.reply.tokens[-1]
    assert next(stream, None) is None

    async def again() -> tuple[ChatCompletion, ChatCompletion]:
        first = await model.achat("Is it cold?", sampler=Says(model, said), **options)
        second = await model.achat("?", stream=True, sampler=Says(model, said), **options)
        assert "".join([piece async for piece in second]) == "Let me see."
        return first, second.reply

    for reply in asyncio.run(again()):
        assert (reply.reasoning, str(reply)) == ("Rome?", "Let me see.")
        assert reply.tool_calls[0].name == "weather"


def test_a_stream_that_is_closed(model: LoadedModel):
    stream = model.chat("Tell me a story.", stream=True, template=HERMES, temperature=0)
    next(stream)
    stream.close()
    assert stream.finish_reason is None
    assert next(stream, None) is None
    assert len(stream.reply.tokens) >= 1


class Hero(pydantic.BaseModel):
    animal: Literal["fox", "owl"]
    age: int = pydantic.Field(ge=1, le=9)


@dataclass
class Friend:
    animal: Literal["fox", "owl"]
    age: Literal[1, 2, 3]


class Fellow(TypedDict):
    animal: Literal["fox", "owl"]


@pytest.mark.parametrize("kind", [Hero, Friend])
def test_a_reply_of_a_type(model: LoadedModel, kind: Any):
    reply = model.chat("Who?", response_format=kind, seed=3, max_tokens=60)
    assert isinstance(reply.parsed, kind)
    assert reply.parsed.animal in ("fox", "owl")
    assert json.loads(reply)["age"] == reply.parsed.age


def test_replies_of_other_forms(model: LoadedModel):
    options: dict[str, Any] = {"seed": 3, "max_tokens": 60}
    assert model.chat("?", response_format=Fellow, **options).parsed["animal"] in ("fox", "owl")
    assert model.chat("?", response_format=list[bool], **options).parsed is not None
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    assert model.chat("?", response_format=schema, **options).parsed == {"a": 1}
    openai = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    reply = model.chat("?", response_format=openai, **options)
    assert reply.parsed == {"a": 1}
    stream = model.chat("?", response_format=schema, stream=True, **options)
    assert json.loads("".join(stream)) == stream.reply.parsed == {"a": 1}


def test_replies_that_have_not_the_form(model: LoadedModel):
    reply = model.chat("Who?", response_format=Hero, seed=3, max_tokens=2)
    with pytest.raises(GrammarError, match="it was cut off; raise max_tokens"):
        _ = reply.parsed
    with pytest.raises(ConfigError, match="both give the form"):
        model.chat("?", response_format=Hero, grammar=ggmodel.Grammar.choice(["a"]))
    with pytest.raises(ConfigError, match="has no JSON schema here"):
        model.chat("?", response_format=object)
    with pytest.raises(ConfigError, match="use response_format= of chat"):
        model.generate("?", response_format=Hero)  # type: ignore[call-arg]


def test_replies_go_through_pickle(model: LoadedModel):
    reply = model.chat("Who?", response_format=Hero, seed=3, max_tokens=60)
    same = pickle.loads(pickle.dumps(reply))
    assert isinstance(same, ChatCompletion)
    assert (same, same.tokens, same.parsed) == (reply, reply.tokens, reply.parsed)


def test_a_system_message(model: LoadedModel):
    asked = [{"role": "user", "content": "Hello"}]
    whole = [{"role": "system", "content": "Be kind."}, *asked]
    assert model.chat_prompt(asked, system="Be kind.") == model.chat_prompt(whole)
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 5}
    assert model.chat("Hello", system="Be kind.", **options) == model.chat(whole, **options)
    with pytest.raises(ConfigError, match="begin with a system message already"):
        model.chat(whole, system="Be brief.")
    with pytest.raises(ConfigError, match="it must be a text"):
        model.chat(asked, system=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"use chat\(messages, system=TEXT\)"):
        model.generate("Hello", system="Be kind.")  # type: ignore[call-arg]


def test_a_call_can_be_required(model: LoadedModel):
    """The model knows nothing of tools, and its template has no place for them."""
    options: dict[str, Any] = {"tools": [weather], "seed": 1, "max_tokens": 100}
    for choice in ("required", "weather", {"type": "function", "function": {"name": "weather"}}):
        (call,) = model.chat("Is it cold?", tool_choice=choice, **options).tool_calls[:1]
        assert call.name == "weather"
        assert list(json.loads(call.arguments)) == ["town"]
    none = model.chat(
        "Is it cold?", tool_choice="none", temperature=0, max_tokens=4, tools=[weather]
    )
    assert none == model.chat("Is it cold?", temperature=0, max_tokens=4)
    with pytest.raises(PromptError, match="there is no function 'price'"):
        model.chat("?", tool_choice="price", **options)
    forms: list[dict[str, Any]] = [{"grammar": Grammar.regex("[ab]+")}, {"response_format": dict}]
    for form in forms:
        with pytest.raises(ConfigError, match="gives the reply its form already"):
            model.chat("?", tool_choice="required", **options, **form)
    with pytest.raises(PromptError, match="there is no function to call"):
        model.chat("?", tool_choice="required")
    for wrong in (3, {"type": "function"}):
        with pytest.raises(ConfigError, match="tool_choice"):
            model.chat("?", tool_choice=wrong, **options)
    harmony = "{{ bos_token }}{# <|channel|> <|start|> <|message|> #}{{ messages[0].content }}"
    with pytest.raises((Unsupported, PromptError)):
        model.chat("?", tool_choice="auto", template=harmony, tools=[3])  # type: ignore[list-item]


def test_tools_are_described_where_a_template_has_none(model: LoadedModel):
    """The server does so, too: see `ggmodel.chat.described_tools`."""
    reader = model._begin("Is it cold?", {"tools": [weather], "max_tokens": 1})
    text = model.detokenize(reader.generation.prompt.tolist())
    assert '"name":"weather"' in text
    assert "The weather of a town." in text
    assert "Is it cold?" in text


def test_functions_are_called_until_an_answer_comes(model: LoadedModel):
    wrong = CALL.replace("Oslo", "Rome")
    sampler = Says(
        model, f"I look.{wrong}", CALL + CALL.replace("weather", "price"), "Take a coat."
    )
    reply = model.run_tools("Is it cold?", [weather], template=HERMES, sampler=sampler)
    assert str(reply) == "Take a coat."
    assert not reply.tool_calls
    roles = [message["role"] for message in reply.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]
    results = [message for message in reply.messages if message["role"] == "tool"]
    assert results[0]["content"] == "error: LookupError: Rome is no town"
    assert results[1]["content"] == "It snows."
    assert "there is no function 'price'" in results[2]["content"]
    calls = [one for message in reply.messages for one in message.get("tool_calls", ())]
    assert [one["id"] for one in calls] == [one["tool_call_id"] for one in results]


def test_rounds_are_bounded(model: LoadedModel):
    sampler = Says(model, CALL, CALL, CALL)
    reply = model.run_tools("?", [weather], rounds=2, template=HERMES, sampler=sampler)
    assert [message["role"] for message in reply.messages].count("tool") == 2
    assert reply.messages[-1]["role"] == "assistant"
    with pytest.raises(ConfigError, match="rounds"):
        model.run_tools("?", [weather], rounds=0)


def test_a_model_without_tools_calls_one_all_the_same(model: LoadedModel):
    called: list[str] = []

    def name_a_town(town: Literal["Oslo", "Rome"]) -> str:
        """Names a town."""
        called.append(town)
        return "Thank you."

    options: dict[str, Any] = {"tool_choice": "required", "seed": 1, "max_tokens": 60}
    reply = model.run_tools("Name a town.", [name_a_town], **options)
    assert set(called) <= {"Oslo", "Rome"}
    assert called
    assert reply.finish_reason
    assert reply.messages[1]["tool_calls"]


def test_what_run_tools_refuses(model: LoadedModel):
    async def later() -> str:
        """Later."""
        return ""

    with pytest.raises(ConfigError, match="waits for no coroutine"):
        model.run_tools("?", [later])
    with pytest.raises(ConfigError, match="not JSON schemas"):
        model.run_tools("?", [{"type": "function", "function": {"name": "a"}}])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="takes no response_format"):
        model.run_tools("?", [weather], response_format=Hero)  # type: ignore[call-arg]
    with pytest.raises(PromptError, match="messages are a list"):
        model.run_tools(3, [weather])  # type: ignore[arg-type]


def test_options_are_in_signatures():
    shown = inspect.signature(LoadedModel.chat).parameters
    assert {
        "temperature",
        "seed",
        "max_tokens",
        "tools",
        "system",
        "response_format",
    } <= shown.keys()
    assert shown["temperature"].default == Sampler().temperature
    assert shown["max_tokens"].annotation == "int | None"
    assert all(p.kind is not p.VAR_KEYWORD for p in shown.values())
    for name in ("generate", "stream", "batch", "achat", "agenerate", "astream", "run_tools"):
        own = inspect.signature(getattr(LoadedModel, name)).parameters
        assert {"temperature", "grammar", "stop"} <= own.keys(), name
    assert "system" not in inspect.signature(LoadedModel.generate).parameters
    assert set(inspect.signature(LoadedModel.chat_text).parameters) >= {"variables", "continues"}


def test_what_notebooks_show(model: LoadedModel):
    said = f"<think>\na < b\n</think>\n\nYes & no.\n{CALL}"
    reply = model.chat("?", template=HERMES, tools=[weather], sampler=Says(model, said))
    shown = reply._repr_html_()
    assert "Yes &amp; no." in shown
    assert "<summary>reasoning</summary>" in shown
    assert "a &lt; b" in shown
    assert "weather(" in shown
    assert "tokens/s" in model.generate("Once", max_tokens=2)._repr_html_()
    assert "2.3 million parameters" in model._repr_html_()


def test_dir_has_public_names():
    for package in (ggmodel, ggmodel.runner, ggmodel.chat, __import__("ggmodel.compat").compat):
        assert {*dir(package)} - {"__version__"} == {*package.__all__}, package
