"""Models of text: impossible metadata, and unsupported variants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ggmodel
from ggmodel.errors import Unsupported
from ggmodel.workbench.golden import nmse, source_of
from tests.conftest import Vary
from tests.golden.text import golden_of

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2/window", {"attention.sliding_window_pattern": [True]}, "pattern of 1 for 4 layers"),
    ("qwen2/window", {"attention.sliding_window": -1, "rope.freq_base": 0.0}, "rope of base 0"),
    ("qwen2/window", {"attention.head_count": 0}, "shape|no value"),
    ("qwen2/yarn", {"rope.scaling.type": "dynamic"}, "'dynamic' is unsupported"),
    ("qwen3/plain", {"attention.key_length": 0}, "shape"),
    ("qwen3/experts", {"expert_used_count": 0}, "top_k"),
    ("qwen3/experts", {"expert_used_count": 5}, "4 or less, usable"),
    ("qwen3/experts", {"expert_feed_forward_length": 0}, "shape"),
    ("gemma2/published", {"attn_logit_softcapping": -1.0}, "softcap -1"),
    ("gemma2/published", {"attn_logit_softcapping": float("nan")}, "no finite number"),
    ("gemma2/published", {"attention.head_count": 0}, "shape"),
    ("mistral/window", {"attention.sliding_window": -1}, "window of -1 positions"),
    ("phi3/plain", {"rope.dimension_count": 15}, "even and no more"),
    ("phi3/plain", {"rope.dimension_count": 18}, "even and no more"),
    ("phi3/plain", {"attention.head_count": 0}, "shape|no value"),
    ("phi3/partial", {"rope.dimension_count": 16}, "6 factors for 8 pairs"),
    ("olmo2/windows", {"attention.sliding_window_pattern": [True] * 3}, "pattern of 3 for 4"),
    ("olmo2/plain", {"attention.head_count": 0}, "shape|no value"),
    ("gemma3n/published", {"attention.shared_kv_layers": 2}, "layer 3 has no keys and values"),
    ("gemma3n/published", {"attention.shared_kv_layers": 4}, "layer 2 shares keys and values"),
    ("gemma3n/published", {"attention.shared_kv_layers": 7}, "7 of 6 layers share"),
    ("gemma3n/published", {"attention.shared_kv_layers": -1}, "must be 0 or more"),
    ("gemma3n/published", {"altup.active_idx": 4}, "altup.active_idx is 4; it must be 3 or less"),
    ("gemma3n/published", {"altup.num_inputs": 1}, "must be 2 or more"),
    ("gemma3n/published", {"altup.num_inputs": 3}, "shape"),
    ("gemma3n/published", {"activation_sparsity_scale": [1.6] * 5}, "5 activation_sparsity_scale"),
    ("gemma3n/published", {"feed_forward_length": [128] * 5}, "tensors have"),
    ("gemma3n/published", {"embedding_length_per_layer_input": 16}, "shape"),
    ("gemma3n/published", {"attention.sliding_window": 0}, "must be 1 or more"),
    ("gemma4/published", {"attention.shared_kv_layers": 2}, "layer 3 has no keys of its own"),
    ("gemma4/published", {"attention.value_length": 32}, "another than attention.key_length"),
    ("gemma4/published", {"attention.head_count_kv": [1] * 5}, "5 attention.head_count_kv for 6"),
    ("gemma4/published", {"embedding_length_per_layer_input": 0}, "shape"),
    ("gemma4/published", {"feed_forward_length": [64] * 6}, "tensors have"),
    ("gemma4/published", {"expert_count": 4}, "expert_count is 4"),
    ("gemma4/published", {"rope.dimension_count": 66}, "even and no more"),
    ("gemma4/dense", {"embedding_length_per_layer_input": 32}, "input is 32, not as layer 0"),
    ("gemma4/experts", {"expert_count": 0}, "shape"),
    ("gemma4/experts", {"expert_used_count": 5}, "top_k"),
    ("cohere2/published", {"attention.sliding_window": 0}, "must be 1 or more"),
    ("cohere2/published", {"rope.dimension_count": 18}, "even and no more"),
    ("cohere2/published", {"logit_scale": float("inf")}, "no finite number"),
    ("stablelm/parallel", {"use_parallel_residual": False}, "one norm for both parts"),
    ("smollm3/plain", {"rope.layers": [True] * 3}, "3 flags for 4 layers"),
    ("command_r/plus", {"attention.head_count_kv": 1}, "shape"),
    ("lfm2/published", {"attention.head_count_kv": [0, 2, 0, 0]}, r"\[0, 2, 3\] of 4"),
    ("lfm2/published", {"attention.head_count_kv": [0, 0, 2]}, r"\[0, 1\] of 3"),
    ("lfm2/published", {"attention.head_count_kv": []}, "k_width has no value"),
    ("lfm2/published", {"attention.head_count_kv": ["2"] * 4}, "not an integer"),
    ("lfm2/published", {"attention.head_count_kv": [0, 0, -2, 0]}, "shape"),
    ("lfm2/published", {"shortconv.l_cache": 1}, "must be 2 or more"),
    ("lfm2/published", {"shortconv.l_cache": 4}, "shape"),
    ("lfm2/experts", {"expert_gating_func": 7}, "supported: 1, softmax, and 2"),
    ("lfm2/experts", {"expert_used_count": 5}, "4 or less, usable"),
    ("qwen35/published", {"attention.recurrent_layers": [True] * 4}, r"\[0, 1, 2\] of 4 by the te"),
    ("qwen35/published", {"attention.recurrent_layers": [True]}, r"\[0\] of 1 have states"),
    ("qwen35/published", {"full_attention_interval": 0}, "must be 1 or more"),
    ("qwen35/published", {"ssm.conv_kernel": 1}, "must be 2 or more"),
    ("qwen35/published", {"ssm.state_size": 16}, "shape"),
    ("qwen35/published", {"ssm.group_count": 0}, "must be 1 or more"),
    ("qwen35/published", {"ssm.time_step_rank": 8}, "shape"),
    ("qwen35/published", {"nextn_predict_layers": 4}, "none is left"),
    ("qwen35/experts", {"expert_used_count": 5}, "top_k"),
]


@pytest.mark.parametrize(
    ("case", "changes", "message"), BAD, ids=[f"{case} {changes}" for case, changes, _ in BAD]
)
def test_bad_metadata(vary: Vary, case: str, changes: dict[str, Any], message: str):
    source = source_of(golden_of(case))
    arch = source.metadata["general.architecture"]
    metadata = {f"{arch}.{key}": value for key, value in changes.items()}
    with pytest.raises(ggmodel.Error, match=message):
        ggmodel.load(vary(source, metadata=metadata), flash_attention="on")


def test_a_gemma_2_that_sees_later_tokens_is_refused():
    golden = golden_of("gemma2/published")
    seeing = {**golden.config, "use_bidirectional_attention": True}
    with pytest.raises(Unsupported, match="bidirectional attention"):
        ggmodel.load(source_of(replace(golden, config=seeing)))


FEWER: dict[str, dict[str, Any]] = {  # keys that llama.cpp's converter does not write
    "cohere2/published": {
        "attention.sliding_window_pattern": None,
        "rope.scaling.type": "none",
        "vocab_size": 64,
    },
    "command_r/published": {
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.dimension_count": None,
        "rope.scaling.type": "none",
    },
    "gemma3n/published": {"vocab_size": None, "vocab_size_per_layer_input": None},
    "gemma4/dense": {"feed_forward_length": 64},
    "lfm2/published": {"attention.key_length": None, "attention.value_length": None},
    "lfm2/experts": {"expert_weights_norm": None, "expert_weights_scale": None},
    "qwen35/published": {"attention.recurrent_layers": None},  # in older files
}


@pytest.mark.parametrize("case", FEWER)
def test_keys_as_llama_cpp_writes_them(vary: Vary, case: str):
    golden = golden_of(case)
    source = source_of(golden)
    arch = source.metadata["general.architecture"]
    metadata = {f"{arch}.{key}": value for key, value in FEWER[case].items()}
    assert {k for k, v in metadata.items() if v is None} <= source.metadata.keys()
    with ggmodel.load(vary(source, metadata=metadata), kv_type="f32") as model:
        bound = 1e-6 if arch.startswith("gemma") else 1e-8  # ggml's GELU reads a table in F16
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < bound
