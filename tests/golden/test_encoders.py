"""Encoders of text against transformers: embeddings, and the scores of heads."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import Embeddings, cases, load_embeddings

# Float32 sums taken in another order; keys and values in F16, where attention is fused.
EXACT, FUSED = 1e-11, 1e-6
HALF = 2e-6  # rounded weights, and activations rounded alike
FOLDERS = ["eurobert", "jina_bert_v3", "modern_bert", "mpnet", "nomic_bert", "t5encoder"]
EACH = [(folder, case) for folder in FOLDERS for case in cases(folder, "embeddings")]


@pytest.fixture(params=EACH, ids=["-".join(one) for one in EACH])
def golden(request: pytest.FixtureRequest) -> Embeddings:
    return load_embeddings(*request.param)


def vectors(model: LoadedModel, golden: Embeddings) -> np.ndarray:
    module: Any = importlib.import_module(f"tests.golden.{golden.folder.name}.cases")
    ways = module.POOLING(golden.config)
    return np.concatenate([model.embed(golden.texts, pooling=way) for way in ways], axis=1)


@pytest.mark.parametrize("batch_size", [512, 163])
def test_vectors(golden: Embeddings, batch_size: int):
    given = {"kv_type": "f32", "flash_attention": "off", "batch_size": batch_size}
    said = {golden.config.get(key) for key in ("hidden_act", "feed_forward_proj")}
    table = bool({"gelu_new", "gated-gelu"} & said)  # ggml's GELU reads one in F16
    with ggmodel.load(source_of(golden), **given) as model:
        assert nmse(vectors(model, golden), golden.vectors) < (FUSED if table else EXACT)


def test_fused_attention_and_half_precision(golden: Embeddings):
    with ggmodel.load(source_of(golden)) as model:
        assert nmse(vectors(model, golden), golden.vectors) < FUSED
    with ggmodel.load(source_of(golden, DType.F16)) as model:
        assert nmse(vectors(model, golden), golden.vectors) < HALF


def test_every_case_has_its_file():
    for folder in FOLDERS:
        module = importlib.import_module(f"tests.golden.{folder}.cases")
        assert sorted(module.EMBEDDINGS) == cases(folder, "embeddings")


def test_modern_berts_file_is_llama_cpps():
    source = source_of(load_embeddings("modern_bert", "head"))
    layer = "attn_qkv attn_output ffn_norm ffn_up ffn_down".split()
    names = {f"blk.{i}.{n}.weight" for i in range(4) for n in layer}
    names |= {f"blk.{i}.attn_norm.weight" for i in (1, 2, 3)}
    ends = ("token_embd", "token_embd_norm", "output_norm", "cls", "cls.norm", "cls.output")
    assert source.tensors.keys() == names | {f"{n}.weight" for n in ends} | {"cls.output.bias"}
    assert source.tensors["blk.0.ffn_up.weight"].shape == (64, 192)
    keys = {
        "attention.sliding_window": 6,
        "attention.sliding_window_pattern": [False, True, True, False],
        "rope.freq_base": 60.0,
        "rope.freq_base_swa": 30.0,
        "classifier.pooling_type": 2,
        "classifier.output_labels": ["bad", "good", "neither"],
        "pooling_type": 4,
    }
    assert {key: source.metadata[f"modern-bert.{key}"] for key in keys} == keys


def test_every_third_layer_of_modern_bert_sees_all():
    source = source_of(load_embeddings("modern_bert", "published"))
    for pattern in ([3], [False, True, True, False]):
        metadata = {**source.metadata, "modern-bert.attention.sliding_window_pattern": pattern}
        with ggmodel.load(type(source)(metadata, dict(held(source)))) as model:
            config: Any = model.model.config
            assert config.local == [False, True, True, False]


def held(source: Any) -> Any:
    for name, info in source.tensors.items():
        yield name, (info.dtype, info.shape, bytes(source.data(name)))


def nomic_before_transformers(golden: Embeddings, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """A config.json as Nomic published it."""
    config = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "layer_norm_epsilon": 1e-2,
        "max_trained_positions": 34,
        "n_embd": 64,
        "n_head": 4,
        "n_inner": 96,
        "n_layer": 3,
        "n_positions": 8192,
        "prenorm": False,
        "rotary_emb_base": 40.0,
        "rotary_emb_fraction": 1.0,
        "type_vocab_size": 2,
        "vocab_size": 96,
    }
    return {**config, **changes}, golden.weights()


def test_keys_that_nomic_published():
    golden = load_embeddings("nomic_bert", "published")
    source = from_hf(find("nomic-bert"), *nomic_before_transformers(golden))
    assert source.metadata["nomic-bert.context_length"] == 34
    with ggmodel.load(source, kv_type="f32", flash_attention="off") as model:
        assert nmse(vectors(model, golden), golden.vectors) < EXACT


def test_names_of_transformers_modules():
    """Queries, keys and values apart, as checkpoints may save them."""
    golden = load_embeddings("nomic_bert", "published")
    names = {
        "encoder.layers": "layers",
        "attn.out_proj": "self_attn.o_proj",
        "norm1": "post_attention_layernorm",
        "norm2": "post_mlp_layernorm",
        "fc11": "up_proj",
        "fc12": "gate_proj",
        "fc2": "down_proj",
        "emb_ln": "embeddings.LayerNorm",
    }
    weights = golden.weights()
    for i in range(3):
        parts = np.split(weights.pop(f"encoder.layers.{i}.attn.Wqkv.weight"), 3)
        for part, x in zip("qkv", parts, strict=True):
            weights[f"layers.{i}.self_attn.{part}_proj.weight"] = x
    for old, new in names.items():
        weights = {name.replace(old, new): x for name, x in weights.items()}
    source = from_hf(find("nomic-bert"), golden.config, weights)
    assert source.tensors["blk.0.attn_q.weight"].shape == (64, 64)
    with ggmodel.load(source, kv_type="f32", flash_attention="off") as model:
        assert nmse(vectors(model, golden), golden.vectors) < EXACT


@pytest.mark.parametrize(
    "changes", [{"prenorm": True}, {"rotary_emb_fraction": 0.5}, {"moe_every_n_layers": 2}]
)
def test_other_shapes_of_nomics_class_are_refused(changes: dict[str, Any]):
    golden = load_embeddings("nomic_bert", "published")
    with pytest.raises(ConfigError, match="unsupported: prenorm, moe_every_n_layers"):
        from_hf(find("nomic-bert"), *nomic_before_transformers(golden, **changes))
