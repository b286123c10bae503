"""The tokens by which Whisper is told how to write, and tells the time."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np

from ggmodel.audio import whisper_mel
from ggmodel.errors import TokenizerError
from ggmodel.model import Speech

from .config import HOP, RATE, WhisperConfig
from .languages import CODES

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")  # "jw" and "haw", too
_MOST = 200  # languages, which follow the start; the largest release has 100


def speech_of(config: WhisperConfig, tokenizer: Any) -> Speech:
    """
    Raises:
        TokenizerError: no vocabulary, or one that lacks <|notimestamps|>.
    """
    if tokenizer is None:
        raise TokenizerError("this Whisper has no vocabulary: convert it with its tokenizer.json")
    untimed = tokenizer.id_of_text("<|notimestamps|>")
    if untimed is None:
        raise TokenizerError("the vocabulary has no <|notimestamps|>, as every Whisper's has")
    languages, tasks = {}, {}
    if config.multilingual:
        following = range(config.start + 1, min(config.start + _MOST, untimed))
        matches = ((id, _LANGUAGE.fullmatch(tokenizer.token(id))) for id in following)
        languages = {match[1]: id for id, match in matches if match}
        tasks = {name: tokenizer.id_of_text(f"<|{name}|>") for name in ("transcribe", "translate")}
    return Speech(
        start=config.start,
        end=config.start - 1,
        languages=languages,
        tasks={name: id for name, id in tasks.items() if id is not None},
        untimed=untimed,
        timed=untimed + 1,
        step=2,  # a row of the encoder
        window=config.frames,
        frame=HOP / RATE,
        rate=RATE,
        spectrum=partial(_spectrum, config),
        suppressed=tuple(id for id in config.suppressed if id >= 0),  # [-1] is none
        never_first=tuple(config.never_first),
        latest_first=config.latest_first,
        language=config.language,
        task=config.task,
        names=CODES,
        previous=tokenizer.id_of_text("<|startofprev|>"),
    )


def _spectrum(config: WhisperConfig, samples: np.ndarray) -> np.ndarray:
    """The spectrum of all samples, filled up to a window. As in transformers, faint places of a
    longer sound are measured by its loudest."""
    most = config.frames * HOP
    return whisper_mel(samples, config.mels, length=most if len(samples) <= most else None)
