"""Perplexity of a text as llama.cpp defines it, so that figures can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import ComputeError, ConfigError, PromptError, TokenizerError
from ..runner import LoadedModel
from ..runner.sampling import log_probability


@dataclass(frozen=True)
class Perplexity:
    """How much a text surprises a model, so far.

    Attributes:
        value: exp of the mean negative log-probability of a token.
        error: its standard error, were the tokens independent.
        tokens: how many were scored.
        chunks: out of how many.
        context: tokens in a chunk.
        of_chunks, of_tokens: how many chunks and tokens the text has.
        whole: the text is shorter than a chunk: all of it was scored, but for its first token.
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

    The text is cut into chunks of `context` tokens; a rest is left out. In each chunk the tokens
    of the second half are scored, all but the half's first: they are predicted from at least half a
    context. A chunk's first token gives way to the vocabulary's beginning of a sequence, if it
    wants one. Names of special tokens in the text are plain text.

    A text of less than two contexts gives two chunks of half its length. One of less than a context
    is a single chunk, of which all tokens but the first are scored.

    Args:
        context: None is the model's context.

    Raises:
        ConfigError: a context of less than eight tokens, or of more than the model has room for.
        TokenizerError: the model has no vocabulary.
        PromptError: the text has less than two tokens.
        ComputeError: the model's logits are NaN.
    """
    context = model.context_length if context is None else context
    if not 8 <= context <= model.context_length:
        raise ConfigError(
            f"chunks of {context} tokens, and the model is loaded with a context of "
            f"{model.context_length}; a chunk has at least 8, and no more than the context"
        )
    if model.tokenizer is None:
        raise TokenizerError(f"{model.source.name} holds no vocabulary to read a text with")
    ids = np.array(model.tokenizer.encode(text, parse_special=False), np.int32)
    if len(ids) < 2:
        raise PromptError(f"the text has {len(ids)} tokens; give at least two, better thousands")
    whole = len(ids) < context
    if len(ids) < 2 * context:
        context = len(ids) if whole else len(ids) // 2
    first = 0 if whole else context // 2
    chunks = len(ids) // context
    bos = model.tokenizer.bos if model.tokenizer.add_bos else None
    losses: list[float] = []
    for done in range(chunks):
        chunk = ids[done * context : (done + 1) * context].copy()
        if bos is not None:
            chunk[0] = bos
        losses += model.engine.call(partial(_losses, model, chunk, first))
        value, error = _mean(losses)
        yield Perplexity(value, error, len(losses), done + 1, context, chunks, len(ids), whole)


def _losses(model: LoadedModel, chunk: np.ndarray, first: int) -> list[float]:
    """Of each token after `chunk[first]`: its negative log-probability."""
    losses: list[float] = []
    upcoming = iter(chunk[first + 1 :].tolist())
    with model.engine.apart.graphs(model.model, 1, len(chunk)) as graphs:
        for rows in model.engine.apart.batches(graphs, 0, chunk, 0, first):
            # The last row has no token to come.
            pairs = zip(rows, upcoming, strict=False)
            losses += [-log_probability(row, token) for row, token in pairs]
    return losses


def _mean(losses: list[float]) -> tuple[float, float]:
    """exp of the mean, and its standard error."""
    mean = float(np.mean(losses))
    if not math.isfinite(mean):
        raise ComputeError("the model's logits are NaN, or give a token of the text no probability")
    value = math.exp(min(mean, 700.0))  # more is beyond a float
    return value, value * float(np.std(losses)) / math.sqrt(max(1, len(losses) - 1))
