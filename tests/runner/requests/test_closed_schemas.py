"""Objects of JSON schemas take the keys that are listed and no others; JSON is compact."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

import ggmodel
from ggmodel.chat.replies import reply_format
from ggmodel.errors import GrammarError
from ggmodel.json_schema import closed
from ggmodel.runner import Grammar
from ggmodel.tokenizer import Tokenizer

Schema = dict[str, Any]
INT = {"type": "integer"}


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with ggmodel.load("examples/assets/stories.gguf", context_length=64) as model:
        assert model.tokenizer is not None
        yield model.tokenizer


def _obeys(grammar: Grammar, text: str, tokenizer: Tokenizer) -> bool:
    state = grammar.begin(tokenizer)
    for id in tokenizer.encode(text, add_special=False, parse_special=False):
        if not state.allows(id):
            return False
        state.accept(id)
    return state.finished or any(map(state.allows, tokenizer.eog))


def _object(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


class Point(pydantic.BaseModel):
    x: int


class Line(pydantic.BaseModel):
    ends: list[Point]
    next: Line | None = None


A, B, C = (_object(**{name: INT}) for name in "abc")
EITHER = {**C, "anyOf": [A, B]}
INHERITED = {
    **C,
    "allOf": [{"$ref": "#/components/Base"}],
    "components": {"Base": {"properties": {"a": {"$ref": "#/components/Base"}}}},
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (A, '{"a":1}', '{"a":1,"b":2}'),
        (_object(a=A), '{"a":{"a":1}}', '{"a":{"a":1,"b":2}}'),
        ({"type": "array", "items": A}, '[{"a":1}]', '[{"a":1,"b":2}]'),
        (_object(), "{}", '{"a":1}'),
        (Point.model_json_schema(), '{"x":1}', '{"x":1,"y":2}'),
        (
            Line.model_json_schema(),
            '{"ends":[{"x":1}],"next":{"ends":[]}}',
            '{"ends":[{"x":1}],"next":{"ends":[{"x":1,"y":1}]}}',
        ),
        ({"allOf": [A, B]}, '{"a":1,"b":2}', '{"a":1,"b":2,"c":3}'),
        ({"allOf": [{"allOf": [A]}, B, C]}, '{"a":1,"b":2,"c":3}', '{"a":1,"b":2,"c":3,"d":4}'),
        ({"anyOf": [A, B]}, '{"b":1}', '{"b":1,"a":2}'),
        (EITHER, '{"c":3,"b":1}', '{"c":3,"b":1,"a":1}'),
        (EITHER, '{"c":3,"a":1}', '{"c":3,"a":1,"d":1}'),
        (INHERITED, '{"c":1,"a":{"a":{}}}', '{"c":1,"a":{"c":1}}'),
        (INHERITED, '{"c":1}', '{"c":1,"d":1}'),
        ({**_object(a=INT), "required": ["a", "b"]}, '{"a":1,"b":"x"}', '{"a":1,"b":2,"c":3}'),
        ({"properties": {}, "patternProperties": {"^x": INT}}, '{"xy":1}', '{"y":1}'),
        (
            {"allOf": [{"patternProperties": {"^x": INT}}, A]},
            '{"a":1,"xy":1}',
            '{"a":1,"y":1}',
        ),
        ({**A, "additionalProperties": False}, '{"a":1}', '{"a":1,"b":2}'),
    ],
)
def test_objects_are_closed(schema: Schema, right: str, wrong: str, tokenizer: Tokenizer):
    grammar = Grammar.json_schema(schema)
    assert _obeys(grammar, right, tokenizer)
    assert not _obeys(grammar, wrong, tokenizer)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, '{"a":1}'),
        ({**A, "additionalProperties": True}, '{"a":1,"b":"x"}'),
        ({**A, "additionalProperties": INT}, '{"a":1,"b":2}'),
        ({"allOf": [A, {**B, "additionalProperties": True}]}, '{"a":1,"b":2,"c":3}'),
        ({**C, "allOf": [{"$ref": "#/x"}], "x": {**A, "additionalProperties": True}},
         '{"c":3,"a":1,"d":4}'),
        (_object(properties=INT), '{"properties":1}'),
        ({"const": {"properties": {"a": 1}}}, '{"properties":{"a":1}}'),
    ],
)  # fmt: skip
def test_what_stays_open(schema: Schema, text: str, tokenizer: Tokenizer):
    assert _obeys(Grammar.json_schema(schema), text, tokenizer)


@pytest.mark.parametrize("text", ['{"a":1,"b":[1,2]}', '{"a": 1, "b": [1, 2]}'])
def test_compact_json(text: str, tokenizer: Tokenizer):
    schema = _object(a=INT, b={"type": "array", "items": INT})
    assert _obeys(Grammar.json_schema(schema), text, tokenizer)
    for wrong in (text.replace("{", "{ "), text.replace(":", " :"), text.replace(",", ",\n")):
        assert not _obeys(Grammar.json_schema(schema), wrong, tokenizer)
    free = {**schema, "x-guidance": {"whitespace_flexible": True}}
    assert _obeys(Grammar.json_schema(free), text.replace("{", "{ \n\t"), tokenizer)


@pytest.mark.parametrize("template", ["<tool_call>", "[TOOL_CALLS]"])
def test_arguments_of_calls(template: str, tokenizer: Tokenizer):
    function = {"name": "f", "parameters": _object(place=A)}
    form = reply_format(template)
    kind, text = form.grammar([{"type": "function", "function": function}], parallel=False) or (
        "",
        "",
    )
    assert kind == "lark"
    grammar = Grammar.lark(text)
    calls = {"<tool_call>": '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
             "[TOOL_CALLS]": '[TOOL_CALLS][{"name": "f", "arguments": %s}]'}  # fmt: skip
    call = calls[template]
    assert _obeys(grammar, call % '{"place":{"a":1}}', tokenizer)
    for wrong in ('{"place":{"a":1},"b":2}', '{"place":{"a":1,"b":2}}', '{ "place":{"a":1}}'):
        assert not _obeys(grammar, call % wrong, tokenizer)


@pytest.mark.parametrize(
    ("parameters", "right", "wrong"),
    [
        ({"$ref": "#/$defs/x", "$defs": {"x": A}}, '{"a":1}', "{}"),
        ({"anyOf": [A, B]}, '{"b":1}', '{"c":1}'),
        ({"allOf": [A, B]}, '{"a":1,"b":1}', '{"a":1,"b":1,"c":1}'),
        ({"type": "object"}, '{"a":1}', "[]"),
        (_object(), "{}", '{"a":1}'),
    ],
)
def test_arguments_obey_what_any_schema_says(
    parameters: Schema, right: str, wrong: str, tokenizer: Tokenizer
):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    kind, text = reply_format("<tool_call>").grammar(tools, parallel=False) or ("", "")
    assert kind == "lark"
    grammar, call = Grammar.lark(text), '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    assert _obeys(grammar, call % right, tokenizer)
    assert not _obeys(grammar, call % wrong, tokenizer)


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)}
         | {"40": A}, "allOf": [{"$ref": "#/$defs/0"}, B]},
        {"allOf": [_object(**{str(n): True}) for n in range(20_000)]},
        {"$ref": "#/$defs/x", "$defs": {"x": {**A, "allOf": [{"$ref": "#/$defs/x"}]}}},
        {"allOf": [A, {"$ref": "#"}]},
    ],
    ids=["copies", "names", "itself", "the root"],
)  # fmt: skip
def test_closing_has_an_end(schema: Schema):
    begun = time.thread_time()
    with pytest.raises(GrammarError, match=r"combines too many|leads to itself"):
        closed(schema)
    assert time.thread_time() - begun < 10


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": 5},
        {**A, "anyOf": {"a": 1}},
        {"properties": [1]},
        {"properties": {}, "patternProperties": [1], "allOf": [{"patternProperties": {"a": 1}}]},
        {"required": 3, "properties": {"a": 5}, "items": "x", "$ref": 5},
        {"$ref": "#/x", "x": 5, "allOf": [A, None]},
    ],
)
def test_broken_schemas_have_errors_of_the_family(schema: Schema):
    with pytest.raises(GrammarError, match="this JSON schema cannot be used"):
        Grammar.json_schema(schema)


def test_the_time_grows_with_the_groups_and_not_with_their_square():
    """Groups that share their keys. The fastest of three: others share the processor's caches."""
    group = {"properties": {f"k{i}": {} for i in range(5)}}

    def seconds(groups: int) -> float:
        begin = time.thread_time()
        closed({"allOf": [group] * groups})
        return time.thread_time() - begin

    fastest = [min(seconds(groups) for _ in range(3)) for groups in (500, 4000)]
    assert fastest[1] < 24 * fastest[0]  # 8 times as many; their square is 64 times as many


def test_as_many_groups_with_keys_of_their_own_are_closed():
    closed({"allOf": [{"properties": {str(i): {}}} for i in range(1000)]})
