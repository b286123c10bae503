"""Files of tiktoken: which file and which class count, ranks in any order, damage and bounds.

That the metadata equals llama.cpp's and the ids tiktoken's is in `test_like_the_converter` and
`test_round_trip`.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

import ggmodel
from ggmodel import limits
from ggmodel.convert import convert
from ggmodel.convert.vocabulary import vocabulary
from ggmodel.errors import FormatError, TokenizerError
from ggmodel.tokenizer import Tokenizer
from tests.convert.folders import write_model
from tests.convert.vocabulary.published import KIMI
from tests.golden.files import load_golden
from tests.tokenizer.random_texts import CORPUS, texts

DATA = Path(__file__).parent / "data"
G = "tokenizer.ggml."
RANKS = 480
Line = tuple[bytes, int]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "kimi", tmp_path / "hf"))


def made(folder: Path, pre: str | None = None, **changed: Any) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return vocabulary(folder, config | changed, pre)


def settings(folder: Path, **changed: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changed), "utf-8")


def line(token: bytes, rank: int) -> bytes:
    return base64.b64encode(token) + b" %d" % rank


def read(folder: Path) -> list[bytes]:
    rows = (folder / "tiktoken.model").read_bytes().splitlines()
    return [base64.b64decode(row.split()[0]) for row in rows]


def write(folder: Path, tokens: list[bytes]) -> None:
    lines = (line(token, rank) for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines))


# which file counts, and which class


def test_a_tokenizer_json_goes_before_it(folder: Path):
    shutil.copy(DATA / "llama3" / "tokenizer.json", folder)
    (folder / "tiktoken.model").write_text("nothing")
    assert made(folder)[G + "pre"] == "llama-bpe"


@pytest.mark.parametrize("name", ["tokenizer.model", "hy.tiktoken"])
def test_other_names(folder: Path, name: str):
    before = made(folder)
    (folder / "tiktoken.model").rename(folder / name)
    assert {k: str(v) for k, v in made(folder).items()} == {k: str(v) for k, v in before.items()}


def test_a_sentencepiece_model_of_that_name_stays_one(folder: Path):
    (folder / "tiktoken.model").unlink()
    shutil.copy(DATA / "llama2" / "tokenizer.model", folder)
    assert made(folder)[G + "model"] == "llama"


def test_two_files(folder: Path):
    for name in ("a.tiktoken", "b.tiktoken"):
        shutil.copy(folder / "tiktoken.model", folder / name)
    (folder / "tiktoken.model").unlink()
    with pytest.raises(TokenizerError, match=r"2 vocabularies, a\.tiktoken, b\.tiktoken; leave"):
        made(folder)


@pytest.mark.parametrize("name", ["HYTokenizer", None, ["QWenTokenizer"]])
def test_an_unknown_class_needs_the_name_of_a_pre_tokenizer(folder: Path, name: Any):
    settings(folder, tokenizer_class=name)
    with pytest.raises(TokenizerError, match=r"names no class .*TikTokenTokenizer.*--pre NAME"):
        made(folder)
    vocab = made(folder, "hunyuan")
    assert vocab[G + "pre"] == "hunyuan"
    assert vocab[G + "tokens"][RANKS + 1 : RANKS + 6][-1] == "[PAD485]"
    assert vocab[G + "tokens"][RANKS + 22] == "<think>"


def test_a_named_pre_tokenizer_counts(folder: Path):
    assert made(folder, "gpt-4o")[G + "pre"] == "gpt-4o"
    assert made(folder, "gpt-4o")[G + "tokens"][RANKS + 7] == "<|reserved_token_487|>"


def test_kimis_special_tokens(folder: Path):
    vocab = made(folder)
    tokenizer = Tokenizer.from_metadata(vocab)
    text = "[BOS]a<think>b<|reserved_token_700|>[EOS]"
    ids = tokenizer.encode(text, add_special=False)
    assert ids == [RANKS, 64, RANKS + 22, 65, 700, RANKS + 1]
    assert tokenizer.encode("a") == [64] and tokenizer.eos == RANKS + 1
    assert tokenizer.decode([RANKS + 22, 64]) == "<think>a"


def test_qwens_special_tokens():
    vocab = made(DATA / "qwen")
    tokenizer = Tokenizer.from_metadata(vocab)
    text = "<|endoftext|><|im_end|>a<|extra_204|>"
    assert tokenizer.encode(text, add_special=False) == [480, 482, 64, 480 + 207]
    assert vocab[G + "tokens"][-1] == "[PAD692]" and tokenizer.eos == 480


def test_names_of_the_class_end_with_the_embedding(folder: Path):
    settings(folder, added_tokens_decoder={}, pad_token=None, unk_token=None)
    assert made(folder, vocab_size=500)[G + "tokens"][-1] == "<|reserved_token_499|>"
    assert len(made(folder, vocab_size=None)[G + "tokens"]) == RANKS + 256


@pytest.mark.parametrize("name", ["tiktoken.model", "a.tiktoken"])
def test_a_folder_with_weights(folder: Path, name: str):
    golden = load_golden("llama", "tied")
    (folder / "tiktoken.model").rename(folder / name)
    weights = {
        name: np.resize(values, (736, values.shape[1])) if "embed_tokens" in name else values
        for name, values in golden.weights().items()
    }
    write_model(folder, {**golden.config, "vocab_size": 736}, weights)
    convert(folder, folder / "model.gguf")
    with ggmodel.load(folder / "model.gguf") as model:
        assert model.tokenize("<think>") == [RANKS + 22]
        assert model.logits(model.tokenize("a")).shape == (1, 736)


# merges


def joined(ranks: dict[bytes, int], piece: bytes) -> list[int]:
    """tiktoken's rule, spelled out: a token as it is, else the union of the lowest rank."""
    if piece in ranks:
        return [ranks[piece]]
    parts = [bytes([value]) for value in piece]
    while True:
        unions = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        if min(unions, default=len(ranks)) == len(ranks):
            return [ranks[part] for part in parts]
        at = unions.index(min(unions))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ranks_in_any_order_and_tokens_that_no_merges_make(folder: Path, seed: int):
    draw = random.Random(seed)
    tokens = read(folder)
    words = {word.encode() for word in CORPUS.split() if len(word) > 4}
    rest = [*tokens[256:], *sorted(words - {*tokens}), b"aaa", b"aaaa", b"aa"]
    draw.shuffle(rest)
    write(folder, tokens[:256] + rest)
    settings(folder, added_tokens_decoder={}, **dict.fromkeys(("bos_token", "eos_token")))
    vocab = made(folder, vocab_size=None)
    made_of_two = {line.replace(" ", "") for line in vocab[G + "merges"]}
    assert len(rest) - len(made_of_two) > 50
    tokenizer = Tokenizer.from_metadata(vocab)
    ranks = {token: rank for rank, token in enumerate(tokens[:256] + rest)}
    cut = Split(Regex(KIMI), "isolated")
    pieces = [*(word.decode() for word in sorted(words)), "aaaaa", "aaaaaaaa", " "]
    for text in texts(pieces, 100, seed):
        expected = [
            rank
            for piece, _ in cut.pre_tokenize_str(text)
            for rank in joined(ranks, piece.encode())
        ]
        assert tokenizer.encode(text, add_special=False) == expected, text


