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

from tests.browser.talk import ask, setting

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "examples" / "assets"


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
    other.get_by_label("More on A first message.").click()
    other.get_by_role("button", name="Delete").locator("visible=true").click()
    for page in (one, other):
        expect(page.locator("#conversations li")).to_have_count(1)
        expect(page.locator("#messages > li")).to_have_count(0)


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
    for _ in range(24):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id"))

    named = "new search export import model open-manage open-settings files text send"
    assert set(named.split()) <= seen
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
