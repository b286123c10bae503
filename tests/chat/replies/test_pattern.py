"""Declared patterns match as Python's do, in any pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.chat.replies.pattern import Pattern, Search, matches
from ggmodel.errors import TemplateError

_ATOMS = st.sampled_from(["a", "b", r"\s", "[ab]", "[^a]", ".", "<", " ", r"\w", r"\n", r"[\]<-]"])
_TIMES = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{1,2}", "{2}", "{0,2}?", "{1,}"])


def _larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def repeated(part: str, times: str) -> str:
        # How often an empty match repeats differs from engine to engine.
        return part if re.fullmatch(part, "") else f"(?:{part}){times}"

    return st.one_of(
        st.tuples(parts, parts).map("".join),
        st.tuples(parts, parts).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.builds(repeated, parts, _TIMES),
    )


_PATTERNS = st.recursive(_ATOMS, _larger, max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(
    begin=st.sampled_from(["", "^", r"\A"]),
    first=_PATTERNS,
    named=_PATTERNS,
    end=st.sampled_from(["", "", "$", r"\Z"]),
    text=st.text("ab< \n]", max_size=14),
    size=st.integers(1, 4),
)
def test_the_match_is_pythons(
    begin: str, first: str, named: str, end: str, text: str, size: int
) -> None:
    source = f"{begin}{first}(?P<named>{named}){end}"
    if not end and re.fullmatch(source, ""):
        with pytest.raises(TemplateError, match="where there is nothing"):
            Pattern.of(source, "here")
        return
    pattern = Pattern.of(source, "here")
    search = Search(pattern, 0)
    for at in range(0, len(text), size):
        search.feed(text[at : at + size])
    search.finish()
    wanted, found = re.search(source, text, re.DOTALL), search.match
    assert (found and (found.start, found.end)) == (wanted and wanted.span())
    if found and wanted:
        assert found.groups == {"named": wanted.span("named")}
        assert search.hold == wanted.start()


def test_each_match_is_found() -> None:
    pattern = Pattern.of("<(?P<key>[a-z]+)>(?P<value>.*?)</", "here")
    text = "<a>1</a> <b></b><c>never closed"
    groups = [match.groups for match in matches(pattern, text)]
    texts = [{name: text[a:b] for name, (a, b) in spans.items()} for spans in groups]
    assert texts == [{"key": "a", "value": "1"}, {"key": "b", "value": ""}]
