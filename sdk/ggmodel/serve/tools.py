"""Tools of requests: as functions that models call, and their calls as the requests' tools."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from .endpoint import Call
from .errors import Refused

_FUNCTIONS = {"OpenAI": ("function",), "Anthropic": ("custom", "function")}
_VERSION = re.compile(r"(_preview)?(_\d{4}_?\d{2}_?\d{2})?$")

# Types of the tools that the servers of OpenAI and Anthropic run, or that only their models know,
# without versions; after openai-python's types/responses/tool_param.py and anthropic-sdk-python's
# types/beta/beta_tool_union_param.py.
_HOSTED = {
    "OpenAI": "web_search file_search code_interpreter image_generation mcp "
    "programmatic_tool_calling tool_search computer computer_use",
    "Anthropic": "web_search web_fetch code_execution tool_search_tool_bm25 "
    "tool_search_tool_regex mcp_toolset advisor",
}


class Tool(Protocol):
    """A tool of a request; no name where it has none."""

    @property
    def type(self) -> str: ...

    @property
    def name(self) -> str | None: ...


T = TypeVar("T", bound=Tool)


def callable_tools(
    api: str,
    tools: Sequence[T] | None,
    call: Call,
    known: Collection[str] = (),
    field: str = "name",
) -> list[T]:
    """The tools that a model can call. Warns of those that the API's own servers run.

    Args:
        api: "OpenAI" or "Anthropic".
        known: types, without versions, that are no functions but can be made some.
        field: has the name of a function.

    Raises:
        Refused: the type of a tool is unknown or unsupported, or a function has no name.
    """
    kept: list[T] = []
    for i, tool in enumerate(tools or ()):
        family, where = family_of(tool.type), f"tools[{i}]"
        if tool.type in _FUNCTIONS[api]:
            if not tool.name:
                raise Refused(f"{where}.{field}: is missing", param=f"{where}.{field}")
            kept.append(tool)
        elif family in known:
            kept.append(tool)
        elif family in _HOSTED[api].split():
            call.warn(f"{where}: {tool.type!a:.60} runs on {api}'s servers only, and is left out")
        else:
            label = f"{tool.type!a:.60} ({tool.name!a:.60})" if tool.name else f"{tool.type!a:.60}"
            raise Refused(
                f"{where}.type: {label} is unsupported; send a function with a name and parameters",
                param=f"{where}.type",
            )
    return kept


def family_of(type: str) -> str:
    """The type of a tool without its version."""
    return _VERSION.sub("", type)


def function(
    name: str,
    description: str | None,
    parameters: Mapping[str, Any] | None,
    strict: bool | None = None,
) -> dict[str, Any]:
    """A function as chat templates take it."""
    declaration: dict[str, Any] = {"name": name, "description": description or ""}
    declaration["parameters"] = parameters or {"type": "object", "properties": {}}
    if strict is not None:
        declaration["strict"] = strict
    return {"type": "function", "function": declaration}


INPUT = "input"  # the one parameter of a custom tool


def custom(
    name: str, description: str | None, syntax: Literal["lark", "regex"] | None, definition: str
) -> dict[str, Any]:
    """A tool whose call is one text, as a function of one parameter.

    Args:
        syntax: of the grammar that the text follows; None for any text. A regular expression holds
            wherever the call is written, a grammar of Lark where the model's family writes texts
            without quotes; it is described to all.
    """
    text: dict[str, Any] = {"type": "string"}
    if syntax == "regex":
        text["pattern"] = f"^(?:{definition})$"
        definition = "start: /{}/".format(re.sub(r"(?<!\\)/", r"\\/", definition))
    if syntax is not None:
        text["lark"] = definition
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    return function(name, description, parameters, None if syntax is None else True)


@dataclass
class ToolSet:
    """The functions of a request.

    Attributes:
        functions: as chat templates take them.
        customs: names of those whose calls are one text.
    """

    functions: list[dict[str, Any]] = field(default_factory=list)
    customs: list[str] = field(default_factory=list)

    def only(self, names: Collection[str]) -> ToolSet:
        """The functions of these names.

        Raises:
            Refused: there is none of a name.
        """
        own = [one["function"]["name"] for one in self.functions]
        for name in names:
            if name not in own:
                raise Refused(f"tool_choice: no tool is called {name!r:.100}", param="tool_choice")
        kept = [one for one in self.functions if one["function"]["name"] in names]
        return ToolSet(kept, [name for name in self.customs if name in names])

    @property
    def strict(self) -> bool:
        """Calls of one obey a schema."""
        return any(one["function"].get("strict") for one in self.functions)


# Characters of a text within JSON that are complete: a pair of surrogates counts as one, and a
# backslash that begins no escape is itself.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_BEGUN = r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z"  # what may become a `_LOW`
_CHARACTERS = re.compile(
    rf'(?:[^"\\]|\\[^u]|{_HIGH}(?:{_LOW}|(?!{_BEGUN}))|(?!{_HIGH})\\u[0-9a-fA-F]{{4}}'
    r"|\\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F]))*",
    re.DOTALL,
)
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')


class CustomInput:
    """Reads the text of a custom tool's call from the JSON of its arguments as they come."""

    def __init__(self) -> None:
        self._text, self._open = "", False

    def feed(self, text: str) -> str:
        """More of the JSON. Returns more of the text."""
        self._text += text
        if not self._open:
            begin = _BEGIN.match(self._text)
            if begin is None:
                return ""
            self._text, self._open = self._text[begin.end() :], True
        found = _CHARACTERS.match(self._text)
        assert found is not None
        self._text = self._text[found.end() :]
        return _unescaped(found[0])

    def end(self) -> str:
        """The rest, when the call is over: JSON of another form is the text itself."""
        cut = self._text.lstrip().startswith("{") and not isinstance(_decoded(self._text), dict)
        return "" if self._open or cut else self._text


def _unescaped(text: str) -> str:
    text = _ESCAPE.sub(lambda found: found[1] or r"\\", text)
    text = json.loads(f'"{text}"', strict=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_SIGNS = re.compile(r'["{}\[\],]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CLOSERS = {"{": "}", "[": "]"}
_DEEPEST, _TRIED = 64, 4


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call, JSON text, as an object; a text that is none, such as a model may
    have written, under a name."""
    value = _decoded(text or "{}")
    return value if isinstance(value, dict) else {"arguments": text}


def written_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call in an answer; of JSON that is cut short what is complete."""
    value = arguments_of(text)
    if value != {"arguments": text}:
        return value
    at, closers, ends = 0, "", deque[tuple[int, str]](maxlen=_TRIED)
    while len(closers) < _DEEPEST and (match := _SIGNS.search(text, at)):
        sign, at = match[0], match.end()
        if sign == '"':
            string = _STRING.match(text, match.start())
            if string is None:
                break
            at = string.end()
            continue
        closers = _CLOSERS[sign] + closers if sign in _CLOSERS else closers
        if sign in "}]":
            closers = closers[1:]
        ends.append((match.start() if sign == "," else at, closers))
    for end, closers in reversed(ends):
        if isinstance(value := _decoded(text[:end] + closers), dict):
            return value
    return {"arguments": text}


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
