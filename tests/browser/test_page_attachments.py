"""Files on the page: what the chosen model takes can be attached, and a refusal says why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.talk import ask, bodies, setting

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
WORDS = {"stories": "no pictures, sounds, or videos", "shapes": "pictures", "tones": "sounds"}


def attach(page: Page, *files: Any) -> None:
    page.set_input_files("#files", [*files])


def test_a_picture_is_seen(page: Page):
    setting(page, temperature="0")
    page.select_option("#model", "shapes")
    attach(page, ASSETS / "scene.png")
    expect(page.locator("#attached img")).to_have_count(1)

    text = ask(page, "what is in the picture?")

    assert "circle" in text and "square" in text
    expect(page.locator("#messages .items img")).to_have_count(1)
    expect(page.locator("#attached li")).to_have_count(0)


def test_a_picture_for_a_model_without_eyes_is_refused_and_another_one_named(page: Page):
    attach(page, ASSETS / "scene.png")

    refusal = "stories takes no pictures. Of the models here, shapes does."
    expect(page.locator("#notice")).to_have_text(refusal)
    expect(page.locator("#attached li")).to_have_count(0)
    expect(page.locator("#model option")).to_have_count(3)


def test_a_picture_of_the_conversation_is_not_sent_to_a_model_without_eyes(page: Page):
    page.select_option("#model", "shapes")
    setting(page, max_tokens="4")
    attach(page, ASSETS / "scene.png")
    ask(page, "what is in the picture?")
    asked = bodies(page)

    page.select_option("#model", "stories")
    page.fill("#text", "And now?")
    page.press("#text", "Enter")

    expect(page.locator("#notice")).to_have_text(re.compile("^stories takes no pictures"))
    expect(page.locator("#text")).to_have_value("And now?")
    assert not asked


def test_a_model_for_speech_writes_a_sound_down(page: Page):
    page.select_option("#model", "tones")
    page.fill("#text", "what do you hear?")
    page.press("#text", "Enter")
    expect(page.locator("#notice")).to_have_text(re.compile("attach or record a sound"))
    attach(page, ASSETS / "scene.png")
    expect(page.locator("#notice")).to_have_text(re.compile("takes sounds alone"))
    page.fill("#text", "")
    attach(page, ASSETS / "tones.wav")
    expect(page.locator("#attached li")).to_have_count(1)
    page.click("#send")

    expect(page.locator("#messages .items audio")).to_have_count(1)
    expect(page.locator(".said").last).to_have_text("2.0 s of sound")
    assert page.locator(".content").last.inner_text().strip()


def test_a_file_of_text_goes_with_the_question(page: Page):
    setting(page, max_tokens="4")
    asked = bodies(page)
    attach(page, {"name": "tale.md", "mimeType": "", "buffer": b"A dog had a ball."})
    ask(page, "Tell me more.")

    file, text = asked[0]["messages"][0]["content"]
    assert file["file"]["filename"] == "tale.md" and text["text"] == "Tell me more."
    expect(page.locator("#messages .document")).to_have_text("tale.md")


def test_a_pdf_file_goes_as_text(page: Page):
    from tests.serve.test_documents import pdf

    setting(page, max_tokens="4")
    attach(page, {"name": "a.pdf", "mimeType": "application/pdf", "buffer": pdf("A dog.")})
    ask(page, "Tell me more.")
    expect(page.locator(".failed")).to_have_count(0)


def test_other_files_are_refused(page: Page):
    attach(page, {"name": "a.bin", "mimeType": "application/zip", "buffer": b"PK\x03\x04\0\0"})

    expect(page.locator("#notice")).to_have_text(re.compile("^a.bin is neither a picture"))


def test_a_long_text_that_is_pasted_becomes_a_file(page: Page):
    paste = """(count) => {
        const data = new DataTransfer();
        data.setData("text/plain", "word ".repeat(count));
        document.getElementById("text").dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(paste, 10)
    expect(page.locator("#attached li")).to_have_count(0)
    page.evaluate(paste, 1000)
    expect(page.locator("#attached li")).to_have_text(re.compile("pasted.txt"))


@pytest.fixture(scope="module")
def with_microphone(chromium: str, browser: Browser, server: str) -> Iterator[Page]:
    """A page whose microphone beeps."""
    flags = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    options: Any = {"executable_path": chromium, "args": ["--no-sandbox", *flags]}
    found = browser.browser_type.launch(**options)
    page = found.new_page()
    page.goto(server)
    yield page
    found.close()


def test_the_microphone_is_recorded(with_microphone: Page):
    page = with_microphone
    expect(page.locator("#model option")).to_have_count(3)
    page.select_option("#model", "tones")
    page.get_by_role("button", name="Record").click()
    page.wait_for_timeout(700)
    page.get_by_role("button", name="Stop recording").click()

    expect(page.locator("#attached li")).to_have_text(re.compile("recording.wav"))
    page.click("#send")
    expect(page.locator(".said").last).to_have_text(re.compile(r"\d\.\d s of sound"))


@pytest.mark.parametrize("name", WORDS)
def test_the_first_screen_says_what_the_model_takes(page: Page, name: str):
    page.select_option("#model", name)
    if name == "stories":  # all is known of a model that has been loaded
        setting(page, max_tokens="2")
        ask(page, "A dog.")
        page.click("#new")

    first = page.get_by_label("Welcome")
    expect(first.get_by_role("heading")).to_have_text(name)
    expect(first).to_contain_text(WORDS[name])
    expect(first).to_contain_text(re.compile(r"\d+ tokens of context"))
    expect(first.get_by_role("button")).to_have_count(0 if name == "tones" else 3)


def test_an_example_begins_a_conversation(page: Page):
    setting(page, max_tokens="4")
    page.get_by_role("button", name="Tell me a story about a dog.").click()

    expect(page.locator(".who")).to_have_text(["You", "stories"])
    expect(page).to_have_title("Tell me a story about a dog. · ggmodel")


def test_a_video_goes_as_one(page: Page):
    """The server tells the page here that a model takes videos, and refuses the request itself."""

    def told(route: Route) -> None:
        models = route.fetch().json()
        models["data"][0]["kinds"] = ["video"]
        route.fulfill(json=models)

    page.route("**/v1/models", told)
    page.reload()
    expect(page.locator("#model option")).to_have_count(3)
    expect(page.locator("#files")).to_have_attribute("accept", re.compile(r"video/\*"))
    asked = bodies(page)
    attach(page, {"name": "a.mp4", "mimeType": "video/mp4", "buffer": b"\0\0\0\x18ftypmp42"})
    expect(page.locator("#attached li")).to_have_text(re.compile("a.mp4"))
    page.fill("#text", "what happens?")
    page.press("#text", "Enter")

    expect(page.locator("#messages .items video")).to_have_count(1)
    expect(page.locator(".failed")).to_have_count(1)
    video, text = asked[0]["messages"][0]["content"]
    assert video["type"] == "video_url" and text["text"] == "what happens?"
    assert video["video_url"]["url"] == "data:video/mp4;base64,AAAAGGZ0eXBtcDQy"
