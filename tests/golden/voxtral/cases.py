"""The configurations of the voxtral golden files, spelt as the published config.json of Voxtral
Mini 3B."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import Picture

AUDIO, BEGIN = 96, 97  # special tokens, behind those of text
SPECIAL = {"[AUDIO]": AUDIO, "[BEGIN_AUDIO]": BEGIN}


def voxtral(hearing: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A model whose encoder hears 0.4 s at once."""
    return {
        "architectures": ["VoxtralForConditionalGeneration"],
        "audio_config": {
            "activation_dropout": 0.0,
            "activation_function": "gelu",
            "attention_dropout": 0.0,
            "dropout": 0.0,
            "head_dim": 16,
            "hidden_size": 32,
            "initializer_range": 0.02,
            "intermediate_size": 128,
            "layerdrop": 0.0,
            "max_source_positions": 20,
            "model_type": "voxtral_encoder",
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "num_mel_bins": 8,
            "scale_embedding": False,
            "vocab_size": 51866,
            **(hearing or {}),
        },
        "audio_token_id": AUDIO,
        "hidden_size": 64,
        "model_type": "voxtral",
        "projector_hidden_act": "gelu",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 64,
            "initializer_range": 0.02,
            "intermediate_size": 96,
            "max_position_embeddings": 128,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 100000000.0,
            "sliding_window": None,
            "use_cache": True,
            "vocab_size": 100,
        },
        "torch_dtype": "float32",
        "vocab_size": 100,
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "published": voxtral(),
    # Two rows become one; other activations; heads whose queries are narrower than the text.
    "stacked": voxtral(
        {
            "activation_function": "relu",
            "intermediate_size": 64,
            "max_source_positions": 12,
            "num_mel_bins": 16,
        },
        projector_hidden_act="silu",
    ),
}
PROMPT = 24
TOKENS = dict.fromkeys(CASES, AUDIO)


def _sound(case: str, windows: int) -> tuple[tuple[int, ...], dict[str, Any], str]:
    tower = CASES[case]["audio_config"]
    return (windows, tower["num_mel_bins"], 2 * tower["max_source_positions"]), {}, "audio"


PICTURES = {case: {"short": _sound(case, 1), "long": _sound(case, 3)} for case in CASES}
ASKED: dict[str, list[int | str]] = {
    "start": ["short", 6],
    "middle": [7, "long", 5],
    "two": [4, "long", 3, "short", 4],
}
PROMPTS = {"published": ASKED, "stacked": {"middle": ASKED["middle"]}}


def image_tokens(config: dict[str, Any], picture: Picture) -> list[int]:
    tower = config["audio_config"]
    rows = tower["max_source_positions"] * tower["hidden_size"] // tower["intermediate_size"]
    return [BEGIN, *[AUDIO] * (picture.shape[0] * rows)]


def model_inputs(
    config: dict[str, Any], ids: list[int], pictures: list[Picture]
) -> dict[str, NDArray[Any]]:
    return {"input_features": np.concatenate([picture.pixels for picture in pictures])}


def image_rows(model: Any, inputs: dict[str, Any]) -> Any:
    return model.get_audio_features(inputs["input_features"]).pooler_output


# One window, and two, the second of which is filled up.
FILES = {
    "published": {"short": ("[BEGIN_AUDIO][AUDIO]", 3333), "long": ("[BEGIN_AUDIO][AUDIO]", 8000)}
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
    """The processor of transformers needs mistral-common for texts; this one holds its parts."""
    made = transformers.WhisperProcessor(
        _extractor(transformers, config["audio_config"]), tokenizer
    )
    made.rows = config["audio_config"]["max_source_positions"] // 4
    return made


def processed(processor: Any, text: str, given: dict[str, Any]) -> dict[str, Any]:
    """As the processor's `apply_transcription_request`: windows of the spectrum of a sound that is
    filled up to whole ones."""
    import torch  # type: ignore[import-not-found]

    window = processor.feature_extractor.n_samples
    options = {"padding": True, "truncation": False, "pad_to_multiple_of": window}
    whole = processor.feature_extractor(
        given["audio"][0], sampling_rate=given["sampling_rate"], return_tensors="pt", **options
    )["input_features"]
    windows = whole[0].unfold(1, window // 160, window // 160).transpose(0, 1).contiguous()
    text = text.replace("[AUDIO]", "[AUDIO]" * (processor.rows * len(windows)))
    ids = processor.tokenizer(text)["input_ids"]
    return {"input_ids": torch.tensor([ids]), "input_features": windows}
