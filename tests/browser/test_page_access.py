"""The page for everybody: axe's rules, labels and contrast, in both colour schemes and widths."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.talk import answered, ask, setting

SHOW = """async () => {
    const { blocks } = await import("/page/markdown.js");
    const place = document.querySelector("#messages > li:last-child .content");
    const code = "```python\\ndef f(x: int):  # note\\n    return 'a' + 1\\n```";
    place.replaceChildren(...blocks(`# A\\n\\n$x^2$\\n\\n${code}\\n\\n- b\\n\\n|a|\\n|-|\\n|b|`));
}"""


def violations(page: Page) -> str:
    """Axe's findings: rule and element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="make test-browser")
    found = axe.Axe().run(page).response["violations"]
    nodes = [(one["id"], node["html"][:150]) for one in found for node in one["nodes"]]
    return "\n".join(f"{rule}: {html}" for rule, html in nodes)


@pytest.mark.parametrize("width", [1100, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, scheme: str, width: int):
    page.set_viewport_size({"width": width, "height": 720})
    setting(page, max_tokens="8", scheme=scheme)

    assert not violations(page)  # the first screen
    ask(page, "Tell me a story.")
    page.locator("#messages > li").last.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".versions")).to_have_count(1)
    answered(page)
    assert not violations(page)
    page.evaluate(SHOW)
    expect(page.locator(".katex")).to_have_count(1)
    expect(page.locator(".hljs-keyword").first).to_be_visible()
    assert not violations(page)
    for dialog in ("settings", "manage"):
        page.click(f"#open-{dialog}")
        expect(page.locator(f"#{dialog}")).to_be_visible()
        assert not violations(page)
        page.keyboard.press("Escape")
    if width < 600:
        page.click("#open-side")
    page.get_by_label("More on Tell me a story.").click()
    assert not violations(page)
