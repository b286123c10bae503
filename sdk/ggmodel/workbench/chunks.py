"""Texts in chunks of tokens, as llama.cpp's perplexity and imatrix read them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import TokenizerError
from ..runner import LoadedModel
from ..tokenizer import Tokenizer


def tokenizer_of(model: LoadedModel) -> Tokenizer:
    """Raises `TokenizerError` if the model has no vocabulary."""
    if model.tokenizer is None:
        raise TokenizerError(f"{model.source.name} holds no vocabulary to read a text with")
    return model.tokenizer


def read_tokens(model: LoadedModel, text: str) -> np.ndarray:
    """The tokens of a text, int32 [n]; names of special tokens are plain text.

    Raises:
        TokenizerError: the model has no vocabulary.
    """
    return np.array(tokenizer_of(model).encode(text, parse_special=False), np.int32)


def chunks(model: LoadedModel, ids: np.ndarray, size: int, count: int) -> Iterator[np.ndarray]:
    """The first `count` chunks of `size` tokens. BOS replaces the first token of each if the
    vocabulary adds one."""
    tokenizer = tokenizer_of(model)
    for done in range(count):
        chunk = ids[done * size : (done + 1) * size].copy()
        if tokenizer.add_bos and tokenizer.bos is not None:
            chunk[0] = tokenizer.bos
        yield chunk
