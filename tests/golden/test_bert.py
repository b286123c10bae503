"""BERT against transformers: embeddings, and files by llama.cpp's converter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.runner.requests.embedding import Pooling
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.bert import cases as bert
from tests.golden.files import Embeddings, cases, load_embeddings

# Float32 sums taken in another order.
EXACT = 1e-11
# ggml's tanh GELU reads a table in F16.
TABLE = 1e-6
# Rounded weights are 3e-7 and 1.3e-4 away where all else is exact; ggml rounds activations to the
# same type, which adds as much.
HALF, QUANTISED = 1e-6, 5e-4
LABELS = {"reranker": 1, "roberta_head": 3, "distilbert": 2, "electra": 3}


@pytest.fixture(params=cases("bert", "embeddings"))
def golden(request: pytest.FixtureRequest) -> Embeddings:
    return load_embeddings("bert", request.param)


def load(source: MemorySource, **options: object) -> LoadedModel:
    return ggmodel.load(source, **{"kv_type": "f32", "flash_attention": "off", **options})


def by_pooling(golden: Embeddings) -> dict[Pooling, np.ndarray]:
    """The golden's vectors, those of each way of pooling alone; a head's scores are "rank"."""
    ways: tuple[Pooling, ...] = bert.POOLING(golden.config)
    return dict(zip(ways, np.split(golden.vectors, [64, 128, 192], axis=1), strict=False))


def check(model: LoadedModel, golden: Embeddings, bound: float) -> None:
    for pooling, want in by_pooling(golden).items():
        # Rounding is no average in the few numbers that a head makes of a whole row.
        most = 4 * bound if pooling == "rank" else bound
        assert nmse(model.embed(golden.texts, pooling=pooling, normalize=False), want) < most


def exact(golden: Embeddings) -> float:
    return EXACT if golden.config.get("hidden_act", "gelu") == "gelu" else TABLE


def test_every_case_has_its_file():
    assert sorted(bert.EMBEDDINGS) == cases("bert", "embeddings")


def test_pooling_matters(golden: Embeddings):
    each = by_pooling(golden)
    assert nmse(each["mean"], each["cls"]) > 0.01
    assert nmse(each["last"], each["cls"]) > 0.01


@pytest.mark.parametrize("batch_size", [512, 33])
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_embeddings(golden: Embeddings, flash_attention: str, batch_size: int):
    given = {"flash_attention": flash_attention, "batch_size": batch_size}
    with load(source_of(golden), **given) as model:
        check(model, golden, exact(golden))
        mean = by_pooling(golden)["mean"]
        unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        got = model.embed(golden.texts, pooling="mean", normalize=True)
        assert nmse(got, unit) < exact(golden)


def test_without_ggml_nothing_is_different(golden: Embeddings):
    with load(source_of(golden), backend="reference") as model:
        check(model, golden, EXACT)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(DType.F16, HALF), (DType.Q8_0, QUANTISED)], ids=["f16", "q8_0"]
)
def test_rounded_weights(golden: Embeddings, dtype: DType, bound: float):
    with load(source_of(golden, dtype)) as model:
        check(model, golden, bound)


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_a_file_says_how_to_pool(number: int, pooling: Pooling):
    golden = load_embeddings("bert", "released")
    source = source_of(golden)
    with load(with_keys(source, {"bert.pooling_type": number})) as model:
        got, want = model.embed(golden.texts), model.embed(golden.texts, pooling=pooling)
        assert np.array_equal(got, want)


@pytest.mark.parametrize("case", LABELS)
def test_a_head_classifies(case: str):
    golden = load_embeddings("bert", case)
    scores = by_pooling(golden)["rank"].astype(np.float64)
    with load(source_of(golden)) as model:
        got = model.classify(golden.texts)
        assert len(model.labels) == LABELS[case] == scores.shape[1]
        assert np.array_equal(model.embed(golden.texts), model.embed(golden.texts, pooling="rank"))
    want = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    want = 1 / (1 + np.exp(-scores)) if LABELS[case] == 1 else want
    assert np.abs(got - want).max() < 1e-6


def test_labels_keep_the_order_of_their_rows():
    golden = load_embeddings("bert", "roberta_head")
    named = {str(i): name for i, name in reversed(list(enumerate("abcdefghijkl")))}
    weights = golden.weights()
    for name in [name for name in weights if name.startswith("classifier.out_proj")]:
        weights[name] = np.concatenate([weights[name]] * 4)
    source = from_hf(find("bert"), {**golden.config, "id2label": named}, weights)
    with load(source) as model:
        assert model.labels == list("abcdefghijkl")


def test_a_head_of_other_labels_is_refused():
    source = source_of(load_embeddings("bert", "electra"))
    keys = {"bert.classifier.output_labels": ["a", "b"]}
    with pytest.raises(ConfigError, match="2 labels of a head with 3 results"):
        load(with_keys(source, keys))


def test_without_a_head_nothing_is_classified():
    golden = load_embeddings("bert", "released")
    with load(source_of(golden)) as model:
        assert model.labels == []
        with pytest.raises(Unsupported, match="no head that classifies"):
            model.classify(golden.texts)


def test_positions_of_the_padding_are_left_out():
    golden = load_embeddings("bert", "xlm_roberta")
    source, table = source_of(golden), "embeddings.position_embeddings.weight"
    assert source.tensors["position_embd.weight"].shape == (64, 32)
    assert bytes(source.data("position_embd.weight")) == golden.weights()[table][3:].tobytes()


def with_keys(source: MemorySource, keys: Mapping[str, Any]) -> MemorySource:
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    return MemorySource({**source.metadata, **keys}, tensors)


def test_it_has_no_logits():
    golden = load_embeddings("bert", "released")
    with load(source_of(golden)) as model, pytest.raises(Unsupported, match="only embeds"):
        model.logits(golden.texts[0])


def test_names_and_keys_are_those_of_llama_cpps_converter():
    source = source_of(load_embeddings("bert", "released"))
    names = "attn_q attn_k attn_v attn_output attn_output_norm ffn_up ffn_down layer_output_norm"
    stems = [f"blk.{i}.{n}" for i in range(3) for n in names.split()]
    both = {f"{n}.{kind}" for n in (*stems, "token_embd_norm") for kind in ("weight", "bias")}
    tables = {"token_embd.weight", "position_embd.weight", "token_types.weight"}
    assert source.tensors.keys() == both | tables
    assert dict(source.metadata) == {
        "general.architecture": "bert",
        "bert.block_count": 3,
        "bert.context_length": 32,
        "bert.embedding_length": 64,
        "bert.feed_forward_length": 96,
        "bert.attention.head_count": 4,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "tokenizer.ggml.token_type_count": 2,
    }


def test_names_in_other_checkpoints():
    """A model with a head, and norms as TensorFlow called them."""
    golden = load_embeddings("bert", "released")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = {}
    for name, values in golden.weights().items():
        for new, other in old.items():
            name = name.replace(new, other)
        weights[f"bert.{name}"] = values
    config = {**golden.config, "architectures": ["BertForMaskedLM"]}
    usual, other = source_of(golden), from_hf(find("bert"), config, weights)
    assert other.tensors.keys() == usual.tensors.keys()
    assert all(bytes(other.data(n)) == bytes(usual.data(n)) for n in usual.tensors)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bert.attention.causal": True}, "causal attention"),
        (
            {"bert.hidden_activation": "mish"},
            r"hidden_act.* 'mish' is unsupported; supported: gelu",
        ),
        (
            {"bert.attention.head_count": 3},
            "attention.head_count is 3; it must divide 64, embedding_length",
        ),
    ],
)
def test_what_is_refused(keys: dict[str, Any], message: str):
    source = source_of(load_embeddings("bert", "released"))
    with pytest.raises(ConfigError, match=message):
        load(with_keys(source, keys))


def test_relative_positions_are_refused():
    golden = load_embeddings("bert", "released")
    config = {**golden.config, "position_embedding_type": "relative_key"}
    with pytest.raises(ConfigError, match="relative_key"):
        from_hf(find("bert"), config, golden.weights())
