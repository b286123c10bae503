"""Chat templates turn messages into a prompt; reply formats turn replies into messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..imports import lazily

if TYPE_CHECKING:
    from .messages import fitting, take_items
    from .replies import Reply, ReplyFormat, ToolCall, reply_format
    from .template import ChatTemplate

__all__ = [
    "ChatTemplate",
    "Reply",
    "ReplyFormat",
    "ToolCall",
    "fitting",
    "reply_format",
    "take_items",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "messages": "fitting take_items",
        "replies": "Reply ReplyFormat ToolCall reply_format",
        "template": "ChatTemplate",
    },
)
