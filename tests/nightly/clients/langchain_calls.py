"""langchain with three APIs."""

from __future__ import annotations

import asyncio
from typing import Literal

from common import ARGUMENTS, ASK, COLOUR, PICTURE, RESULT, SEE, ok, scripted, url
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

PAINT = {
    "type": "function",
    "function": {"name": "paint", "description": "Paints the wall.", "parameters": COLOUR},
}


class Colour(BaseModel):
    """A colour."""

    model_config = ConfigDict(extra="forbid")  # so that the model has to end
    colour: Literal["red", "blue"]


def models(name: str = "stories", most: int = 12, at: str = url) -> dict[str, BaseChatModel]:
    key = "none"
    common = {"temperature": 0, "max_retries": 0, "timeout": 60}
    openai = {"base_url": f"{at}/v1", "api_key": key, "max_tokens": most, **common}
    return {
        "langchain-openai": ChatOpenAI(model=name, **openai),
        "langchain-openai, Responses": ChatOpenAI(model=name, use_responses_api=True, **openai),
        "langchain-anthropic": ChatAnthropic(
            model=name, base_url=at, api_key=key, max_tokens=most, **common
        ),
        "langchain-ollama": ChatOllama(model=name, base_url=at, temperature=0, num_predict=most),
    }


loop = asyncio.new_event_loop()  # clients keep connections in it


def failure(model: BaseChatModel) -> str:
    """Why it does not answer."""
    try:
        return f"it answers {model.invoke(ASK)}"
    except Exception as error:  # each has kinds of its own
        return f"{error}"


texts = set()
for way, model in models().items():
    whole = model.invoke([SystemMessage("Be brief."), HumanMessage(ASK)])
    assert whole.text and whole.usage_metadata["output_tokens"] == 12, (way, whole)
    texts.add(str(whole.text))
    several = loop.run_until_complete(model.abatch([ASK, "Hello", "A cat"]))
    assert len(several) == 3 and all(one.text for one in several), (way, several)
    ok(way, "chat")
    pieces = list(model.stream([SystemMessage("Be brief."), HumanMessage(ASK)]))
    assert "".join(str(piece.text) for piece in pieces) == whole.text, (way, pieces)
    assert len(pieces) > 5, (way, pieces)
    ok(way, "stream")
assert len(texts) == 1, texts  # one model, one text

for way, model in models(most=200, at=scripted).items():
    able = model.bind_tools([PAINT])
    called = able.invoke(ASK)
    streamed = None
    for piece in able.stream(ASK):
        streamed = piece if streamed is None else streamed + piece
    for one in (called, streamed):
        (call,) = one.tool_calls
        assert (call["name"], call["args"]) == ("paint", ARGUMENTS), (way, one)
    (call,) = called.tool_calls
    result = ToolMessage(RESULT, tool_call_id=call["id"])
    after = able.invoke([HumanMessage(ASK), called, result])
    assert RESULT in after.text and not after.tool_calls, (way, after)
    ok(way, "tools")

for way, model in models(most=60).items():
    if way == "langchain-ollama":
        continue  # no choice of tools there
    called = model.bind_tools([PAINT], tool_choice="any").invoke(ASK)
    (call,) = called.tool_calls
    assert call["name"] == "paint" and call["args"]["colour"] in ("red", "blue"), (way, called)
    result = ToolMessage("it is done", tool_call_id=call["id"])
    after = model.bind_tools([PAINT]).invoke([HumanMessage(ASK), called, result])
    assert isinstance(after, AIMessage) and after.text, (way, after)
    ok(way, "tool choice")

for way, model in models(most=40).items():
    methods = ["json_schema"] if way == "langchain-ollama" else ["json_schema", "function_calling"]
    for method in methods:
        found = model.with_structured_output(Colour, method=method).invoke(ASK)
        assert isinstance(found, Colour), (way, method, found)
    ok(way, "structured answers")

picture = {"type": "image", "base64": PICTURE, "mime_type": "image/png"}
seen = HumanMessage([picture, {"type": "text", "text": SEE}])
for way, model in models("shapes").items():
    found = model.invoke([seen])
    assert found.text and found.usage_metadata["input_tokens"] > 20, (way, found)
    ok(way, "pictures")

openai_rows = OpenAIEmbeddings(
    model="stories", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
)
ollama_rows = OllamaEmbeddings(model="stories", base_url=url)
for way, rows in (("langchain-openai", openai_rows), ("langchain-ollama", ollama_rows)):
    first, second = rows.embed_documents(["a dog", "a cat"])
    assert len(first) == len(second) > 8
    ok(way, "embeddings")

for way, model in models("absent").items():
    why = failure(model)
    assert "there is no model" in why, (way, why)
    ok(way, "errors")
