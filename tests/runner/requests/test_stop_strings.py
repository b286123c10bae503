"""Stop strings that span tokens."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.runner.requests.completion import AnswerText
from ggmodel.tokenizer import Tokenizer

LETTERS = st.text("ab", max_size=6)


class Texts(Tokenizer):
    """A tokenizer whose ids are texts."""

    hides_space = False

    def __init__(self):
        pass

    def bytes_and_start(self, id: Any) -> tuple[bytes, bool]:
        return id.encode(), False


def watch_for(stops: list[str]) -> Any:
    return AnswerText(Texts(), None, stops)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.lists(LETTERS, max_size=10), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_text_ends_at_the_first_stop_string(pieces: list[str], stops: list[str]):
    watch, handed = watch_for(stops), ""
    for piece in pieces:
        handed += watch.push(piece)
        assert not any(s in handed for s in stops)
        if watch.stop is not None:
            break
    handed += watch.flush()
    whole = "".join(pieces)
    ends = [whole.find(s) for s in stops if s in whole]
    assert (watch.stop is not None) == bool(ends)
    if not ends:
        assert handed == whole
    else:
        # The stop string that is complete first decides; of several in one piece the leftmost.
        assert whole.startswith(handed)
        assert watch.stop in stops and whole[len(handed) :].startswith(watch.stop)


def test_a_partial_stop_string_is_held_back_until_it_cannot_come_any_more():
    watch = watch_for(["</end>"])
    assert watch.push("a</e") == "a"
    assert watch.push("nd") == ""
    assert watch.push("ing") == "</ending"
    assert (watch.push("x</end>y"), watch.stop) == ("x", "</end>")
