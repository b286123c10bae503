"""Reading a vocabulary, and keeping it."""

from __future__ import annotations

from ggmodel.tokenizer import Tokenizer
from ggmodel.tokenizer.vocabulary import TokenType, merge_pairs, read_vocabulary

G = "tokenizer.ggml."


def tiny(merges: list[str], tokens: list[str]) -> dict[str, object]:
    model = {G + "model": "gpt2", G + "pre": "llama-bpe", G + "tokens": tokens}
    return {**model, G + "merges": merges, G + "token_type": [1] * len(tokens)}


def test_a_piece_of_a_merge_may_begin_with_a_space_or_hold_one():
    merges = ["a b", " a b", "ab c d"]
    assert merge_pairs(merges) == [("a", "b"), (" a", "b"), ("ab", "c d")]


def test_tokens_of_a_type_come_in_order():
    metadata = tiny([], ["a", "b", "c", "d"])
    metadata[G + "token_type"] = [1, 3, 4, 3]
    vocab = read_vocabulary(metadata)
    assert list(vocab.of_type([TokenType.CONTROL]).items()) == [("b", 1), ("d", 3)]
    assert vocab.of_type([TokenType.BYTE]) == {}


def test_an_empty_token_gets_a_name_of_its_own():
    vocab = read_vocabulary(tiny([], ["a", "", "b"]))
    assert vocab.tokens == ["a", "[EMPTY_1]", "b"]
    assert vocab.ids == {"a": 0, "[EMPTY_1]": 1, "b": 2}


def test_text_becomes_a_control_token_only_where_merges_spell_it():
    metadata = tiny(["a b", "ab c"], ["a", "b", "c", "ab", "abc", "bca"])
    metadata[G + "token_type"] = [1, 1, 1, 1, 3, 3]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("abc", parse_special=False, add_special=False) == [4]
    # This kind of vocabulary looks words up as a whole before it merges; not so control tokens.
    assert tokenizer.encode("bca", parse_special=False, add_special=False) == [1, 2, 0]


def test_the_merges_belong_to_the_encoder_alone():
    metadata = tiny(["a b"], ["a", "b", "ab"])
    assert read_vocabulary(metadata).merges == ["a b"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer._vocab.merges is None
    assert tokenizer.encode("ab", add_special=False) == [2]
