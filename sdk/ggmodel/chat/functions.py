"""Python functions as tools: described to a model, and called as it asks."""

from __future__ import annotations

import inspect
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from inspect import Parameter
from typing import Any

from ..errors import ConfigError, PromptError
from .schemas import hints_of, schema_of, value_of

Tool = Mapping[str, Any] | Callable[..., Any]
"""A tool: the JSON schema of a function, or a Python function."""

_SECTIONS = "Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?"
_HEAD = re.compile(rf"^(?:{_SECTIONS}):[ \t]*$|^:\w+", re.MULTILINE)
_ARGUMENTS = re.compile(
    r"^(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+.*(?:\n|$)|[ \t]*\n)*)", re.MULTILINE
)
_ARGUMENT = re.compile(r"(\w+)(?: *\([^)]*\))?: *(.*)")
_SPHINX = re.compile(r"^:param (?:\w+ )?(\w+): *(.*)$", re.MULTILINE)
_LETTERS, _LENGTH = string.ascii_letters + string.digits, 9


def new_call_id() -> str:
    """An id for a call; templates of Mistral refuse all that have not nine letters and digits."""
    import secrets  # slow

    return "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def tool_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a Python function, by its signature, its annotations and its docstring:
    the text before its sections, and what "Args:" or ":param" says of parameters.

    Raises:
        ConfigError: the function has no name, or a parameter that no JSON schema describes.
    """
    name = getattr(function, "__name__", "")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"{function!r:.80} has no name that a model could call; give a function")
    summary, notes = _described(inspect.getdoc(function) or "")
    hints, properties = hints_of(_annotated(function)), dict[str, Any]()
    definitions = dict[str, Any]()  # of nested models, which schemas refer to from the root
    parameters = inspect.signature(function).parameters.values()
    for one in parameters:
        if one.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise ConfigError(f"{name}: the parameter {one} has no name that a model could give")
        schema = schema_of(hints.get(one.name, Any))
        definitions |= schema.pop("$defs", {})
        if one.name in notes:
            schema.setdefault("description", notes[one.name])
        if isinstance(one.default, (str, int, float, bool)):
            schema["default"] = one.default
        properties[one.name] = schema
    required = [one.name for one in parameters if one.default is Parameter.empty]
    schemas = {"type": "object", "properties": properties, "required": required}
    if definitions:
        schemas["$defs"] = definitions
    declared = {"name": name, "description": summary, "parameters": schemas}
    return {"type": "function", "function": declared}


def _annotated(function: Any) -> Any:
    """The function itself, or the method of an object that is called, which has the annotations."""
    plain = inspect.isfunction(function) or inspect.ismethod(function)
    return function if plain else getattr(function, "__call__", function)  # noqa: B004


def _described(text: str) -> tuple[str, dict[str, str]]:
    """The beginning of a docstring, and its notes on parameters."""
    head = _HEAD.search(text)
    summary = " ".join(text[: head.start() if head else None].split())
    notes = dict(_SPHINX.findall(text))
    if (section := _ARGUMENTS.search(text)) is None:
        return summary, notes
    lines = [line for line in section[1].splitlines() if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    name = None
    for line in lines:
        begins = _ARGUMENT.match(line, margin)
        if begins and not line[margin].isspace():
            name, notes[begins[1]] = begins[1], begins[2]
        elif name is not None:
            notes[name] = f"{notes[name]} {line.strip()}".strip()
    return summary, notes


class Tools:
    """The tools of a chat.

    Attributes:
        schemas: as chat templates take them.
        functions: those that are Python functions, by name.

    Raises:
        PromptError: they are no list, or one is neither a dict nor a function.
        ConfigError: see `tool_of`; or two functions have one name.
    """

    def __init__(self, tools: Sequence[Tool] | None):
        self.schemas: list[Mapping[str, Any]] = []
        self.functions: dict[str, Callable[..., Any]] = {}
        if isinstance(tools, (str, Mapping)) or not isinstance(tools, (Sequence, type(None))):
            raise PromptError(f"tools are a list of functions, not {type(tools).__name__}")
        for tool in tools or ():
            if isinstance(tool, Mapping):
                self.schemas.append(tool)
            elif callable(tool):
                schema = tool_of(tool)
                name = schema["function"]["name"]
                if name in self.functions:
                    raise ConfigError(f"two tools have the name {name!r}; give each its own")
                self.schemas.append(schema)
                self.functions[name] = tool
            else:
                raise PromptError(
                    f"a tool is a Python function or a dict such as {{'type': 'function', "
                    f"'function': {{'name': …}}}}, not {type(tool).__name__}"
                )

    def call(self, name: str, arguments: str) -> str:
        """The result of a call, or an error, as a text for the model. Ctrl-C goes through.

        Args:
            arguments: JSON text of an object.
        """
        function = self.functions.get(name)
        if function is None:
            names = ", ".join(self.functions)
            return f"error: there is no function {name!r:.80}; the functions are: {names}"
        try:
            values = _arguments(function, arguments)
        except Exception as error:  # also of a class's own checks
            return f"error: the arguments do not suit {name}: {error}"
        try:
            return _written(function(**values))
        except Exception as error:  # whatever the function raises is for the model
            return f"error: {type(error).__name__}: {error}"


def _arguments(function: Callable[..., Any], text: str) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except RecursionError:
        raise ValueError("they are nested too deeply") from None
    if not isinstance(read, dict):
        raise ValueError("they are no JSON object")
    parameters, hints = inspect.signature(function).parameters, hints_of(_annotated(function))
    if unknown := [key for key in read if key not in parameters]:
        raise ValueError(f"there is no parameter {unknown[0]!r:.80}")
    for name, one in parameters.items():
        if one.default is Parameter.empty and name not in read:
            raise ValueError(f"{name} is missing")
    return {key: value_of(hints.get(key, Any), value, key) for key, value in read.items()}


def _written(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError):  # keys that JSON lacks, or it contains itself
        return str(result)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    dumped = getattr(value, "model_dump", None)  # pydantic's
    return dumped() if callable(dumped) else str(value)
