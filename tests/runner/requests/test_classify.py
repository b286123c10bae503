"""Heads for whole texts: pairs of texts, documents ranked by a query, classes."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import PromptError, TokenizerError, Unsupported
from ggmodel.gguf_file import MemorySource, TensorSource
from ggmodel.runner import LoadedModel
from ggmodel.runner.requests.pooling import embed, probabilities
from ggmodel.tokenizer import Tokenizer
from ggmodel.workbench.golden import source_of
from tests.golden.files import load_embeddings
from tests.tokenizer.conftest import DATA

G = "tokenizer.ggml."
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁who", "▁baked", "▁bread", "▁the", "▁fox", "▁slept"]
VOCABULARY: dict[str, Any] = {
    G + "model": "bert",
    G + "pre": "jina-v2-en",
    G + "tokens": WORDS,
    G + "token_type": [3, 2, 3, 3, *[1] * 6],
    G + "bos_token_id": 2,
    G + "eos_token_id": 3,
    G + "seperator_token_id": 3,
    G + "unknown_token_id": 1,
}
QUERY, DOCUMENTS = "who baked", ["the fox slept", "bread", "the fox baked the bread", "who"]


@cache
def opened(case: str) -> TensorSource:
    return source_of(load_embeddings("bert", case))


def described(case: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The metadata of a golden of BERT, with a vocabulary, and its tensors."""
    source = opened(case)
    held = {n: array(case, n) for n in source.tensors}
    tokens = filled(len(held["token_embd.weight"]))
    types = [3, 2, 3, 3, *[1] * (len(tokens) - 4)]
    return {**source.metadata, **VOCABULARY, G + "tokens": tokens, G + "token_type": types}, held


def load(case: str, **tensors: np.ndarray) -> LoadedModel:
    """The same loaded, with other tensors."""
    metadata, held = described(case)
    given = {name.replace("__", "."): x for name, x in tensors.items()}
    return ggmodel.load(
        MemorySource(metadata, {**held, **given}), kv_type="f32", flash_attention="off"
    )


def filled(n: int) -> list[str]:
    return [*WORDS, *(f"▁w{i}" for i in range(n - len(WORDS)))]


def array(case: str, name: str) -> np.ndarray:
    source = opened(case)
    return np.frombuffer(source.data(name), np.float32).reshape(source.tensors[name].shape[::-1])


def test_a_pair_has_the_tokens_of_its_vocabulary():
    pair = Tokenizer.from_metadata(VOCABULARY).encode_pair(QUERY, DOCUMENTS[1])
    assert pair == ([2, 4, 5, 3, 6, 3], [0, 0, 0, 0, 1, 1])
    doubled = {**VOCABULARY, G + "add_sep_token": True}
    pair = Tokenizer.from_metadata(doubled).encode_pair(QUERY, DOCUMENTS[1])
    assert pair == ([2, 4, 5, 3, 3, 6, 3], [0, 0, 0, 0, 0, 1, 1])


def test_pairs_of_the_roberta_family_have_two_separators():
    """Whether the file says so or not; a T5 joins texts by one."""
    metadata = DATA["unigram"]["metadata"]
    first, last = metadata[G + "bos_token_id"], metadata[G + "eos_token_id"]
    around = {**metadata, G + "add_bos_token": True, G + "add_eos_token": True}
    built = Tokenizer.from_metadata(around)
    one, two = (built.encode(text, add_special=False) for text in ("the ships", "pass"))
    assert built.encode_pair("the ships", "pass")[0] == [first, *one, last, last, *two, last]
    del around[G + "bos_token_id"], around[G + "add_bos_token"]
    alone = Tokenizer.from_metadata(around).encode_pair("the ships", "pass")
    assert alone == ([*one, last, *two, last], [0] * (len(one) + 1) + [1] * (len(two) + 1))


def test_special_tokens_in_a_pair_are_plain_text():
    ids, _ = Tokenizer.from_metadata(VOCABULARY).encode_pair("who [SEP]", "baked")
    assert ids.count(3) == 2


