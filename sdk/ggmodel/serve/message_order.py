"""Conversations in an order of roles that a chat template takes.

Agents send several system messages, some after the user's, and several messages of the user in a
row. Templates of Qwen 3.5, Gemma and Mistral refuse such, and others drop them. Gemma 2's takes no
system message at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from ..chat import ChatTemplate
from ..chat.described_tools import joined
from ..errors import Error

Message = dict[str, Any]


class Taken(NamedTuple):
    """Orders that a template takes.

    Attributes:
        system: a system message at the beginning. systems: two. later: one after the user's.
            users: two messages of the user in a row.
    """

    system: bool
    systems: bool
    later: bool
    users: bool


def needs_order(messages: Sequence[Message]) -> bool:
    """There is a system message, or the user's follow one another."""
    roles = [message["role"] for message in messages]
    return "system" in roles or ("user", "user") in pairwise(roles)


def in_order(messages: Sequence[Message], taken: Taken) -> list[Message]:
    """The messages as a template takes them; none is left out, and the order of contents stays.

    System messages at the beginning become one. Later ones, or all, become the user's. Messages of
    the user that follow one another become one.
    """
    ordered = list[Message]()
    for message in messages:
        role = message["role"]
        leads = all(one["role"] == "system" for one in ordered)
        if role == "system" and not (taken.system if leads else taken.later):
            message, role = {**message, "role": "user"}, "user"
        joins = {"system": leads and not taken.systems, "user": not taken.users}.get(role, False)
        if joins and ordered and ordered[-1]["role"] == role:
            before = ordered[-1]
            content = joined(before.get("content"), message.get("content"), "\n\n")
            ordered[-1] = {**before, "content": content}
        else:
            ordered.append(message)
    return ordered


@lru_cache(maxsize=64)
def taken_by(template: str) -> Taken:
    """Tries a template with short conversations. One that takes none of them takes all: it is
    left to refuse."""
    takes = _Trial(template)
    if not takes("u"):
        return Taken(True, True, True, True)
    return Taken(takes("su"), takes("ssu"), takes("susau"), takes("uuau"))


class _Trial:
    def __init__(self, template: str):
        self._render: Callable[..., str] = ChatTemplate(template).render

    def __call__(self, roles: str) -> bool:
        """Whether each message is in the prompt."""
        names = {"s": "system", "u": "user", "a": "assistant"}
        messages = [{"role": names[r], "content": f"<ggmodel {i}>"} for i, r in enumerate(roles)]
        try:
            text = self._render(messages)
        except Error:
            return False
        return all(message["content"] in text for message in messages)
