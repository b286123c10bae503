"""Texts and token ids, alone and in lists, as completions and embeddings take them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ....bounds import limits
from ...errors import Refused
from ...requests import Tokenize
from ...runner import Runner


class TextPart(Struct):
    text: str
    type: Literal["text"] = "text"


class TextObject(Struct):
    """A text as llama-server takes it, under one of two names; images do not go with it."""

    prompt_string: str | None = None
    multimodal_data: list[str] | None = None
    content: list[TextPart] | None = None


Input = str | TextObject | list[str | int | list[int | str] | TextObject]


def inputs_of(given: Input | None, param: str) -> list[Any]:
    """Each text, or list of token ids; a list with numbers is one, and may have texts between.

    Args:
        param: the field, for messages.

    Raises:
        Refused: there are none, too many, or an empty list.
    """
    if isinstance(given, (str, TextObject)):
        found: list[Any] = [given]
    elif given and any(isinstance(one, int) for one in given):
        found = [given]
        for i, one in enumerate(given):
            if isinstance(one, (list, TextObject)):
                raise Refused(f"{param}[{i}]: a list among numbers", param=f"{param}[{i}]")
    else:
        found = list(given or ())
    if not found or [] in found:
        raise Refused(f"{param}: give a text, token ids, or a list of them", param=param)
    if len(found) > limits.serve_prompts:
        raise Refused(
            f"{param}: {len(found)} are more than the limit serve_prompts of "
            f"{limits.serve_prompts}",
            param=param,
        )
    return [_text(one, param) if isinstance(one, TextObject) else one for one in found]


async def only_ids(runner: Runner, parts: str | list[int | str]) -> str | list[int]:
    """Token ids with texts between them as ids alone; a text as it is."""
    if isinstance(parts, str):
        return parts
    found: list[int] = []
    for part in parts:
        if isinstance(part, str):
            found += (await runner.tokenize(Tokenize(part, add_special=not found))).ids
        else:
            found.append(part)
    return found


def _text(given: TextObject, param: str) -> str:
    if given.multimodal_data:
        raise Refused(f"{param}: images go with chats, not with texts", param=param)
    if given.prompt_string is not None:
        return given.prompt_string
    if given.content is None:
        raise Refused(f"{param}: the object has neither prompt_string nor content", param=param)
    return "".join(part.text for part in given.content)
