"""Folders of sentence-transformers against the package; rerankers, further heads and labels of
tokens against transformers. `tests.convert.make_sentences` writes what these compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.compat import CrossEncoder, SentenceTransformer, colbert_score, lexical_score
from ggmodel.convert.export import convert
from ggmodel.errors import ConfigError, PromptError, Unsupported
from ggmodel.gguf_file import open_gguf
from tests.convert import sentences
from tests.convert.sentences import PAIRS, TEXTS

RESULTS: dict[str, Any] = json.loads(
    (Path(sentences.__file__).parent / "sentences.json").read_text()
)
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
# Float32 sums in another order; rows are of the order of one.
CLOSE = 2e-6


def near(got: Any, want: Any, bound: float = CLOSE) -> bool:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    largest = max(1.0, float(np.abs(want).max(initial=0)))
    return got.shape == want.shape and bool((np.abs(got - want) < bound * largest).all())


def converted(folder: Path) -> Path:
    """The file of a folder, beside it."""
    path = folder.parent / "model.gguf"
    convert(folder, path)
    return path


@pytest.mark.parametrize("case", sentences.EMBEDDERS)
def test_rows_are_those_of_the_package(case: str, tmp_path: Path):
    """The model is the converted file here, and the folder in the test of the class."""
    want = RESULTS["embedders"][case]
    with ggmodel.load(converted(sentences.EMBEDDERS[case](tmp_path / "folder")), **EXACT) as model:
        assert near(model.embed(TEXTS, truncate=True), want["plain"])
        named = model.embed(
            TEXTS, truncate=True, prompt_name="query" if "query" in model.readout.prompts else None
        )
        assert near(named, want["query"])
        assert near(model.embed(TEXTS, truncate=True, prompt="fox "), want["prompt"])
        short = model.embed(TEXTS, truncate=True, dimensions=5, normalize=True)
        assert near(short, want["short"])
        assert near(model.embed(TEXTS[:1], truncate=True), want["plain"][:1])


@pytest.mark.parametrize("case", sentences.EMBEDDERS)
def test_the_class_has_the_packages_habits(case: str, tmp_path: Path):
    want = RESULTS["embedders"][case]
    folder = sentences.EMBEDDERS[case](tmp_path)
    with SentenceTransformer(folder, device="cpu", **EXACT) as model:
        rows = model.encode(TEXTS, batch_size=2, show_progress_bar=False)
        assert near(rows, want["plain"])
        assert near(model.encode(TEXTS[0]), want["plain"][0])
        assert near(model.encode_document(TEXTS), want["document"])
        named = "query" if "query" in model.model.readout.prompts else None
        assert near(model.encode(TEXTS, prompt_name=named), want["query"])
        short = model.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
        assert near(short, want["short"])
        assert near(model.similarity(rows, rows), want["similarity"], 1e-5)
        assert model.get_sentence_embedding_dimension() == want["width"]
        if want["most"] < 512:
            assert model.max_seq_length == want["most"]
        for kind in ("cosine", "dot", "euclidean", "manhattan"):
            model.similarity_fn_name = kind
            assert near(model.similarity_pairwise(rows, rows[::-1]), want[kind], 1e-5)
        with model.truncate_embeddings(3):
            assert model.encode(TEXTS).shape == (4, 3)
            assert model.get_embedding_dimension() == 3
        assert len(model.encode([])) == 0
        assert isinstance(model.encode(TEXTS, convert_to_numpy=False), list)


def test_the_default_prompt_is_put_before_texts_alone(tmp_path: Path):
    with ggmodel.load(sentences.plain(tmp_path), **EXACT) as model:
        default = model.embed(TEXTS[:1], truncate=True)
        assert near(default, model.embed(TEXTS[:1], prompt_name="query", truncate=True), 1e-9)
        bare = model.embed(TEXTS[:1], prompt="", truncate=True)
        assert not near(default, bare, 1e-3)
        ids = model.tokenize(TEXTS[0])
        assert near(model.embed([ids]), bare, 1e-9)
        with pytest.raises(PromptError, match=r"no prompt 'other'; the file's are: 'query', 'pass"):
            model.embed(TEXTS, prompt_name="other")
        with pytest.raises(ConfigError, match="dimensions is 65; rows of this model have 64"):
            model.embed(TEXTS[:1], dimensions=65)


def test_what_the_class_cannot_says_so(tmp_path: Path):
    with SentenceTransformer(sentences.plain(tmp_path), **EXACT) as model:
        asks: list[dict[str, Any]] = [
            {"convert_to_tensor": True},
            {"precision": "int8"},
            {"output_value": "token_embeddings"},
        ]
        for ask in asks:
            with pytest.raises(Unsupported, match=next(iter(ask))):
                model.encode(TEXTS, **ask)
        with pytest.raises(ConfigError, match="prompt_name 'other' is none of this model's"):
            model.encode(TEXTS, prompt_name="other")
        model.max_seq_length = 4
        assert near(model.encode("who baked the bread"), model.encode("who baked the fox"), 1e-9)


def test_another_pooling_still_passes_the_layers(tmp_path: Path):
    with ggmodel.load(sentences.joined(tmp_path), **EXACT) as model:
        both = model.embed(TEXTS, pooling=["cls", "max"], truncate=True)
        assert near(both, model.embed(TEXTS, truncate=True), 1e-9)
        with pytest.raises(
            Unsupported, match="dense_2 takes rows of 128 numbers, and this pooling"
        ):
            model.embed(TEXTS[:1], pooling="mean")


def test_texts_in_several_steps_are_pooled_alike(tmp_path: Path):
    folder = sentences.last_token(tmp_path)
    long = " ".join(TEXTS)
    ways: Any = ["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len_tokens"]
    with (
        ggmodel.load(folder, **EXACT) as model,
        ggmodel.load(folder, batch_size=16, **EXACT) as few,
    ):
        rows = [[one.embed([long], pooling=way, prompt="") for way in ways] for one in (model, few)]
    for way, whole, parts in zip(ways, *rows, strict=True):
        assert near(whole, parts, 1e-5), way


# rerankers


@pytest.mark.parametrize("case", ["sigmoid", "identity", "three", "tied", "untied"])
def test_scores_are_those_of_cross_encoders(case: str, tmp_path: Path):
    write = {
        "sigmoid": sentences.cross_encoder,
        "identity": lambda folder: sentences.cross_encoder(folder, "linear.Identity"),
        "three": lambda folder: sentences.cross_encoder(folder, None, 3),
        "tied": sentences.logit_score,
        "untied": lambda folder: sentences.logit_score(folder, tied=False),
    }[case]
    want = RESULTS["rankers"][case]
    path = write(tmp_path / "folder")
    path = converted(path) if case in ("identity", "untied") else path
    query, documents = PAIRS[0][0], [document for _, document in PAIRS]
    with CrossEncoder(path, **EXACT) as model:
        assert near(model.predict(PAIRS), want["predict"], 1e-5)
        assert near(model.predict(PAIRS[0]), want["predict"][0], 1e-5)
        if case == "three":
            assert near(model.predict(PAIRS, apply_softmax=True), want["softmax"], 1e-5)
            with pytest.raises(Unsupported, match="rank of a head with several labels"):
                model.rank(query, documents)
            return
        ranked = model.rank(query, documents, return_documents=True)
        order = [one["corpus_id"] for one in want["rank"]]
        assert [one["corpus_id"] for one in ranked] == order
        assert [one["text"] for one in ranked] == [documents[i] for i in order]
        scores = [one["score"] for one in want["rank"]]
        assert near([one["score"] for one in ranked], scores, 1e-5)
        assert len(model.rank(query, documents, top_k=1)) == 1


def test_a_reranker_is_known_by_its_name(tmp_path: Path):
    """Its file is as llama.cpp's: rows of the output for yes and no, and a template."""
    folder = sentences.qwen3(tmp_path / "Qwen3-Reranker-tiny", closing=False)
    convert(folder, tmp_path / "model.gguf")
    with open_gguf(tmp_path / "model.gguf") as file:
        assert file.metadata["qwen3.pooling_type"] == 4
        assert list(file.metadata["qwen3.classifier.output_labels"]) == ["yes", "no"]
        assert list(file.metadata["tokenizer.chat_templates"]) == ["rerank"]
        assert "{query}" in file.metadata["tokenizer.chat_template.rerank"]
        assert file.tensors["cls.output.weight"].shape == (64, 2)
        tokens = list(file.metadata["tokenizer.ggml.tokens"])
        table = np.frombuffer(file.data("token_embd.weight"), np.float32).reshape(-1, 64)
        rows = np.frombuffer(file.data("cls.output.weight"), np.float32).reshape(2, 64)
        assert (rows == table[[tokens.index("yes"), tokens.index("no")]]).all()
    want = RESULTS["reranker"]
    for path in (folder, tmp_path / "model.gguf"):
        with ggmodel.load(path, **EXACT) as model:
            got = [model.rerank(query, [document])[0] for query, document in PAIRS]
            assert near(got, want, 1e-5)
            unit = [model.rerank(q, [d], normalize=True)[0] for q, d in PAIRS]
            assert got == unit
            assert model.ranks
            assert model.labels == ["yes", "no"]


