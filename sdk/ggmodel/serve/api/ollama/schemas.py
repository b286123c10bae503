"""Schemas of Ollama's API: answers, errors, times, and the options that requests have in common."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ....names import request_options
from ...chat_requests import Message, item_part, text_part
from ...endpoint import ErrorFormat, line
from ...errors import Problem, Refused
from ...media import from_base64
from ...pool import ListedModel
from ...requests import Finished, GrammarSpec, State
from ..openai.schemas import TokenLogprob


class ErrorAnswer(Struct):
    """An error, as Ollama puts it."""

    error: str


class OllamaResponse(Struct, kw_only=True):
    """Fields that all parts of answers have. The last has nanoseconds and counts."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class AnsweredFunction(Struct):
    index: int
    name: str
    arguments: dict[str, Any]


class AnsweredCall(Struct):
    id: str
    function: AnsweredFunction


class AnsweredMessage(Struct):
    content: str = ""
    role: Literal["assistant"] = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[AnsweredCall] | UnsetType = UNSET


class ChatResponse(OllamaResponse, kw_only=True):
    message: AnsweredMessage


class GenerateResponse(OllamaResponse, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


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


class ListEntry(Struct):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class Tag(ListEntry):
    capabilities: list[str]


class Tags(Struct):
    models: list[Tag]


class RunningModel(ListEntry):
    expires_at: str
    context_length: int
    engine: Literal["ggmodel", "llama.cpp"]
    size_vram: int = 0


class RunningModels(Struct):
    models: list[RunningModel]


class Version(Struct):
    """The version of Ollama whose API this is, since programs ask for one, and this program's."""

    ggmodel: str
    version: str = "0.33.0"


class PlainMessage(Struct):
    role: str
    content: str


class ShownTensor(Struct):
    name: str
    type: str
    shape: list[int]


class ShownModel(Struct, kw_only=True):
    """A model. Texts, messages and tensors that there are none of are left out."""

    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    system: str | UnsetType = UNSET
    license: str | UnsetType = UNSET
    messages: list[PlainMessage] | UnsetType = UNSET
    projector_info: dict[str, Any] | UnsetType = UNSET
    tensors: list[ShownTensor] | UnsetType = UNSET


class Status(Struct):
    """A step of a change. Bytes come with the steps that have a share."""

    status: str = "success"
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def _error(error: Problem) -> ErrorAnswer:
    return ErrorAnswer(error.message)


OLLAMA = ErrorFormat(ErrorAnswer, _error, line)


def now() -> str:
    """The time, as RFC 3339 writes it."""
    return moment(time.time())


def moment(seconds: float) -> str:
    """A time in seconds since 1970, as RFC 3339 writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


class Clock:
    """Times of one request, in nanoseconds as Ollama tells them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._loaded = self._began

    def loaded(self) -> None:
        """The model is there."""
        self._loaded = time.monotonic()

    def so_far(self) -> dict[str, int]:
        """From the beginning to now, and until the model was there."""
        return {
            "total_duration": _nanoseconds(time.monotonic() - self._began),
            "load_duration": _nanoseconds(self._loaded - self._began),
        }

    def of(self, finished: Finished) -> dict[str, int]:
        """Times and counts of a whole answer."""
        return {
            **self.so_far(),
            "prompt_eval_count": finished.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(finished.prompt_seconds),
            "eval_count": finished.completion_tokens,
            "eval_duration": _nanoseconds(finished.decode_seconds),
        }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def details(model: ListedModel, state: State | None = None, parent: str = "") -> Details:
    """Family, size and type of a model; those of one that is loaded from its state."""
    fields = model.details
    family = str(fields.get("architecture", "")) if state is None else state.architecture
    quantization = (state and state.quantization) or str(fields.get("quantization", ""))
    return Details(
        parent_model=parent,
        format=str(fields.get("format", "gguf")),
        family=family,
        families=[family] if family or state else [],
        parameter_size=_rounded(int(fields.get("parameters", 0))),
        quantization_level=quantization,
    )


def _rounded(count: int) -> str:
    """A number of parameters, such as "7.6B"."""
    for unit, letter in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f}{letter}"
    return str(count)


KeepAlive = float | str | None
Think = bool | str | None
Format = str | dict[str, Any] | None

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_TOP = 20
# Templates know "high" as the most.
_EFFORTS = {"max": "high", "high": "high", "medium": "medium", "low": "low"}


