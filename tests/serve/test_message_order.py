"""Conversations of agents, for templates that are strict with the order of roles."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ggmodel.serve.message_order import Taken, in_order, needs_order, taken_by
from tests.serve.standin import InProcess

LOOP = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
# As Qwen 3.5's.
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('no') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
# As Gemma's: the system message is apart, the others take turns.
TURNS = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
# Others are dropped without a word.
DROPPING = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}[{{ m.role }}:{{ m.content }}]"
    "{% endif %}{% endfor %}"
)
# As Gemma 2's.
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TURNS
ALL = Taken(True, True, True, True)


def messages(text: str) -> list[dict[str, Any]]:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[m[0]], "content": m} for m in text.split()]


def shown(found: list[dict[str, Any]]) -> str:
    return " ".join(f"{m['role'][0]}:{m['content']}".replace("\n\n", "+") for m in found)


@pytest.mark.parametrize(
    ("template", "taken"),
    [
        (LOOP, ALL),
        (SYSTEM_FIRST, Taken(True, False, False, True)),
        (TURNS, Taken(True, False, False, False)),
        (NO_SYSTEM, Taken(False, False, False, False)),
        (DROPPING, Taken(True, False, False, True)),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", ALL),
        ("{{ raise_exception('no') }}", ALL),
        ("{% if", ALL),
        ("", ALL),
    ],
)
def test_trials_find_what_a_template_takes(template: str, taken: Taken):
    assert taken_by(template) == taken


@pytest.mark.parametrize(
    ("template", "given", "expected"),
    [
        (LOOP, "s1 s2 u1 s3 u2", "s:s1 s:s2 u:u1 s:s3 u:u2"),
        (SYSTEM_FIRST, "s1 s2 u1 s3 u2", "s:s1+s2 u:u1 u:s3 u:u2"),
        (SYSTEM_FIRST, "s1 u1 a1 t1 s2", "s:s1 u:u1 a:a1 t:t1 u:s2"),
        (TURNS, "s1 s2 u1 s3 u2 a1 u3", "s:s1+s2 u:u1+s3+u2 a:a1 u:u3"),
        (TURNS, "u1 s1 a1", "u:u1+s1 a:a1"),
        (TURNS, "s1 u1 a1 t1 t2 u2", "s:s1 u:u1 a:a1 t:t1 t:t2 u:u2"),
        (NO_SYSTEM, "s1 s2 u1 a1 u2 s3", "u:s1+s2+u1 a:a1 u:u2+s3"),
        (DROPPING, "s1 u1 s2", "s:s1 u:u1 u:s2"),
    ],
)
def test_no_message_is_lost(template: str, given: str, expected: str):
    before = messages(given)
    assert shown(in_order(before, taken_by(template))) == expected
    assert before == messages(given)


def test_contents_with_images_are_joined():
    image: Any = [{"type": "image", "image": b""}]
    found = in_order([*messages("u1"), {"role": "user", "content": image}], taken_by(TURNS))
    assert found == [{"role": "user", "content": [{"type": "text", "text": "u1"}, *image]}]


@pytest.mark.parametrize("given", ["u a u", "u a t t u", "a u"])
def test_the_usual_order_needs_no_trial(given: str):
    assert not needs_order(messages(given))


AGENT: Any = [
    {"role": "developer", "content": "Be kind."},
    {"role": "developer", "content": "Use tools."},
    {"role": "user", "content": "This is a folder."},
    {"role": "user", "content": "Go."},
    {"role": "system", "content": "It is late."},
]


@pytest.mark.parametrize("format", [None, {"type": "json_object"}])
def test_a_strict_template_gets_all_of_a_chat(
    http: httpx.Client, runner: InProcess, monkeypatch: pytest.MonkeyPatch, format: Any
):
    monkeypatch.setattr(runner, "template", TURNS)
    body = {"model": "stories", "messages": AGENT, "max_tokens": 1, "response_format": format}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    given = runner.seen[-1].prompt.messages
    assert shown(given) == "s:Be kind.+Use tools. u:This is a folder.+Go.+It is late."
    rendered = http.post("/apply-template", json={"messages": AGENT}).json()["prompt"]
    assert rendered.endswith("[user:This is a folder.\n\nGo.\n\nIt is late.]")


def test_a_template_of_the_request_gets_it_as_it_is(http: httpx.Client):
    body = {"messages": AGENT, "chat_template": TURNS}
    answer = http.post("/apply-template", json=body)
    assert answer.status_code == 400 and "refuses these messages" in answer.text
