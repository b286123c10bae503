"""Chats of any API as requests to a runner: messages, tools, parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ..bounds import limits
from ..chat.described_tools import describe_tools
from ..chat.replies import ReplyFormat, reply_format
from ..chat.template import template_abilities
from ..errors import TemplateError
from .errors import Refused
from .message_order import in_order, needs_order, taken_by
from .requests import (
    ChatParams,
    GrammarSpec,
    Render,
    Request,
    Runner,
    State,
)
from .tools import arguments_of

if TYPE_CHECKING:
    from .server import Settings

Part = dict[str, Any]
Message = dict[str, Any]


def text_part(text: str) -> Part:
    """A part of a content that is text."""
    return {"type": "text", "text": text}


def item_part(kind: str, data: bytes) -> Part:
    """A part of a content that is an image or a sound.

    Args:
        kind: "image", "audio" or "video".
    """
    return {"type": kind, kind: data}


def simplified(parts: list[Part]) -> str | list[Part]:
    """A content of one text as that text."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def tool_call(id: str, name: str, arguments: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """A call in a message. Templates want its arguments as an object."""
    if not isinstance(arguments, Mapping):
        arguments = arguments_of(arguments or "")
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def dated(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of a chat template, and today's date under the names by which templates of Llama 3
    and of FireFunction ask for it, as llama-server gives it. The latter also puts in a text of
    tools, which is empty here: `suit` describes them."""
    today = datetime.now()
    dates = {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y")}
    return {**dates, "functions": "", **variables}


def check_count(messages: Sequence[Any], param: str = "messages") -> None:
    """Refuses more messages than would be converted in a moment, before they are.

    Args:
        messages: structs or objects with a `content` and `tool_calls`, maybe.
        param: the field of the request that they are, for the message.

    Raises:
        Refused: they and the parts of their contents are more than `limits.serve_messages`.
    """
    count = len(messages)
    if count <= limits.serve_messages:
        count += sum(map(_parts, messages))
    if count > limits.serve_messages:
        raise Refused(
            f"{param}: more than {limits.serve_messages:,} messages and parts of their contents "
            "(the limit serve_messages)",
            413,
            param=param,
        )


def _parts(message: Any) -> int:
    """The parts of a message and, as those of results of tools, within these."""
    count = 0
    for name in ("content", "tool_calls"):
        get = message.get if isinstance(message, dict) else lambda key: getattr(message, key, None)
        if isinstance(parts := get(name), list):
            count += len(parts) + sum(_parts(one) for one in parts if isinstance(one, dict))
    return count


_ROLES = ("system", "user", "assistant", "tool")


def check_messages(messages: list[Message], template: str) -> None:
    """Adds to results of tools the name of their function, which some templates want.

    Args:
        template: of the chat; roles beside the usual ones are those that it has in quotes.

    Raises:
        Refused: there are none, or too many images and sounds; a role is unknown.
    """
    if not messages:
        raise Refused("messages: give at least one", param="messages")
    items = 0
    names: dict[str, str] = {}
    for message in messages:
        role = message["role"]
        if role not in _ROLES and not any(f"{sign}{role}{sign}" in template for sign in "'\""):
            known = ", ".join((*_ROLES, "developer"))
            raise Refused(
                f"messages: {role!a:.60} is no role of this model; roles are {known}",
                param="messages",
            )
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and "name" not in message:
            name = names.get(message.get("tool_call_id", ""))
            if name is not None:
                message["name"] = name
        if isinstance(message.get("content"), list):
            items += sum(part["type"] != "text" for part in message["content"])
    if items > limits.serve_items:
        raise Refused(
            f"the messages have {items} images and sounds; the limit serve_items is "
            f"{limits.serve_items}",
            param="messages",
        )


_ADDED = 4  # tokens
_SHORTEST = 4096  # tokens of an answer whose length nobody limits, whatever else is limited
_ENDING = 4096  # characters of a prompt in which a thought may have begun
_STOPS, _STOP_CHARACTERS = 64, 1 << 16  # texts, and characters of all
# Grammars of large schemas take seconds: nothing else waits for these threads.
_GRAMMARS = ThreadPoolExecutor(2, "ggmodel-grammar")


async def prepare(runner: Runner, request: Request, settings: Settings) -> ReplyFormat | None:
    """Completes a request: options within the limits, and for a chat the form of calls.

    Returns:
        The form of the model's replies; None if all text is content.

    Raises:
        Refused: the tools and the choice among them are impossible.
        Error: the messages cannot be rendered.
    """
    chat = request.prompt
    if not isinstance(chat, ChatParams):
        request.options = within(request.options, settings)
        return None
    chat.tools = _tools(chat) or None
    chat.variables = dated(chat.variables)
    form = None if request.grammar is not None and not chat.tools else _form(runner, chat)
    if form is None:
        chat.variables.setdefault("enable_thinking", False)  # a thought would break the form
    check_messages(chat.messages, chat.template or runner.state.template)
    request.options = within(request.options, settings)
    await suit(runner, chat)
    if form is not None:
        request.special = form.special
        if form.stop:
            request.options["stop"] = [*_listed(request.options.get("stop")), *form.stop]
        if chat.tools and (chat.choice != "auto" or chat.strict):
            request.grammar = await _call_grammar(runner, form, chat) or request.grammar
    return form


def choices(request: Request, count: int) -> list[Request]:
    """Copies of a request, each with a seed of its own where it has one."""
    seed = request.options.get("seed", -1)
    if seed < 0:
        return [request] * count
    seeds = [{**request.options, "seed": seed + index} for index in range(count)]
    return [structs.replace(request, options=options) for options in seeds]


def model_name(name: str | None, state: State) -> str:
    """The name of the model in an answer: the one that the request gave, else its file's."""
    return name or PurePath(state.path).name.removesuffix(".gguf")


def check_logprobs(requests: Sequence[Request], runner: Runner) -> None:
    """Looks how many log-probabilities the answers to all of these may have. Answers whose length
    the request leaves open are shortened to what the limit allows.

    Raises:
        Refused: more than `limits.serve_logprobs`.
    """
    context = runner.state.context_length
    count = sum(_logprobs(one, context) for one in requests)
    options = [one.options for one in requests if one.options.get("logprobs")]
    longest = limits.serve_logprobs // (sum(_listed_each(one) for one in options) or 1)
    if count > limits.serve_logprobs and longest >= _SHORTEST:
        for one in options:
            one.setdefault("max_tokens", longest)
        count = sum(_logprobs(one, context) for one in requests)
    if count > limits.serve_logprobs:
        raise Refused(
            f"the request may want {count:,} log-probabilities, more than the limit "
            f"serve_logprobs of {limits.serve_logprobs:,}; ask for fewer answers, less max_tokens, "
            "or fewer likeliest tokens",
            413,
        )


def _logprobs(request: Request, context: int) -> int:
    """The most log-probabilities of a prompt and its answer."""
    options, count = request.options, 0
    if options.get("logprobs"):
        longest = min(options.get("max_tokens", context), context)
        count += longest * _listed_each(options)
    if request.prompt_logprobs is not None:
        prompt = request.prompt
        # A token has a byte at least, besides those that begin and end a text.
        length = context
        if isinstance(prompt, str):
            length = len(prompt.encode("utf-8", "replace")) + _ADDED
        elif isinstance(prompt, list) and all(isinstance(part, int) for part in prompt):
            length = len(prompt)
        count += min(length, context) * (request.prompt_logprobs + 1)
    return count


def _listed_each(options: dict[str, Any]) -> int:
    """Log-probabilities at each place of an answer."""
    return options.get("top_logprobs", 0) + 1


def _form(runner: Runner, chat: ChatParams) -> ReplyFormat:
    state = runner.state
    template = state.template if chat.template is None else chat.template
    template = template[: limits.template_characters]  # the runner refuses a longer one
    try:
        return reply_format(template, state.response_template)
    except TemplateError:  # the checkpoint's declaration is of no use
        return reply_format(template)


async def suit(runner: Runner, chat: ChatParams) -> None:
    """Suits messages to the template: tools and calls are told in words where it knows neither, and
    the model's own template gets an order of roles that it takes."""
    template = runner.state.template if chat.template is None else chat.template
    named = "{" not in template  # of the file's templates
    if not (named or _form(runner, chat).calls or "tools" in template_abilities(template)):
        chat.messages = describe_tools(chat.messages, chat.tools)
    if chat.template is None and needs_order(chat.messages):
        # Trials of a template that is new take a moment, in which others go on.
        taken = await asyncio.to_thread(taken_by, template)
        chat.messages = in_order(chat.messages, taken)


def within(options: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Options within the limits of the server, with its defaults.

    Raises:
        Refused: too many stop strings, each of which is sought at every token, or too long ones.
    """
    stops = _listed(options.get("stop"))
    if len(stops) > _STOPS or sum(map(len, stops)) > _STOP_CHARACTERS:
        message = f"stop: more than {_STOPS} texts, or {_STOP_CHARACTERS:,} characters"
        raise Refused(message, param="stop")
    options = {**settings.defaults, **options}
    max_tokens, most = options.get("max_tokens"), settings.max_tokens
    if most is not None and (max_tokens is None or max_tokens > most):
        options["max_tokens"] = most
    return options


def _tools(chat: ChatParams) -> list[dict[str, Any]]:
    """The functions that the answer may call."""
    tools = chat.tools or []
    names = [tool["function"]["name"] for tool in tools]
    if len(names) > limits.serve_tools:
        raise Refused(
            f"tools: {len(names)} are more than the limit serve_tools of {limits.serve_tools}",
            param="tools",
        )
    if chat.choice != "required":
        return [] if chat.choice == "none" else tools
    if not names:
        raise Refused("tool_choice: there are no tools to choose from", param="tool_choice")
    if chat.function is not None and chat.function not in names:
        raise Refused(f"tool_choice: no tool is called {chat.function!r:.100}", param="tool_choice")
    return tools


async def _call_grammar(runner: Runner, form: ReplyFormat, chat: ChatParams) -> GrammarSpec | None:
    """The form of the calls that the answer must or may have."""
    tools, parallel = chat.tools or [], chat.parallel
    if chat.function is not None:
        tools = [tool for tool in tools if tool["function"]["name"] == chat.function]
        parallel = False
    make = partial(
        form.grammar,
        tools,
        chat.choice,
        parallel=parallel,
        strict=chat.strict,
        special=runner.state.special_ids if form.special else {},
        ending=(await runner.render(Render(chat))).text[-_ENDING:],
    )
    grammar = await asyncio.get_running_loop().run_in_executor(_GRAMMARS, make)
    if grammar is not None:
        return GrammarSpec(*grammar)  # type: ignore[arg-type]
    if chat.choice == "auto":
        return None
    raise Refused(
        "tool_choice: this model's calls cannot be enforced; use 'auto'", param="tool_choice"
    )


def _listed(stop: Any) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())
