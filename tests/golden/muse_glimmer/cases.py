"""The configurations of the Muse Glimmer golden files, as the config.json of a checkpoint."""

from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"
# The smallest tower: no architecture reads it, and the text has to do without.
TOWER = {
    "model_type": "muse_glimmer_vision",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "patch_size": 2,
    "pos_emb_height": 2,
    "pos_emb_width": 2,
}


def muse_glimmer(**changes: Any) -> dict[str, Any]:
    text = {
        "model_type": "muse_glimmer_text",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "final_logit_softcapping": 20.0,
        "head_dim": 32,
        "hidden_activation": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_rope_theta": [10000.0, 10000.0, 10000.0, 0],
        "layer_types": [*[SLIDING] * 3, FULL],
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "output_multiplier": 0.5,
        "post_norm_eps": 1e-8,
        "qk_scale_factor": 3.87,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 8,
        "vocab_size": 64,
        **changes,
    }
    return {
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "model_type": "muse_glimmer",
        "image_token_id": 200092,
        "out_hidden_size": 128,
        "projector_hidden_size": 32,
        "text_config": {k: v for k, v in text.items() if v is not ...},  # ... leaves a key out
        "torch_dtype": "float32",
        "video_token_id": 200091,
        "vision_config": TOWER,
    }


CASES: dict[str, dict[str, Any]] = {
    "published": muse_glimmer(),
    # Layers by number, and a head count that is no power of two; ends of norms that are seen.
    "by_number": muse_glimmer(
        final_logit_softcapping=2.0,
        layer_rope_theta=...,
        layer_types=...,
        num_hidden_layers=6,
        post_norm_eps=1e-1,
        qk_scale_factor=1.5,
        rms_norm_eps=1e-2,
    ),
    # Rotated layers that are not the local ones, biases, another activation, a scaled rope.
    "rotated": muse_glimmer(
        attention_bias=True,
        head_dim=16,
        hidden_activation="relu",
        layer_rope_theta=[0, 500000.0, 500000.0],
        layer_types=[SLIDING, FULL, SLIDING],
        num_hidden_layers=3,
        num_key_value_heads=1,
        rope_parameters={"rope_theta": 500000.0, "rope_type": "linear", "factor": 4.0},
    ),
}
