"""The tiny Whisper models of the goldens, as the config.json a checkpoint would have.

Transformers runs the decoder with a sound alone. A prompt without one is computed by its decoder
alone (`adjust`), whose layers leave out the attention to the encoder then; so do ours.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture, weights
from tests.golden.decoders import decode_alone

VOCABULARY, START = 96, 90


def whisper(**changes: Any) -> dict[str, Any]:
    """The keys of openai/whisper-tiny's config.json, with small numbers."""
    keys = {
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "apply_spec_augment": False,
        "architectures": ["WhisperForConditionalGeneration"],
        "attention_dropout": 0.0,
        "begin_suppress_tokens": [20, 89],
        "bos_token_id": 89,
        "classifier_proj_size": 256,
        "d_model": 64,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 96,
        "decoder_layerdrop": 0.0,
        "decoder_layers": 3,
        "decoder_start_token_id": START,
        "dropout": 0.0,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "encoder_layerdrop": 0.0,
        "encoder_layers": 2,
        "eos_token_id": 89,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "mask_feature_length": 10,
        "mask_feature_min_masks": 0,
        "mask_feature_prob": 0.0,
        "mask_time_length": 10,
        "mask_time_min_masks": 2,
        "mask_time_prob": 0.05,
        "max_source_positions": 20,
        "max_target_positions": 64,
        "median_filter_width": 7,
        "model_type": "whisper",
        "num_mel_bins": 8,
        "pad_token_id": 89,
        "scale_embedding": False,
        "suppress_tokens": [1, 2, 7],
        "torch_dtype": "float32",
        "use_cache": True,
        "use_weighted_layer_sum": False,
        "vocab_size": VOCABULARY,
        **changes,
    }
    return {**keys, "num_hidden_layers": keys["encoder_layers"]}


PROMPT = 24

CASES: dict[str, dict[str, Any]] = {
    "published": whisper(),
    # As distilled models: few layers that decode; more mels; halves of different form.
    "distilled": whisper(
        num_mel_bins=16,
        encoder_layers=3,
        decoder_layers=1,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        max_source_positions=12,
    ),
    "relu": whisper(activation_function="relu", tie_word_embeddings=True),
}

Shape = tuple[int, ...]


def weight(name: str, shape: Shape) -> NDArray[np.float32]:
    """The common rule, but positions outweigh tokens: else a tied head repeats the latest one."""
    values = weights.weight(name, shape)
    return np.float32(4) * values if name == "model.decoder.embed_positions.weight" else values


def sounds(case: str, *names: str) -> dict[str, tuple[Shape, dict[str, Any], str]]:
    """Spectra by name."""
    shape = CASES[case]["num_mel_bins"], 2 * CASES[case]["max_source_positions"]
    return {name: (shape, {}, "audio") for name in names}


PICTURES = {case: sounds(case, "speech", "song") for case in CASES}
ASKED: dict[str, list[int | str]] = {"short": ["speech", 2], "long": ["song", 14]}
PROMPTS = dict.fromkeys(CASES, ASKED)


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    return [START]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    return {"input_features": np.stack([picture.pixels for picture in pictures])}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.model.encoder(inputs["input_features"]).last_hidden_state[0]


def adjust(model: Any) -> None:
    decode_alone(model, "input_features", "input_features", model.proj_out)


# The whole window, and a sound that is filled up.
BEFORE: list[int] = []  # the sound stands for the first token
FILES = {"published": {"full": ("", 6400), "short": ("", 3333)}}


def _extractor(transformers: Any, tower: dict[str, Any]) -> Any:
    """Whisper's, computed in float64 as without torch, with as many frames as the model has."""
    Extractor = transformers.WhisperFeatureExtractor
    Extractor._torch_extract_fbank_features = Extractor._np_extract_fbank_features
    heard = Extractor(feature_size=tower["num_mel_bins"])
    heard.chunk_length = 0  # seconds; less than one
    heard.n_samples = 2 * tower["max_source_positions"] * heard.hop_length
    return heard


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    return transformers.WhisperProcessor(_extractor(transformers, config), tokenizer)


def processed(processor: Any, text: str, given: dict[str, Any]) -> dict[str, Any]:
    import torch  # type: ignore[import-not-found]

    heard = processor(given["audio"], sampling_rate=given["sampling_rate"], return_tensors="pt")
    ids = [START, *processor.tokenizer(text)["input_ids"]]
    return {**heard, "decoder_input_ids": torch.tensor([ids])}
