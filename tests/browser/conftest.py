"""The browser that all tests here use, and the page of a server in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.serving import running

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
MODELS = ("stories", "shapes", "tones")
SECONDS = 60_000.0  # milliseconds that anything may take
expect.set_options(timeout=SECONDS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-screenshot", action="store_true", help="draw docs/page.png anew")


@pytest.fixture(scope="session")
def chromium() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert found, "there is no chromium: apt-get install chromium, or name one with CHROMIUM"
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as program:
        found = program.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    files = [str(ASSETS / f"{name}.gguf") for name in MODELS]
    with running(*files, "--threads", "1", HOME=str(home)) as found:
        yield found.url
        found.stop()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser without history; any error on the page fails the test."""
    found = browser.new_context(viewport={"width": 1100, "height": 720}, color_scheme="light")
    found.set_default_timeout(SECONDS)
    errors: list[str] = []
    found.on("weberror", lambda error: errors.append(str(error.error)))
    yield found
    found.close()
    assert not errors


@pytest.fixture
def open_page(context: BrowserContext, server: str) -> Callable[[], Page]:
    """Opens the page of the server in a further tab."""

    def opened() -> Page:
        page = context.new_page()
        page.goto(server)
        expect(page.locator("#model option")).to_have_count(len(MODELS))
        return page

    return opened


@pytest.fixture
def page(open_page: Callable[[], Page]) -> Page:
    return open_page()
