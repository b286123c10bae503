"""Steps that tests of the page have in common."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, Request, expect

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


def bodies(page: Page) -> list[Any]:
    """Bodies of the chats that the page asks for from now on."""
    found: list[Any] = []

    def note(request: Request) -> None:
        if request.url.endswith("/chat/completions"):
            found.append(request.post_data_json)

    page.on("request", note)
    return found
