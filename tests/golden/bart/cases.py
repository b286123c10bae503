"""The tiny BART models of the goldens, as the config.json a checkpoint would have.

A prompt without a source is computed by transformers' decoder alone (`adjust`), whose layers leave
out the attention to the encoder then, and the norm behind it; so do ours.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights
from tests.golden.decoders import decode_alone
from tests.golden.t5 import cases as t5

VOCABULARY, START, WIDTH = 96, 2, 64


def bart(**changes: Any) -> dict[str, Any]:
    """The keys of facebook/bart-large-cnn's config.json, with small numbers."""
    config = {
        "activation_function": "gelu",
        "architectures": ["BartForConditionalGeneration"],
        "d_model": WIDTH,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 96,
        "decoder_layers": 2,
        "decoder_start_token_id": START,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "encoder_layers": 2,
        "eos_token_id": 2,
        "forced_bos_token_id": 0,
        "is_encoder_decoder": True,
        "max_position_embeddings": 64,
        "model_type": "bart",
        "num_hidden_layers": 2,
        "pad_token_id": 1,
        "scale_embedding": False,
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, MARGIN = 24, 0.02
CASES: dict[str, dict[str, Any]] = {
    "published": bart(),
    # More layers in the decoder, scaled embeddings, another activation, heads and widths.
    "scaled": bart(
        activation_function="relu",
        decoder_attention_heads=2,
        decoder_ffn_dim=80,
        decoder_layers=3,
        encoder_attention_heads=2,
        encoder_ffn_dim=80,
        encoder_layers=1,
        forced_bos_token_id=...,
        num_hidden_layers=1,
        scale_embedding=True,
    ),
}

Shape = tuple[int, ...]


def weight(name: str, shape: Shape) -> NDArray[np.float32]:
    """The common rule, but logits of the tied head are not close, and positions not louder than
    tokens."""
    values = weights.weight(name, shape)
    smaller = {"embed_positions": 1 / 4, "shared": 1 / 4}
    return values * np.float32(next((n for part, n in smaller.items() if part in name), 1))


PICTURES = {case: t5.sources("words_40", "more_9", "one_1") for case in CASES}
PROMPTS = dict.fromkeys(CASES, t5.ASKED)
model_inputs = t5.model_inputs


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    forced = config.get("forced_bos_token_id")
    return [config["decoder_start_token_id"], *([] if forced is None else [forced])]


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.model.encoder(inputs["source_ids"]).last_hidden_state[0]


def adjust(model: Any) -> None:
    def logits(states: Any) -> Any:
        return model.lm_head(states) + model.final_logits_bias

    decode_alone(model, "source_ids", "input_ids", logits)


# Numbers that no case can see.
UNSEEN = {"*attn_k.bias": "it adds the same to all scores of a query, which softmax takes off"}
