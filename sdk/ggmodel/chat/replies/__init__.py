"""The chat parsers: from the raw text of a reply to content, reasoning and tool calls."""

from .declaration import KEY, read_declared
from .deltas import Call, CallArguments, CallBegun, Content, Delta, Reasoning, Reply
from .formats import ReplyFormat, ReplyParser, reply_format

__all__ = [
    "KEY",
    "Call",
    "CallArguments",
    "CallBegun",
    "Content",
    "Delta",
    "Reasoning",
    "Reply",
    "ReplyFormat",
    "ReplyParser",
    "read_declared",
    "reply_format",
]
