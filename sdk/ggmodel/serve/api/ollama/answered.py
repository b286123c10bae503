"""The JSON of Ollama's answers, for /openapi.json. Streams have a line of JSON for each part."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class ErrorAnswer(Struct):
    """An error, as Ollama puts it."""

    error: str


class Likely(Struct):
    token: str
    logprob: float | None
    bytes: list[int]


class TokenLogprob(Likely):
    top_logprobs: list[Likely]


class Times(Struct, kw_only=True):
    """Nanoseconds and counts, in the last part."""

    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0


class Part(Times, kw_only=True):
    """Fields that all parts of answers have."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] = "stop"
    logprobs: list[TokenLogprob] = []


class CalledFunction(Struct):
    index: int
    name: str
    arguments: dict[str, Any]


class AnsweredCall(Struct):
    id: str
    function: CalledFunction


class AnsweredMessage(Struct, kw_only=True):
    role: Literal["assistant"]
    content: str
    thinking: str = ""
    tool_calls: list[AnsweredCall] = []


class ChatPart(Part, kw_only=True):
    message: AnsweredMessage


class TextPart(Part, kw_only=True):
    response: str
    thinking: str = ""
    context: list[int] = []


class Embedded(Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddedText(Struct):
    embedding: list[float]


class Details(Struct):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class Tag(Struct):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class Tags(Struct):
    models: list[Tag]


class RunningModel(Tag):
    expires_at: str
    size_vram: int
    context_length: int
    engine: Literal["ggmodel", "llama.cpp"]


class RunningModels(Struct):
    models: list[RunningModel]


class Version(Struct):
    version: str
    ggmodel: str


class ShownModel(Struct):
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Status(Struct):
    status: str
