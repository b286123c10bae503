"""Settings of a conversation, and those of the page; thinking on, off and how much."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.talk import ask, bodies, setting

Sent = list[dict[str, Any]]


@pytest.fixture
def sent(page: Page) -> Sent:
    """Bodies of the chats that the page asks for."""
    return bodies(page)


def test_a_conversation_has_settings_of_its_own(page: Page, sent: Sent):
    setting(page, system="You tell stories.", temperature="0", max_tokens="3")
    ask(page, "A dog.")
    page.click("#new")
    expect(page.locator("#messages > li")).to_have_count(0)
    setting(page, max_tokens="4")
    ask(page, "A frog.")

    page.get_by_role("link", name="A dog.").click()
    expect(page.locator("#messages .content").first).to_have_text("A dog.")
    ask(page, "And then?")
    page.reload()
    expect(page.locator("#messages > li")).to_have_count(4)
    ask(page, "And after that?")

    one, other, again, reloaded = sent
    for own in (one, again, reloaded):
        assert own["messages"][0] == {"role": "system", "content": "You tell stories."}
        assert own["temperature"] == 0 and own["max_tokens"] == 3
    assert other["messages"][0]["role"] == "user"
    assert "temperature" not in other and other["max_tokens"] == 4


def test_settings_are_kept_for_new_conversations_and_reset(page: Page, sent: Sent):
    page.click("#open-settings")
    page.fill("[name=max_tokens]", "3")
    page.get_by_role("button", name="Use for new conversations").click()
    page.get_by_role("button", name="Reset").click()
    expect(page.locator("[name=max_tokens]")).to_have_value("")
    page.keyboard.press("Escape")

    page.reload()
    expect(page.locator("#model option")).to_have_count(3)
    ask(page, "A dog.")
    assert sent[0]["max_tokens"] == 3


def test_impossible_numbers_are_not_kept(page: Page, sent: Sent):
    setting(page, max_tokens="3")
    page.click("#open-settings")
    page.fill("[name=temperature]", "-1")
    page.keyboard.press("Escape")
    ask(page, "A dog.")

    assert "temperature" not in sent[0]


def test_empty_fields_show_the_numbers_of_the_model(page: Page):
    setting(page, max_tokens="2")
    ask(page, "A dog.")
    page.click("#open-settings")

    for name in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty"):
        field = page.locator(f"[name={name}]")
        expect(field).to_have_attribute("placeholder", re.compile(r"^-?[\d.]+$"))
    expect(page.locator("[name=seed]")).to_have_attribute("placeholder", "random")


def thinking_models(route: Route) -> None:
    """The server's models, as if all of them thought."""
    answer = route.fetch().json()
    for model in answer["data"]:
        model["abilities"].append("thinking")
    route.fulfill(body=json.dumps(answer), content_type="application/json")


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ("", {}),
        ("off", {"reasoning_effort": "none"}),
        ("on", {"chat_template_kwargs": {"enable_thinking": True}}),
        (
            "high",
            {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "high"},
        ),
    ],
)
def test_thinking_is_chosen(page: Page, sent: Sent, choice: str, fields: dict[str, Any]):
    expect(page.get_by_label("Thinking")).to_be_hidden()
    page.route("**/v1/models", thinking_models)
    page.reload()
    page.get_by_label("Thinking").select_option(choice)
    setting(page, max_tokens="2")
    ask(page, "A dog.")

    known = ("reasoning_effort", "chat_template_kwargs")
    assert {name: sent[0][name] for name in known if name in sent[0]} == fields
    page.reload()
    expect(page.get_by_label("Thinking")).to_have_value(choice)
    page.unroute_all(behavior="ignoreErrors")
