"""The configurations of the starcoder2 golden files, as the config.json of a checkpoint."""

from typing import Any


def starcoder2(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Starcoder2ForCausalLM"],
        "model_type": "starcoder2",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "norm_epsilon": 0.01,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_bias": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": starcoder2(),
    # As 7B: every layer sees a window; no biases besides, another activation, tied.
    "window": starcoder2(
        hidden_act="relu",
        num_hidden_layers=3,
        num_key_value_heads=1,
        sliding_window=8,
        tie_word_embeddings=True,
        use_bias=False,
        vocab_size=96,
    ),
}

BOUNDS = {"plain": 1e-6}  # ggml's GELU reads a table in F16
