"""Long numbers: cut for the pre-tokenizers that group digits from the right."""

from __future__ import annotations

import random
import time
from functools import cache

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from ggmodel.tokenizer import pretokenizers
from ggmodel.tokenizer.pretokenizers import PRE_TOKENIZERS, cut

GROUPING = ["tiny_aya", "afmoe", "superbpe"]
# A letter in a circle is a symbol, but goes on with a word; a Bengali fraction is a number that
# does not.
LETTERS = ["x", " ", "_", ".", "é", "\u0301", "\u0663", "²", "日", "-", "Ⓐ", "\u09f4"]


@cache
def sequence(pre: str) -> Sequence:
    return Sequence([Split(Regex(split), "isolated") for split in PRE_TOKENIZERS[pre].splits])


def pieces(pre: str, text: str) -> list[str]:
    return [piece for piece, _ in sequence(pre).pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", GROUPING)
def test_cut_numbers_have_the_same_pieces(pre: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pretokenizers, "_LONG", 6)
    pretokenizers._long_numbers.cache_clear()
    random_ = random.Random(5)
    for _ in range(500):
        words = random_.choices(LETTERS, k=8)
        numbers = ["".join(random_.choices("0123456789", k=random_.randint(0, 40))) for _ in words]
        text = "".join(a + b for a, b in zip(words, numbers, strict=True))
        parts = list(cut(text, PRE_TOKENIZERS[pre].splits))
        assert "".join(parts) == text
        assert [p for part in parts for p in pieces(pre, part)] == pieces(pre, text), text
    pretokenizers._long_numbers.cache_clear()


@pytest.mark.parametrize("tail", ["", "x", " x", "²"])
@pytest.mark.parametrize("pre", GROUPING)
def test_a_number_takes_a_time_that_grows_with_its_length(pre: str, tail: str):
    before = time.monotonic()
    parts = list(cut("1" * 40_000 + tail, PRE_TOKENIZERS[pre].splits))
    assert sum(len(pieces(pre, part)) for part in parts) > 13_000
    assert time.monotonic() - before < 20  # once minutes


@pytest.mark.parametrize("pre", sorted(set(PRE_TOKENIZERS) - set(GROUPING) - {"cohere2moe"}))
def test_other_texts_stay_whole(pre: str):
    text = "1" * 10_000
    assert list(cut(text, PRE_TOKENIZERS[pre].splits)) == [text]
