"""Rendering: what templates are offered, and what is said when they fail."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ggmodel.chat import ChatTemplate, take_items
from ggmodel.errors import PromptError, TemplateError, TokenizerError, Unsupported

IMAGE = {"type": "image"}
USER = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "add", "description": "a < b & 'c' é"}}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def render(source: str, messages: Any = USER, **options: Any) -> str:
    return ChatTemplate(source).render(messages, **options)


def failure(source: str, messages: Any = USER, **options: Any) -> str:
    with pytest.raises(TemplateError) as caught:
        render(source, messages, **options)
    return str(caught.value)


def test_messages_and_the_generation_prompt():
    asked = "<|im_start|>user\nHello<|im_end|>\n"
    assert render(CHATML) == asked + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == asked


class TestAnswersThatGoOn:
    @pytest.mark.parametrize(
        ("content", "end"),
        [
            ("Hi there", "Hi there"),
            ("Hi there ", "Hi there "),
            (" Hi", " Hi"),
            ("Hello", "Hello"),  # as the question before it
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b "}], "b "),
        ],
    )
    def test_the_text_ends_with_the_content(self, content: Any, end: str):
        messages = [*USER, {"role": "assistant", "content": content}]
        text = render(CHATML, messages, continues=True)
        assert text.startswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
        assert text.endswith(end) and not text.endswith("<|im_end|>\n")

    def test_a_template_that_strips(self):
        messages = [*USER, {"role": "assistant", "content": " Hi "}]
        source = CHATML.replace("m.content", "m.content | trim")
        assert render(source, messages, continues=True).endswith("assistant\nHi")

    def test_a_template_that_leaves_it_out(self):
        messages = [*USER, {"role": "assistant", "content": "Hi"}]
        assert "which is to go on" in failure("x", messages, continues=True)

    @pytest.mark.parametrize("last", [USER[0], {"role": "assistant", "tool_calls": [TOOL]}])
    def test_what_is_no_answer(self, last: Any):
        with pytest.raises(PromptError, match="role 'assistant'"):
            render(CHATML.replace("m.content", "m.content or ''"), [*USER, last], continues=True)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),  # trim_blocks, lstrip_blocks
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        (
            "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "13",
        ),
        ("{% for i in 'abc' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
         "1/3False 2/3False 3/3True "),
        ("{% for i in nothing %}{% else %}none{% endfor %}", "none"),
        ("{% for a in [[1], [2, [3]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}",
         "123"),
        ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k ~ v }}{% endfor %}", "a1b2"),
        ("{% generation %}{% set x = 1 %}said{% endgeneration %}{{ x }}", "said"),
        ("{% set ns = namespace(n=1) %}{% for i in [2, 3] %}{% set ns.n = ns.n * i %}{% endfor %}"
         "{{ ns.n }}", "6"),
        ("{{ dict(a=1) | tojson }}{{ namespace() }}", '{"a": 1}<Namespace>'),
        ("{{ {'b': '<é>', 'a': [1.5, none, true]} | tojson }}",
         '{"b": "<é>", "a": [1.5, null, true]}'),
        ("{{ {'b': 'é', 'a': []} | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}",
         '{\n "a": [],\n "b": "\\u00e9"\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ 'a' ~ 1 ~ [2] ~ none ~ nothing }}", "a1[2]None"),
        ("{{ '{:>3}|{a[0]}'.format(7, a='xy') }}{{ '%s-%03d' % ('a', 5) }}", "  7|xa-005"),
        ("{{ [3, 1, 2] | sort | join(', ') }}{{ (['b'] * 2) | length }}", "1, 2, 32"),
        ("{{ '-'.join(['a', 'b']) }}{{ 'aXb'.replace('X', '--') }}{{ ' a '.strip() }}", "a-ba--ba"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% macro m(a) %}<{{ a }}"
         "{{ caller() if caller }}>{% endmacro %}{{ m(2) }}{% call m(3) %}!{% endcall %}",
         "A1<2><3!>"),
        ("{{ messages[0]['content'][1:-1] }}{{ messages[-1].nothing }}", "ell"),
        ("{{ bos_token }}{{ tools }}{{ documents }}", "NoneNone"),
    ],
)  # fmt: skip
def test_what_templates_are_offered(source: str, text: str):
    assert render(source) == text


def test_the_time_is_now():
    before = datetime.now().strftime("%d %b %Y %H")
    assert before <= render("{{ strftime_now('%d %b %Y %H') }}")
    assert render("{{ date_string }}", date_string="26 Jul 2024") == "26 Jul 2024"


def test_tools_and_further_variables():
    source = "{{ tools | tojson }}{% if enable_thinking is false %}quick{% endif %}"
    text = render(source, tools=[TOOL], enable_thinking=False)
    assert text == json.dumps([TOOL], ensure_ascii=False) + "quick"
    assert render("{{ bos_token }}", bos_token="<s>") == "<s>"


def test_a_long_conversation_costs_little():
    messages = USER * 3000
    source = (
        "{% set ns = namespace(all=[], text='') %}{% for m in messages %}"
        "{% set ns.all = ns.all + [m] %}{% set ns.text = ns.text ~ m.content %}"
        "{% if (messages | selectattr('role', 'equalto', 'tool') | list) %}{% endif %}"
        "{% endfor %}{{ ns.all | length }} {{ ns.text | length }}"
    )
    assert render(source, messages[:500]) == "500 2500"
    assert len(render(CHATML, messages)) == 3000 * 33 + 22


def test_none_means_that_a_key_is_not_there():
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    text = render("{% for m in messages %}{{ 'content' in m }} {% endfor %}", messages)
    assert text == "True False "


def test_calls_without_a_content_get_an_empty_one_where_the_template_fails():
    messages = [*USER, {"role": "assistant", "tool_calls": [TOOL]}]
    strict = "{% for m in messages %}[{{ m.content.strip() }}]{% endfor %}"
    assert render(strict, messages) == "[Hello][]"
    telling = "{% for m in messages %}{{ 'content' in m }} {% endfor %}"
    assert render(telling, messages) == "True False "
    failing = "{% for m in messages %}{{ m.content.strip() + m.none.at_all }}{% endfor %}"
    assert "has no attribute 'content'" not in failure(failing, messages)
    last = "{{ messages[1].content.strip() + messages[1].none.at_all }}"
    assert "has no attribute 'content'" in failure(last, messages)


def test_reasoning_goes_by_every_name_of_it():
    for name in ("reasoning", "thinking", "reasoning_content"):
        messages = [{"role": "assistant", "content": "a", name: "hm"}]
        source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
        assert render(source, messages) == "hmhm"


PARTS = [{"role": "user", "content": [{"type": "text", "text": t} for t in ("One", "Two")]}]
TEXTS_ONLY = "{{ bos_token + messages[0].content }}"
PARTS_ONLY = "{% for p in messages[0].content if p.type == 'text' %}[{{ p.text }}]{% endfor %}"
BOTH = "{% if messages[0].content is string %}" + TEXTS_ONLY + "{% else %}" + PARTS_ONLY
BOTH += "{% endif %}"


@pytest.mark.parametrize(
    ("source", "of_text", "of_parts"),
    [
        (TEXTS_ONLY, "Hello", "One\nTwo"),
        ("{{ messages[0].content }}", "Hello", "One\nTwo"),
        ("{{ messages[0].content | tojson }}", '"Hello"', '"One\\nTwo"'),
        (PARTS_ONLY, "[Hello]", "[One][Two]"),
        (BOTH, "Hello", "[One][Two]"),
    ],
)
def test_contents_take_the_form_that_a_template_reads(source: str, of_text: str, of_parts: str):
    assert render(source) == of_text
    assert render(source, PARTS) == of_parts


def test_data_is_made_plain():
    class Text(str):
        def shout(self) -> str:
            return "!"

    messages = [{"role": "user", "content": Text("a"), "x": object(), "y": (1, 2.5, Text("b"))}]
    assert render("{{ messages[0].x }}{{ messages[0].y }}", messages) == "<object>(1, 2.5, 'b')"
    assert "has no attribute 'shout'" in failure("{{ messages[0].content.shout() }}", messages)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("a\n{{ raise_exception('roles must alternate') }}",
         ("line 2", "refuses these messages: roles must alternate", "generate()")),
        ("{{ raise_exception() }}", ("refuses these messages: no reason given",)),
        ("a\nb\n{% if %}", ("line 3", "does not parse: Expected an expression")),
        ("{{ 'a' | nofilter }}", ("line 1", "does not parse: No filter named 'nofilter'")),
        ("\n{{ messages[0].name.first }}",
         ("line 2", "uses an undefined variable: 'dict object' has no attribute 'name'")),
        ("{{ nothing() }}", ("'nothing' is undefined",)),
        ("{{ messages[0].content + 1 }}", ("fails with TypeError", "line 1")),
        ("{{ 1 // 0 }}", ("fails with ZeroDivisionError",)),
        ("{{ [].__class__.x }}", ("does what templates may not do", "__class__")),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ("nested too deeply",)),
        ("{% include 'other' %}", ("fails with TypeError: no loader",)),
    ],
)  # fmt: skip
def test_failures_say_where_and_why(source: str, parts: tuple[str, ...]):
    message = failure(source)
    for part in parts:
        assert part in message


def test_a_macro_is_found_by_its_line():
    assert "line 3" in failure("{% macro m(a) %}\nb\n{{ a.b.c }}\n{% endmacro %}\n\n{{ m(1) }}")


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        ("Hello", "messages are a list of dicts, not str"),
        ({"role": "user"}, "messages are a list of dicts, not dict"),
        ([], "no messages"),
        (["Hello"], "message 0 is a dict with role and content, not str"),
        ([*USER, {"content": "a"}], "message 1 has no role"),
        ([{"role": 1, "content": "a"}], "message 0 has no role"),
        ([{"role": "user"}], "message 0 needs a content: a text, or a list of parts"),
        ([{"role": "user", "content": 5}], "message 0 needs a content: a text, or a list of parts"),
        (
            [{"role": "user", "content": ["a"]}],
            "message 0 holds a part that is neither {'type': 'text', 'text': TEXT} nor",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0 holds a part"),
    ],
)
def test_messages_are_checked(messages: Any, part: str):
    with pytest.raises(PromptError, match=re.escape(part)):
        render(CHATML, messages)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video"])
def test_what_is_no_text_is_refused(kind: str):
    with pytest.raises(Unsupported, match=f"{kind}.*cannot take: leave it out"):
        render(CHATML, [{"role": "user", "content": [{"type": kind}]}])


OF_PARTS = """{% for m in messages %}{% for part in m.content %}
{%- if part.type == 'image' %}<pic>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endfor %}"""
BLIND = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"""


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (OF_PARTS, "see<pic>and<pic>"),
        (BLIND, "see\n<pic>\nand\n<pic>"),
        ("{{ messages[0].content }}", "see\n<pic>\nand\n<pic>"),
    ],
    ids=["a template that knows images", "one that does not", "one for texts"],
)
def test_images_stand_where_their_part_is(template: str, text: str):
    said = [{"type": "text", "text": "see"}, IMAGE, {"type": "text", "text": "and"}, IMAGE]
    messages = [{"role": "user", "content": said}]
    assert ChatTemplate(template).render(messages, image_marker="<pic>") == text
    with pytest.raises(Unsupported, match="cannot take"):
        ChatTemplate(template).render(messages)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "a<pic>b"}, IMAGE],
        [IMAGE, {"type": "text", "text": "<p"}, {"type": "text", "text": "ic>"}],
    ],
)
@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[1].content }}",
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
    ],
    ids=["keeps", "drops"],
)
def test_the_marker_in_a_text_is_no_image(template: str, content: list[Any]):
    """A template that drops the image would have it laid into the text."""
    said = [{"role": "system", "content": "hi"}, {"role": "user", "content": content}]
    with pytest.raises(PromptError, match="message 1 holds the text '<pic>', which stands for the"):
        ChatTemplate(template).render(said, image_marker="<pic>")


