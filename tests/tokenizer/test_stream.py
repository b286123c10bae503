"""Streaming: characters in pieces, broken bytes, the space in front."""

import pytest

from ggmodel.errors import TokenizerError
from ggmodel.tokenizer import Tokenizer


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One id a byte."""
    return [
        next(i for i in range(tokenizer.size) if tokenizer.token_bytes(i) == bytes([b]))
        for b in data
    ]


@pytest.mark.parametrize("name", ["gpt-2", "spm-bytes"])
def test_a_character_is_held_back_until_it_is_complete(tokenizers, name):
    stream = tokenizers[name].stream(after=None)
    ids = byte_ids(tokenizers[name], "é🙂!".encode())
    assert [stream.push(id) for id in ids] == ["", "é", "", "", "", "🙂", "!"]
    assert stream.flush() == ""


@pytest.mark.parametrize("name", ["gpt-2", "spm-bytes"])
def test_what_stays_incomplete_is_replaced_at_the_end(tokenizers, name):
    stream = tokenizers[name].stream()
    ids = byte_ids(tokenizers[name], "🙂".encode()[:3])
    assert [stream.push(id) for id in ids] == ["", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_invalid_bytes_are_replaced_where_they_stand(tokenizers):
    tokenizer = tokenizers["gpt-2"]
    stream = tokenizer.stream()
    ids = byte_ids(tokenizer, b"a\xff\xe2\x82b")
    assert [stream.push(id) for id in ids] == ["a", "\ufffd", "", "", "\ufffdb"]


def test_a_flushed_stream_begins_anew(tokenizers):
    tokenizer = tokenizers["spm-bytes"]
    ids = tokenizer.encode("the ships", add_special=False)
    stream = tokenizer.stream()
    for _ in range(2):
        assert "".join(map(stream.push, ids)) + stream.flush() == "the ships"


def test_the_space_that_encode_added_is_dropped(tokenizers):
    tokenizer = tokenizers["spm-bytes"]
    the = tokenizer.encode("the", add_special=False)
    assert tokenizer.token(the[0]).startswith("▁")
    assert tokenizer.decode(the) == "the"
    assert tokenizer.decode([*the, *the]) == "the the"
    assert tokenizer.decode([tokenizer.bos, *the]) == "<s>the"
    assert tokenizer.decode([tokenizer.bos, *the], skip_special=True) == "the"
    assert tokenizer.decode(tokenizer.encode("  two", add_special=False)) == "  two"


def test_after_a_prompt_the_space_stays(tokenizers):
    tokenizer = tokenizers["spm-bytes"]
    the = tokenizer.encode("the", add_special=False)[0]
    assert tokenizer.stream(after=the).push(the).startswith(" ")
    assert not tokenizer.stream(after=tokenizer.bos).push(the).startswith(" ")
    with pytest.raises(TokenizerError, match="700"):
        tokenizer.stream(after=700)


def test_without_prefix_no_space_is_dropped(tokenizers):
    tokenizer = tokenizers["spm-plain"]
    assert tokenizer.decode(tokenizer.encode(" the", add_special=False)) == " the"


def test_special_tokens_are_skipped_and_user_defined_ones_are_not(tokenizers):
    tokenizer = tokenizers["gpt-2"]
    ids = tokenizer.encode("<|begin|>a<tool>b<|eot_id|>")
    assert tokenizer.decode(ids) == "<|begin|>a<tool>b<|eot_id|>"
    assert tokenizer.decode(ids, skip_special=True) == "a<tool>b"
    stream = tokenizer.stream(skip_special=True)
    assert "".join(map(stream.push, ids)) + stream.flush() == "a<tool>b"
