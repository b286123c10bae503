"""Messages of Anthropic's API as runners take them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ...bodies import field_text
from ...chat_requests import Message, Part, check_count, item_part, simplified, text_part, tool_call
from ...documents import document_text
from ...endpoint import Call
from ...errors import Refused
from ...media import from_base64

Block = dict[str, Any]


_LEFT_OUT = "server_tool_use mcp_tool_use mcp_tool_listing container_upload compaction".split()
_BILLING = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n?")
_ROLES = ("user", "assistant", "system")


class InputMessage(Struct):
    """A message of a request."""

    role: str
    content: str | list[Block]


async def converted(
    system: str | list[Block] | None, messages: Sequence[InputMessage], call: Call
) -> list[Message]:
    """The messages of a conversation, images as bytes. Results of tools become messages of their
    own.

    Raises:
        Refused: there are too many, a block is wrong, or the URL of an image not allowed.
    """
    check_count(messages)
    check_count(system if isinstance(system, list) else [], "system")
    conversation: list[Message] = []
    if system := _without_billing(system):
        conversation.append({"role": "system", "content": await _content(system, "system", call)})
    for i, message in enumerate(messages):
        where = f"messages[{i}].content"
        if message.role not in _ROLES:
            at = f"messages[{i}].role"
            roles = ", ".join(_ROLES)
            raise Refused(f"{at}: {message.role!a:.60} is none of {roles}", param=at)
        if isinstance(message.content, str):
            conversation.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            conversation.append(await _assistant(message.content, where, call))
        else:
            conversation += await _user(message.role, message.content, where, call)
    return conversation


async def _user(role: str, blocks: list[Block], where: str, call: Call) -> list[Message]:
    messages: list[Message] = []
    parts: list[Part] = []
    for i, block in enumerate(blocks):
        place = f"{where}[{i}]"
        if block.get("type") == "tool_result":
            id = field_text(block, "tool_use_id", place)
            content = await _content(block.get("content") or "", f"{place}.content", call)
            messages.append({"role": "tool", "tool_call_id": id, "content": content})
        elif not _left_out(block, place, call):
            parts += await _parts(block, place, call)
    if parts or not messages:
        messages.append({"role": role, "content": simplified(parts)})
    return messages


async def _assistant(blocks: list[Block], where: str, call: Call) -> Message:
    parts: list[Part] = []
    calls: list[Any] = []
    thoughts: list[str] = []
    for i, block in enumerate(blocks):
        place, kind = f"{where}[{i}]", block.get("type")
        if kind == "tool_use":
            id, name = field_text(block, "id", place), field_text(block, "name", place)
            calls.append(tool_call(id, name, block.get("input")))
        elif kind == "thinking":
            thoughts.append(field_text(block, "thinking", place))
        elif kind != "redacted_thinking" and not _left_out(block, place, call):
            parts += await _parts(block, place, call)
    message: Message = {"role": "assistant"}
    if parts or not calls:
        message["content"] = simplified(parts)
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message


def _left_out(block: Block, where: str, call: Call) -> bool:
    """Warns of a block of a tool that Anthropic's servers ran, which nothing here can use."""
    kind = block.get("type")
    if not isinstance(kind, str) or not (kind in _LEFT_OUT or kind.endswith("_tool_result")):
        return False
    call.warn(f"{where}: {kind!a:.60} is left out")
    return True


def _without_billing(system: str | list[Block] | None) -> str | list[Block] | None:
    """A system prompt without the line by which Claude Code accounts for a request. It has a hash
    that differs from request to request, ahead of all that is in the cache."""
    if isinstance(system, str):
        return _BILLING.sub("", system)
    texts = [(block, block.get("text")) for block in system or ()]
    kept = [(b, _BILLING.sub("", text) if isinstance(text, str) else text) for b, text in texts]
    return [{**b, "text": text} if text else b for b, text in kept if text or not b.get("text")]


async def _content(content: Any, where: str, call: Call, inner: bool = False) -> str | list[Part]:
    """Blocks as parts; those within a document or a search result (`inner`) have none within."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise Refused(f"{where}: expected a text or a list of blocks", param=where)
    blocks = [await _parts(one, f"{where}[{i}]", call, inner) for i, one in enumerate(content)]
    return simplified([part for parts in blocks for part in parts])


async def _parts(block: Block, where: str, call: Call, inner: bool = False) -> list[Part]:
    kind = block.get("type")
    if inner and kind not in ("text", "image"):
        raise Refused(
            f"{where}.type: {kind!r:.50} is unsupported in documents and search results; supported "
            "are text and image",
            param=f"{where}.type",
        )
    if kind == "text":
        return [text_part(field_text(block, "text", where))]
    if kind == "search_result":
        content = await _content(block.get("content"), f"{where}.content", call, inner=True)
        heads = [field_text(block, name, where) for name in ("title", "source")]
        return [text_part("\n".join(heads)), *_listed(content)]
    if kind in ("image", "document"):
        source, where = block.get("source"), f"{where}.source"
        if not isinstance(source, dict):
            raise Refused(f"{where}: is missing", param=where)
        if kind == "image":
            return [item_part("image", await _data(source, where, call))]
        return await _document(block, source, where, call)
    raise Refused(
        f"{where}.type: {kind!r:.50} is unsupported; supported are text, image, document, "
        "search_result, thinking, tool_use and tool_result",
        param=f"{where}.type",
    )


async def _document(block: Block, source: Block, where: str, call: Call) -> list[Part]:
    """The text of a document below its title and what is said of it."""
    heads = [block[name] for name in ("title", "context") if isinstance(block.get(name), str)]
    title, kind = "\n".join(heads) or None, source.get("type")
    if kind in ("base64", "url"):
        data = await _data(source, where, call)
        return [text_part(await document_text(call, data, where, title))]
    if kind == "text":
        text = field_text(source, "data", where)
        return [text_part(f"{title}:\n{text}" if title else text)]
    if kind == "content":
        content = await _content(source.get("content"), f"{where}.content", call, inner=True)
        return [*([text_part(f"{title}:")] if title else []), *_listed(content)]
    raise Refused(
        f"{where}.type: {kind!a:.50} is unsupported; send the document as base64, url, text or "
        "content",
        param=f"{where}.type",
    )


def _listed(content: str | list[Part]) -> list[Part]:
    return [text_part(content)] if isinstance(content, str) else content


async def _data(source: Block, where: str, call: Call) -> bytes:
    if source.get("type") == "url":
        return await call.fetch(field_text(source, "url", where), f"{where}.url")
    return from_base64(field_text(source, "data", where), f"{where}.data")