def test_a_marker_in_an_answer_does_not_end_the_conversation():
    answers: list[dict[str, Any]] = [
        {"role": "assistant", "content": "a<pic>b"},
        {"role": "assistant", "content": [{"type": "text", "text": "a<pic>b"}]},
    ]
    for answer in answers:
        said = [{"role": "user", "content": [IMAGE]}, answer]
        text = ChatTemplate(CHATML).render(said, image_marker="<pic>", continues=True)
        assert text.count("<pic>") == 1 and text.endswith("a< pic>b")
        said[1] = {**answer, "role": "tool"}
        with pytest.raises(PromptError, match="message 1 holds the text '<pic>'"):
            ChatTemplate(CHATML).render(said, image_marker="<pic>")
    call = {"name": "f", "arguments": {"x": "<pic>"}}
    said = [
        {"role": "user", "content": [IMAGE]},
        {"role": "assistant", "thinking": "<pic>?", "tool_calls": [{"function": call}]},
    ]
    source = "{% for m in messages %}{{ m.content }}{{ m.thinking }}{{ m.tool_calls }}{% endfor %}"
    text = ChatTemplate(source).render(said, image_marker="<pic>")
    assert text.count("<pic>") == 1 and text.count("< pic>") == 2


def test_markers_in_tools_and_without_images():
    said = [{"role": "user", "content": [IMAGE]}]
    tool = [{"type": "function", "function": {"name": "f", "description": "<pic>"}}]
    with pytest.raises(PromptError, match="the tools hold the text '<pic>'"):
        ChatTemplate(CHATML).render(said, tools=tool, image_marker="<pic>")
    said = [{"role": "user", "content": "<pic>"}]
    text = ChatTemplate("{{ messages[0].content }}").render(said, image_marker="<pic>")
    assert text == "<pic>"  # no image is given that could take its place


