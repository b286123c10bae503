"""Perplexity of a text as llama.cpp defines it, so that figures can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import ComputeError, ConfigError, PromptError
from ..runner import LoadedModel
from ..runner.engine.apart import Apart
from ..runner.sampling import log_probability
from .chunks import chunks, read_tokens


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a text, as far as it has been scored.

    Attributes:
        value: exp of the mean negative log-probability of a token.
        error: its standard error, if tokens were independent.
        tokens: number of scored tokens.
        chunks: number of chunks they came from.
        context: tokens in a chunk.
        of_chunks, of_tokens: number of chunks and tokens in the text.
        whole: the text is shorter than a chunk; all tokens but the first were scored.
    """

    value: float
    error: float
    tokens: int
    chunks: int
    context: int
    of_chunks: int
    of_tokens: int
    whole: bool


def perplexity(model: LoadedModel, text: str, context: int | None = None) -> Iterator[Perplexity]:
    """The perplexity after each chunk; the last one is the text's.

    The text is cut into chunks of `context` tokens; a shorter rest is left out. Each chunk scores
    the tokens of its second half except the half's first, so each has at least half a context
    before it. The first token of a chunk is replaced by BOS if the vocabulary adds one. Names of
    special tokens are plain text.

    A text shorter than two contexts gives two chunks of half its length, and one shorter than a
    context gives a single chunk that scores all tokens but the first.

    Args:
        context: None is the model's context.

    Raises:
        ConfigError: the context is shorter than eight tokens or longer than the model's.
        TokenizerError: the model has no vocabulary.
        PromptError: the text has fewer than two tokens.
        ComputeError: the model's logits are NaN.
    """
    context = model.context_length if context is None else context
    if not 8 <= context <= model.context_length:
        raise ConfigError(
            f"chunks of {context} tokens, and the model is loaded with a context of "
            f"{model.context_length}; a chunk has at least 8, and no more than the context"
        )
    ids = read_tokens(model, text)
    if len(ids) < 2:
        raise PromptError(f"the text has {len(ids)} tokens; give at least two, better thousands")
    whole = len(ids) < context
    if len(ids) < 2 * context:
        context = len(ids) if whole else len(ids) // 2
    first = 0 if whole else context // 2
    count = len(ids) // context
    losses: list[float] = []
    for done, chunk in enumerate(chunks(model, ids, context, count), start=1):
        losses += _losses(model, chunk, first)
        value, error = _mean(losses)
        yield Perplexity(value, error, len(losses), done, context, count, len(ids), whole)


def _losses(model: LoadedModel, chunk: np.ndarray, first: int) -> list[float]:
    """The negative log-probability of each token after `chunk[first]`."""
    losses: list[float] = []
    upcoming = iter(chunk[first + 1 :].tolist())

    def take(rows: np.ndarray) -> None:
        pairs = zip(rows, upcoming, strict=False)  # no token follows the last row
        losses.extend(-log_probability(row, token) for row, token in pairs)

    Apart(model.engine).each_logits(chunk, take, first)
    return losses


def _mean(losses: list[float]) -> tuple[float, float]:
    """exp of the mean loss, and its standard error."""
    mean = float(np.mean(losses))
    if not math.isfinite(mean):
        raise ComputeError("the model's logits are NaN, or give a token of the text no probability")
    value = math.exp(min(mean, 700.0))  # more is beyond a float
    return value, value * float(np.std(losses)) / math.sqrt(max(1, len(losses) - 1))
