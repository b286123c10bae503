"""Messages: checks, plain data for templates, media items and their places, cuts to the context."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import PromptError, TemplateError, Unsupported
from ..reading import from_base64

Message = Mapping[str, Any]
Item = tuple[str, Any]  # kind, and what a user gave

# By type of a part: its kind. Those with "_url" and "input_" are OpenAI's.
_TYPES = {
    spelled: kind
    for kind in ("image", "audio", "video")
    for spelled in (kind, f"{kind}_url", f"input_{kind}")
}
# A message's lists of items, which precede its content.
LISTS = {"images": "image", "audio": "audio", "videos": "video"}
OPTIONS = {kind: name for name, kind in LISTS.items()}
_SHOWN = {
    "image": "{'type': 'image', 'image': a path, bytes, a data URL or a PIL image}",
    "audio": "{'type': 'audio', 'audio': a path, bytes, a data URL or (samples, rate)}",
    "video": "{'type': 'video', 'video': a path, a list of frames or (frames, rate)}",
}
_RATES = {"audio": ("rate", "sampling_rate", "sample_rate"), "video": ("fps",)}


def is_place(part: object) -> bool:
    """Whether a part of a message marks the place of an item."""
    kind = part.get("type") if isinstance(part, Mapping) and len(part) == 1 else None
    return isinstance(kind, str) and kind in _SHOWN


def is_item(part: object) -> bool:
    """Whether a part of a message is to hold an item."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in _TYPES


def have_items(messages: Sequence[Message]) -> bool:
    """Whether messages seem to hold images, sounds or videos; malformed ones may be any."""
    return any(
        isinstance(message, Mapping)
        and (
            any(message.get(name) for name in LISTS)
            or (isinstance(parts := message.get("content"), list) and any(map(is_item, parts)))
        )
        for message in messages
    )


def take_items(messages: Sequence[Message]) -> tuple[list[Any], list[Item]]:
    """The messages with a part of the bare type, {"type": KIND}, in place of each image, sound and
    video, and these in order, each with its kind.

    An item is a part of a content, as OpenAI and transformers spell it, or stands in one of a
    message's lists `images`, `audio` and `videos`, which precede its content:

    - {"type": "image", "image": …}, {"type": "image_url", "image_url": {"url": …}};
    - {"type": "audio", "audio": …}, {"type": "input_audio", "input_audio": {"data": BASE64}},
      {"type": "audio_url", "audio_url": {"url": …}};
    - {"type": "video", "video": …}, {"type": "video_url", "video_url": {"url": …}}.

    Parts of "image", "audio" and "video" may have "url", "path" or "base64" in place of the item,
    and the rate of samples ("rate", "sampling_rate") or frames ("fps").

    Raises:
        PromptError: the messages are no list, or a part holds no item.
    """
    need_list(messages)
    items: list[Item] = []
    return [_without_items(m, items) for m in messages], items