def test_a_place_in_a_query_is_plain_text(tmp_path: Path):
    folder = sentences.qwen3(tmp_path / "Qwen3-Reranker-tiny", closing=False)
    with ggmodel.load(folder, **EXACT) as model:
        text = model.detokenize(model.pair_ids("{document}", "bread")[0])
    assert "<Query>: {document}\n<Document>: bread<|im_end|>" in text


def test_a_decoder_classifies_by_its_last_token(tmp_path: Path):
    path = converted(sentences.classifier(tmp_path / "folder"))
    with ggmodel.load(path, **EXACT) as model:
        assert model.labels == ["bad", "good", "neither"]
        assert near(model.embed(TEXTS, pooling="rank"), RESULTS["classifier"], 1e-5)
        assert near(model.classify(TEXTS).sum(axis=1), np.ones(4), 1e-5)
        assert not model.ranks


# further heads


def test_weights_and_rows_of_tokens(tmp_path: Path):
    want = RESULTS["heads"]
    path = converted(sentences.further_heads(tmp_path / "folder"))
    with ggmodel.load(path, **EXACT) as model:
        sparse, tokens = model.embed_sparse(TEXTS), model.embed_tokens(TEXTS)
    for got, weights in zip(sparse, want["sparse"], strict=True):
        assert {str(token) for token in got} == weights.keys()
        assert near([got[int(token)] for token in weights], list(weights.values()), 1e-5)
    for rows, other in zip(tokens, want["tokens"], strict=True):
        assert near(rows, other, 1e-5)
    assert near([colbert_score(tokens[0], rows) for rows in tokens], want["colbert"], 1e-5)
    assert near([lexical_score(sparse[0], one) for one in sparse], want["lexical"], 1e-5)