class AnswerRequest(Struct, kw_only=True):
    """Fields of all requests that are answered by text.

    Attributes:
        truncate: leave out the oldest turns of a prompt beyond the context, or the middle of one
            without a template.
        shift: go on when the context is full, without the older half of it. Ollama's default.
    """

    model: str
    format: Format = None
    options: dict[str, Any] | None = None
    stream: bool | None = None
    think: Think = None
    keep_alive: KeepAlive = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None

    def request_options(self) -> dict[str, Any]:
        """The options of the request to a runner.

        Raises:
            Refused: one has a wrong value.
        """
        options, _ = options_of(self.options)
        options["truncate"] = self.truncate is not False
        if self.shift:
            options["context_shift"] = True
        return options | likely(self.logprobs, self.top_logprobs)

    @property
    def ignored(self) -> list[str]:
        """The options that are unsupported."""
        options = {key: value for key, value in (self.options or {}).items() if value is not None}
        return [f"options.{key}" for key in request_options(options)[2]]


def keep_alive(value: KeepAlive) -> float | None:
    """Seconds that a model stays; negative for ever, None for the server's default.

    Args:
        value: seconds, or a duration such as "5m" or "1h30m".

    Raises:
        Refused: it is neither.
    """
    if value is None or not isinstance(value, str):
        return value
    text = value.strip()
    sign = -1.0 if text.startswith("-") else 1.0
    text = text.lstrip("+-")
    parts = _PART.findall(text)
    if text.replace(".", "", 1).isdigit():
        return sign * float(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise Refused(f"keep_alive: {value!r:.50} is no duration, such as 5m", param="keep_alive")
    return sign * sum(float(number) * _SECONDS[unit] for number, unit in parts)


def options_of(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a request, and those of loading.

    Raises:
        Refused: an option has a wrong value. Unknown ones are ignored, as Ollama does.
    """
    present = {name: value for name, value in (options or {}).items() if value is not None}
    loading: dict[str, Any] = {}
    length = present.pop("num_ctx", None)
    if length is not None:
        if not isinstance(length, int) or isinstance(length, bool):
            raise Refused(f"options.num_ctx: {length!r:.50} is no number", param="options.num_ctx")
        if length > 0:
            loading["context_length"] = length
    of_request, wrong, _ = request_options(present)
    if wrong:
        name = f"options.{wrong[0]}"
        raise Refused(f"{name}: {present[wrong[0]]!r:.50} is of a wrong type", param=name)
    return of_request, loading


def form(format: Format) -> GrammarSpec | None:
    """The form of an answer: "json", or a JSON schema.

    Raises:
        Refused: it is neither.
    """
    if format in (None, ""):
        return None
    if isinstance(format, dict):
        return GrammarSpec("json_schema", msgspec.json.encode(format).decode())
    if format == "json":
        return GrammarSpec("json")
    raise Refused(f'format: {format!r:.50} is neither "json" nor a JSON schema', param="format")


def thinking(think: Think) -> dict[str, Any]:
    """Variables of a template: whether the model thinks, and how hard: "low" to "max".

    Raises:
        Refused: it is neither a boolean nor one of those words.
    """
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"enable_thinking": think}
    if think not in _EFFORTS:
        raise Refused(f"think: {think!r:.50} is none of {', '.join(_EFFORTS)}", param="think")
    return {"enable_thinking": True, "reasoning_effort": _EFFORTS[think]}


def likely(logprobs: bool | None, top: int | None) -> dict[str, Any]:
    """Options for log-probabilities.

    Raises:
        Refused: too many of the likeliest are wanted.
    """
    if not logprobs:
        return {}
    top = top or 0
    if not 0 <= top <= _TOP:
        raise Refused(f"top_logprobs: {top} is not between 0 and {_TOP}", param="top_logprobs")
    return {"logprobs": True, "top_logprobs": top}


def with_images(text: str, images: list[str] | None, where: str) -> Message:
    """The content of a message: its images, then its text.

    Raises:
        Refused: an image is no base64.
    """
    if not images:
        return {"content": text}
    parts = [
        item_part("image", from_base64(one.partition(",")[2] if one[:5] == "data:" else one, place))
        for one, place in ((one, f"{where}images[{i}]") for i, one in enumerate(images))
    ]
    return {"content": [*parts, *([text_part(text)] if text else [])]}
