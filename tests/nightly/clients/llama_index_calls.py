"""llama-index with two APIs; what it has for Anthropic's needs an older client than others do."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Literal

from common import ASK, PICTURE, RESULT, SEE, ok, scripted, url
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ImageBlock, TextBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict


class Colour(BaseModel):
    """A colour."""

    model_config = ConfigDict(extra="forbid")  # so that the model has to end
    colour: Literal["red", "blue"]


def models(name: str = "stories", most: int = 12, at: str = url) -> dict[str, FunctionCallingLLM]:
    openai: dict[str, Any] = {
        "is_chat_model": True,
        "is_function_calling_model": True,
        "should_use_structured_outputs": True,
    }
    return {
        "llama-index-llms-openai-like": OpenAILike(
            model=name,
            api_base=f"{at}/v1",
            api_key="none",
            temperature=0,
            max_tokens=most,
            max_retries=0,
            **openai,
        ),
        "llama-index-llms-ollama": Ollama(
            model=name, base_url=at, temperature=0, additional_kwargs={"num_predict": most}
        ),
    }


def failure(model: FunctionCallingLLM) -> str:
    """Why it does not answer."""
    try:
        return f"it answers {model.chat([ChatMessage(role='user', content=ASK)])}"
    except Exception as error:  # each has kinds of its own
        return f"{error}"


history = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=ASK)]
texts = set()
for way, model in models().items():
    text = model.chat(history).message.content
    assert text, way
    texts.add(text)
    ok(way, "chat")
    pieces = [piece.delta or "" for piece in model.stream_chat(history)]
    assert "".join(pieces) == text and len(pieces) > 5, (way, pieces)
    ok(way, "stream")
assert len(texts) == 1, texts  # one model, one text

painted: list[str] = []


def paint(colour: str) -> str:
    """Paints the wall."""
    painted.append(colour)
    return RESULT


async def work(model: FunctionCallingLLM) -> str:
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(paint)], llm=model)
    return str(await agent.run(ASK))


for way, model in models(most=200, at=scripted).items():
    painted.clear()
    said = asyncio.run(work(model))
    assert painted == ["blue"] and RESULT in said, (way, painted, said)
    ok(way, "tools")

for way, model in models(most=60).items():
    if way == "llama-index-llms-ollama":
        continue  # no choice of tools there
    found = model.chat_with_tools([FunctionTool.from_defaults(paint)], ASK, tool_required=True)
    (call,) = model.get_tool_calls_from_response(found)
    assert call.tool_name == "paint" and call.tool_kwargs["colour"], (way, found)
    ok(way, "tool choice")

for way, model in models(most=40).items():
    found = model.as_structured_llm(Colour).complete(ASK).raw
    assert isinstance(found, Colour), (way, found)
    ok(way, "structured answers")

picture = ImageBlock(image=base64.b64decode(PICTURE), image_mimetype="image/png")
seen = ChatMessage(role="user", blocks=[picture, TextBlock(text=SEE)])
for way, model in models("shapes").items():
    assert model.chat([seen]).message.content, way
    ok(way, "pictures")

rows: dict[str, BaseEmbedding] = {
    "llama-index-llms-openai-like": OpenAILikeEmbedding(
        model_name="stories", api_base=f"{url}/v1", api_key="none"
    ),
    "llama-index-llms-ollama": OllamaEmbedding(model_name="stories", base_url=url),
}
for way, embedding in rows.items():
    first, second = embedding.get_text_embedding_batch(["a dog", "a cat"])
    assert len(first) == len(second) > 8
    ok(way, "embeddings")

for way, model in models("absent").items():
    why = failure(model)
    assert "'absent'" in why and "404" in why, (way, why)
    ok(way, "errors")
