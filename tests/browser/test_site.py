"""The site that `make docs` builds, in a real browser: on a phone and a desk, served and as files.

Needs the extra `docs`, and a browser as tests/browser/test_chat_page.py does.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import ggmodel
from tests.docs.test_glossary import SEARCHED

ROOT = Path(__file__).parents[2]
PHONE, DESK = (390, 844), (1280, 900)
# Plain pages, wide tables, long signatures, code, a picture.
LOOKED_AT = ("index", "run", "replies", "reference", "architectures", "images", "models")
LOOKED_AT += ("commands/run", "api/ggmodel", "api/ggmodel.nn", "source/models/llama/model.py")
WAIT = 60_000.0  # milliseconds
Scheme = Literal["light", "dark"]
# Grey of paper, from 0 to 255.
PAPER: dict[Scheme, tuple[int, int]] = {"light": (240, 255), "dark": (0, 60)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture(params=[PHONE, DESK], ids=["phone", "desk"])
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param


@contextmanager
def opened(
    browser: Browser, size: tuple[int, int], begin: str, scheme: Scheme = "light"
) -> Iterator[Page]:
    """A page without history. Errors, and requests that leave the site, fail the test."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
    )
    context.set_default_timeout(WAIT)
    page = context.new_page()
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert not errors
    assert not [url for url in asked if not url.startswith((begin, "data:"))]


def test_nothing_is_wider_than_the_window(browser: Browser, served: str, size: tuple[int, int]):
    with opened(browser, size, served) as page:
        for name in LOOKED_AT:
            page.goto(f"{served}/{name}.html")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= size[0], (name, wide)


@pytest.mark.parametrize("place", ["served", "files"])
def test_a_search_finds_a_class(
    browser: Browser, served: str, site: Path, size: tuple[int, int], place: str
):
    begin = served if place == "served" else site.as_uri()
    with opened(browser, size, begin) as page:
        page.goto(f"{begin}/index.html")
        if size == PHONE:
            page.click("label.md-header__button[for=__search]")
        page.click(".md-search__input")
        page.locator(".md-search__input").press_sequentially("Rope")
        page.locator(".md-search-result__more").first.click()  # of one page only the best is shown
        page.locator(".md-search-result__link[href$='#ggmodel.nn.Rope']").click()
        expect(page.locator("[id='ggmodel.nn.Rope']")).to_be_in_viewport(timeout=WAIT)


def test_a_search_finds_a_term_in_the_glossary(browser: Browser, served: str):
    with opened(browser, DESK, served) as page:
        for term in SEARCHED:
            page.goto(f"{served}/index.html")
            page.click(".md-search__input")
            page.locator(".md-search__input").press_sequentially(term)
            # One of the ten pages that are shown first.
            link = page.locator(".md-search-result__link[href*='glossary.html']").first
            expect(link, term).to_be_attached(timeout=WAIT)


def test_the_navigation_opens_on_a_phone(browser: Browser, served: str):
    with opened(browser, PHONE, served) as page:
        page.goto(f"{served}/index.html")
        link = page.locator(".md-nav__link", has_text="Quantise").first
        expect(link).not_to_be_in_viewport()
        page.click("label.md-header__button[for=__drawer]")
        page.locator("label[for=__nav_1].md-nav__title").click()  # from this section to all
        for section in ("Guides", "Files and memory"):
            page.locator("label.md-nav__link", has_text=section).first.click()
        link.click()
        expect(page.locator("h1")).to_have_text(re.compile("Quantise"))


def test_tabs_lead_to_the_sections_on_a_desk(browser: Browser, served: str):
    with opened(browser, DESK, served) as page:
        page.goto(f"{served}/index.html")
        page.locator(".md-tabs__link", has_text="Reference").click()
        page.locator(
            ".md-nav--primary .md-nav__link", has_text=re.compile(r"^\s*quantize\s*$")
        ).click()
        expect(page.locator("h1")).to_have_text(re.compile("quantize"))


def brightness(page: Page, file: Path) -> tuple[float, float]:
    """How bright the page's paper is, and its text at the other end, from 0 to 255."""
    page.wait_for_function("document.getAnimations().every(a => a.playState === 'finished')")
    page.screenshot(path=file)
    with Image.open(file) as image:
        grey = np.asarray(image.convert("L")).astype(float)
    body = grey[int(grey.shape[0] * 0.2) :]
    paper = float(np.median(body))
    return paper, float(body.min() if paper > 128 else body.max())


def test_the_system_chooses_light_or_dark(
    browser: Browser, served: str, size: tuple[int, int], tmp_path: Path
):
    for scheme, (lowest, highest) in PAPER.items():
        with opened(browser, size, served, scheme) as page:
            page.goto(f"{served}/run.html")
            paper, text = brightness(page, tmp_path / f"{scheme}.png")
            assert lowest <= paper <= highest
            assert abs(paper - text) > 150


def test_a_click_changes_light_to_dark(browser: Browser, served: str, tmp_path: Path):
    with opened(browser, PHONE, served) as page:
        page.goto(f"{served}/run.html")
        page.click("label[title='Light; switch to dark']")
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
        assert brightness(page, tmp_path / "dark.png")[0] < 60


def pages(site: Path) -> list[Path]:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 100
    return found


def test_no_page_loads_anything_from_elsewhere(site: Path):
    loads = re.compile(
        r"<(?:script|img|iframe|source|video|audio)[^>]*\ssrc=\"?(?:https?:)?//"
        r"|<link(?![^>]*rel=\"?canonical)[^>]*href=\"?(?:https?:)?//"
    )
    for path in pages(site):
        assert not loads.search(path.read_text("utf-8")), path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", path.read_text("utf-8")), path


def test_every_link_and_anchor_exists(site: Path):
    text = {path: path.read_text("utf-8") for path in pages(site)}
    ids = {path: set(re.findall(r"\s(?:id|name)=\"?([^\s\">]+)", t)) for path, t in text.items()}
    count = 0
    for path, html in text.items():
        for target in re.findall(r"<a\s[^>]*href=\"?([^\s\">]+)", html):
            if re.match(r"[a-z]+:|//", target) or path.name == "404.html":
                continue
            name, _, anchor = target.partition("#")
            to = (path.parent / unquote(name)).resolve() if name else path
            to = to / "index.html" if to.is_dir() else to
            count += 1
            assert to.exists(), (path, target)
            found = ids.get(to)
            assert not anchor or found is None or unquote(anchor) in found, (path, target)
    assert count > 5000


def test_every_public_name_is_on_a_page(site: Path):
    """Described under an anchor of its name, or, a package, on a page of its own."""
    text = "".join(path.read_text("utf-8") for path in (site / "api").glob("*.html"))
    packages = ("", *(n for n in ggmodel._SUBPACKAGES if n != "workbench"))
    count = 0
    for package in packages:
        module = getattr(ggmodel, package) if package else ggmodel
        path = f"ggmodel.{package}".rstrip(".")
        for name in getattr(module, "__all__", ()):
            anchor = f'id="{path}.{name}"'
            link = f">{name}</code></a>"
            assert anchor in text or link in text, f"{path}.{name}"
            count += anchor in text
    assert count > 200
