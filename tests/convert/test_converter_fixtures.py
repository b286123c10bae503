"""Our conversion against files that llama.cpp's converter wrote of the same models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.convert import from_hf
from ggmodel.gguf import MemorySource, open_gguf
from ggmodel.model import find
from tests.golden.weights import weight

FIXTURES = Path(__file__).parents[1] / "fixtures"

# As tests/fixtures/make_llama.py gives them to transformers.
SHARED = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 256,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 320,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {
        **SHARED,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_attention_heads": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
    },
    "llama3": {
        **SHARED,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": True,
    },
}
# What the converter says of the file rather than of the model, and a size that no one reads.
ONLY_THEIRS = {
    "general.file_type",
    "general.name",
    "general.quantization_version",
    "general.size_label",
    "general.type",
    "llama.vocab_size",
}


def checkpoint(config: dict[str, Any]) -> dict[str, np.ndarray]:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q, k = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (k, hidden),
        "self_attn.v_proj": (k, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    shapes = {f"layers.{i}.{n}": s for i in range(2) for n, s in layer.items()}
    shapes |= {"embed_tokens": (320, hidden), "norm": (hidden,)}
    names = {f"model.{n}.weight": shape for n, shape in shapes.items()}
    if not config["tie_word_embeddings"]:
        names["lm_head.weight"] = (320, hidden)
    return {name: weight(name, shape) for name, shape in names.items()}


def converted(name: str) -> MemorySource:
    return from_hf(find("llama"), CONFIGS[name], checkpoint(CONFIGS[name]))


@pytest.mark.parametrize("name", CONFIGS)
def test_tensors_are_those_of_the_converter_byte_for_byte(name: str):
    ours = converted(name)
    with open_gguf(FIXTURES / f"llama-converter-{name}-f32.gguf") as theirs:
        assert set(ours.tensors) == set(theirs.tensors)
        for key, info in theirs.tensors.items():
            assert (ours.info(key).shape, ours.info(key).dtype) == (info.shape, info.dtype), key
            assert ours.data(key) == theirs.data(key), key


@pytest.mark.parametrize("name", CONFIGS)
def test_metadata_is_that_of_the_converter(name: str):
    ours = dict(converted(name).metadata)
    with open_gguf(FIXTURES / f"llama-converter-{name}-f32.gguf") as theirs:
        theirs = {k: v for k, v in theirs.metadata.items() if not k.startswith("tokenizer.")}
    assert theirs.keys() - ours.keys() == ONLY_THEIRS
    assert ours.keys() <= theirs.keys()
    for key, value in ours.items():
        # Files hold numbers in float32.
        stored = float(np.float32(value)) if isinstance(value, float) else value
        assert stored == theirs[key], key
