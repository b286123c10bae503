"""Tables and bars, by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ggmodel.cli import terminal


def test_columns_of_numbers_are_flushed_right(capsys: pytest.CaptureFixture[str]):
    rows = [("a", "1", "of"), ("long", "22", "on")]
    terminal.console().print(terminal.table(rows, ("name", "n", "state"), right="1"))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["name   n  state", "a      1  of", "long  22  on"]


def test_errors_are_red_where_colours_are_welcome(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    terminal.say_error("no\x07 such file")
    assert capsys.readouterr().err == "error: no\\x07 such file\n"
    monkeypatch.setattr(terminal, "styled", lambda stream: True)
    terminal.say_error("no such file")
    assert capsys.readouterr().err == "\x1b[31merror: no such file\x1b[39m\n"


def test_the_bar_names_what_is_under_way(monkeypatch: pytest.MonkeyPatch):
    shown: list[tuple[float, str]] = []

    @contextmanager
    def bar(what: str) -> Iterator[Callable[..., None]]:
        shown.append((0, what))
        yield lambda share, text: shown.append((share, text))

    monkeypatch.setattr(terminal, "progress_bar", bar)
    assert terminal.with_progress(iter("abcd"), ["one", "two", "three", "four"]) == [*"abcd"]
    assert shown == [(0, "one"), (0.25, "two"), (0.5, "three"), (0.75, "four")]


def test_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]):
    for lines in (False, True):
        with terminal.progress_bar("computing", lines) as progress:
            for share, text in ((0.0, "a: the prompt"), (0.1, "a: the prompt"), (0.5, "b")):
                progress(share, text)
        expected = "computing: a: the prompt\ncomputing: b\n" if lines else ""
        assert capsys.readouterr() == ("", expected)
