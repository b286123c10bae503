"""Tools of OpenAI's chat completions, the choice among them, and older functions in their place."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ...endpoint import Call
from ...errors import Refused
from ...tools import ToolSet, callable_tools, custom, function

ToolChoiceMode = Literal["none", "auto", "required"]


class FunctionTool(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Grammar(Struct):
    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(Struct, omit_defaults=True):
    """The text of a custom tool's calls; the grammar is an object in chats, and flat in
    responses."""

    type: Literal["text", "grammar"]
    grammar: Grammar | None = None
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None

    @property
    def rules(self) -> tuple[Literal["lark", "regex"] | None, str]:
        """Syntax and text of the grammar; none where any text will do."""
        if self.type == "text":
            return None, ""
        if self.grammar is not None:
            return self.grammar.syntax, self.grammar.definition
        if self.syntax is None or self.definition is None:
            raise Refused("tools: the grammar of a custom tool has no definition", param="tools")
        return self.syntax, self.definition


TEXT = CustomFormat("text")


class CustomTool(Struct):
    name: str = ""
    description: str | None = None
    format: CustomFormat | None = None


class Tool(Struct):
    function: FunctionTool | None = None
    type: str = "function"
    custom: CustomTool | None = None

    @property
    def name(self) -> str | None:
        named = self.function if self.type == "function" else self.custom
        return named and named.name


class NamedTool(Struct):
    name: str


class NamedChoice(Struct):
    type: str = "function"
    function: NamedTool | None = None
    custom: NamedTool | None = None

    @property
    def named(self) -> str | None:
        """The name of the tool, where it has one."""
        tool = {"function": self.function, "custom": self.custom}.get(self.type)
        return tool and tool.name


class AllowedTools(Struct):
    mode: Literal["auto", "required"]
    tools: list[NamedChoice]


class ToolChoice(NamedChoice):
    allowed_tools: AllowedTools | None = None


def chat_tools(tools: list[Tool] | None, call: Call) -> ToolSet:
    """The tools of a chat.

    Raises:
        Refused: see `callable_tools`.
    """
    functions, customs = [], []
    for tool in callable_tools("OpenAI", tools, call, ("custom",), "function"):
        if tool.type == "function" and (own := tool.function):
            functions.append(function(own.name, own.description, own.parameters, own.strict))
        else:
            own = tool.custom
            if own is None or not own.name:
                raise Refused("tools: a custom tool has no name", param="tools")
            rules = (own.format or TEXT).rules
            functions.append(custom(own.name, own.description, *rules))
            customs.append(own.name)
    return ToolSet(functions, customs)


def choose(tools: ToolSet, choice: ToolChoiceMode | ToolChoice | None) -> dict[str, Any]:
    """The tools that may be chosen, as fields of `ChatParams`.

    Raises:
        Refused: the choice names no tool, or one that there is not.
    """
    mode: ToolChoiceMode = "auto"
    name = None
    if isinstance(choice, str):
        mode = choice
    elif choice is not None:
        mode, name = "required", choice.named
        allowed = choice.allowed_tools
        if choice.type == "allowed_tools" and allowed is not None:
            names = [one.named for one in allowed.tools]
            mode, tools = allowed.mode, tools.only([one for one in names if one is not None])
        elif name is None:
            raise Refused(
                f"tool_choice.type: {choice.type!a:.60} names no tool; give 'auto', 'none', "
                "'required', 'allowed_tools', or a function or custom tool with its name",
                param="tool_choice",
            )
    return chosen(tools, mode, name)


def chosen(tools: ToolSet, mode: ToolChoiceMode, name: str | None = None) -> dict[str, Any]:
    """The fields of `ChatParams` that are about tools."""
    fields: dict[str, Any] = {"tools": tools.functions, "custom": tools.customs}
    return {**fields, "choice": mode, "function": name, "strict": tools.strict}
