"""llama.cpp's names: of tensors from the gguf package, of hyperparameters from a table."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from ..modules import folded

# Key of config.json → key of GGUF files without the architecture, as llama.cpp's converter writes
# them; the gguf package has the keys alone.
KEYS: Mapping[str, str] = {
    "attention_multiplier": "attention.scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "clip_qkv": "attention.clamp_kqv",
    "conv_L_cache": "shortconv.l_cache",
    "embedding_multiplier": "embedding_scale",
    "ffn_hidden_size": "feed_forward_length",
    "final_logit_softcapping": "final_logit_softcapping",
    "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "logit_scale": "logit_scale",
    "logits_scaling": "logit_scale",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_topk": "expert_used_count",
    "n_group": "expert_group_count",
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "norm_topk_prob": "expert_weights_norm",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_local_experts": "expert_count",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "residual_multiplier": "residual_scale",
    "rope_parameters.mrope_section": "rope.dimension_sections",
    "rope_scaling.mrope_section": "rope.dimension_sections",
    "routed_scaling_factor": "expert_weights_scale",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "topk_group": "expert_group_used_count",
    "v_head_dim": "attention.value_length",
}
# Key below `vision_config` → a name, and the key behind "vision.", in mmproj files "clip.vision.".
VISION_KEYS: Mapping[str, tuple[str, str]] = {
    "depth": ("vision_layers", "block_count"),
    "fullatt_block_indexes": ("vision_full_layers", "wa_layer_indexes"),
    "hidden_size": ("vision_width", "embedding_length"),
    "image_size": ("image_size", "image_size"),
    "intermediate_size": ("vision_ffn", "feed_forward_length"),
    "layer_norm_eps": ("vision_eps", "attention.layer_norm_epsilon"),
    "num_attention_heads": ("vision_heads", "attention.head_count"),
    "num_heads": ("vision_heads", "attention.head_count"),
    "num_hidden_layers": ("vision_layers", "block_count"),
    "out_hidden_size": ("projection_width", "projection_dim"),
    "patch_size": ("patch_size", "patch_size"),
    "spatial_merge_size": ("merge_size", "spatial_merge_size"),
    "window_size": ("vision_window", "window_size"),
}


def gguf_name(module: str, architecture: str) -> str | None:
    """llama.cpp's name of a module's tensors, numbers of layers as "*"; None if it has none.

    Args:
        module: its name in checkpoints, "model.layers.*.self_attn.q_layernorm".
        architecture: whose names come first, if llama.cpp has one called so.
    """
    while True:
        for names in (_names(architecture), _names("")):
            if module in names:
                return names[module]
        module = module.partition(".")[2]
        if "." not in module and module != "lm_head":  # "norm" alone may be any
            return None


@functools.cache
def _names(architecture: str) -> dict[str, str]:
    """Name in checkpoints → name in files, numbers as "*": of one architecture, or of any."""
    # Imported late: it is slow, and only `new` needs it.
    from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
    from gguf.tensor_mapping import TensorNameMap

    found: dict[str, str] = {}
    towers = MODEL_ARCH_NAMES[MODEL_ARCH.MMPROJ]
    for arch, name in MODEL_ARCH_NAMES.items():
        if _plain(name) == _plain(architecture) or (not architecture and name != towers):
            for hf, (_, gguf) in TensorNameMap(arch, 1).mapping.items():
                found.setdefault(folded(hf), folded(gguf))
    if not architecture:
        for hf, (_, gguf) in TensorNameMap(MODEL_ARCH.MMPROJ, 1).mapping.items():
            found.setdefault(folded(hf), folded(gguf))
    return found


def _plain(name: str) -> str:
    return re.sub(r"\W|_", "", name).lower()
