"""Maths and colours of code on the page, drawn by libraries that come when they are needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_page_markdown import SECONDS, SHOW

WARM = "$x$\n\n```python\npass\n```"
FIRST = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@pytest.fixture(scope="module")
def shared(browser: Browser, server: str) -> Iterator[Page]:
    """A page that has both libraries."""
    page = browser.new_page()
    page.goto(server)
    page.evaluate(SHOW, WARM)
    expect(page.locator(".katex")).to_have_count(1)
    expect(page.locator(".hljs-keyword")).to_have_count(1)
    yield page
    page.close()


def formulas(page: Page, text: str) -> list[str]:
    """The TeX of the formulas that a text shows."""
    page.evaluate(SHOW, text)
    return page.locator(".content .katex annotation").all_text_contents()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a $x^2$ b", ["x^2"]),
        (r"a \(x^2\) b", ["x^2"]),
        ("$$\nx\n$$", ["\nx\n"]),
        ("\\[\nx\n\\]", ["\nx\n"]),
        ("Then $$x$$ follows.", ["x"]),
        ("$$a\n= b\n- c$$", ["a\n= b\n- c"]),  # elsewhere a heading and a list
        ("Look:\n\\[ x \\]\nand on", [" x "]),
        ("- a\n  $$\n  x\n  $$\n- $y$", ["\nx\n", "y"]),
        (r"$\frac{a}{b}$ and $c$", [r"\frac{a}{b}", "c"]),
        (r"$a\$b$", [r"a\$b"]),
        ("It costs $5 and $6.", []),
        ("$ x $", []),
        ("`$x$`", []),
        ("```\n$x$\n```", []),
        (r"\$x\$", []),
        ("$x\n\ny$", []),
        ("$$", []),
        ("$$\n\n$$", []),
    ],
)
def test_formulas(shared: Page, text: str, expected: list[str]):
    assert [one.strip() for one in formulas(shared, text)] == [one.strip() for one in expected]


def test_display_maths_stands_alone(shared: Page):
    formulas(shared, "$$x$$\n\n$y$")

    expect(shared.locator(".maths.display .katex-display")).to_have_count(1)
    expect(shared.locator(".maths:not(.display) .katex")).to_have_count(1)


@pytest.mark.parametrize(
    "text",
    [
        r"$\href{javascript:alert(1)}{x}$",
        r"$\includegraphics{https://example.org/a.png}$",
        r"$\htmlStyle{position:fixed}{x}$",
        r"$\url{javascript:alert(1)}$",
        "$<img src=x onerror=alert(1)>$",
        "```html\n<img src=x onerror=alert(1)><script>alert(1)</script>\n```",
    ],
)
def test_what_a_model_writes_runs_nothing(shared: Page, text: str):
    shared.evaluate(SHOW, text)

    inside = shared.locator("#messages .content *")
    names = inside.evaluate_all("all => all.flatMap((one) => one.getAttributeNames())")
    assert not {name for name in names if name.startswith("on") or name in ("href", "src")}
    tags = inside.evaluate_all("all => all.map((one) => one.tagName.toLowerCase())")
    assert not {"a", "img", "script", "iframe"} & set(tags)


def test_maths_that_is_wrong_is_shown_as_it_is_written(shared: Page):
    shared.evaluate(SHOW, r"$\frac{$ and $\nothing$")

    expect(shared.locator(".content")).to_contain_text("\\frac{")
    expect(shared.locator(".content")).to_contain_text("\\nothing")


def test_code_has_colours(shared: Page):
    text = 'def f(x):\n    return "a" + 1  # note'
    shared.evaluate(SHOW, f"```python\n{text}\n```")

    code = shared.locator(".code code")
    assert code.inner_text() == text
    expect(code.locator(".hljs-keyword")).to_have_text(["def", "return"])
    expect(code.locator(".hljs-string")).to_have_text('"a"')
    shared.evaluate(SHOW, f"```unknown\n{text}\n```")
    assert code.inner_text() == text
    expect(code.locator("span")).to_have_count(0)


HOSTILE = {
    "dollars": "$a" * 50_000,
    "parentheses": "\\(" * 50_000,
    "brackets": "\\[\n" * 50_000,
    "double dollars": "$$\n" * 50_001,
    "many formulas": "$x_1$ " * 20_000,
    "deep formula": "$" + "{" * 999 + "}" * 999 + "$",
    "deep fractions": "$" + "\\frac{1}{" * 200 + "x" + "}" * 200 + "$",
    "macros": "$\\def\\a{\\a\\a}\\a$",
    "large": "$\\rule{9999em}{9999em}$",
    "python": "```python\n" + "(" * 19_000 + "\n```",
    "markup": "```html\n" + "<a " * 6_000 + "\n```",
    "script": "```javascript\n" + "a<b<" * 4_000 + "\n```",
    "much code": "```python\n" + "x = 1\n" * 30_000 + "```",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_answer_hangs_the_page(shared: Page, text: str):
    _, seconds = shared.evaluate(SHOW, text)
    assert seconds < SECONDS
    assert shared.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_libraries_come_when_they_are_needed(page: Page):
    loaded = "() => performance.getEntriesByType('resource').map((one) => one.name)"
    sizes = "() => performance.getEntriesByType('resource').map((one) => one.decodedBodySize)"

    names = page.evaluate(loaded)
    assert any(name.endswith("markdown-it.js") for name in names)
    assert not [name for name in names if "katex" in name or "highlight" in name]
    assert sum(page.evaluate(sizes)) < 300_000
    page.evaluate(SHOW, WARM)
    expect(page.locator(".katex")).to_have_count(1)
    fonts = page.evaluate("document.fonts.ready.then((all) => [...all].map((one) => one.status))")
    assert "loaded" in fonts and "error" not in fonts


def test_the_first_paint_is_quick(page: Page, server: str):
    """From loopback 100 ms on an idle core, five times that where others compute."""
    page.goto(server)
    page.wait_for_function(FIRST)

    assert page.evaluate(FIRST) < 500
