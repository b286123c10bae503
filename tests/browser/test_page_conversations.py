"""The list of conversations: search, rename, export, import, delete and undo."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.talk import ask, setting


def act(page: Page, title: str, action: str) -> None:
    page.get_by_label(f"More on {title}").click()
    page.get_by_role("button", name=action, exact=True).locator("visible=true").click()


@pytest.fixture
def two(page: Page) -> Page:
    """A page with the conversations "A dog." and "A frog.", the last of which is open."""
    setting(page, max_tokens="3", temperature="0")
    page.click("#open-settings")
    page.click("#keep")
    page.click("#settings button[value=close]")
    ask(page, "A dog.")
    page.click("#new")
    expect(page.locator("#messages > li")).to_have_count(0)
    ask(page, "A frog.")
    expect(page.locator("#conversations a")).to_have_text(["A frog.", "A dog."])
    return page


def test_conversations_are_searched_by_title_and_text(two: Page):
    listed = two.locator("#conversations a")

    two.fill("#search", "DOG")
    expect(listed).to_have_text(["A dog."])
    two.fill("#search", "nothing of that kind")
    expect(listed).to_have_count(0)
    two.fill("#search", "")
    expect(listed).to_have_count(2)


def test_a_conversation_is_renamed(two: Page):
    act(two, "A frog.", "Rename")
    two.get_by_label("Title", exact=True).fill("Frogs")
    two.keyboard.press("Enter")

    expect(two.locator("#conversations a")).to_have_text(["Frogs", "A dog."])
    expect(two).to_have_title("Frogs · ggmodel")
    act(two, "Frogs", "Rename")
    two.get_by_label("Title", exact=True).fill("Toads")
    two.keyboard.press("Escape")
    expect(two.locator("#conversations a")).to_have_text(["Frogs", "A dog."])
    two.reload()
    expect(two.locator("#conversations a")).to_have_text(["Frogs", "A dog."])


def test_a_deletion_is_undone(two: Page):
    act(two, "A frog.", "Delete")
    expect(two.locator("#conversations a")).to_have_text(["A dog."])
    expect(two.locator("#messages > li")).to_have_count(0)

    two.get_by_role("button", name="Undo").click()
    expect(two.locator("#conversations a")).to_have_text(["A frog.", "A dog."])
    expect(two.locator("#messages > li")).to_have_count(2)
    expect(two.locator("#done")).to_be_empty()


def test_a_conversation_that_is_deleted_while_it_is_answered_stays_away(page: Page):
    page.route("**/v1/chat/completions", lambda route: None)
    page.fill("#text", "A dog.")
    page.press("#text", "Enter")
    expect(page.locator("#conversations a")).to_have_count(1)

    act(page, "A dog.", "Delete")

    expect(page.locator("#send")).to_be_visible()
    expect(page.locator("#conversations a")).to_have_count(0)
    page.reload()
    expect(page.locator("#model option")).to_have_count(3)
    expect(page.locator("#conversations a")).to_have_count(0)


def test_conversations_come_back_from_a_file(two: Page, tmp_path: Path):
    with two.expect_download() as download:
        two.get_by_role("button", name="Export all").click()
    path = tmp_path / "all.json"
    download.value.save_as(path)
    act(two, "A dog.", "Delete")
    act(two, "A frog.", "Delete")

    two.set_input_files("#import", path)

    expect(two.locator("#done")).to_have_text("2 conversations imported")
    expect(two.locator("#conversations a")).to_have_text(["A frog.", "A dog."])
    two.get_by_role("link", name="A dog.").click()
    expect(two.locator("#messages > li")).to_have_count(2)
    expect(two.locator("#messages .content").first).to_have_text("A dog.")


def test_one_conversation_is_exported(two: Page):
    with two.expect_download() as download:
        act(two, "A dog.", "Export")

    assert download.value.suggested_filename == "A dog.json"
    text = json.loads(Path(download.value.path()).read_text("utf-8"))
    assert [one["title"] for one in text["conversations"]] == ["A dog."]


MESSAGE: dict[str, Any] = {"role": "user", "text": "Hello", "items": []}
LINK = {"kind": "image", "name": "a", "url": "https://example.org/a.png"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{nothing", "JSON"),
        ("[]", "the form"),
        ({"conversations": [{"title": 3, "messages": []}]}, "a conversation"),
        ({"conversations": [{"title": "a", "messages": [{"role": "x", "text": ""}]}]}, "a message"),
        (
            {"conversations": [{"title": "a", "messages": [{**MESSAGE, "items": [LINK]}]}]},
            "an attached file",
        ),
    ],
)
def test_other_files_are_not_imported(page: Page, text: Any, reason: str):
    if not isinstance(text, str):
        text = json.dumps({"form": "ggmodel conversations", "version": 1, **text})
    file: Any = {"name": "a.json", "mimeType": "application/json", "buffer": text.encode()}
    page.set_input_files("#import", file)

    expect(page.locator("#notice")).to_have_text(re.compile(f"^a.json is no file.*{reason}"))
    expect(page.locator("#conversations a")).to_have_count(0)


def test_messages_of_a_file_that_go_in_circles_are_still_a_conversation(page: Page):
    circle = [{**MESSAGE, "id": "a", "parent": "b"}, {**MESSAGE, "id": "b", "parent": "a"}]
    one = {"title": "Circle", "messages": circle, "leaf": "a"}
    text = json.dumps({"form": "ggmodel conversations", "version": 1, "conversations": [one]})
    file: Any = {"name": "a.json", "mimeType": "application/json", "buffer": text.encode()}
    page.set_input_files("#import", file)

    page.get_by_role("link", name="Circle").click()

    expect(page.locator("#messages .content").first).to_have_text("Hello")
