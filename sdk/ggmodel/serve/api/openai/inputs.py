"""Inputs of OpenAI's API: sampling parameters, texts and token ids, messages."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Struct, structs

from ....bounds import limits
from ...bodies import text_of
from ...chat import ChatProtocol
from ...chat_requests import Message, Part, check_count, item_part, simplified, text_part, tool_call
from ...documents import document_text
from ...endpoint import DONE, Call, event
from ...errors import Refused
from ...media import from_base64
from ...requests import Finished, GrammarSpec, Runner, Tokenize
from ...tools import INPUT
from .schemas import head

AUTO = 'ask for truncation "auto", which leaves out the oldest turns'
MIDDLE = "ask for truncate true, which leaves out its middle"
_ID_DIGITS = 18  # of a token's id, which has 63 bits at most
# The name of a field here and of the option of a request, where they differ.
_OPTIONS = {
    name: name
    for name in (
        "temperature top_p top_k min_p typical_p seed frequency_penalty presence_penalty "
        "repeat_penalty repeat_last_n context_shift truncate num_keep prompt_lookup steer capture"
    ).split()
} | {"repetition_penalty": "repeat_penalty"}


class StreamOptions(Struct):
    include_usage: bool | None = None


class StructuredOutputs(Struct):
    """vLLM's forms of an answer, one of them. A grammar is Lark's, or GBNF where it has `::=`."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


def _one_form(
    param: str,
    json: dict[str, Any] | str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    json_object: bool | None = None,
) -> GrammarSpec | None:
    """The form that a field gives, or several fields under one name for messages.

    Raises:
        Refused: there are several.
    """
    forms = list[GrammarSpec]()
    if json is not None:
        forms.append(GrammarSpec("json_schema", json if isinstance(json, str) else encoded(json)))
    if regex:
        forms.append(GrammarSpec("regex", regex))
    if choice:
        forms.append(GrammarSpec("choice", encoded(choice)))
    if grammar:
        forms.append(GrammarSpec("gbnf" if "::=" in grammar else "lark", grammar))
    if json_object:
        forms.append(GrammarSpec("json"))
    if len(forms) > 1:
        raise Refused(f"{param}: give one form of the answer, not {len(forms)}", param=param)
    return forms[0] if forms else None


class AdapterScale(Struct):
    """A LoRA adapter by its number, and its strength; llama-server's."""

    id: int
    scale: float = 0.0


def scales_by_name(scales: list[AdapterScale], names: list[str], param: str) -> dict[str, float]:
    """The strengths of adapters by their names.

    Raises:
        Refused: there is no adapter of a number.
    """
    for one in scales:
        if not 0 <= one.id < len(names):
            raise Refused(
                f"{param}: there is no adapter {one.id}; there are {len(names)}", param=param
            )
    return {names[one.id]: one.scale for one in scales}


