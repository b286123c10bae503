"""A checkpoint of Llama 3.2 1B's shape with random weights, and its quantised file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from benchmarks.certify_files import write_byte_pairs

from ggmodel.convert import convert
from tests.convert.folders import bfloat16

_POOL = 1 << 22
_SHAPES = {
    "self_attn.q_proj": (2048, 2048), "self_attn.k_proj": (512, 2048),
    "self_attn.v_proj": (512, 2048), "self_attn.o_proj": (2048, 2048),
    "mlp.gate_proj": (8192, 2048), "mlp.up_proj": (8192, 2048), "mlp.down_proj": (2048, 8192),
    "input_layernorm": (2048,), "post_attention_layernorm": (2048,),
}  # fmt: skip
_LAYERS, _VOCABULARY = 16, 128256


def write_large(folder: Path, kind: str) -> tuple[Path, Path]:
    """The folder and the file of a type."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": _LAYERS, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "vocab_size": _VOCABULARY,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
    }  # fmt: skip
    source = folder / "large"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    write_byte_pairs(source, "llama-bpe")
    _pad(source / "tokenizer.json")
    names = {"model.embed_tokens.weight": (_VOCABULARY, 2048), "model.norm.weight": (2048,)}
    for i in range(_LAYERS):
        names |= {f"model.layers.{i}.{n}.weight": shape for n, shape in _SHAPES.items()}
    header, at = {}, 0
    for name, shape in names.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pool = bfloat16(np.random.default_rng(5).standard_normal(_POOL).astype(np.float32) * 0.02)
    with (source / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = 0
        for shape in names.values():
            left = int(np.prod(shape))
            start = (start + 4099) % _POOL
            while left:
                piece = pool[start : start + left]
                file.write(piece.tobytes())
                left -= len(piece)
                start = 0
    out = folder / "large.gguf"
    convert(source, out, kind)
    return source, out


def _pad(path: Path) -> None:
    """Adds made-up tokens, up to the number of the real vocabulary."""
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"made-up-{i}": i for i in range(len(vocabulary), _VOCABULARY)}
    path.write_text(json.dumps(content))
