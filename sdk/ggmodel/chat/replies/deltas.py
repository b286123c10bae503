"""The parts of a reply, piece by piece and as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Content:
    """More of the text that is meant for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's thoughts."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model calls a function.

    Attributes:
        index: number of the call in this reply, from 0.
        id: the model's own name for the call; "" where it writes none.
        name: of the function.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text of an object."""

    index: int
    text: str


Delta = Content | Reasoning | CallBegun | CallArguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function; `arguments` is JSON text of an object, or its beginning where the reply
    was cut short, or whatever the model wrote there."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Reply:
        """The reply that the deltas make."""
        content: list[str] = []
        reasoning: list[str] = []
        begun: list[CallBegun] = []
        arguments: list[list[str]] = []
        for delta in deltas:
            match delta:
                case Content(text):
                    content.append(text)
                case Reasoning(text):
                    reasoning.append(text)
                case CallBegun():
                    begun.append(delta)
                    arguments.append([])
                case CallArguments(index, text):
                    arguments[index].append(text)
        calls = zip(begun, map("".join, arguments), strict=True)
        made = tuple(ToolCall(call.name, text, call.id) for call, text in calls)
        return cls("".join(content), "".join(reasoning), made)

    def message(self) -> dict[str, Any]:
        """The reply as a message of a conversation, as `LoadedModel.chat` takes it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [_plain(call) for call in self.calls]
        return message


def _plain(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):  # it was cut short
        arguments = {"arguments": call.arguments}
    function = {"name": call.name, "arguments": arguments}
    id_field = {"id": call.id} if call.id else {}
    return {**id_field, "type": "function", "function": function}


@dataclass(slots=True)
class Writer:
    """Joins neighbouring deltas, and leaves out the space between the parts of a reply.

    Space at the end of a part waits: it is said once more of the part comes, or the reply ends.
    """

    _out: list[Delta] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _kind: type[Content] | type[Reasoning] = Content
    _space: list[str] = field(default_factory=list)
    _calls: int = 0
    _fresh: bool = False  # space comes before the part
    _any: bool = False  # content came
    _turned: bool = False  # this part is not the first
    _keep: bool = False  # its space counts
    has_text: bool = False  # the part has more than space

    def add(self, text: str) -> None:
        """More of the present part."""
        if self._fresh:
            text = text.lstrip()
            if not text:
                return
            self._fresh = False
        shown = text.rstrip()
        if shown:
            self._texts += self._space
            self._texts.append(shown)
            self._space = []
            self.has_text = True
            self._any = self._any or self._kind is Content
        if len(shown) < len(text):
            self._space.append(text[len(shown) :])

    def turn(self, kind: type[Content] | type[Reasoning] = Content, keep: bool = False) -> None:
        """Another part begins; `keep` for one whose space counts."""
        if self._keep:
            self._texts += self._space
        self._flush()
        self._keep = keep
        # Content that goes on after a call needs its space.
        self._fresh = not keep and (kind is Reasoning or not self._any)
        self._kind, self._space, self.has_text = kind, [], False
        self._turned = True

    def join(self, text: str) -> None:
        """Text between two parts of one kind, space or not."""
        self._texts.append(text)

    def call(self, call: ToolCall) -> None:
        """A whole call."""
        self.begin(call.name, call.id)
        self.arguments(call.arguments)

    def begin(self, name: str, id: str) -> None:
        """A call begins."""
        self.turn()
        self._out.append(CallBegun(self._calls, id, name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """More of the arguments of the last call."""
        last = self._out[-1] if self._out else None
        if isinstance(last, CallArguments):
            self._out[-1] = CallArguments(last.index, last.text + text)
        elif text:
            self._out.append(CallArguments(self._calls - 1, text))

    def end(self) -> None:
        """The reply is over."""
        if self._kind is Content and (self.has_text or not self._turned):
            self._texts += self._space
        self._space = []

    def take(self) -> list[Delta]:
        """The deltas since the last time."""
        self._flush()
        out, self._out = self._out, []
        return out

    def forget(self) -> None:
        """Leaves out all so far: it stands in the prompt."""
        self._out, self._texts, self._space, self._calls = [], [], [], 0

    def _flush(self) -> None:
        if self._texts:
            self._out.append(self._kind("".join(self._texts)))
            self._texts = []
