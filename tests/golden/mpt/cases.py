"""The configurations of the mpt golden files, as the config.json of a checkpoint."""

from typing import Any


def mpt(**changes: Any) -> dict[str, Any]:
    attention = {
        "alibi": True,
        "alibi_bias_max": 8,
        "attn_impl": "torch",
        "attn_type": "multihead_attention",
        "clip_qkv": None,
        "prefix_lm": False,
        "qk_ln": False,
        "softmax_scale": None,
    }
    config = {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "bos_token_id": 1,
        "d_model": 64,
        "eos_token_id": 2,
        "expansion_ratio": 4,
        "layer_norm_epsilon": 0.01,
        "learned_pos_emb": True,
        "logit_scale": None,
        "max_seq_len": 128,
        "n_heads": 4,
        "n_layers": 2,
        "no_bias": True,
        "norm_type": "low_precision_layernorm",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": 64,
        **changes,
    }
    config["attn_config"] = attention | changes.get("attn_config", {})
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": mpt(),
    # As MPT 7B: projections are bounded. Heads that are no power of two, an untied head.
    "clipped": mpt(
        attn_config={"clip_qkv": 0.3},
        d_model=96,
        n_heads=6,
        n_layers=3,
        tie_word_embeddings=False,
        vocab_size=96,
    ),
    "scaled": mpt(attn_config={"clip_qkv": 0.7, "softmax_scale": 0.6}, layer_norm_epsilon=1e-5),
}
