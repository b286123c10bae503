"""langchain with three APIs: python langchain_calls.py URL ASSETS."""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

url, assets = sys.argv[1:]
ASK = "Tell me a story about a dog."


class Colour(BaseModel):
    """A colour."""

    model_config = ConfigDict(extra="forbid")  # so that the model has to end
    colour: Literal["red", "blue"]


# langchain leaves out of its own classes' schemas that there are no other fields, and a small model
# goes on with more of them.
PAINT = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paints the wall.",
        "parameters": {**Colour.model_json_schema(), "additionalProperties": False},
    },
}


def models(name: str = "stories", most: int = 12) -> dict:
    base, key = f"{url}/v1", "none"
    common = {"temperature": 0, "max_retries": 0, "timeout": 60}
    openai = {"base_url": base, "api_key": key, "max_tokens": most, **common}
    return {
        "openai": ChatOpenAI(model=name, **openai),
        "openai responses": ChatOpenAI(model=name, use_responses_api=True, **openai),
        "anthropic": ChatAnthropic(
            model=name, base_url=url, api_key=key, max_tokens=most, **common
        ),
        "ollama": ChatOllama(model=name, base_url=url, temperature=0, num_predict=most),
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
    pieces = list(model.stream([SystemMessage("Be brief."), HumanMessage(ASK)]))
    assert "".join(str(piece.text) for piece in pieces) == whole.text, (way, pieces)
    assert len(pieces) > 5, (way, pieces)
    several = loop.run_until_complete(model.abatch([ASK, "Hello", "A cat"]))
    assert len(several) == 3 and all(one.text for one in several), (way, several)
    print("ok", way)
assert len(texts) == 1, texts  # one model, one text

for way, model in models(most=60).items():
    if way == "ollama":
        continue  # no choice of tools there, and this model calls none by itself
    called = model.bind_tools([PAINT], tool_choice="any").invoke(ASK)
    (call,) = called.tool_calls
    assert call["name"] == "paint" and call["args"]["colour"] in ("red", "blue"), (way, called)
    result = ToolMessage("it is done", tool_call_id=call["id"])
    after = model.bind_tools([PAINT]).invoke([HumanMessage(ASK), called, result])
    assert isinstance(after, AIMessage) and after.text, (way, after)
print("ok tools")

for way, model in models(most=40).items():
    found = model.with_structured_output(Colour, method="json_schema").invoke(ASK)
    assert isinstance(found, Colour), (way, found)
print("ok structured")

with open(f"{assets}/scene.png", "rb") as file:
    data = base64.b64encode(file.read()).decode()
picture = {"type": "image", "base64": data, "mime_type": "image/png"}
seen = HumanMessage([picture, {"type": "text", "text": "what is in the picture?"}])
for way, model in models("shapes").items():
    found = model.invoke([seen])
    assert found.text and found.usage_metadata["input_tokens"] > 20, (way, found)
print("ok pictures")

for rows in (
    OpenAIEmbeddings(
        model="stories", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
    ),
    OllamaEmbeddings(model="stories", base_url=url),
):
    first, second = rows.embed_documents(["a dog", "a cat"])
    assert len(first) == len(second) > 8
print("ok embeddings")

for way, model in models("absent").items():
    why = failure(model)
    assert "there is no model" in why, (way, why)
print("ok errors")
