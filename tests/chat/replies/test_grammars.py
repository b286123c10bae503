"""Grammars of calls: all that they allow is read as calls that obey the functions' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import ggmodel
from ggmodel.chat.replies import ReplyFormat, ToolCall
from ggmodel.chat.replies.families import FAMILIES, PLAIN, Block, Family
from ggmodel.chat.replies.tool_calls import Json
from ggmodel.errors import PromptError
from ggmodel.runner import Grammar, LoadedModel
from ggmodel.tokenizer import Tokenizer

from .replies import TOOLS as MANY
from .replies import format_of

_COLOURS = ["red", "light green"]
_PLACE = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "up": {"type": "boolean"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "paint",
            "parameters": {
                "type": "object",
                "properties": {
                    "colour": {"type": "string", "enum": _COLOURS},
                    "count": {"type": "integer", "minimum": 1, "maximum": 99},
                    "place": _PLACE,
                    "layers": {"type": ["integer", "null"], "minimum": 0, "maximum": 3},
                },
                "required": ["colour", "count"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "wipe",
            "parameters": {
                "type": "object",
                "properties": {"all": {"type": "boolean"}},
                "additionalProperties": False,
            },
        },
    },
]
NAMES = [family.name for family in FAMILIES] + [PLAIN.name]


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    with ggmodel.load("examples/assets/stories.gguf", context_length=512) as loaded:
        yield loaded


def _valid(call: ToolCall) -> bool:
    given: dict[str, Any] = json.loads(call.arguments)
    place, layers = given.get("place", {"x": 0}), given.get("layers")
    checks = [
        call.name in ("paint", "wipe"),
        set(given) <= ({"colour", "count", "place", "layers"} if call.name == "paint" else {"all"}),
        isinstance(place, dict) and isinstance(place.get("x"), int) and 0 <= place["x"] <= 9,
        isinstance(place.get("up", True), bool) and set(place) <= {"x", "up"},
        layers is None or (isinstance(layers, int) and 0 <= layers <= 3),
        isinstance(given.get("all", True), bool),
    ]
    if call.name == "paint":
        checks += [given.get("colour") in _COLOURS, 1 <= given.get("count", 0) <= 99]
    return all(checks)


def _closed(name: str) -> str:
    """The end of a prompt that has closed the thought, so that the reply is short."""
    if name == "harmony":
        return "<|start|>assistant<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    thoughts = {family.name: family.thoughts for family in FAMILIES}.get(name, ())
    return "".join(thought.open + thought.close for thought in thoughts)


@pytest.mark.parametrize(
    ("name", "choice"),
    [*((name, "required") for name in NAMES), ("hermes", "paint"), ("glm-4", "paint")],
)
def test_what_a_model_writes_is_a_valid_call(name: str, choice: str, model: LoadedModel) -> None:
    form, ending = format_of(name), _closed(name)
    made = form.grammar(TOOLS, choice, parallel=False, ending=ending)
    assert made is not None
    kind, text = made
    grammar = getattr(Grammar, kind)(text)
    written = model.generate("Once", grammar=grammar, temperature=1.5, seed=0, max_tokens=500)
    assert written.finish_reason == "stop", written
    reply = form.parse(written, TOOLS, ending)
    assert not reply.content.strip(), written
    assert len(reply.calls) == 1, written
    assert choice in ("required", reply.calls[0].name)
    assert _valid(reply.calls[0]), written


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False, parse_special=False)


def _writes(grammar: Grammar, model: LoadedModel, parts: list[str | int]) -> bool:
    """Whether the grammar allows texts and special tokens one after the other, and then an end."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    state = grammar.begin(tokenizer)
    for part in parts:
        ids = [part] if isinstance(part, int) else _plain(tokenizer, part)
        for id in ids:
            if not state.allows(id):
                return False
            state.accept(id)
    return any(state.allows(id) for id in tokenizer.eog)


def test_marks_are_special_tokens_where_the_vocabulary_has_them(model: LoadedModel) -> None:
    block = Block(Json(), "<|user|>", "<|assistant|>")
    form = ReplyFormat(Family("own", (), blocks=(block,)))
    ids = {"<|user|>": 2, "<|assistant|>": 3}
    call = '{"name": "now", "arguments": {}}'
    for choice in ("required", "auto"):
        _, text = form.grammar(MANY[2:3], choice, special=ids, strict=True) or ("", "")
        grammar = Grammar.lark(text)
        said = "" if choice == "required" else "I will "
        assert _writes(grammar, model, [said, 2, call, 3])
        assert not _writes(grammar, model, [said + "<|user|>", call, 3])
        assert not _writes(grammar, model, [said, 2, call, "<|assistant|>"])


@pytest.mark.parametrize("parallel", [False, True])
def test_several_calls_come_only_if_parallel(parallel: bool, model: LoadedModel) -> None:
    one = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    _, text = format_of("hermes").grammar(MANY, parallel=parallel) or ("", "")
    grammar = Grammar.lark(text)
    assert _writes(grammar, model, [one])
    assert _writes(grammar, model, [f"{one}\n{one}"]) is parallel
    assert not _writes(grammar, model, ["Hello"])


