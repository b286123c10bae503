"""Bad input: every error is of ours, names what is wrong and says what to do."""

import random
import subprocess
import sys

import pytest

from ggmodel import limits
from ggmodel.errors import ConfigError, TokenizerError
from ggmodel.tokenizer import Tokenizer
from ggmodel.tokenizer.pretokenizers import PRE_TOKENIZERS

G = "tokenizer.ggml."


def refused(metadata, error, *parts):
    with pytest.raises(error) as caught:
        Tokenizer.from_metadata(metadata)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_keys(metadata, key):
    del metadata[G + key]
    refused(metadata, ConfigError, G + key, "convert")


def test_a_missing_or_unknown_pre_lists_the_known(metadata):
    metadata[G + "pre"] = "gpt-7"
    refused(metadata, TokenizerError, "gpt-7", "llama-bpe", "qwen2", "tekken")
    del metadata[G + "pre"]
    refused(metadata, TokenizerError, G + "pre", "llama-bpe")


def test_an_unknown_model_lists_the_known(metadata):
    metadata[G + "model"] = "plamo2"
    refused(metadata, TokenizerError, "plamo2", "gpt2", "llama", "bert", "t5", "rwkv")


@pytest.mark.parametrize("metadata", ["spm-bytes"], indirect=True)
@pytest.mark.parametrize("key", ["token_type", "scores"])
def test_wrong_lengths(metadata, key):
    metadata[G + key] = metadata[G + key][:-1]
    refused(metadata, ConfigError, G + key, "699", "700")


@pytest.mark.parametrize("metadata", ["spm-bytes"], indirect=True)
def test_sentencepiece_needs_scores(metadata):
    scores = metadata.pop(G + "scores")
    refused(metadata, ConfigError, G + "scores")
    metadata[G + "scores"] = [-1000.0] * len(scores)
    refused(metadata, TokenizerError, "scores", "one and the same")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", 7),
        ("pre", ["gpt-2"]),
        ("tokens", "abc"),
        ("tokens", []),
        ("tokens", ["a", 1]),
        ("token_type", ["normal"]),
        ("merges", 3),
        ("bos_token_id", "<s>"),
        ("bos_token_id", True),
        ("add_bos_token", "yes"),
        ("add_eos_token", 1),
    ],
)
def test_wrong_types(metadata, key, value):
    metadata[G + key] = value
    refused(metadata, ConfigError, G + key)


def test_duplicate_tokens(metadata):
    tokens = list(metadata[G + "tokens"])
    tokens[5] = tokens[300]
    metadata[G + "tokens"] = tokens
    refused(metadata, TokenizerError, "5", "300", "twice")


@pytest.mark.parametrize("merge", ["zz qqq", "a zz", "q z", "nospace", " ", "", "a ", " a"])
def test_merges_that_do_not_fit(metadata, merge):
    assert not {"zz", "qqq", "qz"} & set(metadata[G + "tokens"])
    at = len(metadata[G + "merges"])
    metadata[G + "merges"] = [*metadata[G + "merges"], merge]
    what = "not in the vocabulary" if " " in merge.strip() else "no pair"
    refused(metadata, TokenizerError, G + f"merges[{at}]", what)


def test_a_piece_may_begin_with_a_space(metadata):
    # As in vocabularies whose tokens are not spelled in the byte alphabet.
    more = {"tokens": ["▁", " ", " !"], "token_type": [1] * 3, "merges": ["  !"]}
    metadata = {**metadata, **{G + key: metadata[G + key] + value for key, value in more.items()}}
    tokenizer = Tokenizer.from_metadata({**metadata, G + "model": "gemma4"})
    assert tokenizer.encode("!", add_special=False) == [tokenizer.id_of("!")]


@pytest.mark.parametrize("id", [563, 10**9])
def test_special_ids_out_of_range(metadata, id):
    metadata[G + "eos_token_id"] = id
    refused(metadata, ConfigError, G + "eos_token_id", str(id), "563")


@pytest.mark.parametrize("id", [-1, 2**32 - 1])
def test_there_may_be_no_such_token(metadata, id):
    metadata[G + "bos_token_id"] = id
    assert Tokenizer.from_metadata(metadata).bos is None


@pytest.mark.parametrize("id", [-1, 563, 10**12])
def test_ids_out_of_range(tokenizers, id):
    tokenizer = tokenizers["gpt-2"]
    for use in (
        tokenizer.token_bytes,
        tokenizer.token,
        tokenizer.is_special,
        tokenizer.stream().push,
    ):
        with pytest.raises(TokenizerError, match=rf"{id}.*563"):
            use(id)
    with pytest.raises(TokenizerError, match="563"):
        tokenizer.decode([1, id])


@pytest.mark.parametrize("name", ["gpt-2", "spm-bytes", "wordpiece"])
def test_a_lone_surrogate_is_no_text(tokenizers, name):
    with pytest.raises(TokenizerError, match=r"U\+D83D at index 3"):
        tokenizers[name].encode("abc\ud83d")


@pytest.mark.parametrize("metadata", ["spm-bytes", "gpt-2"], indirect=True)
def test_tokens_that_are_no_utf8_keep_their_bytes(metadata):
    # The reader escapes such bytes as surrogates; no text can hold them.
    last = len(metadata[G + "tokens"])
    for key, value in (("tokens", "\udcff\udcfe"), ("token_type", 1), ("scores", -1.0)):
        if G + key in metadata:
            metadata[G + key] = [*metadata[G + key], value]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.token_bytes(last) == b"\xff\xfe"
    assert tokenizer.decode(tokenizer.encode("the ships", add_special=False)) == "the ships"


