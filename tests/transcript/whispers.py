"""A tiny Whisper with a vocabulary, as a Hugging Face folder; its weights come from their names."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ggmodel.workbench.golden import checkpoint, weights
from tests.audio.sounds import tones

LANGUAGES = ("en", "de", "haw")
POSITIONS = 50  # a second
WORDS = 256
_SPECIAL = [
    "<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>",
    "<|notimestamps|>",
]  # fmt: skip
TOKENS = [*_SPECIAL, *(f"<|{0.02 * i:.2f}|>" for i in range(POSITIONS + 1))]
IDS = {text: WORDS + i for i, text in enumerate(TOKENS)}
END, START, UNTIMED = (IDS[f"<|{t}|>"] for t in ("endoftext", "startoftranscript", "notimestamps"))
TIMED = UNTIMED + 1

CONFIG: dict[str, Any] = {
    "activation_function": "gelu",
    "architectures": ["WhisperForConditionalGeneration"],
    "bos_token_id": END,
    "d_model": 32,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "decoder_layers": 2,
    "decoder_start_token_id": START,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "encoder_layers": 1,
    "eos_token_id": END,
    "is_encoder_decoder": True,
    "max_source_positions": POSITIONS,
    "max_target_positions": 48,
    "model_type": "whisper",
    "num_hidden_layers": 1,
    "num_mel_bins": 8,
    "pad_token_id": END,
    "scale_embedding": False,
    "torch_dtype": "float32",
    "vocab_size": WORDS + len(TOKENS),
}
GENERATION: dict[str, Any] = {
    "begin_suppress_tokens": [32, END],
    "bos_token_id": END,
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": IDS[f"<|{code}|>"] for code in LANGUAGES},
    "max_initial_timestamp_index": 10,
    "max_length": 48,
    "no_timestamps_token_id": UNTIMED,
    "pad_token_id": END,
    "prev_sot_token_id": IDS["<|startofprev|>"],
    "return_timestamps": False,
    "suppress_tokens": [*range(0, 60), IDS["<|translate|>"], IDS["<|nospeech|>"]],
    "task_to_id": {name: IDS[f"<|{name}|>"] for name in ("transcribe", "translate")},
}
PREPROCESSOR = {
    "chunk_length": 1,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 8,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 16_000,
    "nb_max_frames": 100,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "WhisperProcessor",
    "return_attention_mask": False,
    "sampling_rate": 16_000,
}
# Seconds of sounds, and how each is written down.
ASKED: dict[str, tuple[float, dict[str, Any]]] = {
    "short": (1.0, {}),
    "short, timed": (1.0, {"timestamps": True}),
    "long": (3.3, {"timestamps": True}),
    "short, prompted": (1.0, {"timestamps": True, "prompt": " Red dogs. "}),
    "long, prompted": (2.5, {"timestamps": True, "prompt": "as long as half of the context"}),
    "long, translated": (2.5, {"timestamps": True, "language": "de", "task": "translate"}),
}


@cache
def goldens() -> dict[str, Any]:
    """The transcripts of transformers; see make_goldens.py."""
    return json.loads(Path(__file__).with_name("goldens.json").read_text())


def sound(name: str) -> np.ndarray:
    return tones(ASKED[name][0])


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Tokens depend on sound and position: a tied head repeats the latest token otherwise."""
    values = weights.weight(name, shape)
    strong = "embed_positions", "encoder_attn.out_proj"
    return 4 * values if any(part in name for part in strong) else values


def write(folder: Path, tensors: dict[str, tuple[int, ...]]) -> Path:
    """Writes the folder, given names and shapes of the tensors."""
    checkpoint(folder, CONFIG, {name: weight(name, shape) for name, shape in tensors.items()})
    files = {"generation_config": GENERATION, "preprocessor_config": PREPROCESSOR}
    for name, content in {**files, "tokenizer": _tokenizer()}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _tokenizer() -> dict[str, Any]:
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": WORDS + i, "content": text, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": i < len(_SPECIAL),
            }
            for i, text in enumerate(TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|startoftranscript|>", "type_id": 0}},
                {"SpecialToken": {"id": "<|notimestamps|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
            "special_tokens": {
                text: {"id": text, "ids": [IDS[text]], "tokens": [text]} for text in _SPECIAL
            },
        },
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
            "vocab": {letter: i for i, letter in enumerate(letters)}, "merges": [],
        },
    }  # fmt: skip
