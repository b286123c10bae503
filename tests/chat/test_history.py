"""Conversations that grow beyond the context."""

from __future__ import annotations

import pytest

from ggmodel.chat import fitting


def messages(text: str) -> list[dict[str, str]]:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[m[0]], "content": m} for m in text.split()]


@pytest.mark.parametrize(
    ("before", "size", "after"),
    [
        ("s u1 a1 u2 a2 u3", 6, "s u1 a1 u2 a2 u3"),
        ("s u1 a1 u2 a2 u3", 5, "s u2 a2 u3"),
        ("s u1 a1 u2 a2 u3", 3, "s u3"),
        ("s u1 a1 u2 a2 u3", 1, "s u3"),
        ("u1 a1 u2", 2, "u2"),
        ("u1 a1 t1 a1 u2", 2, "u2"),
        ("s a0 u1 a1 u2", 4, "s a0 u2"),
        ("s u1", 1, "s u1"),
        ("s a1", 1, "s a1"),
    ],
)
def test_the_oldest_turns_go(before: str, size: int, after: str):
    assert fitting(messages(before), lambda kept: len(kept) <= size) == messages(after)


def test_a_long_conversation_is_tried_a_few_times():
    turns = messages("s " + " ".join(f"u{i} a{i}" for i in range(1000)))
    tried: list[int] = []

    def fits(kept: list[dict[str, str]]) -> bool:
        tried.append(len(kept))
        return len(kept) <= 99

    assert fitting(turns, fits) == [turns[0], *turns[-98:]]
    assert len(tried) < 13 and len(set(tried)) == len(tried)


def test_no_selection_is_tried_twice():
    tried: list[int] = []
    fitting(messages("s u1 a1 u2 a2 u3"), lambda kept: bool(tried.append(len(kept))))
    assert tried == [6, 4]
