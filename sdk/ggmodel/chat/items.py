"""Takes images, sounds and videos out of messages, and finds their places in a text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import PromptError
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


def place_of(kind: str) -> dict[str, str]:
    """The part of a message that marks the place of an item."""
    return {"type": kind}


def is_place(part: object) -> bool:
    """Whether a part of a message marks the place of an item."""
    kind = part.get("type") if isinstance(part, Mapping) and len(part) == 1 else None
    return isinstance(kind, str) and kind in _SHOWN


def is_item(part: object) -> bool:
    """Whether a part of a message is to hold an item."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in _TYPES


def hold_items(messages: Sequence[Message]) -> bool:
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
        parts += [place_of(kind) for _ in own or ()]
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        parts += [_without_item(part, items) for part in content]
    elif parts and content:
        parts.append({"type": "text", "text": content})
    message = {k: v for k, v in message.items() if k not in listed}
    return {**message, "content": parts} if parts else message


def _without_item(part: Any, items: list[Item]) -> Any:
    found = item_of(part)
    if found is None:
        return part
    items.append(found)
    return place_of(found[0])


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
    known = sorted({m for m in markers if m}, key=len, reverse=True)
    if not known:
        return [text], []
    pieces = re.split(f"({'|'.join(map(re.escape, known))})", text)
    return pieces[::2], pieces[1::2]


def mismatch(found: Sequence[str], kinds: Sequence[str], markers: Mapping[str, str]) -> str:
    """How the markers in a text differ from those of items of these kinds; "" if they fit.

    Args:
        found: the markers in the text.
        markers: of each kind.
    """
    wanted = Counter(markers[kind] for kind in kinds)
    for marker, n in wanted.items():
        written = found.count(marker)
        if written != n:
            some = next(kind for kind in kinds if markers[kind] == marker)
            called = f"{some}s" if some != "audio" else "sounds"
            first = f"{some} {min(written, n) + 1}"
            end = "has no place" if written < n else "is missing"
            return f"{marker!r} {written} times for {n} {called}: {first} {end}"
    return ""
