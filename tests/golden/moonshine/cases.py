"""The tiny Moonshine models of the goldens, as the config.json a checkpoint would have.

Sounds are samples, of any length. A prompt without one is computed by transformers' decoder alone
(`adjust`), whose layers leave out the attention to the encoder then; so do ours.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights
from tests.golden.decoders import decode_alone

VOCABULARY, START = 96, 1


def moonshine(**changes: Any) -> dict[str, Any]:
    """The keys of UsefulSensors/moonshine-tiny's config.json, with small numbers. Heads have 16
    elements, of which 14 are rotated."""
    return {
        "architectures": ["MoonshineForConditionalGeneration"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "decoder_hidden_act": "silu",
        "decoder_num_attention_heads": 4,
        "decoder_num_hidden_layers": 3,
        "decoder_num_key_value_heads": 4,
        "decoder_start_token_id": START,
        "encoder_hidden_act": "gelu",
        "encoder_num_attention_heads": 4,
        "encoder_num_hidden_layers": 2,
        "encoder_num_key_value_heads": 4,
        "eos_token_id": 2,
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "is_encoder_decoder": True,
        "max_position_embeddings": 64,
        "model_type": "moonshine",
        "pad_head_dim_to_multiple_of": 12,
        "partial_rotary_factor": 0.9,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": VOCABULARY,
        **changes,
    }


PROMPT = 24

CASES: dict[str, dict[str, Any]] = {
    "published": moonshine(),
    # A head of its own, biases, other activations, heads rotated as a whole; one layer a side.
    "odd": moonshine(
        attention_bias=True,
        decoder_hidden_act="gelu",
        decoder_num_attention_heads=2,
        decoder_num_hidden_layers=1,
        decoder_num_key_value_heads=2,
        encoder_hidden_act="relu",
        encoder_num_attention_heads=2,
        encoder_num_hidden_layers=1,
        encoder_num_key_value_heads=2,
        intermediate_size=128,
        pad_head_dim_to_multiple_of=None,
        partial_rotary_factor=1.0,
        rope_theta=500.0,
        tie_word_embeddings=False,
    ),
}

Shape = tuple[int, ...]


def weight(name: str, shape: Shape) -> NDArray[np.float32]:
    """The common rule, but a tied head does not repeat the latest token."""
    values = weights.weight(name, shape)
    return np.float32(0.25) * values if name == "model.decoder.embed_tokens.weight" else values


# The fewest samples that give a row; some rows, and samples that no row hears.
SOUNDS: dict[str, tuple[Shape, dict[str, Any], str]] = {
    "click": ((1, 895), {}, "audio"),
    "word": ((1, 4000), {}, "audio"),
    "speech": ((1, 9001), {}, "audio"),
}
PICTURES = dict.fromkeys(CASES, SOUNDS)
ASKED: dict[str, list[int | str]] = {
    "short": ["word", 2],
    "long": ["speech", 14],
    "click": ["click", 5],
}
PROMPTS = dict.fromkeys(CASES, ASKED)


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    return [START]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    return {"input_values": np.concatenate([picture.pixels for picture in pictures])}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.model.encoder(inputs["input_values"]).last_hidden_state[0]


def adjust(model: Any) -> None:
    decode_alone(model, "input_values", "input_values", model.proj_out)


# Sounds are heard as they are.
BEFORE: list[int] = []  # the sound stands for the first token
FILES = {"published": {"long": ("", 6400), "short": ("", 3333)}}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    """As UsefulSensors/moonshine-tiny's preprocessor_config.json has it."""
    heard = transformers.Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True)
    return transformers.Wav2Vec2Processor(heard, tokenizer)


def processed(processor: Any, text: str, given: dict[str, Any]) -> dict[str, Any]:
    import torch  # type: ignore[import-not-found]

    heard = processor(given["audio"], sampling_rate=given["sampling_rate"], return_tensors="pt")
    ids = [START, *processor.tokenizer(text)["input_ids"]]
    return {**heard, "decoder_input_ids": torch.tensor([ids])}


# Numbers that no case can see.
UNSEEN = {
    "*cross_attn_k.bias": "it adds the same to all scores of a query, which softmax takes off"
}
