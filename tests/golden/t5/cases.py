"""The tiny T5 models of the goldens, as the config.json a checkpoint would have.

A prompt without a source is computed by transformers' decoder alone (`adjust`), whose layers leave
out the attention to the encoder then; so do ours.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights
from tests.golden.decoders import decode_alone

VOCABULARY, START = 96, 5


def t5(**changes: Any) -> dict[str, Any]:
    """The keys of google-t5/t5-small's config.json, with small numbers."""
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "d_ff": 96,
        "d_kv": 24,
        "d_model": 64,
        "decoder_start_token_id": START,
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 0.03,
        "model_type": "t5",
        "n_positions": 64,
        "num_heads": 3,
        "num_layers": 2,
        "output_past": True,
        "pad_token_id": 0,
        "relative_attention_num_buckets": 12,
        "vocab_size": VOCABULARY,
        **changes,
    }


PROMPT = 24

CASES: dict[str, dict[str, Any]] = {
    "published": t5(),
    # Version 1.1 and Flan: a gate, a head of its own, which is not scaled.
    "gated": t5(
        feed_forward_proj="gated-gelu",
        num_decoder_layers=3,
        num_layers=1,
        relative_attention_max_distance=14,
        tie_word_embeddings=False,
    ),
    # No gate, another activation, and a tied head without a scale.
    "silu": t5(
        feed_forward_proj="silu", num_decoder_layers=1, num_heads=2, tie_word_embeddings=False
    ),
    # Both, and a head of its own that is scaled.
    "gated_silu": t5(feed_forward_proj="gated-silu", d_kv=32, num_heads=2),
}
HEAD = {"lm_head.weight": (VOCABULARY, 64)}
BOUNDS = {"gated": 1e-6}  # ggml's GELU reads a table in F16
MORE = {"gated": HEAD, "gated_silu": HEAD}

Shape = tuple[int, ...]


def weight(name: str, shape: Shape) -> NDArray[np.float32]:
    """The common rule, but scores of distances outweigh tokens, and logits are not close though a
    tied head is scaled by 1/8."""
    values = weights.weight(name, shape)
    larger = {"relative_attention_bias": 6, "decoder.final_layer_norm": 6}
    return values * np.float32(next((n for part, n in larger.items() if part in name), 1))


def sources(*names: str) -> dict[str, tuple[Shape, dict[str, Any], str]]:
    """Texts for the encoder by name and length."""
    return {name: ((int(name.rpartition("_")[2]),), {}, "source") for name in names}


PICTURES = {case: sources("words_40", "more_9", "one_1") for case in CASES}
ASKED: dict[str, list[int | str]] = {
    "long": ["words_40", 14],
    "short": ["more_9", 2],
    "start": ["one_1", 30],
}
PROMPTS = dict.fromkeys(CASES, ASKED)


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    return [START]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    return {"source_ids": np.stack([picture.pixels.astype(np.int64) for picture in pictures])}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.encoder(inputs["source_ids"]).last_hidden_state[0]


def adjust(model: Any) -> None:
    scale = model.model_dim**-0.5 if model.config.scale_decoder_outputs else 1.0
    decode_alone(model, "source_ids", "input_ids", lambda states: model.lm_head(states * scale))
