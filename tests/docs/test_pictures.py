"""The pictures of terminals in docs: drawn out of what commands print, and up to date."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path

from tests.documents import ROOT, read

DOCS = ROOT / "docs"


def words(picture: str) -> list[str]:
    """The texts of a picture in order, without numbers, which differ from processor to processor,
    and spaces."""
    texts = [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", picture)]
    plain = [re.sub(r"-?\d[\d.]*(e[-+]\d+)?", "", text) for text in texts]
    return [" ".join(text.split()) for text in plain if text.strip()]


def test_the_pictures_are_what_the_commands_print():
    generator = runpy.run_path(str(DOCS / "generate_pictures.py"))
    drawn = generator["pictures"]()
    kept = {name: (DOCS / name).read_text("utf-8") for name in drawn}
    again = "draw them again: python docs/generate_pictures.py"
    assert words(drawn["diff.svg"]) == words(kept["diff.svg"]), again
    for name, picture in kept.items():
        commands = [text for text in words(picture) if text.startswith("$")]
        assert commands == [text for text in words(drawn[name]) if text.startswith("$")], again


def test_the_pictures_tell_what_the_page_says():
    texts = words((DOCS / "diff.svg").read_text("utf-8"))
    assert any("is the first module that diverges" in text for text in texts)
    demo = (DOCS / "demo.svg").read_text("utf-8").replace("&#160;", " ")
    assert "a red circle and a blue square." in demo
    for name in ("diff.svg", "demo.svg"):
        picture = (DOCS / name).read_text("utf-8")
        assert set(re.findall(r"https?://[^\"') ]+", picture)) == {"http://www.w3.org/2000/svg"}
        assert str(Path.home()) not in picture
        assert name in read("docs/index.md")


def test_the_demo_moves_for_those_who_want_it():
    demo = (DOCS / "demo.svg").read_text("utf-8")
    still, moving = demo.split("@media (prefers-reduced-motion: no-preference) {")
    rules = re.findall(
        r"#terminal-line-(\d+) rect { animation: appear [\d.]+s .* backwards }", moving
    )
    lines = re.findall(r"clip-path=\"url\(#terminal-line-(\d+)\)\">[^<\s]", moving)
    assert [*dict.fromkeys(lines)] == rules and len(rules) > 6
    assert "animation" not in still
    assert "animation" not in (DOCS / "diff.svg").read_text("utf-8")
