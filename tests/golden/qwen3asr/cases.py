"""The configurations of the qwen3asr golden files, spelt as transformers saves Qwen3-ASR."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture

AUDIO, BEGIN, END = 96, 97, 98  # special tokens, behind those of text
SPECIAL = {"<|audio_pad|>": AUDIO, "<|audio_start|>": BEGIN, "<|audio_end|>": END}
CHUNK, ROWS = 100, 13  # frames of a second, and its rows


def qwen3asr(
    hearing: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """A model whose windows have two seconds."""
    return {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "audio_config": {
            "activation_dropout": 0.0,
            "activation_function": "gelu",
            "attention_dropout": 0.0,
            "d_model": 32,
            "downsample_hidden_size": 6,
            "dropout": 0.0,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "encoder_layers": 2,
            "initializer_range": 0.02,
            "max_position_embeddings": 13,
            "model_type": "qwen3_asr_encoder",
            "n_window": 50,
            "n_window_infer": 200,
            "num_mel_bins": 16,
            "output_dim": 64,
            "scale_embedding": False,
            **(hearing or {}),
        },
        "audio_token_id": AUDIO,
        "initializer_range": 0.02,
        "model_type": "qwen3_asr",
        "pad_token_id": 2,
        "eos_token_id": [2],
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 64,
            "initializer_range": 0.02,
            "intermediate_size": 96,
            "max_position_embeddings": 128,
            "max_window_layers": 28,
            "model_type": "qwen3",
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": 100,
            **(text or {}),
        },
        "tie_word_embeddings": True,
        "timestamp_token_id": 99,
        "token_classification_bias": False,
        "torch_dtype": "float32",
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "published": qwen3asr(),
    # Another activation; a window that is cut to whole seconds; an odd number of mels; a head of
    # its own, other norms.
    "odd": qwen3asr(
        {"activation_function": "relu", "n_window_infer": 150, "num_mel_bins": 9},
        {"rms_norm_eps": 1e-3, "tie_word_embeddings": False},
        tie_word_embeddings=False,
    ),
}
PROMPT = 24
TOKENS = dict.fromkeys(CASES, AUDIO)


def window(config: dict[str, Any]) -> int:
    return config["audio_config"]["n_window_infer"] // CHUNK * CHUNK


def _sound(case: str, total: int) -> tuple[tuple[int, ...], dict[str, Any], str]:
    most = window(CASES[case])
    frames = tuple(min(most, total - begin) for begin in range(0, total, most))
    shape = len(frames), CASES[case]["audio_config"]["num_mel_bins"], most
    return shape, {"frames": frames}, "audio"


# Part of a second; a window whose last second has one row; two windows and a part of a third.
PICTURES = {
    "published": {
        "part": _sound("published", 57),
        "short": _sound("published", 101),
        "long": _sound("published", 423),
    },
    "odd": {"part": _sound("odd", 90), "long": _sound("odd", 203)},
}
ASKED: dict[str, list[int | str]] = {
    "start": ["short", 6],
    "middle": [7, "long", 5],
    "two": [4, "short", 3, "part", 4],
}
PROMPTS = {"published": ASKED, "odd": {"two": [4, "long", 3, "part", 4]}}


def rows_of(picture: Picture) -> int:
    """As transformers counts them."""
    total = sum(picture.data["frames"])
    rest = total % CHUNK
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return rest + total // CHUNK * ROWS


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    return [BEGIN, *[AUDIO] * rows_of(picture), END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    """Sounds filled up to whole seconds, as many as the longest has."""
    most = max(-(-sum(p.data["frames"]) // CHUNK) * CHUNK for p in pictures)
    spectra, heard = [], []
    for picture in pictures:
        total = sum(picture.data["frames"])
        mel = np.concatenate(list(picture.pixels), axis=1)[:, :total]
        spectra.append(np.pad(mel, ((0, 0), (0, most - total))))
        heard.append((np.arange(most) < total).astype(np.int64))
    return {"input_features": np.stack(spectra), "input_features_mask": np.stack(heard)}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.get_audio_features(
        inputs["input_features"], inputs["input_features_mask"]
    ).pooler_output


# Filled up to half a second; three windows.
MARKED = "<|audio_start|><|audio_pad|><|audio_end|>"
FILES = {
    "published": {"part": (MARKED, 3333), "long": (MARKED, 70_000)},
    "odd": {"long": (MARKED, 20_000)},
}


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    """Its spectrum is computed in float64, by Whisper's extractor."""
    Extractor = transformers.Qwen3ASRFeatureExtractor
    whisper = transformers.WhisperFeatureExtractor
    Extractor._torch_extract_fbank_features = whisper._np_extract_fbank_features
    heard = Extractor(feature_size=config["audio_config"]["num_mel_bins"])
    tokens = zip(("audio_token", "audio_bos_token", "audio_eos_token"), SPECIAL, strict=True)
    for name, text in tokens:
        setattr(tokenizer, name, text)
    return transformers.Qwen3ASRProcessor(tokenizer=tokenizer, feature_extractor=heard)
