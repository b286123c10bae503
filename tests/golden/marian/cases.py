"""The tiny Marian models of the goldens, as the config.json a checkpoint would have; all else is
as for BART."""

from typing import Any

from tests.golden.bart import cases as bart
from tests.golden.t5 import cases as t5

VOCABULARY, START = 96, 95


def marian(**changes: Any) -> dict[str, Any]:
    """The keys of Helsinki-NLP/opus-mt-en-de's config.json, with small numbers."""
    return {
        "activation_function": "swish",
        "architectures": ["MarianMTModel"],
        "d_model": 64,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 96,
        "decoder_layers": 2,
        "decoder_start_token_id": START,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "encoder_layers": 2,
        "eos_token_id": 0,
        "is_encoder_decoder": True,
        "max_position_embeddings": 64,
        "model_type": "marian",
        "num_hidden_layers": 2,
        "pad_token_id": START,
        "scale_embedding": True,
        "vocab_size": VOCABULARY,
        **changes,
    }


PROMPT, MARGIN = 24, 0.02
CASES: dict[str, dict[str, Any]] = {
    "published": marian(),
    # As other models of Opus-MT: embeddings as they are; fewer layers in the decoder.
    "plain": marian(activation_function="relu", decoder_layers=1, scale_embedding=False),
}
weight = bart.weight
PICTURES = {case: t5.sources("words_40", "more_9", "one_1") for case in CASES}
PROMPTS = dict.fromkeys(CASES, t5.ASKED)
image_tokens, model_inputs = bart.image_tokens, t5.model_inputs
image_rows, adjust = bart.image_rows, bart.adjust
UNSEEN = bart.UNSEEN
