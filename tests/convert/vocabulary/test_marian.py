"""Marian's vocabulary: pieces of a source and of a target, with ids of a list of their own.

The source is the SentencePiece model of the tiny T5, whose pieces of texts are those of the
sentencepiece package (`expected.json`): ids are other ones here, the pieces are not.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ggmodel.convert.vocabulary import vocabulary
from ggmodel.errors import FormatError, TokenizerError
from ggmodel.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data" / "t5"
G = "tokenizer.ggml."
ONLY_TARGET = ["▁Hund", "▁w"]
TEXTS = ["the cat sat", "  A  tab\tand words ", "WHAT about capitals?", "naïve", ""]


def pieces_of(made: dict[str, Any], text: str) -> list[str]:
    return [made[G + "tokens"][i] for i in Tokenizer.from_metadata(made).encode(text)]


def t5() -> dict[str, Any]:
    return vocabulary(DATA, json.loads((DATA / "config.json").read_text("utf-8")))


def folder_of(folder: Path, **files: Any) -> tuple[Path, dict[str, Any]]:
    """A folder as published, and its config: tokens in another order than the pieces, the padding
    last."""
    folder.mkdir(exist_ok=True)
    shutil.copy(DATA / "spiece.model", folder / "source.spm")
    made = t5()
    pieces = [
        text
        for text, kind in zip(made[G + "tokens"], made[G + "token_type"].tolist(), strict=True)
        if kind == 1
    ]
    tokens = ["</s>", "<unk>", ">>deu<<", *reversed(pieces), *ONLY_TARGET, "<pad>"]
    ids = {text: i for i, text in enumerate(tokens)}
    for name, content in ({"vocab.json": ids} | files).items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    config = {"architectures": ["MarianMTModel"], "model_type": "marian", "eos_token_id": 0}
    return folder, {**config, "pad_token_id": len(tokens) - 1, "vocab_size": len(tokens)}


@pytest.fixture
def marian(tmp_path: Path) -> dict[str, Any]:
    return vocabulary(*folder_of(tmp_path))


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_those_of_the_source(marian: dict[str, Any], text: str):
    found = pieces_of(marian, text)
    assert found == pieces_of(t5(), text) and found[-1] == "</s>"


def test_answers_have_pieces_of_the_target(marian: dict[str, Any]):
    ids = [marian[G + "tokens"].index(text) for text in ONLY_TARGET]
    assert Tokenizer.from_metadata(marian).decode(ids) == "Hund w"
    assert "▁Hund" not in pieces_of(marian, "Hund Hund")


def test_a_code_of_a_language_is_one_token(marian: dict[str, Any]):
    tokenizer = Tokenizer.from_metadata(marian)
    assert tokenizer.encode(">>deu<< the cat") == [2, *tokenizer.encode("the cat")]


def test_punctuation_stays_as_it_is(marian: dict[str, Any]):
    """transformers' tokenizer has a method `normalize`, sacremoses', which would make "it's" of
    it; none of its ways from a text to ids calls that."""
    assert pieces_of(marian, "it’s “a”…") == pieces_of(t5(), "it’s “a”…")
    assert pieces_of(marian, "it’s")[2] == "<unk>" and pieces_of(marian, "it's")[2] == "'"


def test_special_tokens_have_their_ids(tmp_path: Path):
    folder, config = folder_of(tmp_path)
    made = vocabulary(folder, config)
    assert (made[G + "eos_token_id"], made[G + "unknown_token_id"]) == (0, 1)
    assert made[G + "padding_token_id"] == config["pad_token_id"]
    assert made[G + "add_eos_token"] is True and made[G + "add_bos_token"] is False


def test_ids_without_a_text_have_a_name(tmp_path: Path):
    folder, config = folder_of(tmp_path)
    size = config["vocab_size"]
    made = vocabulary(folder, {**config, "vocab_size": size + 2})
    assert made[G + "tokens"][size:] == [f"[PAD{size}]", f"[PAD{size + 1}]"]
    assert made[G + "token_type"].tolist()[size:] == [5, 5]


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        ({}, "there are no tokens"),
        ({"<unk>": "1"}, "the id of '<unk>'"),
        ({"<unk>": -1}, "the id of '<unk>'"),
        ({"<unk>": True}, "the id of '<unk>'"),
    ],
)
def test_damaged_lists_are_named(tmp_path: Path, ids: dict[str, Any], shown: str):
    folder, config = folder_of(tmp_path, **{"vocab.json": ids})
    with pytest.raises(FormatError, match=shown):
        vocabulary(folder, config)


def test_an_enormous_id_is_refused(tmp_path: Path):
    folder, config = folder_of(tmp_path, **{"vocab.json": {"<unk>": 1 << 40}})
    with pytest.raises(TokenizerError, match=r"limits\.vocabulary_tokens"):
        vocabulary(folder, config)


def test_byte_pairs_are_refused(tmp_path: Path):
    folder, config = folder_of(tmp_path)
    shutil.copy(DATA.parent / "llama2" / "tokenizer.model", folder / "source.spm")
    with pytest.raises(TokenizerError, match="no model of unigrams"):
        vocabulary(folder, config)
