"""Versions of messages on the page: edited, answered anew, gone on with, forked."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.talk import answered, ask, bodies, setting

QUESTION = "Tell me a story about a dog."


def press(message: Locator, name: str) -> None:
    message.get_by_role("button", name=name, exact=True).click()


def edit(message: Locator, text: str, save: str) -> None:
    press(message, "Edit")
    message.get_by_label("Change the message").fill(text)
    press(message, save)


@pytest.fixture
def messages(page: Page) -> Locator:
    """The messages of a conversation: a question and its answer."""
    setting(page, max_tokens="8", temperature="0")
    ask(page, QUESTION)
    return page.locator("#messages > li")


def test_an_answer_made_anew_is_a_version_beside_the_first(page: Page, messages: Locator):
    setting(page, max_tokens="3")
    first = messages.last.locator(".content").inner_text()

    press(messages.last, "Regenerate")
    second = answered(page)
    versions = page.locator(".versions")
    expect(versions).to_have_text(re.compile("2/2"))
    expect(messages).to_have_count(2)
    assert second != first
    expect(messages.last.get_by_role("button", name="Later version")).to_be_disabled()

    press(messages.last, "Earlier version")
    expect(messages.last.locator(".content")).to_have_text(first)
    page.reload()
    expect(page.locator(".versions")).to_have_text(re.compile("1/2"))
    expect(messages.last.locator(".content")).to_have_text(first)


def test_a_question_that_is_edited_keeps_what_followed_the_old_one(page: Page, messages: Locator):
    ask(page, "And then?")

    edit(messages.first, "Tell me a story about a frog.", "Send anew")
    answered(page)
    expect(messages).to_have_count(2)
    expect(messages.first.locator(".content")).to_have_text("Tell me a story about a frog.")

    press(messages.first, "Earlier version")
    expect(messages).to_have_count(4)
    expect(messages.nth(2).locator(".content")).to_have_text("And then?")


def test_an_answer_that_is_edited_is_what_the_model_reads(page: Page, messages: Locator):
    sent = bodies(page)

    edit(messages.last, "A cat came.", "Keep")
    expect(page.locator(".versions")).to_have_text(re.compile("2/2"))
    ask(page, "And then?")

    assert [one["content"] for one in sent[0]["messages"]] == [QUESTION, "A cat came.", "And then?"]


def test_an_answer_goes_on_where_it_was_cut_off(page: Page, messages: Locator):
    first = messages.last.locator(".content").inner_text()
    expect(messages.last.locator(".said")).to_have_text(re.compile("cut off"))

    press(messages.last, "Continue")
    expect(messages.last.locator(".content")).not_to_have_text(first)
    whole = answered(page)

    assert whole.startswith(first.rstrip()) and len(whole) > len(first)
    expect(messages).to_have_count(2)
    expect(page.locator(".versions")).to_have_count(0)


def test_only_the_last_answer_can_go_on(page: Page, messages: Locator):
    ask(page, "And then?")

    going = page.locator("button.act-continue")
    expect(going).to_have_count(2)
    expect(going.first).to_be_hidden()
    expect(going.last).to_be_visible()


def test_a_conversation_is_forked(page: Page, messages: Locator):
    ask(page, "And then?")
    before = page.url

    press(messages.nth(1), "Fork")
    expect(messages).to_have_count(2)
    assert page.url != before
    expect(page.locator("#conversations li")).to_have_count(2)
    page.go_back()
    expect(messages).to_have_count(4)


def test_conversations_of_earlier_pages_are_read(page: Page):
    page.evaluate(
        """() => new Promise((done) => {
            const request = indexedDB.open("ggmodel", 1);
            request.onsuccess = () => {
                const kept = request.result.transaction("conversations", "readwrite");
                const messages = [{ role: "user", text: "Hello", items: [] },
                    { role: "assistant", text: "A dog.", thought: "", tokens: [] }];
                const old = { id: "old", title: "Old", changed: 1, messages };
                kept.objectStore("conversations").put(old);
                kept.oncomplete = done;
            };
        })"""
    )
    page.goto(page.url.partition("#")[0] + "#old")

    expect(page.locator("#messages .content")).to_have_text(["Hello", "A dog."])
    ask(page, "And then?")
    expect(page.locator("#messages > li")).to_have_count(4)


def test_an_answer_that_failed_is_not_sent_again(page: Page, messages: Locator):
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.fill("#text", "Fail")
    page.press("#text", "Enter")
    expect(page.locator(".failed")).to_have_count(1)
    page.unroute("**/v1/chat/completions")
    sent = bodies(page)

    press(messages.last, "Regenerate")
    answered(page)
    ask(page, "Go on")

    assert [one["role"] for one in sent[1]["messages"]] == ["user", "assistant"] * 2 + ["user"]
    expect(page.locator(".failed")).to_have_count(0)
