"""Tools of /v1/responses: those that clients run as functions, and calls of these as items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from ...endpoint import Call
from ...errors import Refused
from ...tools import INPUT, ToolSet, callable_tools, custom, function, written_arguments
from .tools import TEXT, CustomFormat, ToolChoiceMode, chosen

_STRING: Any = {"type": "string"}
_STRINGS: Any = {"type": "array", "items": _STRING}
_NUMBER: Any = {"type": "integer"}

# Descriptions and parameters that the types of tools imply.
_BUILT_IN: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "local_shell": (
        "Run a command on the user's machine; returns its output.",
        {
            "command": {**_STRINGS, "description": "Program and arguments."},
            "working_directory": _STRING,
            "timeout_ms": _NUMBER,
            "env": {"type": "object", "additionalProperties": _STRING},
        },
        ["command"],
    ),
    "shell": (
        "Run shell commands; returns their output and exit codes.",
        {"commands": _STRINGS, "timeout_ms": _NUMBER, "max_output_length": _NUMBER},
        ["commands"],
    ),
    "apply_patch": (
        "Create, update or delete a file. A diff has lines that begin with '+', '-' or a space, "
        "after '@@' for each place of an update.",
        {
            "type": {"enum": ["create_file", "update_file", "delete_file"]},
            "path": _STRING,
            "diff": _STRING,
        },
        ["type", "path"],
    ),
}
_KNOWN = ("custom", "namespace", *_BUILT_IN)


class Environment(Struct):
    type: str = "local"


class ResponseTool(Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: CustomFormat | UnsetType | None = UNSET
    tools: list[ResponseTool] | UnsetType | None = UNSET
    environment: Environment | UnsetType | None = UNSET


class AllowedTool(Struct):
    type: str
    name: str | None = None


class ResponseChoice(AllowedTool):
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None


@dataclass(frozen=True)
class Callee:
    """A tool behind a function.

    Attributes:
        type: "function", "custom", or a built-in one. namespace: "" for none.
    """

    type: str
    name: str
    namespace: str = ""


def flat_name(name: str, namespace: object) -> str:
    """The name of a function in a namespace, as the model sees it."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace.removesuffix('__')}__{name}"


@dataclass
class ResponseTools(ToolSet):
    """The functions of a request.

    Attributes:
        callees: the tool behind each function, by the function's name.
    """

    callees: dict[str, Callee] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: list[ResponseTool] | None, call: Call) -> ResponseTools:
        """The tools of a request.

        Raises:
            Refused: see `callable_tools`.
        """
        made = cls()
        for tool in callable_tools("OpenAI", tools, call, _KNOWN):
            if tool.type == "namespace":
                about = f"{tool.description}\n\n" if tool.description else ""
                for one in callable_tools("OpenAI", tool.tools or [], call, ("custom",)):
                    made._add(one, tool.name or "", about)
            elif tool.type == "shell" and tool.environment and tool.environment.type != "local":
                call.warn("tools: a shell that runs on OpenAI's servers is left out")
            else:
                made._add(tool)
        return made

    def _add(self, tool: ResponseTool, namespace: str = "", about: str = "") -> None:
        name = tool.name or (tool.type if tool.type in _BUILT_IN else "")
        if not name:
            raise Refused("tools: a custom tool has no name", param="tools")
        flat = flat_name(name, namespace)
        if flat in self.callees:
            raise Refused(f"tools: two are called {flat!r:.100}", param="tools")
        self.callees[flat] = Callee(tool.type, name, namespace)
        description = about + (tool.description or "")
        if tool.type == "custom":
            rules = (tool.format or TEXT).rules
            self.functions.append(custom(flat, description, *rules))
            self.customs.append(flat)
        elif tool.type == "function":
            self.functions.append(function(flat, description, tool.parameters, tool.strict))
        else:
            description, properties, required = _BUILT_IN[tool.type]
            schema = {"type": "object", "properties": properties, "required": required}
            self.functions.append(function(flat, description, schema))

    def choose(self, choice: ToolChoiceMode | ResponseChoice | None) -> dict[str, Any]:
        """The tools that may be chosen, as fields of `ChatParams`.

        Raises:
            Refused: the choice names a tool that there is not.
        """
        if choice is None or isinstance(choice, str):
            return chosen(self, choice or "auto")
        if choice.type == "allowed_tools":
            names = [name for one in choice.tools or () for name in self._named(one)]
            return chosen(self.only(names), choice.mode or "auto")
        names = self._named(choice)
        if choice.type not in ("function", *_KNOWN):
            raise Refused(
                f"tool_choice.type: {choice.type!a:.60} is unsupported; give 'auto', 'none', "
                "'required', 'allowed_tools', or a tool that the client runs",
                param="tool_choice.type",
            )
        allowed = self.only(names)
        return chosen(allowed, "required") if names[1:] else chosen(self, "required", names[0])

    def _named(self, tool: AllowedTool) -> list[str]:
        """The functions that a choice means; an unknown name stays, for an error to name it."""
        if tool.type == "namespace":
            return [flat for flat, one in self.callees.items() if one.namespace == tool.name]
        if tool.type not in ("function", *_KNOWN):
            return []  # those that are left out
        name = tool.name or tool.type
        if name in self.callees:
            return [name]
        return [flat for flat, one in self.callees.items() if one.name == name] or [name]


