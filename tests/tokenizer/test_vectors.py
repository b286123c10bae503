"""Ids equal to those of the library that trained each vocabulary (see data/make.py)."""

import numpy as np
import pytest

from ggmodel.tokenizer import Tokenizer

COUNTS = {
    "gpt-2": 60,
    "starcoder": 60,
    "falcon": 60,
    "llama-bpe": 60,
    "spm-bytes": 24,
    "spm-plain": 25,
    "unigram": 164,
    "unigram-bytes": 164,
    "wordpiece": 52,
}


def test_all_vocabularies_are_here(vocabularies):
    assert {name: len(data["expected"]) for name, data in vocabularies.items()} == COUNTS


@pytest.mark.parametrize("name", COUNTS)
def test_ids_are_those_of_the_original(name, vocabularies, tokenizers):
    tokenizer = tokenizers[name]
    wrong = []
    for row in vocabularies[name]["expected"]:
        ids = tokenizer.encode(row["text"], add_special=False, parse_special=not row["plain"])
        if ids != row["ids"]:
            wrong.append((row["text"], [tokenizer.token(id) for id in ids]))
    assert wrong == []


@pytest.mark.parametrize("name", ["gpt-2", "starcoder", "falcon", "llama-bpe", "spm-bytes"])
def test_texts_come_back(name, vocabularies, tokenizers):
    for row in vocabularies[name]["expected"]:
        expected = row["text"]
        if name == "spm-bytes":  # which spells a space by this character
            expected = expected.replace("▁", " ")
        assert tokenizers[name].decode(row["ids"]) == expected


@pytest.mark.parametrize("metadata", ["spm-bytes", "gpt-2"], indirect=True)
def test_numpy_arrays_and_scalars_do_as_well(metadata):
    plain = Tokenizer.from_metadata(metadata)
    for key in ("token_type", "scores"):
        if f"tokenizer.ggml.{key}" in metadata:
            metadata[f"tokenizer.ggml.{key}"] = np.array(metadata[f"tokenizer.ggml.{key}"])
    metadata["tokenizer.ggml.bos_token_id"] = np.uint32(metadata["tokenizer.ggml.bos_token_id"])
    metadata["tokenizer.ggml.add_bos_token"] = np.bool_(True)
    built = Tokenizer.from_metadata(metadata)
    assert built.encode("the ships", add_special=False) == plain.encode(
        "the ships", add_special=False
    )
    assert built.encode("")[0] == plain.bos
    assert built.decode(np.array(built.encode("the ships"))[1:]) == "the ships"


def test_wordpiece_text_is_normalized_and_joined(tokenizers):
    tokenizer = tokenizers["wordpiece"]
    ids = tokenizer.encode("The SHIPS, Café.")
    assert ids[0] == tokenizer.id_of("[CLS]") == tokenizer.bos
    assert ids[-1] == tokenizer.id_of("[SEP]")
    assert tokenizer.decode(ids, skip_special=True) == "the ships , cafe ."
    assert tokenizer.encode("ships [MASK]")[-2] == tokenizer.id_of("[MASK]")
