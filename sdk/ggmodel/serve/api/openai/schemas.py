"""Schemas of OpenAI's API: answers, errors, counts, log-probabilities, ids."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from ...endpoint import ErrorFormat, event
from ...errors import Problem
from ...requests import CapturedRows, Finished, PromptProgress, State, Token

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
    audio_tokens: int = 0


class CompletionDetails(Struct):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    audio_tokens: int = 0


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


class PrefillProgress(Struct):
    """A step of the prefill, as llama-server tells it: positions of the prompt, those from the
    cache, those computed with them, and the time since the first step began."""

    total: int
    cache: int
    processed: int
    time_ms: int


class Likely(Struct):
    token: str
    logprob: Number
    bytes: list[int]


class TokenLogprob(Likely):
    top_logprobs: list[Likely]


class Logprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(Struct):
    """Arguments are JSON text."""

    name: str
    arguments: str


class CalledCustom(Struct):
    name: str
    input: str


class FunctionToolCall(Struct, kw_only=True, tag="function"):
    id: str
    function: CalledFunction


class CustomToolCall(Struct, kw_only=True, tag="custom"):
    id: str
    custom: CalledCustom


ToolCall = FunctionToolCall | CustomToolCall
FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class ChatAnswer(Struct):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: ChatAnswer
    logprobs: Logprobs | None
    finish_reason: FinishReason
    captured: dict[str, CapturedRows] | UnsetType = UNSET


class Head(Struct, kw_only=True, tag_field="object"):
    """The beginning that answers and their chunks have in common."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Verbose(Struct):
    """llama-server's word about a request: the prompt as the model has it, and its options."""

    prompt: str
    generation_settings: dict[str, Any]


class ChatCompletion(Head, kw_only=True, tag="chat.completion"):
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    verbose: Verbose | UnsetType = field(default=UNSET, name="__verbose")


class FunctionDelta(Struct):
    arguments: str
    name: str | UnsetType = UNSET


class CustomDelta(Struct):
    input: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct):
    """A call begins with its id, its type and the name of the function or custom tool."""

    index: int
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET


