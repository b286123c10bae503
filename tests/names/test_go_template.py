"""Ollama's templates as Jinja: the text is that of Go's text/template."""

from __future__ import annotations

import time

import pytest

from ggmodel.chat import ChatTemplate
from ggmodel.chat.template import template_abilities
from ggmodel.errors import Unsupported
from ggmodel.names.go_template import as_jinja

TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "a{{ b }}"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
CHATML = """{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
<{{ .Role }}>{{ .Content }}
{{- if and (ne .Role "assistant") $last }}
<assistant>
{{- end }}
{{- end }}"""


def rendered(template: str, messages=TALK, **more) -> str:
    return ChatTemplate(as_jinja(template, "m")).render(messages, **more)


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (CHATML, "<system>S<user>a{{ b }}<assistant>c<user>d\n<assistant>"),
        # Without messages: once a turn, the last one up to the answer.
        (
            "{{ if .System }}[{{ .System }}]{{ end }}<{{ .Prompt }}>{{ .Response }}|",
            "[S]<a{{ b }}>c|<d>",
        ),
        ("{{ .System }}-{{ .Prompt }};", "S-a{{ b }};c-d;"),  # the answer comes at the end
        ("{{ if .Response }}{{ .Prompt }}{{ .Response }}{{ end }}", "a{{ b }}c"),
        ("{{ range .Messages }}{{ .Role | len }},{{ else }}none{{ end }}", "6,4,9,4,"),
        ("{{ with .System }}<{{ . }}>{{ else }}no{{ end }}{{ len .Messages }}", "<S>4"),
        ("{{ if .Tools }}t{{ else if .System }}s{{ else }}n{{ end }}{{/* .Messages */}}", "scn"),
        ("{{ $a := 1 }}{{ range .Messages }}{{ $a = .Role }}{{ end }}{{ $a }}", "user"),
        ("{{ (index .Messages 1).Content }} {{- ` x` }}\t\n{{- `y` }}", "a{{ b }} xy"),
        ("{{ range .Messages }}{{ if eq .Role `user` `system` }}{{ .Content }}{{ end }}{{ end }}",
         "Sa{{ b }}d"),
        ("{% if %}{# #}'\\{{ len .Messages }}", "{% if %}{# #}'\\4"),
        ("{{ if not (or .Nothing false) }}{{ print .Nothing }}{{ .Messages | len }}{{ end }}", "4"),
    ],
)  # fmt: skip
def test_templates(template: str, wanted: str):
    assert rendered(template) == wanted


def test_neighbours_of_one_role_are_one_message():
    talk = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert rendered(CHATML, talk) == "<user>a\n\nb\n<assistant>"


def test_tools_are_json():
    call = {"function": {"name": "f", "arguments": {"y": 1, "x": "<"}}}
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
    template = (
        "{{ range .Tools }}{{ json . }}{{ end }}{{ range .Messages }}{{ range .ToolCalls }}"
        "{{ .Function.Name }}{{ range $k, $v := .Function.Arguments }} {{ $k }}={{ $v }}{{ end }} "
        "{{ .Function.Arguments }}{{ end }}{{ end }}"
    )
    wanted = (
        '{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}'
        'f x=< y=1 {"y":1,"x":"<"}'
    )
    assert rendered(template, talk, tools=[TOOL]) == wanted


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, "set think  |"),  # as Ollama's own default is
        ({"enable_thinking": False}, "set  |"),
        ({"enable_thinking": True, "reasoning_effort": "low"}, "set think low |"),
    ],
)
@pytest.mark.parametrize(
    "end", ["{{ if .Messages }}{{ end }}", "{{ if .Prompt }}{{ end }}{{ .Response }}"]
)
def test_thoughts_are_wanted_or_not(variables: dict[str, object], wanted: str, end: str):
    template = "{{ if .IsThinkSet }}set{{ end }} {{ if .Think }}think {{ end }}{{ .ThinkLevel }} |"
    assert rendered(template + end, TALK[3:], **variables) == wanted


def test_thoughts_of_the_conversation():
    talk = [TALK[1], {"role": "assistant", "content": "c", "reasoning_content": "hm"}, TALK[3]]
    template = "{{ range .Messages }}{{ with .Thinking }}({{ . }}){{ end }}{{ .Content }}{{ end }}"
    assert rendered(template, talk) == "a{{ b }}(hm)cd"


@pytest.mark.parametrize(
    ("template", "abilities"),
    [
        (CHATML, []),
        ("{{ .System }}{{ .Prompt }}", []),
        ("{{ range .Messages }}{{ .Content }}{{ end }}{{ json .Tools }}", ["tools"]),
        ("{{ range .Messages }}{{ .Thinking }}{{ end }}", ["thinking"]),
        ("{{ range .Messages }}{{ end }}{{ if .Think }}{{ end }}", ["thinking"]),
    ],
)
def test_a_template_says_no_more_than_it_has(template: str, abilities: list[str]):
    assert template_abilities(as_jinja(template, "m")) == abilities


@pytest.mark.parametrize(
    "template",
    [
        "{{ if .A }}",
        "{{ end }}",
        "{{ .A",
        "{{ else }}",
        "{{ $a }}",
        "{{ $a = 1 }}",
        "{{ template `x` }}",
        "{{ printf `%d` 1 }}",
        "{{ (len .A }}",
        "{{ .A ) }}",
        '{{ "\\x41" }}',
        "{{ .A | .B }}",
        "{{ ; }}",
        "{{ " + "(" * 100 + ".A" + ")" * 100 + " }}",
        "{{ range .A }}{{ else if .B }}{{ end }}",
    ],
)
def test_what_cannot_be_written_is_refused(template: str):
    with pytest.raises(Unsupported, match=r"the chat template of m in Ollama .*; pass template="):
        as_jinja(template, "m")


@pytest.mark.parametrize("template", ["{" * 200_000, "{{ - " * 50_000, "{{}" * 70_000])
def test_an_action_without_an_end_is_noticed_at_once(template: str):
    begun = time.thread_time()
    with pytest.raises(Unsupported, match="an action that does not end"):
        as_jinja(template, "x")
    assert time.thread_time() - begun < 5  # minutes, where each brace looks for the end again
