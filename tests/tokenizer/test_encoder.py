"""Encoders of parts of a vocabulary give the ids that the whole gives."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from ggmodel.errors import TokenizerError
from ggmodel.tokenizer import Tokenizer
from ggmodel.tokenizer.encoder import Encoder, build
from ggmodel.tokenizer.vocabulary import Vocabulary, read_vocabulary
from tests.tokenizer.conftest import DATA

G = "tokenizer.ggml."
MODELS = {name: data["metadata"][G + "model"] for name, data in sorted(DATA.items())}
# One pre-tokenizer looks up whole words first, and one names bytes.
IN_PARTS = [(name, None) for name, model in MODELS.items() if model not in ("bert", "t5")]
IN_PARTS += [(name, p) for name, m in MODELS.items() if m == "gpt2" for p in ("tekken", "gemma4")]


def vocabulary(name: str, **changes: object) -> Vocabulary:
    return read_vocabulary({**DATA[name]["metadata"], **{G + k: v for k, v in changes.items()}})


def whole_ids(vocab: Vocabulary, texts: list[str]) -> list[list[int]]:
    whole = build(vocab)
    return [whole.encode(text, add_special_tokens=False).ids for text in texts]


def drawn(vocab: Vocabulary, count: int) -> list[str]:
    """Seeded texts out of tokens, special ones and spelled bytes among them, and any characters."""
    draw = random.Random(7)
    tokens = [t for t in vocab.tokens if t.isprintable()]
    odd = ["▁", "▁▁▁▁", "\n", "Ġ", "é", "日", "🙂", "\x00", "<0x0A>", "<0xE2>", "'ll", "12345"]
    texts = [""]
    for _ in range(count):
        letters = [chr(draw.randrange(0x20, 0x300)) for _ in range(3)]
        texts.append("".join(draw.choices([*tokens, *odd * 8, *letters], k=draw.randrange(14))))
    return texts


@pytest.mark.parametrize(("name", "pre"), IN_PARTS)
def test_parts_give_the_ids_of_the_whole(name, pre):
    vocab = vocabulary(name, **({"pre": pre} if pre else {}))
    encoder = Encoder(vocab)
    encoder._left = 10**12
    texts = drawn(vocab, 400)
    expected = whole_ids(vocab, texts)
    assert [encoder.encode([text])[0] for text in texts] == expected
    assert encoder.encode(texts) == expected
    assert encoder._whole is None
    assert max(map(len, expected)) > 10


@pytest.mark.parametrize("name", ["gpt-2", "spm-bytes"])
def test_the_whole_is_built_when_parts_have_cost_as_much(name):
    vocab = vocabulary(name)
    encoder = Encoder(vocab)
    assert encoder.encode(["the ships"]) == whole_ids(vocab, ["the ships"])
    assert encoder._whole is None
    several = ["the sea", "the ships " * 200]
    assert encoder.encode(several) == whole_ids(vocab, several)
    assert encoder._whole is not None
    assert encoder.encode(["the ships"]) == whole_ids(vocab, ["the ships"])


def test_several_threads_encode_while_the_whole_is_built():
    vocab = vocabulary("spm-bytes")
    encoder, texts = Encoder(vocab), drawn(vocab, 60)
    encoder._left = 30 * 2500
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: encoder.encode([text])[0], texts))
    assert found == whole_ids(vocab, texts)
    assert encoder._whole is not None


def test_what_parts_cannot_stand_for_is_built_whole_at_once():
    plain = DATA["gpt-2"]["metadata"]
    for token in ("\udcff", "x" * 2000):
        vocab = vocabulary(
            "gpt-2",
            tokens=[*plain[G + "tokens"], token],
            token_type=[*plain[G + "token_type"], 1],
        )
        assert Encoder(vocab)._whole is not None
    assert Encoder(vocabulary("gpt-2", merges=[]))._whole is not None


def test_neighbours_meet_where_a_character_between_them_has_no_token():
    metadata = {
        G + "model": "gpt2",
        G + "pre": "gpt-2",
        G + "tokens": ["a", "b", "ab", "c", "abc"],
        G + "merges": ["a b", "ab c"],
    }
    vocab = read_vocabulary(metadata)
    encoder = Encoder(vocab)
    encoder._left = 10_000
    assert encoder.encode(["azbzzc", "zz", "za"]) == [[4], [], [0]]
    assert encoder._whole is None
    assert whole_ids(vocab, ["azbzzc"]) == [[4]]


@pytest.mark.parametrize(("stand_in", "text"), [("<unk>", "日a"), ("<0xA9>", "éa")])
def test_what_stands_for_a_missing_character_may_merge(stand_in, text):
    tokens = ["<unk>", "<0xC3>", "<0xA9>", "a", "b", "ab", stand_in + "a"]
    metadata = {
        G + "model": "llama",
        G + "tokens": tokens,
        G + "token_type": [1] * len(tokens),
        G + "scores": [0.0] * 3 + [-float(i) for i in range(4)],
        G + "merges": ["a b", f"{stand_in} a"],
        G + "unknown_token_id": 0,
    }
    for model in ("llama", "gemma4"):
        vocab = read_vocabulary({**metadata, G + "model": model})
        found = Encoder(vocab).encode([text])
        assert found == whole_ids(vocab, [text])
        assert found[0][-1] == 6


def test_an_unknown_token_that_is_none_is_found_before_the_first_text():
    metadata = {**DATA["spm-bytes"]["metadata"], G + "unknown_token_id": 10**6}
    with pytest.raises(TokenizerError, match="unknown_token_id"):
        Tokenizer.from_metadata(metadata)


def test_ctrl_c_ends_the_encoding_of_a_long_text(tokenizers):
    text = "a" * 8_000_000
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    before = time.monotonic()

    def encode() -> None:
        timer.start()
        tokenizers["llama-bpe"].encode(text)

    with pytest.raises(KeyboardInterrupt):
        encode()
    timer.join()
    assert time.monotonic() - before < 5
    assert tokenizers["llama-bpe"].encode("a", add_special=False)


@pytest.mark.slow
def test_a_long_text_leaves_pythons_lock_to_others():
    """Another thread goes on while a text of half a second and more is encoded."""
    tokenizer = Tokenizer.from_metadata(DATA["gpt-2"]["metadata"])
    text = "hello there " * 100_000
    tokenizer.encode(text[:300_000])  # builds the whole vocabulary
    ticks, ended = [time.monotonic()], threading.Event()

    def tick() -> None:
        while not ended.wait(0.005):
            ticks.append(time.monotonic())

    ticker = threading.Thread(target=tick)
    ticker.start()
    begun = time.monotonic()
    tokenizer.encode(text)
    took = time.monotonic() - begun
    ended.set()
    ticker.join()
    assert max(b - a for a, b in pairwise(ticks)) < took / 2


@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_text_has_fewer_tokens_than_its_length_allows(name: str):
    vocab = vocabulary(name)
    tokenizer = Tokenizer(vocab)
    texts = drawn(vocab, 40) + [
        t * 50 for t in sorted(vocab.tokens, key=len)[-5:] if t.isprintable()
    ]
    texts += ["\N{SNOWMAN}" * 900, "x" * 900]  # unknown ones, or one word
    for text in texts:
        ids = tokenizer.encode(text, add_special=False)
        assert len(text) <= max(1, len(ids)) * tokenizer.longest, text
