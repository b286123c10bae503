"""Checks messages and reduces them to plain data for templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import PromptError, Unsupported

_OTHER_MEDIA = ("image", "audio", "video")
_OF_IMAGES = ("image", "image_url", "input_image")
# Keys of a part that may hold its image; "image_url" may be a dict with the "url".
_IMAGE_KEYS = ("image", "image_url", "url", "path", "base64", "data")
# Names of a message's reasoning; templates read one of the first two.
_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]
IMAGE = {"type": "image"}  # the part of a message that marks the place of an image


def take_images(messages: Sequence[Message]) -> tuple[list[Any], list[Any]]:
    """The messages with `IMAGE` in place of each image, and the images in order.

    An image is a part of a content, {"type": "image", "image": …} or {"type": "image_url",
    "image_url": {"url": …}}, or an item of a message's list `images`, which precedes its content.

    Raises:
        PromptError: the messages are no list, or an image part holds no image.
    """
    images: list[Any] = []
    _check_list(messages)
    return [_without_images(m, images) for m in messages], images


def _without_images(message: Any, images: list[Any]) -> Any:
    if not isinstance(message, Mapping):
        return message
    own, content = message.get("images"), message.get("content")
    own = () if own is None else own
    if not isinstance(own, (list, tuple)):
        raise PromptError(f"the images of a message are a list, not {type(own).__name__}")
    images += own
    parts: list[Any] = [IMAGE for _ in own]
    if isinstance(content, (list, tuple)):
        parts += [_without_image(part, images) for part in content]
    elif parts and content:
        parts.append({"type": "text", "text": content})
    message = {k: v for k, v in message.items() if k != "images"}
    return {**message, "content": parts} if parts else message


def _without_image(part: Any, images: list[Any]) -> Any:
    if not isinstance(part, Mapping) or part.get("type") not in _OF_IMAGES:
        return part
    image = next((part[key] for key in _IMAGE_KEYS if part.get(key) is not None), None)
    if isinstance(image, Mapping):
        image = image.get("url")
    if image is None:
        raise PromptError(
            f"a part of type {part['type']!r} holds no image; give {{'type': 'image', 'image': a "
            "path, bytes, a data URL or a PIL image}"
        )
    images.append(image)
    return IMAGE


def _check_list(messages: object) -> None:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise PromptError(
            f"messages are a list of dicts, not {type(messages).__name__}; "
            "give [{'role': 'user', 'content': TEXT}]"
        )


def checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages, without keys whose value is None."""
    _check_list(messages)
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
    if part == IMAGE:
        return
    if isinstance(kind, str) and any(word in kind for word in _OTHER_MEDIA):
        raise Unsupported(
            f"{what} holds a part of type {kind!r}, which this model cannot take: leave it out"
        )
    if kind != "text" or not isinstance(part.get("text"), str):
        raise PromptError(
            f"{what} holds a part that is neither {{'type': 'text', 'text': TEXT}} nor an image"
        )


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
    """
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
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return f"<{type(value).__name__}>"


def with_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with every content as a list of parts."""
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]}
        if isinstance(m.get("content"), str)
        else m
        for m in messages
    ]


def without_parts(messages: list[dict[str, Any]], marker: str = "") -> list[dict[str, Any]]:
    """The messages with every content as one text: a line for each part, `marker` for images."""
    return [
        {**m, "content": "\n".join(part.get("text", marker) for part in m["content"])}
        if isinstance(m.get("content"), (list, tuple))
        else m
        for m in messages
    ]
