"""Properties for any text and any ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.tokenizer import Tokenizer

BYTE_LEVEL = ["gpt-2", "starcoder", "falcon", "llama-bpe"]
ALL = [*BYTE_LEVEL, "spm-bytes", "spm-plain", "wordpiece"]
SPECIALS = ["<|begin|>", "<|eot_id|>", "<tool>", "</s>", "[MASK]", "<unk>", "<0x0A>"]
FEW = settings(max_examples=60, deadline=None)

# Text as people have it: any character, words, runs, specials; never a lone surrogate.
texts = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from([*SPECIALS, " ", "\n", "    ", "the ", "3141", "it's", "é", "日本", "🙂"]),
    ),
    max_size=8,
).map("".join)


def ids_of(tokenizer: Tokenizer):
    return st.lists(st.integers(0, tokenizer.size - 1), max_size=40)


@pytest.mark.parametrize("name", BYTE_LEVEL)
@FEW
@given(text=texts, parse_special=st.booleans())
def test_byte_level_gives_back_every_text(tokenizers, name, text, parse_special):
    tokenizer = tokenizers[name]
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    assert tokenizer.decode(ids) == text


@FEW
@given(text=texts.filter(lambda text: "▁" not in text and "<unk>" not in text))
def test_sentencepiece_with_bytes_gives_back_every_text(tokenizers, text):
    tokenizer = tokenizers["spm-bytes"]
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@pytest.mark.parametrize("name", ALL)
@FEW
@given(text=texts)
def test_any_text_encodes_to_ids_in_range(tokenizers, name, text):
    tokenizer = tokenizers[name]
    for parse_special in (False, True):
        ids = tokenizer.encode(text, parse_special=parse_special)
        assert all(type(id) is int and 0 <= id < tokenizer.size for id in ids)


@pytest.mark.parametrize("name", ALL)
@FEW
@given(data=st.data(), skip_special=st.booleans())
def test_a_stream_gives_what_decode_gives(tokenizers, name, data, skip_special):
    tokenizer = tokenizers[name]
    ids = data.draw(ids_of(tokenizer))
    stream = tokenizer.stream(skip_special=skip_special)
    pushed = [stream.push(id) for id in ids]
    whole = "".join(pushed) + stream.flush()
    assert whole == tokenizer.decode(ids, skip_special=skip_special)


@pytest.mark.parametrize("name", BYTE_LEVEL)
@FEW
@given(data=st.data())
def test_decode_is_the_bytes_with_replacement(tokenizers, name, data):
    tokenizer = tokenizers[name]
    ids = data.draw(ids_of(tokenizer))
    together = b"".join(tokenizer.token_bytes(id) for id in ids)
    assert tokenizer.decode(ids) == together.decode("utf-8", "replace")