class Sampling(Struct, kw_only=True):
    """How to choose tokens, and how to send them. The last lines are no fields of OpenAI's, but
    those of llama-server and vLLM, and ours: `steer` is name → strength of steering vectors that
    the model was loaded with, `capture` names modules whose results the answer has."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float | bool] | list[tuple[int | str, float | bool]] | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    context_shift: bool | None = None
    truncate: bool | None = None
    num_keep: int | None = None
    prompt_lookup: bool | None = None
    return_progress: bool | None = None
    steer: dict[str, float] | None = None
    capture: str | list[str] | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    lora: list[AdapterScale] | None = None
    id_slot: int | None = None
    keep_alive: float | None = None

    @property
    def choices(self) -> int:
        """How many answers are wanted.

        Raises:
            Refused: too many, or none.
        """
        n = 1 if self.n is None else self.n
        if not 1 <= n <= limits.serve_choices:
            raise Refused(f"n: {n} is not between 1 and {limits.serve_choices}", param="n")
        return n

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def watches_prefill(self) -> bool:
        """Whether the stream has a part for each step of the prefill."""
        return bool(self.stream and self.return_progress)

    @property
    def slot(self) -> int | None:
        """The number of the slot that has to compute the answer; None for any."""
        return None if self.id_slot is None or self.id_slot < 0 else self.id_slot

    async def options(self, runner: Runner, max_tokens: int | None) -> dict[str, Any]:
        """The options of a request to a runner, those that were given.

        Raises:
            Refused: one is impossible.
        """
        options = {
            option: value
            for name, option in _OPTIONS.items()
            if (value := getattr(self, name)) is not None
        }
        if max_tokens is not None and max_tokens >= 0:
            options["max_tokens"] = max_tokens
        if self.stop:
            options["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        bias = await self._bias(runner) if self.logit_bias else {}
        if self.ignore_eos:
            if not runner.state.end_ids:
                raise Refused("ignore_eos: the tokens that end are unknown", param="ignore_eos")
            bias |= dict.fromkeys(runner.state.end_ids, -float("inf"))
        if bias:
            options["logit_bias"] = bias
        if self.lora is not None:
            options["adapters"] = scales_by_name(self.lora, runner.state.adapters, "lora")
        return options

    async def _bias(self, runner: Runner) -> dict[int, float]:
        """Token id → what is added to its logit. A text stands for its tokens."""
        logit_bias = self.logit_bias
        pairs = logit_bias.items() if isinstance(logit_bias, dict) else logit_bias or ()
        biases: dict[int, float] = {}
        for name, value in pairs:
            bias = -float("inf") if value is False else float(value)
            if isinstance(name, int) or name.isdecimal():
                if len(str(name)) > _ID_DIGITS:
                    raise Refused(f"logit_bias: {name!s:.50} is no token", param="logit_bias")
                biases[int(name)] = bias
            else:
                tokens = await runner.tokenize(Tokenize(name, add_special=False))
                biases |= dict.fromkeys(tokens.ids, bias)
        return biases

    def form(self) -> GrammarSpec | None:
        """The form of the answer, by the fields that are not OpenAI's.

        Raises:
            Refused: there are several.
        """
        if self.grammar:
            return GrammarSpec("gbnf", self.grammar)
        if self.json_schema is not None:
            return schema(self.json_schema)
        if self.structured_outputs is not None:
            return _one_form("structured_outputs", *structs.astuple(self.structured_outputs))
        guided = (self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        return _one_form("guided_…", *guided)


S = TypeVar("S", bound="Sampling")


class OpenAIProtocol(ChatProtocol[S]):
    """The part that chats and completions have in common.

    Attributes:
        prefix: of ids. head: the fields of `Head`.
        finished: the answers that are complete, by their index.
    """

    prefix: ClassVar[str]

    def __init__(self, call: Call, params: S):
        super().__init__(call, params)
        self.finished: dict[int, Finished] = {}

    def loading(self) -> dict[str, Any]:
        return {"keep_alive": self.params.keep_alive}

    @cached_property
    def head(self) -> dict[str, Any]:
        return head(self.prefix, self.name, self.runner.state)

    @abstractmethod
    def counts(self) -> Struct:
        """The chunk with the counts of all answers."""

    def end(self) -> bytes:
        counts = event(self.counts()) if self.params.wants_usage else b""
        return counts + DONE


def schema(value: Any) -> GrammarSpec:
    """JSON by a schema."""
    return GrammarSpec("json_schema", encoded(value))


def encoded(value: Any) -> str:
    """JSON text."""
    return msgspec.json.encode(value).decode()


class TextPart(Struct):
    text: str
    type: Literal["text"] = "text"


class TextObject(Struct):
    """A text as llama-server takes it, under one of two names; images do not go with it."""

    prompt_string: str | None = None
    multimodal_data: list[str] | None = None
    content: list[TextPart] | None = None


Input = str | TextObject | list[str | int | list[int | str] | TextObject]


def inputs_of(inputs: Input | None, param: str) -> list[Any]:
    """Each text, or list of token ids; a list with numbers is one, and may have texts between.

    Args:
        param: the field, for messages.

    Raises:
        Refused: there are none, too many, or an empty list.
    """
    if isinstance(inputs, (str, TextObject)):
        prompts: list[Any] = [inputs]
    elif inputs and any(isinstance(one, int) for one in inputs):
        prompts = [inputs]
        for i, one in enumerate(inputs):
            if isinstance(one, (list, TextObject)):
                raise Refused(f"{param}[{i}]: a list among numbers", param=f"{param}[{i}]")
    else:
        prompts = list(inputs or ())
    if not prompts or [] in prompts:
        raise Refused(f"{param}: give a text, token ids, or a list of them", param=param)
    if len(prompts) > limits.serve_prompts:
        raise Refused(
            f"{param}: {len(prompts)} are more than the limit serve_prompts of "
            f"{limits.serve_prompts}",
            param=param,
        )
    return [_text_of(one, param) if isinstance(one, TextObject) else one for one in prompts]


async def only_ids(runner: Runner, parts: str | list[int | str]) -> str | list[int]:
    """Token ids with texts between them as ids alone; a text as it is."""
    if isinstance(parts, str):
        return parts
    ids: list[int] = []
    for part in parts:
        if isinstance(part, str):
            ids += (await runner.tokenize(Tokenize(part, add_special=not ids))).ids
        else:
            ids.append(part)
    return ids


def _text_of(text_object: TextObject, param: str) -> str:
    if text_object.multimodal_data:
        raise Refused(f"{param}: images go with chats, not with texts", param=param)
    if text_object.prompt_string is not None:
        return text_object.prompt_string
    if text_object.content is None:
        raise Refused(f"{param}: the object has neither prompt_string nor content", param=param)
    return "".join(part.text for part in text_object.content)


# OpenAI's newer name of the role that instructs the model; templates know the older one.
_ROLES = {"developer": "system", "function": "tool"}
_URLS = {"image_url": "image", "audio_url": "audio", "video_url": "video"}


class Function(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class CustomCall(Struct):
    name: str
    input: str = ""


class ToolCall(Struct):
    function: Function | None = None
    id: str = ""
    type: str = "function"
    custom: CustomCall | None = None

    def converted(self, where: str) -> dict[str, Any]:
        """The call of a message, a custom tool's as that of a function.

        Raises:
            Refused: it has neither.
        """
        if self.custom is not None:
            return tool_call(self.id, self.custom.name, {INPUT: self.custom.input})
        if self.function is None:
            raise Refused(f"{where}.function: is missing", param=f"{where}.function")
        return tool_call(self.id, self.function.name, self.function.arguments)


class ChatMessage(Struct):
    """A message of a request."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: Function | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


