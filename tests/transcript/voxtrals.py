"""A tiny Voxtral as published: a vocabulary in tekken.json alone; its weights are the golden's."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ggmodel.workbench.golden import checkpoint, weights
from tests.audio.sounds import tones
from tests.golden.files import load_golden
from tests.golden.voxtral.cases import voxtral

TEKKEN = Path(__file__).parents[1] / "convert" / "vocabulary" / "data" / "tekken" / "tekken.json"
TOKENS, AUDIO, END = 440, 24, 2
CONTEXT = 64  # answers go on up to its end
WINDOW, ROWS = 6400, 5  # samples that are heard at once, and their rows
FEATURES: dict[str, Any] = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "chunk_length": 0,  # seconds; published ones hear 30
    "feature_size": 8,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": WINDOW,
    "nb_max_frames": 40,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "VoxtralProcessor",
    "return_attention_mask": False,
    "sampling_rate": 16_000,
}
GENERATION = {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": 11}
# Seconds of sounds, and their languages.
ASKED: dict[str, tuple[float, str | None]] = {
    "short": (0.3, None),
    "short, in English": (0.3, "en"),
    "long, in Hindi": (1.5, "hi"),
}


@cache
def goldens() -> dict[str, Any]:
    """Prompts and answers of mistral_common and transformers; see make_voxtral.py."""
    return json.loads(Path(__file__).with_name("voxtral.json").read_text())


def sound(name: str) -> np.ndarray:
    return tones(ASKED[name][0])


def config() -> dict[str, Any]:
    found = voxtral(audio_token_id=AUDIO, vocab_size=TOKENS)
    found["text_config"]["vocab_size"] = TOKENS
    return found


def write(folder: Path) -> Path:
    """The folder, with a row of the embedding for each token of the vocabulary."""
    tensors = {}
    for name, values in load_golden("voxtral", "published").weights().items():
        of_tokens = name.endswith(("embed_tokens.weight", "lm_head.weight"))
        tensors[name] = weights.weight(name, (TOKENS, values.shape[1])) if of_tokens else values
    head = tensors["language_model.lm_head.weight"]
    head[END] = 1.05 * head[434]  # an answer ends where that would be likeliest
    checkpoint(folder, config(), tensors)
    (folder / "preprocessor_config.json").write_text(json.dumps(FEATURES))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    shutil.copy(TEKKEN, folder)
    return folder
