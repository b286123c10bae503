"""Requests of /v1/responses, their answers, and the events of those."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from .response_output import AnswerItem, Event, OutputEvent
from .response_tools import ResponseChoice, ResponseTool
from .schemas import ResponseUsage
from .tools import ToolChoiceMode


class Format(Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class TextOptions(Struct):
    format: Format | None = None
    verbosity: str | None = None


class ReasoningOptions(Struct):
    effort: str | None = None
    summary: str | None = None


class ResponseRequest(Struct, kw_only=True):
    """A request. The last line is no field of OpenAI's."""

    input: str | list[dict[str, Any]] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: ToolChoiceMode | ResponseChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None

    seed: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    keep_alive: float | None = None


class Incomplete(Struct):
    reason: Literal["max_output_tokens"]


class ResponseError(Struct):
    code: str
    message: str


class ResponseAnswer(Struct, kw_only=True, tag_field="object", tag="response"):
    """An answer, with what was asked for."""

    id: str
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"] = "in_progress"
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[AnswerItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningOptions
    store: bool
    temperature: float | None
    text: dict[str, dict[str, Any]]
    tool_choice: ToolChoiceMode | ResponseChoice
    tools: list[ResponseTool]
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None


class ResponseEvent(Event, kw_only=True):
    """An event of the whole answer."""

    response: ResponseAnswer


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    pass


class ResponseInProgress(ResponseEvent, kw_only=True, tag="response.in_progress"):
    pass


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    pass


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    pass


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    pass


ResponseStream = (
    OutputEvent
    | ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
)
