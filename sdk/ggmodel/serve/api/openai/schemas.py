"""Schemas of OpenAI's API: answers, errors, counts, log-probabilities, ids."""

from __future__ import annotations

import secrets
import time
from typing import Any, Literal

from msgspec import Struct

from ...endpoint import Shape, event
from ...errors import Problem
from ...requests import Ended, State, Token

Number = float | None
"""JSON knows no infinity: a log-probability of it is null."""


class Failed(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Struct):
    """An error, as OpenAI puts it."""

    error: Failed


class PromptDetails(Struct):
    cached_tokens: int
    audio_tokens: int


class CompletionDetails(Struct):
    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class PromptUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class Timings(Struct):
    """Speed of an answer, as llama-server tells it."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Likely(Struct):
    token: str
    logprob: Number
    bytes: list[int]


class TokenLogprob(Likely):
    top_logprobs: list[Likely]


class Logprobs(Struct):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Struct):
    """Arguments are JSON text."""

    name: str
    arguments: str


class ToolCall(Struct):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatAnswer(Struct, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = []


class ChatChoice(Struct):
    index: int
    message: ChatAnswer
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    timings: Timings


class TextLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[Number]
    top_logprobs: list[dict[str, Number] | None]
    text_offset: list[int]


class TextChoice(Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]


class TextCompletion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage
    timings: Timings | None = None


class EmbeddingRow(Struct):
    """The row as numbers, or as base64 of them in float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Struct):
    object: Literal["list"]
    data: list[EmbeddingRow]
    model: str
    usage: PromptUsage


class ModelMeta(Struct):
    architecture: str
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    quantization: str
    abilities: list[str]
    kinds: list[str]


class Model(Struct, kw_only=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    loaded: bool
    engine: Literal["ggmodel", "llama.cpp"] | None
    meta: ModelMeta | None = None


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


class InputDetails(Struct):
    cached_tokens: int


class OutputDetails(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(Struct):
    reason: Literal["max_output_tokens"]


class OutputItem(Struct):
    """A thought, a text or a call; further fields depend on the type."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Literal["completed", "incomplete"]


class ResponseAnswer(Struct):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    background: bool
    error: None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    usage: ResponseUsage


class InputTokens(Struct):
    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseDeleted(Struct):
    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(Struct):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class TranscriptSegment(Struct):
    id: int
    start: float
    end: float
    text: str


class Transcription(Struct, kw_only=True):
    """The fields but for the text come with `verbose_json`."""

    text: str
    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None
    duration: float = 0.0
    segments: list[TranscriptSegment] = []


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class OpenAI(Shape):
    """Errors as OpenAI puts them."""

    described = ErrorAnswer

    def refusal(self, error: Problem) -> Any:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        return {
            "error": {
                "message": error.message,
                "type": _TYPES.get(error.status, kind),
                "param": error.param,
                "code": error.code,
            }
        }

    def interruption(self, error: Problem) -> bytes:
        return event(self.refusal(error))


OPENAI = OpenAI()


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(16)}"


def head(prefix: str, kind: str, name: str, state: State) -> dict[str, Any]:
    """The beginning that answers and their chunks have in common.

    Args:
        prefix: of the id. kind: of the object. name: the model's, see `called`.
    """
    return {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": f"ggmodel-{state.engine}",
    }


def usage(ended: list[Ended], prompts: int | None = None) -> dict[str, Any]:
    """Counts of answers.

    Args:
        prompts: tokens of the prompts, if several answers have the same one.
    """
    if prompts is None:
        prompts = sum(one.prompt_tokens for one in ended)
    completions = sum(one.completion_tokens for one in ended)
    reused = min(prompts, sum(one.reused_tokens for one in ended))
    accepted = sum(one.accepted for one in ended)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": completions,
        "total_tokens": prompts + completions,
        "prompt_tokens_details": {"cached_tokens": reused, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(one.reasoning_tokens for one in ended),
            "audio_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(one.drafted for one in ended) - accepted,
        },
    }


def timings(ended: Ended) -> dict[str, Any]:
    """Speed of an answer, as llama-server tells it."""
    read = ended.prompt_tokens - ended.reused_tokens
    prompt, decode = ended.prompt_seconds, ended.decode_seconds
    count = ended.completion_tokens
    return {
        "cache_n": ended.reused_tokens,
        "prompt_n": read,
        "prompt_ms": prompt * 1e3,
        "prompt_per_token_ms": prompt * 1e3 / read if read else 0.0,
        "prompt_per_second": read / prompt if prompt else 0.0,
        "predicted_n": count,
        "predicted_ms": decode * 1e3,
        "predicted_per_token_ms": decode * 1e3 / count if count else 0.0,
        "predicted_per_second": max(0, count - 1) / decode if decode else 0.0,
    }


def entry(token: Token) -> dict[str, Any]:
    """A token with its log-probability, without the likeliest at its place."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def logprobs(tokens: list[Token]) -> dict[str, Any]:
    """Log-probabilities of a chat's answer."""
    content = [{**entry(one), "top_logprobs": [entry(top) for top in one.top]} for one in tokens]
    return {"content": content, "refusal": None}
