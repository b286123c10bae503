"""Opens sounds safely, and prepares them for models that hear.

A model calls `resample` and one of the spectra. Each gives the same numbers as the feature
extractors of transformers.
"""

from .mel import gemma_mel, mel_filters, parakeet_mel, whisper_mel
from .open import content_hash, open_audio
from .sound import Audio, resample

__all__ = [
    "Audio",
    "content_hash",
    "gemma_mel",
    "mel_filters",
    "open_audio",
    "parakeet_mel",
    "resample",
    "whisper_mel",
]
