"""Writes goldens.npz: what the feature extractors of transformers make of the sounds of sounds.py.

    pip install torch==2.13.0 transformers==5.23.0
    PYTHONPATH=. python tests/audio/make_goldens.py

Whisper's is computed in numpy, in float64, which transformers does without torch; with torch it
computes in float32, whose rounding shows in the faintest mels. So Parakeet's is computed twice,
in float32 and, after its preemphasis, in float64.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma3nAudioFeatureExtractor,
    ParakeetFeatureExtractor,
    WhisperFeatureExtractor,
)
from transformers.audio_utils import mel_filter_bank
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor

from tests.audio.sounds import RATE, tones


def whisper(samples: np.ndarray, rounded: bool = False, **options) -> np.ndarray:
    extractor = WhisperFeatureExtractor(**options)
    if not rounded:
        extractor._torch_extract_fbank_features = extractor._np_extract_fbank_features
    return extractor(samples, sampling_rate=RATE)["input_features"][0]


def parakeet(samples: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    extractor = ParakeetFeatureExtractor()
    compute = extractor._torch_extract_fbank_features
    extractor._torch_extract_fbank_features = lambda x, device: compute(x.to(dtype), device)
    filters = mel_filter_bank(257, 80, 0.0, 8000.0, RATE, "slaney", "slaney").T
    torch.set_default_dtype(dtype)
    if dtype == torch.float64:
        extractor.mel_filters = torch.from_numpy(filters.copy())
    try:
        return extractor(samples, sampling_rate=RATE)["input_features"][0].numpy()
    finally:
        torch.set_default_dtype(torch.float32)


def main() -> None:
    made = {"whisper.torch": whisper(tones(0.7), rounded=True, chunk_length=1)}
    made["whisper.80"] = whisper(tones(0.7), chunk_length=1)
    made["whisper.128"] = whisper(tones(0.7), chunk_length=1, feature_size=128)
    made["whisper.30"] = whisper(tones(4.0))[:, ::50]
    made["parakeet.80"] = parakeet(tones(0.7), torch.float64)
    made["parakeet.torch"] = parakeet(tones(0.7), torch.float32)
    for name, kind in ("3n", Gemma3nAudioFeatureExtractor), ("4", Gemma4AudioFeatureExtractor):
        features = kind(feature_size=128)([tones(0.7)])
        made[f"gemma{name}"] = features["input_features"][0]
        made[f"gemma{name}.valid"] = features["input_features_mask"][0]
    made = {k: v.astype(np.float32) if v.dtype != bool else v for k, v in made.items()}
    np.savez_compressed(Path(__file__).with_name("goldens.npz"), **made)


if __name__ == "__main__":
    main()