async def converted(
    messages: Sequence[ChatMessage], call: Call, where: str = "messages"
) -> list[Message]:
    """The messages, images and sounds as bytes.

    Args:
        call: fetches images and sounds, and has the files of the client.
        where: the field of the request that they are, for messages.

    Raises:
        Refused: there are too many, a part of a content is wrong, or its URL not allowed.
    """
    check_count(messages, where)
    for i, message in enumerate(messages):  # older forms, without ids, which templates want
        if message.function_call is not None:
            called = ToolCall(message.function_call, f"call{i:05}")
            message.tool_calls = [*(message.tool_calls or ()), called]
        elif message.role == "function" and message.tool_call_id is None:
            message.tool_call_id = f"call{i - 1:05}"
    return [await _converted(one, f"{where}[{i}]", call) for i, one in enumerate(messages)]


async def _converted(message: ChatMessage, where: str, call: Call) -> Message:
    fields: Message = {"role": _ROLES.get(message.role, message.role)}
    calls = list(message.tool_calls or ())
    if isinstance(message.content, list):
        fields["content"] = await _content(message.content, f"{where}.content", call)
    elif message.content is not None or not calls:
        fields["content"] = message.content or message.refusal or ""
    if message.content is None and not calls and message.role in ("user", "system", "developer"):
        raise Refused(f"{where}.content: is missing", param=f"{where}.content")
    if calls:
        fields["tool_calls"] = [
            one.converted(f"{where}.tool_calls[{i}]") for i, one in enumerate(calls)
        ]
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if reasoning := message.reasoning_content or message.reasoning:
        fields["reasoning_content"] = reasoning
    return fields


async def _content(parts: list[dict[str, Any]], where: str, call: Call) -> str | list[Part]:
    return simplified([await _part(part, f"{where}[{i}]", call) for i, part in enumerate(parts)])


async def _part(part: dict[str, Any], where: str, call: Call) -> Part:
    kind = part.get("type")
    if kind in ("text", "refusal", "input_text", "output_text"):
        return text_part(text_of(part.get("refusal" if kind == "refusal" else "text"), where))
    if kind in _URLS:
        source = part.get(kind)
        url = source.get("url") if isinstance(source, dict) else source
        where = f"{where}.{kind}.url"
        return item_part(_URLS[str(kind)], await call.fetch(text_of(url, where), where))
    if kind == "input_image":
        where = f"{where}.image_url"
        return item_part("image", await call.fetch(text_of(part.get("image_url"), where), where))
    if kind == "input_audio":
        source, where = part.get("input_audio"), f"{where}.input_audio.data"
        data = text_of(source.get("data") if isinstance(source, dict) else None, where)
        if data[:5].lower() == "data:":
            return item_part("audio", await call.fetch(data, where))
        return item_part("audio", from_base64(data, where))
    if kind in ("file", "input_file"):
        file = part.get("file") if kind == "file" else part
        return text_part(await _file(file, f"{where}.file" if kind == "file" else where, call))
    raise Refused(
        f"{where}.type: {kind!r:.50} is unsupported; supported are text, image_url, input_audio, "
        "video_url and file",
        param=f"{where}.type",
    )


async def _file(file: Any, where: str, call: Call) -> str:
    """The text of a file: its data, an address, or one that was uploaded."""
    if not isinstance(file, dict):
        raise Refused(f"{where}: is missing", param=where)
    name = file.get("filename")
    title = name if isinstance(name, str) else None
    if (data := file.get("file_data")) is not None:
        where = f"{where}.file_data"
        data = text_of(data, where)
        is_url = data[:5].lower() == "data:"
        content = await call.fetch(data, where) if is_url else from_base64(data, where)
    elif (url := file.get("file_url")) is not None:
        where = f"{where}.file_url"
        content = await call.fetch(text_of(url, where), where)
    else:
        where = f"{where}.file_id"
        id = text_of(file.get("file_id"), where)
        stored = call.server.files.get(id, call.key)
        if stored is None:
            raise Refused(f"{where}: no file has the id {id!a:.100}; send file_data", param=where)
        call.note_media(stored.nbytes, where)
        content = await asyncio.to_thread(call.server.files.path(stored).read_bytes)
        title = title or stored.filename
    return await document_text(call, content, where, title)
