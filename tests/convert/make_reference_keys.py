"""Writes `convert/reference_keys.json`: the keys of a config.json and of the files beside it that
transformers reads.

    python -m tests.convert.make_reference_keys [FOLDER OF TRANSFORMERS]

Its source is read, not imported: neither torch nor an installed transformers is needed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

from tools.processor_keys import processor_table

from ggmodel.convert.keys import TABLE
from ggmodel.model import find
from ggmodel.model.registry import supported
from ggmodel.workbench.reference_keys import keys_read

# Classes whose parts may be of many kinds → the kinds that are served.
PARTS = {
    "InternVLForConditionalGeneration": {
        "text_config": {"model_type": "qwen2"},
        "vision_config": {"model_type": "internvl_vision"},
    },
    "Idefics3ForConditionalGeneration": {"text_config": {"model_type": "llama"}},
    "SmolVLMForConditionalGeneration": {"text_config": {"model_type": "llama"}},
    "Lfm2VlForConditionalGeneration": {
        "text_config": {"model_type": "lfm2"},
        "vision_config": {"model_type": "siglip2_vision_model"},
    },
    "LlavaForConditionalGeneration": {
        "text_config": {"model_type": "mistral"},
        "vision_config": {"model_type": "pixtral"},
    },
    "Mistral3ForConditionalGeneration": {
        "text_config": {"model_type": "ministral3"},
        "vision_config": {"model_type": "pixtral"},
    },
    "Qwen2AudioForConditionalGeneration": {
        "audio_config": {"model_type": "qwen2_audio_encoder"},
        "text_config": {"model_type": "qwen2"},
    },
    "Qwen3ASRForConditionalGeneration": {
        "audio_config": {"model_type": "qwen3_asr_encoder"},
        "text_config": {"model_type": "qwen3"},
    },
    "VoxtralForConditionalGeneration": {
        "audio_config": {"model_type": "voxtral_encoder"},
        "text_config": {"model_type": "llama"},
    },
}
# Classes whose texts may be of further kinds, which have records of their own.
TEXTS = {
    "InternVLForConditionalGeneration": ("qwen3", "qwen3_moe"),
    "Lfm2VlForConditionalGeneration": ("lfm2_moe",),
}
# Classes that transformers lacks: the keys of their configurations, and defaults. Ling 2.0's is in
# its authors' repository Ling-V2, RWKV-7's in flash-linear-attention.
OTHERS: dict[str, dict[str, Any]] = {
    "BailingMoeV2ForCausalLM": {
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "max_position_embeddings": 32768,
        "moe_intermediate_size": 512,
        "n_group": 8,
        "norm_head": False,  # this, the next and score_function: in their code for other engines
        "norm_topk_prob": True,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 20,
        "num_key_value_heads": 4,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": 1,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 600000.0,
        "routed_scaling_factor": 1.0,
        "score_function": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 4,
        "use_bias": False,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "vocab_size": 157184,
    },
    "RWKV7ForCausalLM": {
        "a_low_rank_dim": 64,
        "attn": None,
        "attn_mode": "chunk",
        "decay_low_rank_dim": 64,
        "gate_low_rank_dim": 128,
        "head_dim": 64,
        "hidden_act": "sqrelu",
        "hidden_ratio": 4,
        "hidden_size": 2048,
        "intermediate_size": None,
        "max_position_embeddings": 2048,
        "norm_bias": True,
        "norm_eps": 1e-5,
        "norm_first": True,
        "num_heads": None,
        "num_hidden_layers": 24,
        "v_low_rank_dim": 16,
        "value_dim": None,
        "vocab_size": 32000,
    },
}


def served() -> list[str]:
    """The classes of transformers that built-in architectures serve."""
    return sorted(
        {name for architecture in supported() for name in find(architecture).hf_architectures}
    )


def table(root: Path) -> dict[str, Any]:
    said = re.search(r'^__version__ = "(.+)"', (root / "__init__.py").read_text(), re.M)
    assert said is not None, f"{root} is no folder of transformers"
    keys = {n: OTHERS.get(n) or keys_read(n, PARTS.get(n), root) for n in served()}
    for name, kinds in TEXTS.items():
        for kind in kinds:
            parts = {**PARTS[name], "text_config": {"model_type": kind}}
            keys[f"{name}:{kind}"] = keys_read(name, parts, root)
    lacking = [name for name, found in keys.items() if not found]
    assert not lacking, f"transformers {said.group(1)} lacks {lacking}"
    processors = processor_table(served(), root)
    return {"transformers": said.group(1), "keys": keys, "processors": processors}


def main() -> None:
    if len(sys.argv) > 1:
        root = Path(sys.argv[1])
    else:
        spec = importlib.util.find_spec("transformers")
        assert spec is not None and spec.origin is not None, "give the folder of transformers"
        root = Path(spec.origin).parent
    TABLE.write_text(json.dumps(table(root), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