# damage


def at(number: int, content: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Another line of this number, which begins at 1."""
    return lambda lines: [*lines[: number - 1], content, *lines[number:]]


DAMAGE: list[tuple[Callable[[list[bytes]], list[bytes]], str]] = [
    (at(7, b"*** 6"), r"line 7 should begin with 1 to 256 bytes in base64"),
    (at(7, "é 6".encode()), "line 7 should begin with"),
    (at(7, b" 6"), "line 7 should begin with"),
    (at(300, line(b"a" * 257, 299)), "line 300 should begin with"),
    (at(7, line(b"'", 5)), "line 7 should have rank 6, as ranks rise by one from 0, but is"),
    (at(7, line(b"'", 7)), "line 7 should have rank 6"),
    (at(7, b"Jw=="), "line 7 should have rank 6"),
    (at(7, b"Jw== 6 6"), "line 7 should have rank 6"),
    (at(7, b"Jw== " + b"6" * 9000), "line 7 should have rank 6"),
    (lambda lines: lines[:6] + lines[7:], "line 7 should have rank 6"),
    (at(300, line(b"a", 299)), "line 300 has the token of rank 64 again"),
    (at(65, line(b"aXb", 64)), "no line has the byte 0x61 as a token"),
    (lambda lines: [], "no line has the byte 0x00"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGE)
def test_a_damaged_file(folder: Path, change: Callable[[list[bytes]], list[bytes]], message: str):
    path = folder / "tiktoken.model"
    path.write_bytes(b"\n".join(change(path.read_bytes().splitlines())))
    with pytest.raises(FormatError, match=rf"tiktoken\.model: {message}.*get the file again"):
        made(folder)


def test_empty_lines_and_ends_of_windows(folder: Path):
    before = made(folder)
    path = folder / "tiktoken.model"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n\r\n"))
    assert made(folder)[G + "merges"] == before[G + "merges"]


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ([7], "added_tokens_decoder is no table"),
        ({"x": {"content": "a b"}}, "the added token x is"),
        ({"9" * 30: {"content": "a b"}}, "the added token 9+ is"),
        ({"500": {"content": ""}}, "the added token 500 is"),
        ({"500": "a b"}, "the added token 500 is 'a b'"),
        ({"500": {"content": "in"}}, "the added token 'in' is one of the ranks, too"),
        ({"500": {"content": "<a>"}, "501": {"content": "<a>"}}, "two added tokens have one text"),
        ({"500": {"content": "<|reserved_token_501|>"}}, "two added tokens have one text"),
        ({"5": {"content": "<a>"}}, "the added token '<a>' has the id of another, 5"),
        ({"999": {"content": "<a>"}}, "the ids of its tokens go from 0 to 999"),
    ],
)
def test_damaged_settings(folder: Path, decoder: Any, message: str):
    settings(folder, added_tokens_decoder=decoder)
    with pytest.raises(FormatError, match=message):
        made(folder)


# bounds


@pytest.mark.parametrize("limit", ["tokens", "letters", "merges"])
def test_tokens_letters_and_pairs_have_a_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str
):
    monkeypatch.setattr(limits, f"vocabulary_{limit}", 200)
    with pytest.raises(TokenizerError, match=rf"tiktoken\.model.* has .*vocabulary_{limit}"):
        made(folder)


@pytest.mark.parametrize("name", ["tiktoken.model", "a.tiktoken"])
def test_it_is_measured_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    (folder / "tiktoken.model").rename(folder / name)
    monkeypatch.setattr(limits, "tokenizer_file_bytes", 1000)
    with pytest.raises(FormatError, match=rf"{name} has .*tokenizer_file_bytes"):
        made(folder)


def test_long_tokens_take_a_moment(folder: Path):
    """Runs of one letter are made of all shorter ones, in the most steps that a length allows."""
    tokens = read(folder)[:256]
    tokens += [letter * length for length in range(256, 1, -1) for letter in (b"a", b"b", b"c")]
    write(folder, tokens)
    settings(folder, added_tokens_decoder={})
    started = time.process_time()
    vocab = made(folder, vocab_size=None)
    assert time.process_time() - started < 10
    tokenizer = Tokenizer.from_metadata(vocab)
    assert len(tokenizer.encode("a" * 512, add_special=False)) == 2