def test_a_template_that_writes_markers_of_its_own():
    with pytest.raises(TemplateError, match="writes '<pic>' 2 times for 1 images"):
        ChatTemplate("<pic>{{ messages[0].content }}").render(
            [{"role": "user", "content": [IMAGE]}], image_marker="<pic>"
        )


def test_images_are_taken_out_of_messages():
    one, two, three = b"1", Path("2.png"), "data:image/png;base64,AA=="
    messages = [
        {"role": "user", "content": "look", "images": [one]},
        {
            "role": "user",
            "content": [
                {"type": "image", "image": two},
                {"type": "text", "text": "x"},
                {"type": "image_url", "image_url": {"url": three}},
            ],
        },
        {"role": "assistant", "content": "yes"},
    ]
    taken, items = take_items(messages)
    assert items == [("image", one), ("image", two), ("image", three)]
    text = {"type": "text", "text": "look"}
    assert [m["content"] for m in taken] == [
        [IMAGE, text],
        [IMAGE, {"type": "text", "text": "x"}, IMAGE],
        "yes",
    ]
    with pytest.raises(PromptError, match="holds no image"):
        take_items([{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(PromptError, match="list of dicts"):
        take_items("look")  # type: ignore[arg-type]


@pytest.mark.parametrize("tools", ["add", [len], TOOL])
def test_tools_are_checked(tools: Any):
    with pytest.raises(PromptError, match="tools are a list of dicts"):
        render(CHATML, tools=tools)


class TestMetadata:
    one = {"tokenizer.chat_template": "usual"}
    several = one | {
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template.tool_use": "for tools",
        "tokenizer.chat_template.rag": "for documents",
    }

    def text(self, metadata: dict[str, Any], template: str | None = None, **options: Any) -> str:
        return ChatTemplate.from_metadata(metadata, None, template).render(USER, **options)

    def test_one(self):
        assert self.text(self.one) == self.text(self.one, tools=[TOOL]) == "usual"

    def test_several(self):
        assert self.text(self.several) == self.text(self.several, tools=[]) == "usual"
        assert self.text(self.several, tools=[TOOL]) == "for tools"
        assert self.text(self.several, "rag", tools=[TOOL]) == "for documents"
        assert self.text(self.several, "default", tools=[TOOL]) == "usual"

    def test_another(self):
        assert self.text({}, "{{ messages[0].content }}") == "Hello"

    @pytest.mark.parametrize(
        ("metadata", "template", "part"),
        [
            ({}, None, "the file has no chat template (tokenizer.chat_template); pass template="),
            ({"tokenizer.chat_template.rag": "x"}, None, "no chat template (tokenizer.chat_tem"),
            ({"tokenizer.chat_template.rag": "x"}, None, "only 'rag'; pass template="),
            (
                several,
                "chatml",
                "no chat template 'chatml'; its templates are: 'default', 'rag', 'tool_use'",
            ),
            ({}, "chatml", "its templates are: none"),
            (
                {"tokenizer.chat_template": 5},
                None,
                "the chat template 'default' of the file is int, not text",
            ),
        ],
    )
    def test_missing(self, metadata: dict[str, Any], template: str | None, part: str):
        with pytest.raises(TemplateError, match=re.escape(part)):
            self.text(metadata, template)

    def test_without_a_vocabulary(self):
        with pytest.raises(TokenizerError, match="no vocabulary"):
            ChatTemplate.from_metadata(self.one, None).encode(USER)


@pytest.mark.parametrize("template", [5, b"x", ["x"]])
def test_a_template_that_is_no_text_is_refused(template: object):
    with pytest.raises(TemplateError, match="is Jinja text or a name, not"):
        ChatTemplate.from_metadata({}, None, template)  # type: ignore[arg-type]


def test_data_that_holds_itself_is_refused():
    tool: dict = {"type": "function"}
    tool["function"] = tool
    cases: list[dict[str, Any]] = [{"tools": [tool]}, {"documents": [tool]}]
    for given in cases:
        with pytest.raises(PromptError, match="contains itself"):
            ChatTemplate("x").render([{"role": "user", "content": "x"}], **given)
    with pytest.raises(PromptError, match="contains itself"):
        ChatTemplate("x").render([{"role": "user", "content": "x", "tool": tool}])