def test_calls_within_text_obey_strict_schemas(model: LoadedModel) -> None:
    form = format_of("hermes")
    assert form.grammar(MANY, "auto") is None
    _, text = form.grammar(MANY, "auto", strict=True) or ("", "")
    grammar = Grammar.lark(text)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": %s}}\n</tool_call>'
    assert _writes(grammar, model, ["Hello, <b>you</b>"])
    assert _writes(grammar, model, ["Hello " + call % 1 + " and " + call % 2])
    assert not _writes(grammar, model, ["Hello " + call % '"1"'])
    strict = [dict(MANY[0], function={**MANY[0]["function"], "strict": True}), MANY[1]]
    _, text = form.grammar(strict, "auto") or ("", "")
    grammar = Grammar.lark(text)
    assert not _writes(grammar, model, [call % '"1"'])
    assert _writes(grammar, model, [(call % 1).replace('"add"', '"say"')])


def _speaking(*marks: str) -> Any:
    """A vocabulary of letters with these special tokens, and an end."""
    letters = [*map(chr, range(33, 127)), "Ġ", "Ċ"]
    special = [*marks, "<end>"]
    return SimpleNamespace(
        tokenizer=Tokenizer.from_metadata(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.tokens": letters + special,
                "tokenizer.ggml.token_type": [1] * len(letters) + [3] * len(special),
                "tokenizer.ggml.merges": [],
                "tokenizer.ggml.eos_token_id": len(letters) + len(marks),
            }
        )
    )


def test_messages_of_harmony_obey_strict_schemas() -> None:
    form = format_of("harmony")
    marks = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
    speaking = _speaking(*marks, "<|constrain|>")
    ids = speaking.tokenizer.special
    ends = {"begun": "<|start|>assistant", "thought": "<|start|>assistant<|channel|>analysis"}
    ends["thought"] += "<|message|>hm"
    made = {
        name: Grammar.lark(asked[1])
        for name, ending in ends.items()
        if (asked := form.grammar(MANY, "auto", strict=True, special=ids, ending=ending))
    }

    def writes(text: str, begun: str = "begun") -> bool:
        parts = [ids.get(part, part) for part in re.split(r"(<\|\w+\|>)", text) if part]
        return _writes(made[begun], speaking, parts)

    head = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
    final = "<|channel|>final<|message|>Hello {}"
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    words = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    for before in ("", thought, thought + words):
        assert writes(before + final)
        assert writes(before + head + '{"a": 1}')
        assert not writes(before + head + '{"a": "1"}')
    assert writes(final + "<|return|>") and not writes(final + head + '{"a": 1}')
    assert not writes("Hello")
    assert writes(" so<|end|><|start|>assistant" + final, "thought")
    assert not writes(final, "thought")
    assert form.grammar(MANY, "auto", strict=True) is None  # marks that are plain text
    assert (
        form.grammar(MANY, "auto", strict=True, special=ids, ending=ends["begun"] + final) is None
    )


@pytest.mark.parametrize(
    ("name", "call", "marks"),
    [
        ("llama-3", '{"name": "add", "parameters": {"a": %s}}', ["<|python_tag|>"]),
        ("llama-4", "[add(a=%s)]", ["<|python_start|>"]),
    ],
)
def test_bare_calls_obey_strict_schemas(
    name: str, call: str, marks: list[str], model: LoadedModel
) -> None:
    form = format_of(name)
    ids = dict.fromkeys(marks, 2)
    _, text = form.grammar(MANY, "auto", strict=True, special=ids) or ("", "")
    grammar = Grammar.lark(text)
    assert _writes(grammar, model, ["Hello {you} [there]"]) and _writes(grammar, model, [""])
    assert _writes(grammar, model, [call % 1])
    for wrong in (call % '"1"', " " + call % '"1"', '{"name": "other"}'):
        assert not _writes(grammar, model, [wrong])
    assert form.grammar(MANY, "auto", strict=True) is None


def test_a_thought_comes_before_calls(model: LoadedModel) -> None:
    form = format_of("hermes")
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    _, closed = form.grammar(MANY, ending="<think>\n\n</think>\n\n") or ("", "")
    _, may = form.grammar(MANY) or ("", "")
    _, begun = form.grammar(MANY, ending="<|im_start|>assistant\n<think>\n") or ("", "")
    assert _writes(Grammar.lark(may), model, ["<think>hm</think>\n\n" + call])
    assert _writes(Grammar.lark(may), model, [call])
    assert _writes(Grammar.lark(begun), model, ["hm</think>" + call])
    assert not _writes(Grammar.lark(begun), model, [call])
    assert not _writes(Grammar.lark(closed), model, ["<think>hm</think>\n\n" + call])


def test_unknown_functions_are_errors() -> None:
    with pytest.raises(PromptError, match=r"'other'.*paint, wipe"):
        format_of("hermes").grammar(TOOLS, "other")
    with pytest.raises(PromptError, match="no function to call"):
        format_of("hermes").grammar([], "required")