def test_a_model_without_these_heads_says_so(tmp_path: Path):
    with ggmodel.load(sentences.bert(tmp_path), **EXACT) as model:
        with pytest.raises(Unsupported, match=r"no tensor sparse_linear\.weight.*safetensors"):
            model.embed_sparse(TEXTS)
        with pytest.raises(Unsupported, match=r"no tensor colbert_linear\.weight"):
            model.embed_tokens(TEXTS)


# labels of tokens


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "modernbert"])
def test_labels_of_tokens_are_those_of_pipelines(family: str, tmp_path: Path):
    want, texts = RESULTS["labellers"][family], sentences.SHORT if family == "roberta" else TEXTS
    path = sentences.labels_tokens(tmp_path / "folder", family)
    with ggmodel.load(converted(path) if family == "bert" else path, **EXACT) as model:
        assert model.labels_tokens
        assert not model.ranks
        for way in ("none", "simple"):
            found = model.classify_tokens(texts, aggregation=way)  # type: ignore[arg-type]
            for text, got, other in zip(texts, found, want[way], strict=True):
                assert len(got) == len(other)
                for one, two in zip(got, other, strict=True):
                    keys = ("entity", "entity_group", "index", "start", "end")
                    assert {k: one.get(k) for k in keys} == {k: two.get(k) for k in keys}
                    assert abs(one["score"] - two["score"]) < 1e-5
                    assert one["word"] == text[one["start"] : one["end"]]
        with pytest.raises(Unsupported, match="labels tokens, not whole texts"):
            model.classify(TEXTS)
        with pytest.raises(ConfigError, match="aggregation is 'max'"):
            model.classify_tokens(texts, aggregation="max")  # type: ignore[arg-type]
        with pytest.raises(PromptError, match="texts is one string"):
            model.classify_tokens("text")


def test_a_model_that_labels_no_tokens_says_so(tmp_path: Path):
    says = pytest.raises(Unsupported, match="no head that labels tokens")
    with ggmodel.load(sentences.cross_encoder(tmp_path), **EXACT) as model, says:
        model.classify_tokens(TEXTS)