def test_a_vocabulary_that_ends_no_text_joins_none():
    metadata = {**VOCABULARY, G + "add_eos_token": False}
    with pytest.raises(TokenizerError, match="no token that ends a text"):
        Tokenizer.from_metadata(metadata).encode_pair("a", "b")


def test_the_second_text_of_a_pair_has_a_type_of_its_own():
    """Types add a row to each token: so do tokens that have it in their rows already."""
    words, types = array("reranker", "token_embd.weight"), array("reranker", "token_types.weight")
    moved = words.copy()
    moved[4:10] = words[4:10] + types[1] - types[0]
    with load("reranker") as model, load("reranker", token_embd__weight=moved) as other:
        ids = [np.array([2, 4, 5, 7, 8, 9], np.int32), np.array([2, 5, 6], np.int32)]
        second = [np.array([0, 1, 1, 1, 1, 1], np.int32), np.array([0, 1, 1], np.int32)]
        got = embed(model.engine, ids, ["mean"], second)
        texts = [one.tolist() for one in ids]
        assert np.abs(got - other.embed(texts, pooling="mean")).max() < 1e-5
        assert np.abs(got - model.embed(texts, pooling="mean")).max() > 0.1


def test_documents_are_scored_in_their_order():
    with load("reranker") as model:
        scores = model.rerank(QUERY, DOCUMENTS)
        alone = [model.rerank(QUERY, [document])[0] for document in DOCUMENTS]
        assert scores.shape == (4,)
        assert scores.dtype == np.float32
        assert len({round(float(x), 4) for x in scores}) == 4
        assert np.abs(scores - alone).max() < 1e-5
        ids, second = model.prompts.vocabulary().encode_pair(QUERY, DOCUMENTS[2])
        both = [np.array(ids, np.int32)], ["rank"], [np.array(second, np.int32)]
        assert abs(embed(model.engine, *both)[0, 0] - scores[2]) < 1e-5
        unit = model.rerank(QUERY, DOCUMENTS, normalize=True)
        assert np.abs(unit - 1 / (1 + np.exp(-scores.astype(np.float64)))).max() < 1e-6


def test_of_two_labels_the_second_is_the_score():
    with load("distilbert") as model:
        scores = model.rerank(QUERY, DOCUMENTS)
        pairs = [model.prompts.vocabulary().encode_pair(QUERY, d)[0] for d in DOCUMENTS]
        rows = model.embed(pairs, pooling="rank")
        assert np.abs(scores - (rows[:, 1] - rows[:, 0])).max() < 1e-5
        unit = model.rerank(QUERY, DOCUMENTS, normalize=True)
        assert np.abs(unit - model.classify(pairs)[:, 1]).max() < 1e-6


def test_what_does_not_rank_says_so():
    with load("electra") as model, pytest.raises(Unsupported, match=r"3 labels .bad, good"):
        model.rerank(QUERY, DOCUMENTS)
    with load("released") as model, pytest.raises(Unsupported, match="no head that classifies"):
        model.rerank(QUERY, DOCUMENTS)


@pytest.mark.parametrize("documents", [[], "bread"])
def test_documents_are_a_list(documents: Any):
    with load("reranker") as model, pytest.raises(PromptError, match="documents is a list"):
        model.rerank(QUERY, documents)


def test_a_document_that_is_too_long_is_named():
    long = " ".join(["bread"] * 40)
    with load("reranker") as model, pytest.raises(PromptError, match="text 1: "):
        model.rerank(QUERY, ["bread", long])


def test_probabilities_of_large_scores_are_finite():
    rows = probabilities(np.array([[1e4, -1e4], [0, 0]], np.float32))
    assert json.loads(json.dumps(rows.tolist())) == [[1, 0], [0.5, 0.5]]
    assert probabilities(np.array([[-1e4], [0]], np.float32)).tolist() == [[0], [0.5]]
