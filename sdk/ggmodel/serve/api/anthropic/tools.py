"""Tools of Anthropic's API: functions, and those that clients run by a type of their own."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...endpoint import Call
from ...tools import ToolSet, callable_tools, family_of, function

_TEXT: Any = {"type": "string"}
_INTEGER: Any = {"type": "integer"}
_POINT: Any = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2}
_FILES: Any = {
    "path": _TEXT,
    "view_range": {**_POINT, "description": "First and last line; -1 for the end."},
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _INTEGER,
    "insert_text": _TEXT,
}
_ACTIONS = (
    "key type mouse_move left_click left_click_drag right_click middle_click double_click "
    "screenshot cursor_position"
).split()
_LATER_ACTIONS = "left_mouse_down left_mouse_up triple_click scroll hold_key wait".split()
_NAMES = {"text_editor": "str_replace_based_edit_tool"}
_FIRST_EDITORS = ("text_editor_20241022", "text_editor_20250124")


class InputTool(Struct):
    """A function that the model may call. Anthropic's own tools have a type instead of a schema,
    and some of them the other fields."""

    name: str = ""
    description: str = ""
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    type: str = "custom"
    max_characters: int | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None
    display_number: int | None = None
    enable_zoom: bool = False


def tools_of(tools: list[InputTool] | None, call: Call) -> ToolSet:
    """The tools of a request.

    Raises:
        Refused: see `callable_tools`.
    """
    kept = callable_tools("Anthropic", tools, call, _BUILT_IN)
    return ToolSet([_function(tool) for tool in kept])


def _function(tool: InputTool) -> dict[str, Any]:
    family = family_of(tool.type)
    if family not in _BUILT_IN:
        return function(tool.name, tool.description, tool.input_schema, tool.strict)
    description, properties, required = _BUILT_IN[family](tool)
    schema = {"type": "object", "properties": properties, "required": required}
    return function(tool.name or _NAMES.get(family, family), description, schema, tool.strict)


Declaration = tuple[str, dict[str, Any], list[str]]  # description, parameters, required ones


def _bash(tool: InputTool) -> Declaration:
    text = "Run a command in a shell that goes on from call to call. restart begins a new one."
    return text, {"command": _TEXT, "restart": {"type": "boolean"}}, []


def _text_editor(tool: InputTool) -> Declaration:
    commands, files = ["view", "create", "str_replace", "insert"], dict(_FILES)
    if tool.type in _FIRST_EDITORS:
        commands.append("undo_edit")
        files.pop("insert_text")  # new_str is inserted
    text = (
        "View and edit files. view shows a file or folder; create writes file_text; str_replace "
        "puts new_str in place of old_str, which occurs once; insert adds text after a line."
    )
    return text, {"command": {"enum": commands}, **files}, ["command", "path"]


def _memory(tool: InputTool) -> Declaration:
    commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
    text = (
        "Files below /memories that last beyond a conversation. View them before a task, and keep "
        "notes of what will matter later. rename moves old_path to new_path."
    )
    paths = {"old_path": _TEXT, "new_path": _TEXT}
    return text, {"command": {"enum": commands}, **_FILES, **paths}, ["command"]


def _computer(tool: InputTool) -> Declaration:
    actions, more = list(_ACTIONS), dict[str, Any]()
    if tool.type != "computer_20241022":
        actions += _LATER_ACTIONS
        more = {
            "start_coordinate": _POINT,
            "scroll_direction": {"enum": ["up", "down", "left", "right"]},
            "scroll_amount": _INTEGER,
            "duration": {"type": "number", "description": "Seconds."},
        }
    if tool.enable_zoom:
        actions.append("zoom")
        more["region"] = {**_POINT, "minItems": 4, "maxItems": 4}
    size = f"{tool.display_width_px or '?'} x {tool.display_height_px or '?'}"
    text = (
        f"Mouse, keyboard and screenshots of a screen of {size} pixels. Take a screenshot to see "
        "the result of an action; coordinate is [x, y] from the top left corner; text is what to "
        "type, or a key such as Return or ctrl+s."
    )
    fixed = {"action": {"enum": actions}, "coordinate": _POINT, "text": _TEXT}
    return text, {**fixed, **more}, ["action"]


_BUILT_IN = {
    "bash": _bash,
    "text_editor": _text_editor,
    "memory": _memory,
    "computer": _computer,
}
