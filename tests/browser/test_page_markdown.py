"""Answers as the page shows them: CommonMark, nothing that runs, no text that hangs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

HTTP = "https://example.org/"
# A parse and its layout take less than two on an idle core.
SECONDS = 20

SHOW = """async (text) => {
    const { blocks } = await import("/page/markdown.js");
    const content = document.createElement("div");
    content.className = "content";
    const begun = performance.now();
    for (const block of blocks(text)) content.append(block);
    document.getElementById("messages").replaceChildren(content);
    content.getBoundingClientRect();
    return [content.innerHTML, (performance.now() - begun) / 1000];
}"""


def html(page: Page, text: str) -> str:
    """The elements of a text, without the attributes that all links have."""
    found, _ = page.evaluate(SHOW, text)
    return found.replace(' rel="noreferrer noopener" target="_blank"', "")


@pytest.fixture(scope="module")
def shared(browser: Browser, server: str) -> Iterator[Page]:
    """A page that tests of single texts share."""
    page = browser.new_page()
    page.goto(server)
    yield page
    page.close()


CASES = {
    "lists count": (
        "1. a\n\n2. b\n\n7. c",
        "<ol>" + "".join(f"<li><p>{c}</p></li>" for c in "abc") + "</ol>",
    ),
    "a list begins anywhere": ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    "lists nest": (
        "- a\n  1. b\n  2. c\n- d",
        "<ul><li>a<ol><li>b</li><li>c</li></ol></li><li>d</li></ul>",
    ),
    "tables": (
        "| a | b |\n|---|--:|\n| `c` | d |",
        '<table><thead><tr><th>a</th><th class="right">b</th></tr></thead>'
        '<tbody><tr><td><code>c</code></td><td class="right">d</td></tr></tbody></table>',
    ),
    "words": ("**a *b*** ~~c~~ a_b_c", "<p><strong>a <em>b</em></strong> <s>c</s> a_b_c</p>"),
    "lines": ("a\nb\n\n---", "<p>a<br>b</p><hr>"),
    "headings": ("# a\n\nb\n---", "<h3>a</h3><h4>b</h4>"),
    "links": (
        f"[a]({HTTP}) <{HTTP}> {HTTP} main.py",
        f'<p><a href="{HTTP}">a</a> ' + f'<a href="{HTTP}">{HTTP}</a> ' * 2 + "main.py</p>",
    ),
    "mail": ("<a@example.org>", '<p><a href="mailto:a@example.org">a@example.org</a></p>'),
    "pictures are links": (
        f"![a]({HTTP}b.png) [![c]({HTTP}d.png)]({HTTP})",
        f'<p><a href="{HTTP}b.png">a</a> <a href="{HTTP}">c</a></p>',
    ),
    "quotes": (
        "> a\n>\n> > b",
        "<blockquote><p>a</p>" + "<blockquote><p>b</p></blockquote></blockquote>",
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_markdown(shared: Page, text: str, expected: str):
    assert html(shared, text) == expected


def test_code_has_its_language_and_is_copied_whole(shared: Page):
    html(shared, "- a\n\n  ```python x\n  if a:\n      b\n  ```")

    code = shared.locator("li .code")
    assert code.get_attribute("data-language") == "python"
    assert code.locator("pre").inner_text() == "if a:\n    b"
    expect(code.get_by_role("button", name="Copy")).to_be_visible()


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=alert(1)>",
        "<script>alert(1)</script>\n\n<iframe src='javascript:alert(1)'>",
        "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](data:text/html,x) [d](vbscript:x)",
        "![a](javascript:alert(1)) ![b](data:image/svg+xml,x) [a](java&#115;cript:alert(1))",
        "[a]: javascript:alert(1)\n\n[a] <javascript:alert(1)> [b](/v1/models) [c](//example.org)",
        '```"><img src=x onerror=alert(1)>\nx\n```',
        "| a |\n|---|\n| <svg onload=alert(1)> |",
    ],
)
def test_what_a_model_writes_runs_nothing(shared: Page, text: str):
    html(shared, text)

    allowed = "P CODE PRE DIV BUTTON TABLE THEAD TBODY TR TH TD".split()
    inside = shared.locator("#messages .content *")
    assert set(inside.evaluate_all("all => all.map((one) => one.tagName)")) <= set(allowed)
    names = inside.evaluate_all("all => all.flatMap((one) => one.getAttributeNames())")
    assert set(names) <= {"class", "type", "tabindex", "data-language"}


HOSTILE = {
    "quotes": ">" * 5_000 + "x",
    "quotes with blanks": "> " * 50_000 + "x",
    "lists": "- " * 20_000 + "x",
    "deeper lists": "\n".join(" " * (2 * i) + "- a" for i in range(300)),
    "brackets": "[" * 40_000,
    "links": "[a](" * 20_000,
    "pictures": "![" * 20_000,
    "blanks": "|\n" + " " * 20_000 + "x",
    "cells": "|a" * 5_000 + "\n" + "|-" * 5_000 + "\n" + "|\n" * 5_000,
    "stars": "*a_ " * 20_000,
    "both ways": "**x *" * 10_000 + "*y** " * 10_000,
    "ticks": "".join("`" * n + " a" for n in range(600)),
    "addresses": "http://a." * 10_000,
    "paragraphs": "a\n\n" * 60_000,
    "lines": "a\n" * 90_000,
    "beyond the bound": "[*`> " * 400_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_answer_hangs_the_page(shared: Page, text: str):
    _, seconds = shared.evaluate(SHOW, text)

    assert seconds < SECONDS


@pytest.mark.parametrize("mark", [">", "- ", "1. "])
def test_text_that_is_too_deep_is_still_shown(shared: Page, mark: str):
    html(shared, mark * 500 + "the end")

    content = shared.locator("#messages .content")
    assert "the end" in content.inner_text()
    assert content.locator("blockquote, li").count() <= 20


def test_long_answers_are_shown_as_they_are(shared: Page):
    text = "**a** " * 40_000
    html(shared, text)

    assert shared.locator("#messages strong").count() == 0
    assert shared.locator("#messages .plain").text_content() == text


def test_a_long_stream_is_drawn_in_a_part_of_the_time(page: Page):
    """5,000 pieces: drawing each anew would take minutes."""
    page.evaluate(
        """() => {
            const real = window.fetch;
            window.draws = 0;
            new MutationObserver(() => draws++).observe(document.getElementById("messages"),
                { childList: true, subtree: true });
            window.fetch = async (url, init) => {
                if (!String(url).includes("chat/completions")) return real(url, init);
                const chunk = { choices: [{ delta: { content: "**word** [[[[ ".repeat(2) } }] };
                const data = new TextEncoder().encode(`data: ${JSON.stringify(chunk)}\\n\\n`);
                let left = 5000;
                return new Response(new ReadableStream({
                    pull(stream) { left-- ? stream.enqueue(data) : stream.close(); } }));
            };
        }"""
    )
    page.fill("#text", "Tell me a very long story.")
    page.press("#text", "Enter")

    expect(page.locator(".content strong")).to_have_count(10_000)
    assert 0 < page.evaluate("draws") < 500