class ChatDelta(Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: ChatDelta
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    captured: dict[str, CapturedRows] | UnsetType = UNSET


class ChatChunk(Head, kw_only=True, tag="chat.completion.chunk"):
    """The last of a choice has `timings`. Where usage is wanted, it is null in all but the last.
    Those of steps of the prefill have an empty delta."""

    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: PrefillProgress | UnsetType = UNSET


class TextLogprobs(Struct):
    """Log-probabilities as completions have them; the first of a prompt has none.

    Attributes:
        text_offset: characters before each token.
    """

    tokens: list[str]
    token_logprobs: list[Number]
    top_logprobs: list[dict[str, Number] | None]
    text_offset: list[int]


class TextChoice(Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    captured: dict[str, CapturedRows] | UnsetType = UNSET


class TextCompletion(Head, kw_only=True, tag="text_completion"):
    """An answer, or a chunk of one, whose usage is null in all but the last where it is wanted."""

    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: PrefillProgress | UnsetType = UNSET


class EmbeddingRow(Struct, tag_field="object", tag="embedding"):
    """The row as numbers, or as base64 of them in float32."""

    index: int
    embedding: list[float] | str


class Embeddings(Struct, tag_field="object", tag="list"):
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


class ModelStatus(Struct):
    """As llama-server puts it. `failed`: it could not be loaded, or has ended by itself."""

    value: Literal["unloaded", "loading", "loaded"]
    failed: bool | UnsetType = UNSET


class Model(Struct, kw_only=True, tag_field="object", tag="model"):
    """A model. `size` and what follows are fields of ours, for programs that choose a model.

    Attributes:
        size: bytes of its files. removable: `/api/delete` takes it.
        abilities, kinds: as a runner's state has them; before a model is loaded, those that the
            header of its file tells, and it may take more. Files without a header leave them out.
        context_length: positions; of a model that is not loaded, those it was trained for.
    """

    id: str
    created: int
    owned_by: str = "ggmodel"
    loaded: bool
    engine: Literal["ggmodel", "llama.cpp"] | None
    status: ModelStatus
    size: int = 0
    removable: bool = False
    abilities: list[str] | UnsetType = UNSET
    kinds: list[str] | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    meta: ModelMeta | UnsetType = UNSET


class ModelAbilities(Struct):
    """A model as llama-server lists it beside OpenAI's list; "multimodal" ones take media."""

    name: str
    model: str
    capabilities: list[str]


class ModelList(Struct, tag_field="object", tag="list"):
    data: list[Model]
    models: list[ModelAbilities]


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


class InputTokens(Struct, tag_field="object", tag="response.input_tokens"):
    input_tokens: int


class ResponseDeleted(Struct, tag_field="object", tag="response"):
    id: str
    deleted: bool = True


class InputItems(Struct, tag_field="object", tag="list"):
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


class TranscriptSegment(Struct):
    id: int
    start: float
    end: float
    text: str


class Duration(Struct, tag="duration"):
    """The length of a sound."""

    seconds: float


class Transcription(Struct):
    """The fields behind the usage come with `verbose_json`."""

    text: str
    usage: Duration
    task: Literal["transcribe", "translate"] | UnsetType = UNSET
    language: str | UnsetType | None = UNSET
    duration: float | UnsetType = UNSET
    segments: list[TranscriptSegment] | UnsetType = UNSET


class TranscriptDelta(Struct, tag="transcript.text.delta"):
    delta: str


class TranscriptDone(Struct, tag="transcript.text.done"):
    text: str


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def _error(error: Problem) -> ErrorAnswer:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    kind, message = _TYPES.get(error.status, kind), error.message
    if error.fields:
        plural = "s" if error.fields[1:] else ""
        message = f"Unrecognized request argument{plural} supplied: {', '.join(error.fields)}"
    return ErrorAnswer(Failed(message, kind, error.param, error.code))


OPENAI = ErrorFormat(ErrorAnswer, _error, event)


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request, under llama-server's names."""
    settings = {k: v for k, v in options.items() if k not in ("logprobs", "top_logprobs")}
    settings["n_predict"] = settings.pop("max_tokens", -1)
    biases = options.get("logit_bias", {})
    settings["logit_bias"] = [{"token": id, "bias": bias} for id, bias in biases.items()]
    return settings


def progress_of(progress: PromptProgress) -> PrefillProgress:
    """A step of the prefill."""
    time_ms = round(progress.seconds * 1e3)
    return PrefillProgress(progress.total, progress.reused, progress.processed, time_ms)


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(16)}"


def head(prefix: str, name: str, state: State) -> dict[str, Any]:
    """The fields of `Head`.

    Args:
        prefix: of the id. name: the model's, see `called`.
    """
    return {
        "id": new_id(prefix),
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": state.build,
    }


def usage(finished: list[Finished], prompts: int | None = None) -> Usage:
    """Counts of answers.

    Args:
        prompts: tokens of the prompts, if several answers have the same one.
    """
    if prompts is None:
        prompts = sum(one.prompt_tokens for one in finished)
    completions = sum(one.completion_tokens for one in finished)
    reused = min(prompts, sum(one.reused_tokens for one in finished))
    accepted = sum(one.accepted for one in finished)
    rejected = sum(one.drafted for one in finished) - accepted
    details = CompletionDetails(sum(one.reasoning_tokens for one in finished), accepted, rejected)
    return Usage(prompts, completions, prompts + completions, PromptDetails(reused), details)


def timings(finished: Finished) -> Timings:
    """Speed of an answer, as llama-server tells it."""
    read = finished.prompt_tokens - finished.reused_tokens
    prompt, decode = finished.prompt_seconds, finished.decode_seconds
    count = finished.completion_tokens
    steps = max(0, count - 1)  # the first token comes from the prompt's last step
    return Timings(
        cache_n=finished.reused_tokens,
        prompt_n=read,
        prompt_ms=prompt * 1e3,
        prompt_per_token_ms=prompt * 1e3 / read if read else 0.0,
        prompt_per_second=read / prompt if prompt else 0.0,
        predicted_n=count,
        predicted_ms=decode * 1e3,
        predicted_per_token_ms=decode * 1e3 / steps if steps else 0.0,
        predicted_per_second=steps / decode if decode else 0.0,
    )


def timings_so_far(progress: PromptProgress) -> Timings:
    """Speed of a prefill that is under way; none before its first step."""
    read = progress.processed - progress.reused
    return timings(
        Finished(
            "length",
            progress.processed,
            0,
            reused_tokens=progress.reused,
            prompt_seconds=progress.seconds if read else 0.0,
        )
    )


def logprobs(tokens: Sequence[Token]) -> list[TokenLogprob]:
    """Log-probabilities of tokens, each with the likeliest at its place."""
    return [TokenLogprob(*entry(one), [Likely(*entry(top)) for top in one.top]) for one in tokens]


def entry(token: Token) -> tuple[str, Number, list[int]]:
    """The fields of `Likely`."""
    return token.text, token.logprob, list(token.data)
