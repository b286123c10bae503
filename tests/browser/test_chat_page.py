"""The page of `ggmodel serve` in a real browser, with a real server behind it.

Needs Debian's chromium (or another one named by CHROMIUM) and runs when named, see
`make test-browser`. `pytest tests/browser/test_chat_page.py --write-screenshot` draws
docs/page.png anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "examples" / "assets"
SECONDS = 60_000.0  # milliseconds that anything may take


def setting(page: Page, **values: str | bool) -> None:
    page.click("#open-settings")
    for name, value in values.items():
        field = page.locator(f"#settings [name={name}]")
        if isinstance(value, bool):
            field.set_checked(value)
        elif field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.click("#settings button[value=close]")


def ask(page: Page, text: str) -> str:
    """Sends a message, and waits for its answer."""
    before = page.locator("#messages > li").count()
    page.fill("#text", text)
    page.press("#text", "Enter")
    expect(page.locator("#messages > li")).to_have_count(before + 2)
    return answered(page)


def answered(page: Page) -> str:
    expect(page.locator("#send")).to_be_visible(timeout=SECONDS)
    expect(page.locator(".said").last).to_have_text(re.compile(r"\d+ tokens?"), timeout=SECONDS)
    return page.locator(".content").last.inner_text()


def test_a_conversation_survives_a_reload(page: Page):
    setting(page, max_tokens="20", temperature="0")
    text = ask(page, "Tell me a story about a dog.")
    assert text

    page.reload()

    expect(page.locator("#messages > li")).to_have_count(2)
    assert page.locator(".content").last.inner_text() == text
    expect(page.locator("#conversations a[aria-current=page]")).to_have_text(re.compile("a dog"))
    page.click("#open-settings")
    expect(page.locator("[name=max_tokens]")).to_have_value("20")


def test_a_picture_is_seen(page: Page):
    setting(page, temperature="0")
    page.select_option("#model", "shapes")
    page.set_input_files("#files", ASSETS / "scene.png")
    expect(page.locator("#attached img")).to_have_count(1)

    text = ask(page, "what is in the picture?")

    assert "circle" in text and "square" in text
    expect(page.locator("#messages .items img")).to_have_count(1)
    expect(page.locator("#attached li")).to_have_count(0)


def test_a_sound_is_sent_and_a_model_that_cannot_chat_says_so(page: Page):
    page.select_option("#model", "tones")
    page.set_input_files("#files", ASSETS / "tones.wav")
    page.fill("#text", "what do you hear?")
    page.press("#text", "Enter")

    expect(page.locator("#messages .items audio")).to_have_count(1)
    expect(page.locator(".failed")).to_have_text(re.compile("no chat template"))


def test_an_answer_can_be_stopped(page: Page):
    asked = "**/v1/chat/completions"
    page.route(asked, lambda route: None)  # an answer that does not come
    page.fill("#text", "Tell me a very long story.")
    page.click("#send")
    expect(page.locator("#stop")).to_be_visible()

    page.keyboard.press("Escape")

    expect(page.locator(".said").last).to_have_text(re.compile("stopped"))
    page.unroute(asked)
    setting(page, max_tokens="5")
    ask(page, "And then?")


def test_messages_are_edited_and_answers_made_anew(page: Page):
    setting(page, max_tokens="8", temperature="0")
    first = ask(page, "Tell me a story about a dog.")

    page.locator("#messages > li").last.get_by_role("button", name="Regenerate").click()
    assert answered(page) == first
    page.locator("#messages > li").first.get_by_role("button", name="Edit").click()
    page.get_by_label("Change the message").fill("Tell me a story about a frog.")
    page.get_by_role("button", name="Send anew").click()

    expect(page.locator("#messages > li.user .content")).to_have_text(re.compile("frog"))
    answered(page)
    expect(page.locator("#messages > li")).to_have_count(2)


def test_tokens_tell_how_likely_they_were(page: Page):
    setting(page, max_tokens="10", temperature="0", logprobs=True)
    ask(page, "Tell me a story about a dog.")

    page.locator(".token").nth(3).hover()

    hint = page.locator("#hint")
    expect(hint).to_be_visible()
    shares = [float(x) for x in re.findall(r"([\d.]+) %", hint.inner_text())]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True)
    page.locator(".token").nth(4).focus()
    expect(hint).to_be_visible()


def test_answers_obey_a_schema(page: Page):
    schema = '{"type":"object","properties":{"age":{"type":"integer"}},"required":["age"],'
    setting(page, schema=schema + '"additionalProperties":false}', max_tokens="60")

    text = ask(page, "How old is the dog?")

    assert re.fullmatch(r'\{\s*"age"\s*:\s*-?\d+\s*\}', text)
    setting(page, schema="{nothing")
    page.fill("#text", "Again")
    page.press("#text", "Enter")
    expect(page.locator(".failed")).to_have_text(re.compile("no JSON"))


def test_two_tabs_share_conversations_and_not_their_places(open_page: Callable[[], Page]):
    one, other = open_page(), open_page()
    setting(one, max_tokens="5")
    ask(one, "A first message.")
    ask(other, "A second message.")

    for page in (one, other):
        expect(page.locator("#conversations li")).to_have_count(2)
    expect(one.locator(".content").first).to_have_text("A first message.")
    other.get_by_role("link", name="A first message.").click()
    expect(other.locator(".content").first).to_have_text("A first message.")
    other.get_by_role("button", name="Delete A first message.").click()
    for page in (one, other):
        expect(page.locator("#conversations li")).to_have_count(1)
        expect(page.locator("#messages > li")).to_have_count(0)


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

    expect(state).to_have_text("Loading the model…")
    expect(foot).to_be_hidden()
    page.evaluate("begin()")
    page.evaluate("send({choices: [{delta: {role: 'assistant', content: ''}}]})")
    expect(state).to_have_text(re.compile(r"^Reading the prompt… \d+ tokens$"))
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


def test_a_picture_for_a_model_without_eyes_is_refused(page: Page):
    page.set_input_files("#files", ASSETS / "scene.png")
    page.fill("#text", "what is in the picture?")
    page.press("#text", "Enter")

    expect(page.locator(".failed")).to_have_text(re.compile("image"))


@pytest.mark.parametrize("width", [1100, 380])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window(page: Page, width: int, scheme: str):
    page.set_viewport_size({"width": width, "height": 720})
    setting(page, max_tokens="30", scheme=scheme)
    ask(page, "Tell me about " + "supercalifragilistic" * 12)

    sizes = page.evaluate("[innerWidth, document.documentElement.scrollWidth]")

    assert sizes[0] == sizes[1] == width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


def test_everything_is_reached_by_the_keyboard(page: Page):
    seen = set()
    page.locator("body").focus()
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id"))

    assert {"new", "model", "open-settings", "files", "text", "send"} <= seen
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select, textarea, a")].filter(
            (one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim())
        ).length"""
    )
    assert unnamed == 0


def test_the_screenshot_of_the_documents(page: Page, pytestconfig: pytest.Config, tmp_path: Path):
    wanted = pytestconfig.getoption("--write-screenshot")
    target = ROOT / "docs" / "page.png" if wanted else tmp_path / "page.png"
    setting(page, max_tokens="60", temperature="0", logprobs=True)
    page.set_viewport_size({"width": 1000, "height": 560})
    ask(page, "Tell me a story about a dog.")
    page.locator(".token").nth(5).hover()
    page.screenshot(path=target)
    assert target.stat().st_size > 10_000
