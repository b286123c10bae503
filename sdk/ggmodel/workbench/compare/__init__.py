"""Two models on one text: the loss of the one beside the other, by token and by position.

Definitions are those of llama.cpp's `llama-perplexity --kl-divergence`: the text is cut into
chunks, and the tokens of each one's second half count. That program keeps the original's
log-probabilities in 16 bits, and no share below e⁻¹⁶; here nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import ComputeError, ConfigError
from ...runner import LoadedModel
from ...runner.engine.scoring import Scoring
from ..text_statistics import Chunks, mean_loss, read_tokens, split_chunks

_BINS = 8  # ranges of positions
_PERCENTILES = (90, 95, 99, 99.9)


@dataclass(frozen=True, eq=False)
class Scores:
    """Two distributions of the next token compared, for tokens of a text.

    Attributes:
        divergences: KL divergence Σ P ln(P / Q) of the model's Q from the original's P, in nats,
            float64 [n].
        same_top: whether both take the same token for the likeliest, bool [n].
        losses: negative log-probability of the text's token in nats, float64 [2, n]: the
            original's and the model's.
    """

    divergences: np.ndarray
    same_top: np.ndarray
    losses: np.ndarray

    def joined(self, more: Scores) -> Scores:
        """Both, one behind the other."""
        return Scores(
            np.concatenate([self.divergences, more.divergences]),
            np.concatenate([self.same_top, more.same_top]),
            np.concatenate([self.losses, more.losses], 1),
        )


@dataclass(frozen=True, eq=False)
class Comparison(Scores):
    """A model compared with its original on a text, as far as it has been computed.

    Attributes:
        positions: number of tokens of its chunk before each scored token, int [n].
        chunks: number of chunks they came from. of_chunks, of_tokens: those in the text.
        context: tokens in a chunk.
    """

    positions: np.ndarray
    chunks: int
    of_chunks: int
    of_tokens: int
    context: int

    def as_dict(self) -> dict[str, Any]:
        """All statistics, for JSON. An error is a standard error, if tokens were independent."""
        kl, (original, model) = self.divergences, self.losses
        change = np.exp(-model) - np.exp(-original)
        same = float(self.same_top.mean())
        return {
            "tokens": len(kl),
            "chunks": self.chunks,
            "of_chunks": self.of_chunks,
            "of_tokens": self.of_tokens,
            "context": self.context,
            "perplexity": [_perplexity(original), _perplexity(model)],
            "ln_perplexity_ratio": _mean(model - original),
            "kl_divergence": {
                **_mean(kl),
                "median": float(np.median(kl)),
                **{f"{p}%": float(np.percentile(kl, p)) for p in _PERCENTILES},
                "max": float(kl.max()),
            },
            "same_top": {"value": same, "error": _of_mean(same * (1 - same), len(kl))},
            "probability_change": {**_mean(change), "rms": float(np.sqrt(np.mean(change**2)))},
            "by_position": self.by_position(),
        }

    def by_position(self) -> list[dict[str, Any]]:
        """The mean divergence, and the share of tokens with the same likeliest one, by ranges of
        positions in a chunk."""
        first, last = int(self.positions.min()), int(self.positions.max()) + 1
        edges = np.unique(np.linspace(first, last, _BINS + 1).astype(int))
        rows = []
        for low, high in pairwise(edges.tolist()):
            within = (self.positions >= low) & (self.positions < high)
            rows.append(
                {
                    "from": low,
                    "to": high - 1,
                    "tokens": int(within.sum()),
                    "kl_divergence": float(self.divergences[within].mean()),
                    "same_top": float(self.same_top[within].mean()),
                }
            )
        return rows


def _perplexity(losses: np.ndarray) -> dict[str, float]:
    value, error = mean_loss(losses)
    return {"value": value, "error": error}


def _mean(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "error": _of_mean(float(values.var()), len(values))}


def _of_mean(variance: float, n: int) -> float:
    """The standard error of a mean."""
    return float(np.sqrt(variance / max(1, n - 1)))


def compare(
    original: LoadedModel,
    model: LoadedModel,
    text: str,
    context: int | None = None,
    chunks: int | None = None,
) -> Iterator[Comparison]:
    """The comparison after each chunk of a text; the last one is the text's.

    The text is cut as `Chunks` says, by the original's context. The original's logits of half a
    chunk are in memory.

    Args:
        context: tokens in a chunk; None is the original's context.
        chunks: the most that are computed; None is all.

    Raises:
        ConfigError: the models have other tokens, or the context is none that both can have.
        TokenizerError: the original has no vocabulary.
        PromptError: the text has fewer than two tokens.
        ComputeError: logits are NaN.
    """
    cut = Chunks.of(original, text, context)
    if cut.size > model.context_length:
        raise ConfigError(
            f"chunks of {cut.size} tokens, and {model.source.name} is loaded with a context of "
            f"{model.context_length}; load it with a larger one"
        )
    _check_tokens(original, model, text, cut.ids)
    places = np.arange(cut.first, cut.size - 1)
    scores: Scores | None = None
    count = most(cut, chunks)
    for done, chunk in enumerate(split_chunks(original, cut.ids, cut.size, count), start=1):
        more = score(logits(original, chunk, cut.first), model, chunk, cut.first)
        scores = more if scores is None else scores.joined(more)
        yield Comparison(
            **vars(scores),
            positions=np.tile(places + 1, done),
            chunks=done,
            of_chunks=cut.count,
            of_tokens=len(cut.ids),
            context=cut.size,
        )


def most(cut: Chunks, chunks: int | None) -> int:
    """The number of chunks to compute.

    Raises:
        ConfigError: there are none.
    """
    if chunks is not None and chunks < 1:
        raise ConfigError(f"{chunks} chunks; there must be at least 1")
    return min(cut.count, chunks or cut.count)


def _check_tokens(original: LoadedModel, model: LoadedModel, text: str, ids: np.ndarray) -> None:
    sizes = [m.engine.memory_plan.width for m in (original, model)]
    theirs = ids if model.tokenizer is None else read_tokens(model, text)
    if sizes[0] != sizes[1] or not np.array_equal(ids, theirs):
        raise ConfigError(
            f"{original.source.name} and {model.source.name} have other tokens ({sizes[0]} and "
            f"{sizes[1]}), so their distributions cannot be compared; give files of one model"
        )


def logits(model: LoadedModel, chunk: np.ndarray, first: int) -> np.ndarray:
    """Logits after `chunk[first:-1]`, float32 [n, vocabulary], in a cache of their own."""
    rows = np.empty((len(chunk) - 1 - first, model.engine.memory_plan.width), np.float32)
    done = 0

    def take(piece: np.ndarray) -> None:
        nonlocal done
        end = min(len(rows), done + len(piece))  # no token follows the last row
        rows[done:end] = piece[: end - done]
        done = end

    Scoring(model.engine).each_logits(chunk, take, first)
    return rows


def score(original: np.ndarray, model: LoadedModel, chunk: np.ndarray, first: int) -> Scores:
    """Compares a model with logits of its original, as `logits` gives them.

    Raises:
        ComputeError: logits of either are NaN.
    """
    pieces: list[Scores] = []
    tokens = chunk[first + 1 :]
    done = 0

    def take(rows: np.ndarray) -> None:
        nonlocal done
        theirs = original[done : done + len(rows)]  # no token follows the last row
        if len(theirs):
            pieces.append(compared(theirs, rows[: len(theirs)], tokens[done : done + len(theirs)]))
        done += len(theirs)

    Scoring(model.engine).each_logits(chunk, take, first)
    whole, *others = pieces
    for piece in others:
        whole = whole.joined(piece)
    return whole


def compared(original: np.ndarray, model: np.ndarray, tokens: np.ndarray) -> Scores:
    """Compares two models' distributions of the next token.

    Args:
        original, model: logits float32 [n, vocabulary].
        tokens: those of the text that come next, int32 [n].

    Raises:
        ComputeError: a logit is NaN.
    """
    n = len(tokens)
    divergences, losses = np.empty(n), np.empty((2, n))
    for i, (p, q, token) in enumerate(zip(original, model, tokens, strict=True)):
        sums = [_log_sum(p), _log_sum(q)]
        shares = np.exp(p - np.float32(sums[0]))
        with np.errstate(invalid="ignore"):  # both −∞: no share
            terms = np.where(shares > 0, shares * (p - q), np.float32(0))
        divergences[i] = terms.sum(dtype=np.float64) / shares.sum(dtype=np.float64)
        divergences[i] += sums[1] - sums[0]
        losses[:, i] = sums[0] - float(p[token]), sums[1] - float(q[token])
    if np.isnan(divergences).any():
        raise ComputeError("logits of a model are NaN; `ggmodel trace` shows where they come from")
    same = original.argmax(1) == model.argmax(1)
    return Scores(np.maximum(divergences, 0.0), same, losses)


def _log_sum(row: np.ndarray) -> float:
    """ln Σ exp of a row of logits."""
    top = row.max()
    return float(top) + float(np.log(np.exp(row - top).sum(dtype=np.float64)))
