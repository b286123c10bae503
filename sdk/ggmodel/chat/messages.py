"""Checks messages and reduces them to plain data for templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import PromptError, TemplateError, Unsupported
from .items import Message, is_item, is_place, need_list

# Names of a message's reasoning; templates read one of the first two.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages, without keys whose value is None."""
    need_list(messages)
    if not messages:
        raise PromptError("there are no messages; give at least one")
    return [_message(message, f"message {i}") for i, message in enumerate(messages)]


def _message(message: Any, what: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise PromptError(f"{what} is a dict with role and content, not {type(message).__name__}")
    found = {key: plain(value) for key, value in message.items() if value is not None}
    role, content = found.get("role"), found.get("content")
    if not (isinstance(role, str) and role):
        raise PromptError(f"{what} has no role; give 'system', 'user', 'assistant' or 'tool'")
    if isinstance(content, (list, tuple)):
        for part in content:
            _check_part(part, what)
    elif not isinstance(content, str) and (content is not None or "tool_calls" not in found):
        raise PromptError(
            f"{what} needs a content: a text, or a list of parts such as "
            "{'type': 'text', 'text': TEXT}"
        )
    reasoning = next((found[key] for key in _REASONING if key in found), None)
    if reasoning is not None:
        found = {"thinking": reasoning, **found, "reasoning_content": reasoning}
    return found


def _check_part(part: Any, what: str) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if is_place(part):
        return
    if is_item(part):
        raise Unsupported(
            f"{what} holds a part of type {kind!r}, which this model cannot take: leave it out"
        )
    if kind != "text" or not isinstance(part.get("text"), str):
        raise PromptError(
            f"{what} holds a part that is neither {{'type': 'text', 'text': TEXT}} nor an image, "
            "sound or video"
        )


def check_texts(messages: Sequence[Message], tools: Any, markers: Mapping[str, str]) -> None:
    """Raises PromptError for a text that holds the marker of an item: a template may drop the item
    itself, which would then be laid there.

    Args:
        messages: result of `checked`.
        markers: of each kind of which there are items.
    """
    given = {f"message {i} holds": message for i, message in enumerate(messages)}
    for what, value in {**given, "the tools hold": tools}.items():
        for text in _texts(value):
            if kind := next((kind for kind, marker in markers.items() if marker in text), None):
                raise PromptError(
                    f"{what} the text {markers[kind]!r}, which stands for the {kind} in this "
                    "model's prompts: leave it out, or write it otherwise, such as with a space"
                )


def with_broken_markers(
    messages: Sequence[dict[str, Any]], markers: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The messages, with a space in each marker that an answer of the model has: no answer ends a
    conversation.

    Args:
        messages, markers: as for `check_texts`.
    """

    def broken(value: Any) -> Any:
        if isinstance(value, str):
            for marker in markers.values():
                value = value.replace(marker, f"{marker[:1]} {marker[1:]}")
            return value
        if isinstance(value, Mapping):
            return {broken(key): broken(item) for key, item in value.items()}
        return [*map(broken, value)] if isinstance(value, (list, tuple)) else value

    return [broken(m) if m["role"] == "assistant" else m for m in messages]


def _texts(value: Any) -> Iterator[str]:
    """All texts in plain data; those of a list's parts as one, too, as templates join them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
        texts = (item.get("text") for item in value if isinstance(item, Mapping))
        yield "".join(text for text in texts if isinstance(text, str))


def checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    """The tools as plain data."""
    if tools is None:
        return None
    listed = isinstance(tools, Sequence) and not isinstance(tools, str)
    if not (listed and all(isinstance(tool, Mapping) for tool in tools)):
        raise PromptError(
            "tools are a list of dicts such as {'type': 'function', 'function': {'name': …, "
            "'description': …, 'parameters': JSON SCHEMA}}"
        )
    return plain(list(tools))


def plain(value: Any) -> Any:
    """A copy made of JSON's types; any other object becomes the name of its type.

    A template could call the methods of other objects.

    Raises:
        PromptError: it is nested too deeply, or in itself.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise PromptError(
            "messages, tools and variables are nested too deeply, or one contains itself"
        ) from None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    # An enumeration or a subclass may override what str(value) gives.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return f"<{type(value).__name__}>"


def with_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with every content as a list of parts."""
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]}
        if isinstance(m.get("content"), str)
        else m
        for m in messages
    ]


def with_contents(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, those without a content with an empty one."""
    return [{"content": "", **message} for message in messages]


def without_parts(
    messages: list[dict[str, Any]], markers: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The messages with every content as one text: a line for each part, for items their marker."""

    def line(part: Mapping[str, Any]) -> str:
        return part["text"] if "text" in part else markers.get(part["type"], "")

    return [
        {**m, "content": "\n".join(map(line, m["content"]))}
        if isinstance(m.get("content"), (list, tuple))
        else m
        for m in messages
    ]


def up_to_the_last(text: str, message: Mapping[str, Any]) -> str:
    """A rendered text up to the end of the last message's content, as transformers cuts it for
    `continue_final_message`.

    Raises:
        PromptError: the last message is no answer with a text.
        TemplateError: the content is not in the text.
    """
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        texts = [part["text"] for part in content if "text" in part]
        content = texts[-1] if texts else None
    if message.get("role") != "assistant" or not isinstance(content, str):
        raise PromptError(
            "an answer can go on if the last message is of the role 'assistant' and has a text"
        )
    begin = text.rfind(content.strip())
    if begin < 0:
        raise TemplateError(
            "the chat template leaves out or changes the last message, which is to go on; pass "
            "template= with another one"
        )
    if text.startswith(content.lstrip(), begin):
        return text[: begin + len(content.lstrip())]
    return text[: begin + len(content.strip())]
