"""A model that answers by a script: a runner of `tests/serve/standin.py` without its texts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ggmodel import LoadedModel
from ggmodel.serve.requests import (
    ChatParams,
    Event,
    Finished,
    Request,
    Started,
    State,
    TokenEvent,
)
from tests.serve.standin import InProcess, InProcessModels

# Calls between tags, as Qwen and Hermes write them; as strict with roles as those of Qwen 3.5 and
# Gemma.
TEMPLATE = """\
{%- macro open(role) %}<|im_start|>{{ role }}
{% endmacro -%}
{%- if tools %}{{ open("system") }}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>
{"name": NAME, "arguments": OBJECT}
</tool_call><|im_end|>
{% endif -%}
{%- set seen = namespace(role="") -%}
{%- for message in messages -%}
{%- if message.role == "system" and not loop.first %}
{{- raise_exception("The system message must be the first.") }}
{%- elif message.role == "user" and seen.role == "user" %}
{{- raise_exception("Roles must alternate.") }}
{%- endif -%}
{%- set seen.role = message.role -%}
{%- if message.role == "tool" %}{{ open("user") }}<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}{{ open(message.role) }}{{ message.content or "" }}
{%- for call in message.tool_calls or () %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ open("assistant") }}{% endif -%}
"""
CONTEXT = 32768
_CHARACTERS = 4  # of a token of the prompt, as in a vocabulary of the usual size
_PIECE = 7  # characters of a token
_HEADER = "<|im_start|>assistant\n"


@dataclass
class Script:
    """Answers of the model.

    Attributes:
        calls: names and arguments of tools; the next one after each result.
        ending: the text after the last result. Its `{}` is the first match of `secret` there.
        aside: the answer to requests without the tools of the calls, such as for a title.
    """

    ending: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    secret: str = r"secret-\d+"
    aside: str = "A title"

    def answer(self, chat: ChatParams) -> str:
        names = {tool["function"]["name"] for tool in chat.tools or ()}
        if not names.issuperset(name for name, _ in self.calls):
            return self.aside
        results = [message for message in chat.messages if message["role"] == "tool"]
        if len(results) < len(self.calls):
            name, arguments = self.calls[len(results)]
            call = json.dumps({"name": name, "arguments": arguments})
            return f"I call it.\n<tool_call>\n{call}\n</tool_call>"
        found = re.search(self.secret, str(results[-1]["content"])) if results else None
        return self.ending.format(found[0] if found else "nothing")


class Scripted(InProcess):
    """A runner whose answers a script has.

    Attributes:
        script: of the next requests.
    """

    def __init__(self, model: LoadedModel):
        super().__init__(model)
        self.template = TEMPLATE
        self.script = Script("")

    @property
    def state(self) -> State:
        return replace(super().state, context_length=CONTEXT, trained_context=CONTEXT)

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        self.seen.append(request)
        chat = request.prompt
        assert isinstance(chat, ChatParams), chat
        rendered = self._render(chat)
        ids = [0] * (len(rendered) // _CHARACTERS)
        yield Started(ids, rendered[-200:])
        text = self.script.answer(chat)
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        for piece in pieces:
            await asyncio.sleep(0)
            yield TokenEvent(piece)
        yield Finished("stop", len(ids), len(pieces))

    def with_tools(self) -> list[str]:
        """The prompts of requests that had tools."""
        chats = (request.prompt for request in self.seen)
        return [self._render(chat).removesuffix(_HEADER) for chat in chats if chat.tools]


class AnyName(InProcessModels):
    """The model, whatever it is called."""

    def use(self, name: str | None, **more: Any) -> AbstractAsyncContextManager[InProcess]:
        return super().use(None, **more)
