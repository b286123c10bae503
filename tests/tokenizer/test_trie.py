"""RWKV's vocabulary: the longest bytes from left to right.

Ids beside those of the package rwkv are in tests/convert/vocabulary/test_round_trip.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from ggmodel.errors import TokenizerError
from ggmodel.tokenizer import Tokenizer
from ggmodel.tokenizer.trie import unescaped

G = "tokenizer.ggml."
# "é" is \xc3\xa9, "è" \xc3\xa8, "日" \xe6\x97\xa5.
TOKENS = ["<s>", "a", "b", "ab", "abcd", "\\xc3", "\\xa9", "\\xe6\\x97", "\\xa5a", "\\n", "\\n\\n"]
TOKENS += ["\\\\", "'\"", "[PAD13]"]


def made(**keys: Any) -> Tokenizer:
    types = [3, *[1] * (len(TOKENS) - 2), 5]
    vocab = {G + "model": "rwkv", G + "tokens": TOKENS, G + "token_type": types}
    ends = {G + "bos_token_id": 0, G + "eos_token_id": 0, G + "eot_token_id": 10}
    return Tokenizer.from_metadata(vocab | ends | {G + key: value for key, value in keys.items()})


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("abab", [3, 3]),
        ("abcab", [3, 3]),  # "c" has no token, and a longer beginning is no token
        ("abcdab", [4, 3]),
        ("é", [5, 6]),
        ("è", [5]),
        ("日ab", [7, 8, 2]),  # the end of a character, and what follows it
        ("\n\n\n", [10, 9]),
        ("\\'\"", [11, 12]),
        ("[PAD13]", []),
        ("", []),
    ],
)
def test_the_longest_token_is_first(text: str, ids: list[int]):
    assert made().encode(text) == ids


def test_bytes_without_a_token_are_the_unknown_one():
    assert made(unknown_token_id=13).encode("abc è") == [3, 13, 13, 5, 13]


def test_the_end_is_no_text_unless_special_tokens_are_read():
    tokenizer = made()
    assert tokenizer.encode("a<s>b") == [1, 0, 2]
    assert tokenizer.encode("a<s>b", parse_special=False) == [1, 2]
    assert tokenizer.eog == {0, 10} and not tokenizer.add_bos


def test_texts_come_back_token_by_token():
    tokenizer = made()
    stream = tokenizer.stream()
    assert [stream.push(id) for id in (7, 8, 9, 11, 12)] == ["", "日a", "\n", "\\", "'\""]
    assert tokenizer.decode([7]) == "\ufffd"
    assert tokenizer.token_bytes(8) == b"\xa5a" and tokenizer.token_bytes(0) == b"<s>"
    assert (tokenizer.id_of_text("\n\n"), tokenizer.id_of_text("日")) == (10, None)


def test_places_are_in_characters():
    ids, places = made().encode_spans("日ab é")
    assert ids == [7, 8, 2, 5, 6]
    assert places == [(0, 1), (0, 2), (2, 3), (4, 5), (4, 5)]


def test_bytes_are_spelled_as_python_spells_them():
    each = [*(bytes([i]) for i in range(256)), b"\\n", b"'\"", b"\\\\x41", "日".encode()]
    assert [unescaped(repr(token)[2:-1]) for token in each] == each


def test_tokens_that_are_too_long_are_refused():
    """Each length behind one beginning is looked up at each place of a text."""
    with pytest.raises(TokenizerError, match="token 1 has 257 bytes, RWKV's have 256 at most"):
        made(tokens=[TOKENS[0], 257 * "a", *TOKENS[2:]]).encode("a")
