"""The glossary links each term to a section that treats it; the site's search finds it there."""

from __future__ import annotations

import re

import pytest

from tests.documents import ROOT, read

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| \[[^]]+\]\(([\w-]+\.md)(?:#([\w-]+))?\) \|$", re.M)
TERMS = {
    term: (meaning, page, anchor)
    for term, meaning, page, anchor in ROW.findall(read("docs/glossary.md"))
}
SEARCHED = (
    "speculative decoding",
    "continuous batching",
    "prefix caching",
    "mmproj",
    "imatrix",
    "prefill",
)


def slug(heading: str) -> str:
    """The anchor of a heading, as the site makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def section(page: str, anchor: str) -> str:
    """The text below a heading and up to the next one of its level; the page without an anchor."""
    text = read(f"docs/{page}")
    if not anchor:
        return text
    outside = re.sub(r"^```.*?^```$", lambda code: " " * len(code[0]), text, flags=re.M | re.S)
    headings = list(re.finditer(r"^(#+) (.+)$", outside, re.M))
    (found,) = [h for h in headings if slug(h[2]) == anchor]
    after = [h for h in headings if h.start() > found.start() and len(h[1]) <= len(found[1])]
    return text[found.start() : after[0].start() if after else None]


def singular(term: str) -> str:
    return term.casefold().removesuffix("s")


def test_every_row_is_a_term():
    rows = [line for line in read("docs/glossary.md").splitlines() if line.startswith("| ")]
    heads = [line for line in rows if line.startswith("| term ")]
    assert len(TERMS) == len(rows) - len(heads) > 50
    assert not [term for term, (meaning, _, _) in TERMS.items() if not meaning.endswith(".")]


@pytest.mark.parametrize("term", TERMS)
def test_the_linked_section_has_the_term(term: str):
    _, page, anchor = TERMS[term]
    text = " ".join(section(page, anchor).split()).casefold()
    assert singular(term) in text, f"{page}#{anchor}"


@pytest.mark.parametrize("term", SEARCHED)
def test_a_search_finds_more_than_the_glossary(term: str):
    assert term in TERMS
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name != "glossary.md"]
    assert [page for page in pages if term.casefold() in page.read_text("utf-8").casefold()]
