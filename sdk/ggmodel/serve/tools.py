"""Tools of agents: which of them a model can call here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from .endpoint import Call
from .errors import Refused

_FUNCTIONS = {"OpenAI": ("function",), "Anthropic": ("custom", "function")}
_VERSION = re.compile(r"(_preview)?(_\d{4}_?\d{2}_?\d{2})?$")

# Types of the tools that the servers of OpenAI and Anthropic run, without versions; after
# openai-python's types/responses/tool_param.py and anthropic-sdk-python's
# types/beta/beta_tool_union_param.py.
_HOSTED = {
    "OpenAI": "web_search file_search code_interpreter image_generation mcp "
    "programmatic_tool_calling tool_search",
    "Anthropic": "web_search web_fetch code_execution tool_search_tool_bm25 "
    "tool_search_tool_regex mcp_toolset advisor",
}
# Types of the tools that clients run, with parameters that a type implies.
_CLIENTS = {
    "OpenAI": "custom apply_patch shell local_shell computer computer_use namespace",
    "Anthropic": "bash text_editor computer memory computer_toolset browser_toolset",
}


class Tool(Protocol):
    """A tool of a request; no name where it has none."""

    @property
    def type(self) -> str: ...

    @property
    def name(self) -> str | None: ...


T = TypeVar("T", bound=Tool)


def functions(api: str, tools: Sequence[T] | None, call: Call, named: str = "name") -> list[T]:
    """The tools that are functions. Warns of those that the API's own servers run.

    Args:
        api: "OpenAI" or "Anthropic". named: the field that has the name of a function.

    Raises:
        Refused: the client runs a tool, its type is unknown, or a function has no name.
    """
    for i, tool in enumerate(tools or ()):
        family, where = _VERSION.sub("", tool.type), f"tools[{i}]"
        if tool.type in _FUNCTIONS[api]:
            if not tool.name:
                raise Refused(f"{where}.{named}: is missing", param=f"{where}.{named}")
        elif family in _HOSTED[api].split():
            call.warn(f"{where}: {tool.type!a:.60} runs on {api}'s servers only, and is left out")
        else:
            reason = "unsupported" if family in _CLIENTS[api].split() else "no known type of tool"
            label = f"{tool.type!a:.60} ({tool.name!a:.60})" if tool.name else f"{tool.type!a:.60}"
            raise Refused(
                f"{where}.type: {label} is {reason}; send a function with a name and parameters",
                param=f"{where}.type",
            )
    return [tool for tool in tools or () if tool.type in _FUNCTIONS[api]]
