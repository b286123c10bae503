"""Models on the page: loaded, unloaded, pulled, removed."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page, Route, expect

PULLED = [
    {"status": "pulling manifest"},
    {"status": "pulling 0123", "digest": "0123", "total": 4096, "completed": 1024},
    {"status": "pulling 0123", "digest": "0123", "total": 4096, "completed": 4096},
    {"status": "success"},
]


def lines(*parts: Any) -> str:
    return "".join(json.dumps(one) + "\n" for one in parts)


def test_models_are_loaded_and_unloaded(page: Page):
    page.click("#open-manage")
    entry = page.locator("#manage li").filter(has_text="shapes")
    page.get_by_role("button", name=re.compile("(Unload|Load) shapes")).wait_for()
    if entry.get_by_role("button", name="Unload shapes").count():  # by an earlier test
        entry.get_by_role("button", name="Unload shapes").click()
    expect(entry).to_contain_text("not loaded · 2.5 MiB · takes pictures")

    entry.get_by_role("button", name="Load shapes").click()
    expect(entry).to_contain_text(re.compile(r"^shapesloaded · .* of memory .* 512 tokens"))
    entry.get_by_role("button", name="Unload shapes").click()
    expect(entry).to_contain_text("not loaded")
    expect(page.locator("#manage output")).to_be_empty()


def test_a_model_is_pulled_with_its_progress(page: Page):
    page.route("**/api/pull", lambda route: route.fulfill(body=lines(*PULLED)))
    page.evaluate(
        """() => {
            window.said = [];
            const place = document.querySelector("#manage output");
            new MutationObserver(() => said.push(place.textContent)).observe(place,
                { childList: true });
        }"""
    )
    page.click("#open-manage")
    with page.expect_request("**/api/pull") as asked:
        page.get_by_label("Pull a model").fill("llama3.2:1b")
        page.get_by_role("button", name="Pull", exact=True).click()

    assert asked.value.post_data_json == {"model": "llama3.2:1b"}
    expect(page.locator("#manage output")).to_be_empty()
    said = page.evaluate("said")
    assert "Pulling llama3.2:1b…" in said
    assert "pulling 0123: 1.0 KiB of 4.0 KiB" in said or "pulling 0123: 4.0 KiB of 4.0 KiB" in said
    expect(page.locator("#manage li")).to_have_count(3)


def test_a_server_that_changes_no_models_says_how_it_would(page: Page):
    page.click("#open-manage")
    page.get_by_label("Pull a model").fill("llama3.2:1b")
    page.get_by_role("button", name="Pull", exact=True).click()

    expect(page.locator("#manage output")).to_have_text(re.compile("start it with --manage"))


def test_a_pull_that_fails_says_why(page: Page):
    failing = lines(PULLED[0], {"error": "no such model"})
    page.route("**/api/pull", lambda route: route.fulfill(body=failing))
    page.click("#open-manage")
    page.get_by_label("Pull a model").fill("absent")
    page.get_by_role("button", name="Pull", exact=True).click()

    expect(page.locator("#manage output")).to_have_text("no such model")
    expect(page.locator("#manage progress")).to_have_count(0)


def removable(route: Route) -> None:
    answer = route.fetch().json()
    answer["data"][0]["removable"] = True
    route.fulfill(body=json.dumps(answer), content_type="application/json")


def test_a_model_is_removed_after_a_question(page: Page):
    asked: list[tuple[str, Any]] = []

    def remove(route: Route) -> None:
        asked.append((route.request.method, route.request.post_data_json))
        route.fulfill(body="")

    page.route("**/v1/models", removable)
    page.route("**/api/delete", remove)
    page.click("#open-manage")
    expect(page.get_by_role("button", name="Remove", exact=False)).to_have_count(1)

    page.get_by_role("button", name="Remove stories").click()
    page.get_by_role("button", name="Keep it").click()
    assert not asked
    page.get_by_role("button", name="Remove stories").click()
    page.get_by_role("button", name="Delete 2.3 MiB from the disk").click()

    expect(page.locator("#manage output")).to_be_empty()
    assert asked == [("DELETE", {"model": "stories"})]
    page.unroute_all(behavior="ignoreErrors")