Status = Literal["in_progress", "completed", "incomplete"]


class OutputItem(Struct, kw_only=True):
    """A part of an answer, with an id of its own."""

    id: str
    status: Status = "in_progress"


class FunctionCall(OutputItem, kw_only=True, tag="function_call"):
    """Arguments are JSON text."""

    call_id: str
    name: str
    arguments: str = ""
    namespace: str | UnsetType = UNSET


class CustomToolCall(OutputItem, kw_only=True, tag="custom_tool_call"):
    call_id: str
    name: str
    input: str = ""
    namespace: str | UnsetType = UNSET


class ExecAction(Struct, kw_only=True, tag="exec"):
    command: list[str] = []
    env: dict[str, str] = {}
    working_directory: str | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET


class LocalShellCall(OutputItem, kw_only=True, tag="local_shell_call"):
    call_id: str
    action: ExecAction


class ShellAction(Struct, kw_only=True):
    commands: list[str] = []
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCall(OutputItem, kw_only=True, tag="shell_call"):
    call_id: str
    action: ShellAction


class PatchOperation(Struct, kw_only=True, omit_defaults=True):
    type: str
    path: str
    diff: str | UnsetType = UNSET


class ApplyPatchCall(OutputItem, kw_only=True, tag="apply_patch_call"):
    call_id: str
    operation: PatchOperation


CallItem = FunctionCall | CustomToolCall | LocalShellCall | ShellCall | ApplyPatchCall


def call_item(callee: Callee, ids: Mapping[str, Any], text: str = "") -> CallItem:
    """The item of a call.

    Args:
        ids: "id" and "call_id" of the item. text: its arguments as JSON, or a custom tool's text.
    """
    namespace = callee.namespace or UNSET
    if callee.type == "function":
        return FunctionCall(name=callee.name, namespace=namespace, arguments=text, **ids)
    if callee.type == "custom":
        return CustomToolCall(name=callee.name, namespace=namespace, input=text, **ids)
    arguments = written_arguments(text)
    milliseconds = arguments.get("timeout_ms")
    if not isinstance(milliseconds, int):
        milliseconds = None
    if callee.type == "local_shell":
        env, where = arguments.get("env"), arguments.get("working_directory")
        action = ExecAction(
            command=_texts(arguments.get("command"), ["sh", "-c"]),
            env={k: str(v) for k, v in env.items()} if isinstance(env, dict) else {},
            working_directory=where if isinstance(where, str) else UNSET,
            timeout_ms=UNSET if milliseconds is None else milliseconds,
        )
        return LocalShellCall(action=action, **ids)
    if callee.type == "shell":
        most = arguments.get("max_output_length")
        action = ShellAction(
            commands=_texts(arguments.get("commands"), []),
            timeout_ms=milliseconds,
            max_output_length=most if isinstance(most, int) else None,
        )
        return ShellCall(action=action, **ids)
    diff, kind = arguments.get("diff"), arguments.get("type")
    operation = PatchOperation(
        type=kind if kind in ("create_file", "delete_file") else "update_file",
        path=str(arguments.get("path", "")),
        diff=UNSET if kind == "delete_file" else diff if isinstance(diff, str) else "",
    )
    return ApplyPatchCall(operation=operation, **ids)


def call_arguments(callee: Callee, text: str) -> str | dict[str, Any]:
    """The arguments of a call in a message: those of a custom tool are one text."""
    return {INPUT: text} if callee.type == "custom" else text


def _texts(value: object, shell: list[str]) -> list[str]:
    """A list of texts; a text alone goes to a shell."""
    if isinstance(value, str):
        return [*shell, value]
    return [str(one) for one in value] if isinstance(value, list) else []
