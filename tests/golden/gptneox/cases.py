"""The configurations of the gptneox golden files, as the config.json of a checkpoint."""

from typing import Any


def gptneox(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "attention_bias": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "layer_norm_eps": 0.01,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_parallel_residual": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": gptneox(),
    # One part behind the other, no biases, tied.
    "serial": gptneox(
        attention_bias=False,
        hidden_act="gelu_fast",
        num_hidden_layers=3,
        rotary_emb_base=500,
        rotary_pct=0.5,
        tie_word_embeddings=True,
        use_parallel_residual=False,
        vocab_size=96,
    ),
}

BOUNDS = {"serial": 1e-6}  # ggml's GELU reads a table in F16
