"""The golden data itself: weights never change, files agree with their configuration, also as
transformers saves it."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.convert import from_hf
from ggmodel.gguf_file.values import KeyValues
from ggmodel.model import config_class
from ggmodel.model.config import key_fields
from ggmodel.workbench.golden import architecture_of, weight
from tests.golden.files import HERE, Embeddings, Golden, cases, load_golden
from tests.golden.llama.cases import CASES

LLAMA = cases("llama")


def test_weights_never_change() -> None:
    digest = hashlib.sha256()
    for name, shape in [
        ("model.embed_tokens.weight", (64, 64)),
        ("model.layers.0.self_attn.q_proj.weight", (64, 64)),
        ("model.layers.1.self_attn.q_proj.bias", (64,)),
        ("model.layers.1.post_attention_layernorm.weight", (64,)),
        ("model.layers.1.block_sparse_moe.experts.3.w2.weight", (64, 96)),
        ("a.patch_embedding.weight", (8, 3, 4, 4)),
        ("a.cross_attn_attn_gate", (1,)),
    ]:
        digest.update(weight(name, shape).astype("<f4").tobytes())
    assert digest.hexdigest() == "857ecbb691ba922b210a128170eb076c2d534a0d01e719bdb00b8e1461f13582"


@pytest.mark.parametrize(
    ("name", "shape", "centre", "spread"),
    [
        ("model.embed_tokens.weight", (96, 64), 0, 1),
        ("model.norm.weight", (2048,), 1, 0.2),
        ("model.layers.0.self_attn.o_proj.bias", (2048,), 0, 0.1),
        ("model.layers.0.mlp.down_proj.weight", (64, 48), 0, 0.25),
        ("a.patch_embedding.weight", (64, 3, 4, 4), 0, 0.25),
        ("a.class_embedding", (2048,), 0, 1),
    ],
)
def test_weights_follow_the_rule(
    name: str, shape: tuple[int, ...], centre: float, spread: float
) -> None:
    values = weight(name, shape)
    assert values.dtype == np.float32
    assert values.shape == shape
    assert np.abs(values - centre).max() == pytest.approx(spread, rel=0.01)
    assert np.abs(values - centre).max() <= spread * (1 + 1e-6)
    assert values.mean() == pytest.approx(centre, abs=0.05 * spread)


def llama_tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes in a llama or Mixtral checkpoint, worked out from its config.json alone."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    queries = heads * head_dim
    keys = config.get("num_key_value_heads", heads) * head_dim
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        attention = {
            "q_proj": (queries, hidden),
            "k_proj": (keys, hidden),
            "v_proj": (keys, hidden),
            "o_proj": (hidden, queries),
        }
        dense = {"gate_proj": (ffn, hidden), "up_proj": (ffn, hidden), "down_proj": (hidden, ffn)}
        expert = {"w1": (ffn, hidden), "w2": (hidden, ffn), "w3": (ffn, hidden)}
        linears = {f"self_attn.{name}": shape for name, shape in attention.items()}
        biased = set(linears) if config.get("attention_bias") else set()
        if "num_local_experts" in config:
            linears["block_sparse_moe.gate"] = (config["num_local_experts"], hidden)
            for index in range(config["num_local_experts"]):
                for name, shape in expert.items():
                    linears[f"block_sparse_moe.experts.{index}.{name}"] = shape
        else:
            linears |= {f"mlp.{name}": shape for name, shape in dense.items()}
            if config.get("mlp_bias"):
                biased |= {f"mlp.{name}" for name in dense}
        for name, shape in linears.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = shape
            if name in biased:
                tensors[f"model.layers.{layer}.{name}.bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = (hidden,)
    return tensors


@pytest.mark.parametrize("case", LLAMA)
def test_llama_files_match_their_config(case: str) -> None:
    golden = load_golden("llama", case)
    assert golden.config == CASES[case]
    assert golden.tensors == llama_tensors(golden.config)


@pytest.mark.parametrize("case", LLAMA)
def test_both_spellings_of_rope_say_the_same(case: str) -> None:
    golden = load_golden("llama", case)
    modern = dict(golden.saved_config["rope_parameters"])
    classical = golden.config.get("rope_scaling") or {"rope_type": "default"}
    assert modern.pop("rope_theta") == golden.config.get("rope_theta", 10000.0)
    assert modern == {**classical, **({"type": modern["type"]} if "type" in modern else {})}


FILES = [*HERE.glob("*/*.npz"), *HERE.glob("*/embeddings/*.npz")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_a_config_loads_as_transformers_saves_it(path: Path) -> None:
    embeds = path.parent.name == "embeddings"
    golden = (Embeddings if embeds else Golden).load(path)
    (name,) = golden.config["architectures"]
    blank = {n: np.broadcast_to(np.float32(0), dims) for n, dims in golden.tensors.items()}
    published, saved = (
        hyperparameters(path.parents[embeds], {**config, "architectures": [name]}, embeds, blank)
        for config in (golden.config, golden.saved_config)
    )
    assert published == saved


def hyperparameters(folder: Path, hf: dict[str, Any], embeds: bool, tensors: Any) -> dict[str, Any]:
    """Which layers are local is compared, not how a config says it."""
    architecture = architecture_of(folder, hf, embeds)
    metadata = KeyValues(from_hf(architecture, hf, tensors).metadata, "checkpoint")
    config = config_class(architecture).read(metadata)
    values = {name: getattr(config, name) for name, *_ in key_fields(type(config))}
    values.pop("forced", None)  # which transformers writes into generation_config.json
    return values | ({"pattern": getattr(config, "local", None)} if "pattern" in values else {})
