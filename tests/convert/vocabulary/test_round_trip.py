"""From a directory to ids: our tokenizer against the library a vocabulary was made for."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.convert.vocabulary import vocabulary
from ggmodel.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
LIVE = ["llama3", "smollm", "qwen2", "gpt_oss", "llama4", "olmo2", "roberta", "bert_uncased"]
LIVE += ["mistral_json", "gemma3_json", "xlm_roberta_json"]
SAVED = ["llama2", "gemma3", "phi3", "bert_uncased", "bert_cased", "tekken", "tekken_v3", "rwkv"]
SAVED += ["kimi", "qwen"]


def config(name: str) -> dict[str, Any]:
    return json.loads((DATA / name / "config.json").read_text("utf-8"))


@cache
def ours(name: str) -> Tokenizer:
    folder = DATA / name
    made = config(name)
    family = {"general.architecture": made["model_type"]}
    return Tokenizer.from_metadata(vocabulary(folder, made) | family)


@cache
def original(name: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(DATA / name / "tokenizer.json"))


@cache
def pieces(name: str) -> list[str]:
    """Texts that tokens stand for, special ones among them, and what is near to them."""
    built = ours(name)
    texts = [built.decode([id]) for id in range(built.size)]
    near = [
        " ",
        "  ",
        "\n",
        "1",
        "12",
        "'s",
        "A",
        "é",
        "e\u0301",
        "日",
        "🙂",
        "<|",
        "|>",
        "<",
        "\t",
    ]
    special = [text for id, text in enumerate(texts) if built.starts_text(id)]
    known = {text for text in texts if "\ufffd" not in text}
    # Fillers, what only tokenizer_config.json names, and what a GGUF spells as it is decoded.
    left_out = re.compile(r"\[PAD|.decoded.")
    return [t for t in [*sorted(known), *4 * near, *9 * special] if not left_out.match(t)]


def random_text(name: str) -> st.SearchStrategy[str]:
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    return st.lists(st.sampled_from(pieces(name)) | anything, max_size=14).map("".join)


@pytest.mark.parametrize("name", LIVE)
def test_ids_equal_those_of_the_tokenizer_json(name: str):
    reference, built = original(name), ours(name)
    normalizer = reference.normalizer

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(random_text(name))
    def equal(text: str) -> None:
        if normalizer is not None:  # a GGUF does not carry it
            text = normalizer.normalize_str(text)
        expected = reference.encode(text, add_special_tokens=False).ids
        assert built.encode(text, add_special=False) == expected
        with_special = reference.encode(text).ids
        assert built.encode(text) == with_special

    equal()


@pytest.mark.parametrize("name", SAVED)
def test_ids_equal_the_saved(name: str):
    """SentencePiece, Tekkenizer, tiktoken and RWKV's trie take no special tokens from a text;
    BertTokenizerFast puts its own around."""
    saved = json.loads((DATA / name / "expected.json").read_text("utf-8"))["ids"]
    bert = name.startswith("bert")
    built = ours(name)
    wrong = {}
    for text, expected in saved:
        ids = built.encode(text, add_special=bert, parse_special=bert)
        if ids != expected:
            wrong[text] = [built.token(id) for id in ids]
    assert len(saved) > 140 and wrong == {}
