"""The configurations of the qwen2audio golden files, spelt as the published config.json of
Qwen2-Audio 7B."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture

AUDIO, BEGIN, END = 96, 97, 98  # special tokens, behind those of text
SPECIAL = {"<|AUDIO|>": AUDIO, "<|audio_bos|>": BEGIN, "<|audio_eos|>": END}


def qwen2audio(hearing: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A model whose encoder hears 0.4 s at once."""
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_config": {
            "activation_dropout": 0.0,
            "activation_function": "gelu",
            "attention_dropout": 0.0,
            "d_model": 32,
            "dropout": 0.0,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "encoder_layerdrop": 0.0,
            "encoder_layers": 2,
            "init_std": 0.02,
            "max_source_positions": 20,
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": 8,
            "scale_embedding": False,
            **(hearing or {}),
        },
        "audio_token_index": AUDIO,
        "ignore_index": -100,
        "model_type": "qwen2_audio",
        "text_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "max_position_embeddings": 128,
            "model_type": "qwen2",
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000,
            "sliding_window": 32768,
            "torch_dtype": "float32",
            "use_mrope": False,
            "vocab_size": 100,
            **changes,
        },
        "torch_dtype": "float32",
        "vocab_size": 100,
    }


CASES: dict[str, dict[str, Any]] = {
    "published": qwen2audio(),
    # Another activation, an odd number of positions, shared heads in the text.
    "odd": qwen2audio(
        {"activation_function": "relu", "max_source_positions": 15, "num_mel_bins": 16},
        num_key_value_heads=2,
        rms_norm_eps=1e-3,
    ),
}
PROMPT = 24
TOKENS = dict.fromkeys(CASES, AUDIO)


def _sound(case: str, frames: int | None = None) -> tuple[tuple[int, ...], dict[str, Any], str]:
    tower = CASES[case]["audio_config"]
    most = 2 * tower["max_source_positions"]
    return (tower["num_mel_bins"], most), {"frames": frames or most}, "audio"


# All frames; a last row that has no other to be averaged with; one row alone.
PICTURES = {
    "published": {
        "full": _sound("published"),
        "short": _sound("published", 17),
        "least": _sound("published", 3),
    },
    "odd": {"full": _sound("odd"), "short": _sound("odd", 12)},
}
ASKED: dict[str, list[int | str]] = {
    "start": ["short", 6],
    "middle": [7, "full", 5],
    "two": [4, "full", 3, "least", 2, "short", 4],
}
PROMPTS = {"published": ASKED, "odd": {"two": [4, "short", 3, "full", 4]}}


def rows_of(picture: Picture) -> int:
    return (((picture.data["frames"] - 1) // 2 + 1) - 2) // 2 + 1


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    return [BEGIN, *[AUDIO] * rows_of(picture), END]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    frames = np.arange(pictures[0].shape[1])
    heard = [(frames < picture.data["frames"]).astype(np.int64) for picture in pictures]
    return {
        "input_features": np.stack([picture.pixels for picture in pictures]),
        "feature_attention_mask": np.stack(heard),
    }


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    """As the model computes them, whose encoder gets a mask made of the frames. One row alone looks
    like a placeholder to transformers, which then needs a mask of the text."""
    found: list[Any] = []
    projector = model.model.multi_modal_projector
    hook = projector.register_forward_hook(lambda _, __, result: found.append(result))
    ids = inputs["input_ids"]
    model(**inputs, attention_mask=ids * 0 + 1, use_cache=False)
    hook.remove()
    return found[0][0, : int((ids == AUDIO).sum())]


# As long as the window, shorter, and one row.
FILES = {
    "published": {
        "full": ("<|audio_bos|><|AUDIO|><|audio_eos|>", 6400),
        "short": ("<|audio_bos|><|AUDIO|><|audio_eos|>", 3333),
    },
    "odd": {"short": ("<|audio_bos|><|AUDIO|><|audio_eos|>", 2222)},
}


def _extractor(transformers: Any, tower: dict[str, Any]) -> Any:
    """Whisper's, computed in float64 as without torch, with as many frames as the model has."""
    Extractor = transformers.WhisperFeatureExtractor
    Extractor._torch_extract_fbank_features = Extractor._np_extract_fbank_features
    heard = Extractor(feature_size=tower["num_mel_bins"])
    heard.chunk_length = 0  # seconds; less than one
    heard.n_samples = 2 * tower["max_source_positions"] * heard.hop_length
    return heard


def processor(transformers: Any, config: dict[str, Any], tokenizer: Any) -> Any:
    heard = _extractor(transformers, config["audio_config"])
    return transformers.Qwen2AudioProcessor(tokenizer=tokenizer, feature_extractor=heard)