def need_list(messages: object) -> None:
    """Raises PromptError unless the messages are a list."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise PromptError(
            f"messages are a list of dicts, not {type(messages).__name__}; "
            "give [{'role': 'user', 'content': TEXT}]"
        )


def _without_items(message: Any, items: list[Item]) -> Any:
    if not isinstance(message, Mapping):
        return message
    parts: list[Any] = []
    listed = []
    for name, kind in LISTS.items():
        own = message.get(name)
        if name == "audio" and isinstance(own, Mapping):
            continue  # OpenAI's API describes a sound so that the model made
        if own is not None and not isinstance(own, (list, tuple)):
            called = name if name != "audio" else "sounds (audio)"
            raise PromptError(f"the {called} of a message are a list, not {type(own).__name__}")
        listed.append(name)
        items += [(kind, item) for item in own or ()]
        parts += [{"type": kind} for _ in own or ()]
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        for part in content:
            if item := item_of(part):
                items.append(item)
                part = {"type": item[0]}
            parts.append(part)
    elif parts and content:
        parts.append({"type": "text", "text": content})
    message = {k: v for k, v in message.items() if k not in listed}
    return {**message, "content": parts} if parts else message


def item_of(part: object) -> Item | None:
    """The kind and the item of a part of a message; None of a part that is none, such as text.

    Raises:
        PromptError: the part holds no item, or base64 that is broken or exceeds the limit.
    """
    spelled = part.get("type") if isinstance(part, Mapping) else None
    kind = _TYPES.get(spelled) if isinstance(spelled, str) else None
    if kind is None or not isinstance(part, Mapping):
        return None
    for key in (kind, str(spelled), f"{kind}_url", "url", "path", "base64", "data"):
        item = part.get(key)
        if isinstance(item, Mapping):
            key = "data" if item.get("data") is not None else "url"
            item = item.get(key)
        if item is None:
            continue
        if key in ("base64", "data"):
            item = _decoded(item, kind)
        rate = next((part[r] for r in _RATES.get(kind, ()) if part.get(r) is not None), None)
        raw = isinstance(item, (list, tuple)) or hasattr(item, "__array__")
        return kind, (item, rate) if raw and rate is not None else item
    raise PromptError(f"a part of type {spelled!r} holds no {kind}; give {_SHOWN[kind]}")


def _decoded(data: Any, kind: str) -> Any:
    """Bytes of base64; anything else as it is."""
    if not isinstance(data, str) or data[:5].lower() == "data:":
        return data
    return from_base64(data, f"the {kind} of a message", kind, f"{kind}_bytes", PromptError)


def split_at(text: str, markers: Collection[str]) -> tuple[list[str], list[str]]:
    """The texts between markers, one more than there are markers, and the markers in order. The
    longest marker counts where several begin."""
    longest_first = sorted({m for m in markers if m}, key=len, reverse=True)
    if not longest_first:
        return [text], []
    pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    return pieces[::2], pieces[1::2]


def mismatch(occurring: Sequence[str], kinds: Sequence[str], markers: Mapping[str, str]) -> str:
    """How the markers in a text differ from those of items of these kinds; "" if they fit.

    Args:
        occurring: the markers in the text.
        markers: of each kind.
    """
    expected = Counter(markers[kind] for kind in kinds)
    for marker, n in expected.items():
        written = occurring.count(marker)
        if written != n:
            some = next(kind for kind in kinds if markers[kind] == marker)
            called = f"{some}s" if some != "audio" else "sounds"
            first = f"{some} {min(written, n) + 1}"
            end = "has no place" if written < n else "is missing"
            return f"{marker!r} {written} times for {n} {called}: {first} {end}"
    return ""


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
    fields = {key: plain(value) for key, value in message.items() if value is not None}
    role, content = fields.get("role"), fields.get("content")
    if not (isinstance(role, str) and role):
        raise PromptError(f"{what} has no role; give 'system', 'user', 'assistant' or 'tool'")
    if isinstance(content, (list, tuple)):
        for part in content:
            _check_part(part, what)
    elif not isinstance(content, str) and (content is not None or "tool_calls" not in fields):
        raise PromptError(
            f"{what} needs a content: a text, or a list of parts such as "
            "{'type': 'text', 'text': TEXT}"
        )
    reasoning = next((fields[key] for key in _REASONING if key in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    return fields


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
    holders = {f"message {i} holds": message for i, message in enumerate(messages)}
    for what, value in {**holders, "the tools hold": tools}.items():
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


M = TypeVar("M", bound=Message)


def _asks(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "user"


def fitting(messages: Sequence[M], fits: Callable[[list[M]], bool]) -> list[M]:
    """The messages without the oldest turns: as few as must go for the rest to fit.

    A turn is a user's message and all that follows it up to the next one. Messages before the first
    turn (the system's) stay, and so does the last turn, even if it does not fit.

    Args:
        fits: is asked for some numbers of turns, by bisection: fewer turns never need more room.
    """
    turns = [i for i, one in enumerate(messages) if _asks(one)]

    def without(count: int) -> list[M]:
        return [*messages[: turns[0]], *messages[turns[count] :]] if count else list(messages)

    if len(turns) < 2 or fits(without(0)):
        return list(messages)
    fewest, most = 1, len(turns) - 1
    while fewest < most:
        middle = (fewest + most) // 2
        if fits(without(middle)):
            most = middle
        else:
            fewest = middle + 1
    return without(most)
