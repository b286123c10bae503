"""Replies of known families are read, however they are cut, and nothing in them is an error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.chat.replies import CallArguments, Content, Delta, Reasoning, Reply, reply_format
from ggmodel.chat.replies.families import FAMILIES

from .replies import CASES, TOOLS, Case, format_of

NAMES = [family.name for family in FAMILIES]


def _joined(deltas: list[Delta]) -> list[Delta]:
    """The deltas with neighbouring texts of one kind as one."""
    made: list[Delta] = []
    for delta in deltas:
        last = made[-1] if made else None
        if isinstance(last, Content) and isinstance(delta, Content):
            made[-1] = Content(last.text + delta.text)
        elif isinstance(last, Reasoning) and isinstance(delta, Reasoning):
            made[-1] = Reasoning(last.text + delta.text)
        elif isinstance(last, CallArguments) and isinstance(delta, CallArguments):
            made[-1] = CallArguments(last.index, last.text + delta.text)
        else:
            made.append(delta)
    return made


def _deltas(family: str, pieces: list[str], ending: str = "") -> list[Delta]:
    parser = format_of(family).parser(TOOLS, ending)
    found = [delta for piece in pieces for delta in parser.feed(piece)]
    return _joined([*found, *parser.end()])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_a_reply_is_read(case: Case) -> None:
    reply = format_of(case.family).parse(case.text, TOOLS, case.ending)
    assert reply.content == case.content
    assert reply.reasoning == case.reasoning
    assert [(c.name, json.loads(c.arguments), c.id) for c in reply.calls] == list(case.calls)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_the_same_comes_letter_by_letter(case: Case) -> None:
    whole = _deltas(case.family, [case.text], case.ending)
    assert _deltas(case.family, list(case.text), case.ending) == whole


@pytest.mark.parametrize(
    ("family", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "say", "arguments": {"text": "a\nb', '{"text": "a\\nb'),
        ("hermes", '<tool_call>{"name": "say", "arguments": {"te', '{"te'),
        ("mistral", '[TOOL_CALLS]say[ARGS]{"text": [1, {', '{"text": [1, {'),
        ("mistral-nemo", '[TOOL_CALLS][{"name": "say", "arguments": {"text"', '{"text"'),
        ("llama-3", '{"name": "say", "parameters": {"text": "a', '{"text": "a'),
        ("qwen3-coder", "<tool_call>\n<function=say>\n<parameter=text>\na\"b\n</par",
         '{"text": "a\\"b'),
        ("qwen3-coder", "<tool_call>\n<function=say>\n<parameter=text>\na\n</parameter>\n",
         '{"text": "a"'),
        ("glm-4", "<tool_call>say\n<arg_key>text</arg_key>\n<arg_value>a", '{"text": "a'),
        ("gemma4", '<|tool_call>call:say{n:1,text:<|"|>a', '{"n": 1, "text": "a'),
        ("lfm2", '<|tool_call_start|>[say(n=1, text="a', '{"n": 1, "text": '),
        ("harmony", '<|channel|>commentary to=functions.say<|message|>{"text": "a', '{"text": "a'),
    ],
)  # fmt: skip
def test_a_call_that_is_cut_short_has_what_was_written(
    family: str, text: str, arguments: str
) -> None:
    tools = [{"name": "say", "parameters": {"properties": {"text": {"type": "string"}}}}]
    parser = format_of(family).parser(tools)
    (call,) = Reply.of([*parser.feed(text), *parser.end(cut=True)]).calls
    assert (call.name, call.arguments) == ("say", arguments)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes",
         '<tool_call>{"name": "say", "arguments": {"text": "one two three"}}</tool_call>'),
        ("qwen3-coder", "<tool_call><function=say><parameter=text>\none two three\n</parameter>"
                        "</function></tool_call>"),
        ("mistral", '[TOOL_CALLS]say[ARGS]{"text": "one two three"}'),
        ("gemma4", '<|tool_call>call:say{text:<|"|>one two three<|"|>}<tool_call|>'),
    ],
)  # fmt: skip
def test_arguments_come_as_they_are_written(family: str, text: str) -> None:
    tools = [{"name": "say", "parameters": {"properties": {"text": {"type": "string"}}}}]
    parser = format_of(family).parser(tools)
    before, after, _ = text.partition("two")
    early = "".join(d.text for d in parser.feed(before + after) if isinstance(d, CallArguments))
    assert early == '{"text": "one two'


def test_every_family_has_a_case() -> None:
    assert {case.family for case in CASES} == {*NAMES, "plain"}
    assert {case.family for case in CASES if case.calls} == {*NAMES, "plain"}


_WORDS = sorted(
    {
        text
        for family in FAMILIES
        for text in (
            *family.skip,
            *family.section,
            *(text for t in family.thoughts for text in (t.open, t.close)),
            *(text for b in family.blocks for text in (b.open, b.close)),
            *(family.channels.opens if family.channels else ()),
        )
        if text
    }
    | {
        '{"name": "add", "arguments": {"a": 1}}',
        "add(a=1)",
        "add",
        "[ARGS]",
        "call:now{}",
        " to=now",
    }
    | {"<function=now>", "</function>", "<parameter=a>", "</parameter>", '<invoke name="now">'}
    | {"</invoke>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", '<|"|>', '"', "'"}
    | {" ", "\n", "{", "}", "[", "]", "(", ")", "<", "|", "\\", "a", "é", ",", ":", "=", "1"}
)


_BARE = ("llama-3", "llama-4", "magistral", "think", "plain")  # a call may be any JSON at first


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.calls], ids=lambda case: case.family
)
def test_a_call_that_is_cut_short_is_never_content(case: Case) -> None:
    names = [name for name, _, _ in case.calls]
    marks = [b.open for f in FAMILIES if f.name == case.family for b in f.blocks]
    begins = [case.text.find(mark) + len(mark) for mark in marks if mark in case.text]
    for end in range(min(begins, default=0), len(case.text)):
        parser = format_of(case.family).parser(TOOLS, case.ending)
        reply = Reply.of([*parser.feed(case.text[:end]), *parser.end(cut=True)])
        called = [call.name for call in reply.calls]
        assert reply.message()["role"] == "assistant"
        begun = [word[:n] for word in _WORDS for n in range(len(word) + 1)]  # a mark, cut short
        contents = {reply.content.strip().removesuffix(text).strip() for text in begun}
        if case.family not in _BARE:
            assert any(map(case.content.startswith, contents)), case.text[:end]
            assert called == names[: len(called)]


@settings(max_examples=400, deadline=None)
@given(
    family=st.sampled_from(NAMES),
    words=st.lists(st.sampled_from(_WORDS), max_size=14),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    begun=st.sampled_from(
        ["", "<|im_start|>assistant\n<think>\n", "<|start|>assistant", "<think>"]
    ),
)
def test_any_text_is_read_alike_in_any_pieces(
    family: str, words: list[str], cuts: list[int], begun: str
) -> None:
    text, pieces, at = "".join(words), [], 0
    while at < len(text):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(text[at : at + size])
        at += size
    whole = _deltas(family, [text], begun)
    assert _deltas(family, pieces, begun) == whole
    for call in Reply.of(whole).calls:
        assert call.arguments.startswith("{") and call.name
    Reply.of(whole).message()


def test_arguments_begin_with_the_name_of_a_tagged_call() -> None:
    (call,) = format_of("qwen3-coder").parse("<function=now>").calls
    assert (call.name, call.arguments) == ("now", "{")


@pytest.mark.parametrize("family", [*NAMES, "plain"])
def test_a_text_without_marks_stays_as_it_is(family: str) -> None:
    text = "  A text, with < and [brackets] and\n\n  space.\n"
    reply = format_of(family).parse(text)
    assert reply == Reply(content=text)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<|im_start|>' + message.role }}", "plain"),
        ("{{ '<think>' + message.reasoning_content }}", "think"),
        ('{{ \'<tool_call>\n{"name": "\' }}', "hermes"),
        ("<tool_call>\n<function=name>\n<parameter=key>", "qwen3-coder"),
        ("<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>", "glm-4"),
        ("[TOOL_CALLS]{{ name }}[ARGS]", "mistral"),
        ("[TOOL_CALLS] [", "mistral-nemo"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
    ],
)
def test_a_family_is_recognised_by_its_template(template: str, name: str) -> None:
    assert reply_format(template).name == name
    assert reply_format(template).special == (name != "plain")


# Texts that make a reader go back and forth, if any does.
_SIZE = 1_000_000
HOSTILE = {
    "brackets": ("<" * _SIZE, "harmony"),
    "space": (" \n" * (_SIZE // 2), "plain"),
    "objects": ('{"a":' * (_SIZE // 5), "llama-3"),
    "lists": ("<|tool_call_start|>[f(a=" + "[" * _SIZE, "lfm2"),
    "calls that end not": ('<tool_call>{"a' * (_SIZE // 14), "hermes"),
    "calls that are none": ("<tool_call>" * (_SIZE // 11), "hermes"),
    "tags that are none": ("<tool_call>" * (_SIZE // 11), "qwen3-coder"),
    "a string that ends not": ('<tool_call>{"a":"' + '\\"' * (_SIZE // 2), "hermes"),
    "functions": ("<function=now></function>" * (_SIZE // 100), "qwen3-coder"),
    "thoughts": ("a<think>" * (_SIZE // 8), "think"),
    "headers": ("<|start|>assistant" * (_SIZE // 18), "harmony"),
    "channels": ("<|channel|>" * (_SIZE // 11), "harmony"),
    "late": ("<tool_call>" + " " * _SIZE + "x", "hermes"),
    "deep": ('<tool_call>{"name": "now", "arguments": ' + "[" * 10**4 + "]" * 10**4, "hermes"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_in_a_time_that_grows_with_it(name: str) -> None:
    # A reader that looks at a text again and again takes minutes here, and runs into the deadline.
    text, family = HOSTILE[name]
    parser = format_of(family).parser(TOOLS)
    whole = Reply.of([*parser.feed(text), *parser.end()])
    assert whole.calls or len(whole.content + whole.reasoning) > len(text) // 2
    short = text[:30_000]
    pieces = [short[at : at + 4] for at in range(0, len(short), 4)]
    assert _deltas(family, pieces) == _deltas(family, [short])


@pytest.mark.parametrize(
    "broken",
    [
        '{"name": "add"',
        '{"name": "add", "arguments": [1]}',
        '{"name": "add", "arguments": "no JSON"}',
        '{"name": 1, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"arguments": {}}',
        "{'name': 'add'}",
        "{}",
        "not JSON",
    ],
)
def test_a_broken_call_is_content(broken: str) -> None:
    text = f"Look:\n<tool_call>{broken}</tool_call> Bye"
    assert format_of("hermes").parse(text, TOOLS) == Reply(content=text)


@pytest.mark.parametrize(
    "arguments",
    ['{"a": NaN}', "{}, 1", '{"a": ' + "1" * 5000 + "}", '{"a": ' + "[" * 5000 + "]" * 5000 + "}"],
)
def test_arguments_that_are_broken_come_as_they_are(arguments: str) -> None:
    text = f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call> Bye'
    reply = format_of("hermes").parse(text, TOOLS)
    assert [call.arguments for call in reply.calls] == [arguments.removesuffix(", 1")]
    assert reply.content == "Bye" and reply.message()


def test_half_a_character_comes_as_its_escape() -> None:
    text = '<tool_call>{"name": "say", "arguments": {"text": "\\ud83d\n"}}</tool_call>'
    (call,) = format_of("hermes").parse(text).calls
    assert call.arguments.encode() == b'{"text": "\\ud83d\\n"}'
