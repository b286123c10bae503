"""How far an answer is on the page: loading, prefill, the context that a conversation takes."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.talk import ask, setting

HELD = """() => {
    const real = window.fetch;
    window.fetch = (url, init) => !String(url).includes("chat/completions") ? real(url, init) :
        new Promise((answer) => window.begin = () => answer(new Response(new ReadableStream({
            start(stream) {
                window.send = (chunk) => stream.enqueue(
                    new TextEncoder().encode(`data: ${JSON.stringify(chunk)}\n\n`));
                window.end = () => stream.close();
            }}))));
}"""


def test_a_message_says_what_it_waits_for_and_what_the_server_measured(page: Page):
    page.evaluate(HELD)
    page.fill("#text", "Tell me a story about a dog.")
    page.press("#text", "Enter")
    state, foot = page.locator(".assistant .state"), page.locator(".assistant .foot")

    expect(state).to_have_text(re.compile("^(Loading|Waiting for) the model…$"))
    expect(state).to_have_attribute("data-seconds", re.compile(r"^\d+$"))
    expect(foot).to_be_hidden()
    page.evaluate("begin()")
    page.evaluate("send({choices: [{delta: {role: 'assistant', content: ''}}]})")
    page.evaluate("send({prompt_progress: {total: 4600, cache: 512, processed: 1024}})")
    expect(state).to_have_text("Reading the prompt… 1,024 of 4,600 tokens")
    assert page.locator(".assistant .state progress").evaluate("bar => bar.position") == 1024 / 4600
    expect(foot).to_be_hidden()
    page.evaluate("send({choices: [{delta: {content: 'Once'}}]})")
    expect(state).to_be_hidden()
    expect(foot.get_by_role("button", name="Regenerate")).to_be_visible()
    page.evaluate(
        """send({choices: [{delta: {}, finish_reason: "stop"}], timings: {prompt_n: 30, cache_n: 4,
            prompt_per_second: 1203.44, predicted_n: 5, predicted_per_second: 57.06}})"""
    )
    page.evaluate("send({choices: [], usage: {prompt_tokens: 34, completion_tokens: 5}}); end()")

    said = "5 tokens at 57.1/s · prompt: 30 tokens at 1203.4/s · 4 cached"
    expect(page.locator(".assistant .said")).to_have_text(said)


def test_an_answer_without_text_has_its_buttons(page: Page):
    page.evaluate(HELD)
    page.fill("#text", "Say nothing.")
    page.press("#text", "Enter")
    expect(page.locator(".assistant .state")).to_be_visible()

    page.evaluate("begin(); end()")

    expect(page.locator(".assistant .state")).to_be_hidden()
    expect(page.locator(".assistant").get_by_role("button", name="Regenerate")).to_be_visible()


def tokens_of_context(page: Page) -> int:
    place = page.locator("#context-text")
    expect(place).to_have_text(re.compile(r"^\d+ of 512 tokens of context"))
    used = int(place.inner_text().split()[0])
    assert page.locator("#context-meter").evaluate("meter => meter.value") == used
    return used


def test_a_meter_shows_how_full_the_context_is(page: Page):
    setting(page, max_tokens="5", temperature="0")
    expect(page.locator("#context")).to_be_hidden()
    ask(page, "A dog.")
    first = tokens_of_context(page)
    ask(page, "And then?")

    assert tokens_of_context(page) > first
    page.reload()
    assert tokens_of_context(page) > first
    page.click("#new")
    expect(page.locator("#context")).to_be_hidden()


def test_a_conversation_outgrows_the_context_and_says_so(page: Page):
    setting(page, max_tokens="100", temperature="0")
    for n in range(7):
        ask(page, f"Tell me a long story about dog number {n}, and about the girl who loved it.")

    expect(page.locator(".failed")).to_have_count(0)
    expect(page.locator(".said").last).to_have_text(re.compile("oldest turns no longer fit"))
    expect(page.locator(".said").first).not_to_have_text(re.compile("oldest"))
    assert tokens_of_context(page) <= 512