def test_empty_tokens_keep_their_place(metadata):
    metadata[G + "tokens"] = [*metadata[G + "tokens"], ""]
    metadata[G + "token_type"] = [*metadata[G + "token_type"], 3]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.token(563) == "[EMPTY_563]"
    assert tokenizer.decode(tokenizer.encode("the", add_special=False)) == "the"


@pytest.mark.parametrize("metadata", ["spm-bytes", "gpt-2"], indirect=True)
def test_types_may_be_missing(metadata):
    del metadata[G + "token_type"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode("the 🙂\n", add_special=False)) == "the 🙂\n"


@pytest.mark.parametrize("metadata", ["spm-bytes"], indirect=True)
def test_a_misspelt_byte_token(metadata):
    metadata[G + "tokens"] = [t if t != "<0x41>" else "<byte>" for t in metadata[G + "tokens"]]
    tokenizer = Tokenizer.from_metadata(metadata)
    with pytest.raises(TokenizerError, match="<byte>"):
        tokenizer.token_bytes(metadata[G + "tokens"].index("<byte>"))


@pytest.mark.parametrize("metadata", ["spm-bytes"], indirect=True)
def test_huge_pieces_cost_no_time(metadata):
    metadata[G + "tokens"] = [*metadata[G + "tokens"][:-1], "▁" * 2_000_000]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode("the ships", add_special=False)) == "the ships"


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_splits_and_gives_back_the_text(metadata, pre):
    metadata[G + "pre"] = pre
    tokenizer = Tokenizer.from_metadata(metadata)
    text = "We'LL count 12345 ships,\r\n\tfür 小さな船が <sentinel:12> IMGIMGABZ !?\n\n  x "
    ids = tokenizer.encode(text, add_special=False)
    if PRE_TOKENIZERS[pre].byte_level:
        assert tokenizer.decode(ids) == text
    else:  # needs a vocabulary of its own; this one lacks "▁" and bytes
        assert all(0 <= id < tokenizer.size for id in ids)


def test_import_is_light():
    code = "import sys, ggmodel.tokenizer; print('tokenizers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


NO_TEXT = [None, 5, b"a", ["a"], {"a": 1}]


@pytest.mark.parametrize("value", NO_TEXT, ids=repr)
@pytest.mark.parametrize("method", ["encode", "id_of", "id_of_text"])
def test_what_is_no_text_is_refused(tokenizers: dict, method: str, value: object):
    with pytest.raises(TokenizerError, match="is a string, not"):
        getattr(tokenizers["gpt-2"], method)(value)


@pytest.mark.parametrize("value", [None, "a", 1.5, [1], 10**30, -1], ids=repr)
@pytest.mark.parametrize(
    "method", ["token", "token_bytes", "bytes_and_start", "is_special", "starts_text"]
)
def test_what_is_no_id_is_refused(tokenizers: dict, method: str, value: object):
    with pytest.raises(TokenizerError):
        getattr(tokenizers["gpt-2"], method)(value)


@pytest.mark.parametrize("value", [None, 5, "a", ["a"], [1.5], [None], [10**30]], ids=repr)
def test_what_are_no_ids_is_refused(tokenizers: dict, value: object):
    with pytest.raises(TokenizerError):
        tokenizers["gpt-2"].decode(value)


def test_a_lone_surrogate_is_no_token(tokenizers: dict):
    assert {t.id_of_text("\ud800") for t in tokenizers.values()} == {None}


def test_vocabularies_have_limits(monkeypatch: pytest.MonkeyPatch):
    tokens = [chr(97 + i) for i in range(26)] + ["ab"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b"],
    }
    monkeypatch.setattr(limits, "vocabulary_tokens", 27)
    monkeypatch.setattr(limits, "vocabulary_merges", 1)
    monkeypatch.setattr(limits, "vocabulary_letters", 28)
    Tokenizer.from_metadata(metadata)
    for key in ("tokens", "merges"):
        monkeypatch.setattr(limits, f"vocabulary_{key}", len(metadata[f"tokenizer.ggml.{key}"]))
        more = metadata | {f"tokenizer.ggml.{key}": [*metadata[f"tokenizer.ggml.{key}"], "b a"]}
        with pytest.raises(TokenizerError, match=rf"{key} has .* the limit .*vocabulary_{key}"):
            Tokenizer.from_metadata(more)
    monkeypatch.setattr(limits, "vocabulary_letters", 27)
    with pytest.raises(TokenizerError, match=r"tokens has 28 letters, .*vocabulary_letters"):
        Tokenizer.from_metadata(metadata)


CHARSMAP = G + "precompiled_charsmap"


@pytest.mark.parametrize("metadata", ["unigram"], indirect=True)
def test_damaged_charsmaps_are_refused_or_do_no_harm(metadata):
    """A trie that leads out of its bounds would end the process."""
    whole, refusals, built_ones = metadata[CHARSMAP], 0, 0
    draw = random.Random(3)
    for _ in range(150):
        damaged = list(whole)
        for _ in range(draw.choice([1, 1, 4, 40])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        if draw.random() < 0.2:
            del damaged[draw.randrange(len(damaged)) :]
        try:
            built = Tokenizer.from_metadata({**metadata, CHARSMAP: damaged})
        except TokenizerError as error:
            refusals += CHARSMAP in str(error)
            continue
        built.encode("".join(map(chr, range(1, 0x700))) + "ﬁ…\u3000e\u0301")
        built_ones += 1
    assert refusals + built_ones == 150
    assert refusals > 30


@pytest.mark.parametrize("metadata", ["unigram"], indirect=True)
def test_unigrams_need_scores_and_an_unknown_token(metadata):
    refused({**metadata, G + "unknown_token_id": -1}, TokenizerError, "unknown_token_id")
    del metadata[G + "scores"]
    refused(metadata, ConfigError, G + "scores")
