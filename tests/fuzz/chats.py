"""Damaged and hostile chat templates, rendered with damaged messages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from ggmodel.chat.template import ChatTemplate
from ggmodel.gguf_file import GGUF
from tests.fuzz import jsons
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong

_ASSETS = Path(__file__).resolve().parents[2] / "examples" / "assets"
_PIECES = (
    "{% for i in range(9) %}|{% endfor %}|{{ x }}|{{ messages }}|{% set x = 'a' * 9 %}|{% if x %}|"
    "{% endif %}|{% else %}|{% elif x %}|{% macro f(a) %}{{ f(a) }}{% endmacro %}|{{ f(1) }}|"
    "{{ x|sort }}|{{ x|join(x) }}|{{ x|tojson }}|{{ messages|map(attribute='content')|list }}|"
    "{{ x.__class__ }}|{{ ''.__class__.__mro__ }}|{{ x * 1000000 }}|{{ range(999999999)|list }}|"
    "{{ messages[0]['content'] }}|{{ 10 ** 10 ** 9 }}|{{ 'a'.rjust(10 ** 9) }}|{% raw %}|{# |#}|"
    "{{ strftime_now('%Y') }}|{{ raise_exception('no') }}|{% set ns = namespace(a=1) %}|{{ ns }}|"
    "{% set ns.a = ns.a ~ ns.a ~ ns.a %}|{{ messages|batch(2)|list }}|{{ x|replace('a', x) }}|"
    "{{ '%999999999d' % 1 }}|{{ '{0:999999999}'.format(1) }}|{% include 'x' %}|{{ self }}|"
    "{{ joiner }}|{{ cycler(1, 2).next }}|{{ lipsum(99999) }}|{{ dict(a=1)|items|list }}|"
    "{{ loop }}|"
    "{% for a in messages recursive %}{{ loop([messages]) }}{% endfor %}|{% call f(1) %}|"
    "{{ (x ~ x)|upper|reverse }}|{{ messages|selectattr('role')|list }}|{%- break -%}|"
    "{{ x|indent(999999) }}|{{ x|center(99999999) }}|{{ x|wordwrap(1) }}|"
    "{{ x|string|list|unique|list }}"
).split("|")
_OWN = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content']|trim }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "{%- if tools %}{% for t in tools %}{{ t|tojson(indent=2) }}{% endfor %}{% endif -%}"
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
)
_MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "!"}]},
    {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "content": "3"},
]
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@cache
def templates() -> list[str]:
    """Templates of the examples, and some like published ones."""
    with GGUF(_ASSETS / "stories.gguf") as source:
        return [source.metadata["tokenizer.chat_template"], *_OWN, *_OWN]


class Chats(Fuzzer):
    """Renders a template of a stranger."""

    name = "templates"
    unit = "rendered"
    weight = 1.5
    patience = 20.0
    memory = 512 << 20

    def make(self, random: Random) -> dict[str, str]:
        source = random.choice(templates())
        for _ in range(random.choice([1, 1, 2, 5])):
            source = _changed(random, source)
        if random.random() < 0.03:
            source = random.choice([*_PIECES, source]) * random.choice([100, 3000])
        messages = random.choice([_MESSAGES[:1], _MESSAGES[:2], _MESSAGES])
        if random.random() < 0.4:
            messages = jsons.mutated(random, messages)
        tools = jsons.mutated(random, _TOOLS) if random.random() < 0.2 else None
        return {
            "source": source[:200_000],
            "messages": json.dumps(messages),
            "tools": json.dumps(tools),
        }

    def run(self, case: dict[str, str], note: Note) -> None:
        template = ChatTemplate(case["source"])
        text = template.render(json.loads(case["messages"]), tools=json.loads(case["tools"]))
        self.counts["rendered"] += 1
        if not isinstance(text, str):
            raise Wrong("a template that gives no text", type(text))
        if " at 0x7f" in text:
            raise Wrong("a template that prints an address", text[:500])


def _changed(random: Random, source: str) -> str:
    a = random.randrange(len(source) + 1)
    b = min(len(source), a + random.randrange(12))
    kind = random.randrange(5)
    if kind == 0:
        return source[:a] + source[b:]
    if kind == 1:
        return source[:b] + source[a:]
    if kind == 2:
        return source[:a] + random.choice("{}%#|()[]'\"\\\n\0é.~*-") + source[a:]
    return source[:a] + random.choice(_PIECES) + source[a:]
