"""Statistics over a text, as llama.cpp computes them: perplexity, importance of inputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..convert.imatrix import Importance, ImportanceMatrix
from ..errors import ComputeError, ConfigError, PromptError, TokenizerError, Unsupported
from ..ml.node import Node, Weight
from ..runner import LoadedModel
from ..runner.engine.scoring import Scoring
from ..runner.sampling import log_probability
from ..tokenizer import Tokenizer
from .observe import Recording, See, watch_text


def tokenizer_of(model: LoadedModel) -> Tokenizer:
    """Raises `TokenizerError` if the model has no vocabulary."""
    if model.tokenizer is None:
        raise TokenizerError(f"{model.source.name} holds no vocabulary to read a text with")
    return model.tokenizer


def read_tokens(model: LoadedModel, text: str) -> np.ndarray:
    """The tokens of a text, int32 [n]; names of special tokens are plain text.

    Raises:
        TokenizerError: the model has no vocabulary.
        Unsupported: its encoder reads texts, whose tokens have no probabilities then.
    """
    if model.model.prompt_item:
        raise Unsupported(
            f"{model.model.architecture}: an encoder reads the text, and gives its tokens no "
            "probabilities; take a model that goes on with texts"
        )
    return np.array(tokenizer_of(model).encode(text, parse_special=False), np.int32)


def split_chunks(
    model: LoadedModel, ids: np.ndarray, size: int, count: int
) -> Iterator[np.ndarray]:
    """The first `count` chunks of `size` tokens. BOS replaces the first token of each if the
    vocabulary adds one."""
    tokenizer = tokenizer_of(model)
    for done in range(count):
        chunk = ids[done * size : (done + 1) * size].copy()
        if tokenizer.add_bos and tokenizer.bos is not None:
            chunk[0] = tokenizer.bos
        yield chunk


@dataclass(frozen=True, eq=False)
class Chunks:
    """A text in chunks, of each of which the later tokens are scored.

    A chunk scores the tokens of its second half except the half's first, so each has at least half
    a context before it. A text shorter than two contexts gives two chunks of half its length, and
    one shorter than a context gives a single chunk that scores all tokens but the first.

    Attributes:
        ids: the text's tokens, int32 [n]; a rest shorter than a chunk is left out.
        size: tokens in a chunk.
        first: the first place in a chunk after which a token is scored.
        count: number of chunks.
        whole: the text is shorter than a context.
    """

    ids: np.ndarray
    size: int
    first: int
    count: int
    whole: bool

    @classmethod
    def of(cls, model: LoadedModel, text: str, context: int | None = None) -> Chunks:
        """Cuts a text for a model. Names of special tokens are plain text.

        Args:
            context: tokens in a chunk; None is the model's context.

        Raises:
            ConfigError: the context is shorter than eight tokens or longer than the model's.
            TokenizerError: the model has no vocabulary.
            PromptError: the text has fewer than two tokens.
        """
        context = model.context_length if context is None else context
        if not 8 <= context <= model.context_length:
            raise ConfigError(
                f"chunks of {context} tokens, and the model is loaded with a context of "
                f"{model.context_length}; a chunk has at least 8, and no more than the context"
            )
        ids = read_tokens(model, text)
        if len(ids) < 2:
            raise PromptError(
                f"the text has {len(ids)} tokens; give at least two, better thousands"
            )
        whole = len(ids) < context
        if len(ids) < 2 * context:
            context = len(ids) if whole else len(ids) // 2
        return cls(ids, context, 0 if whole else context // 2, len(ids) // context, whole)


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

    The text is cut as `Chunks` says. The first token of a chunk is replaced by BOS if the
    vocabulary adds one.

    Args:
        context: None is the model's context.

    Raises:
        ConfigError, TokenizerError, PromptError: see `Chunks.of`.
        ComputeError: the model's logits are NaN.
    """
    cut = Chunks.of(model, text, context)
    losses: list[float] = []
    for done, chunk in enumerate(split_chunks(model, cut.ids, cut.size, cut.count), start=1):
        losses += _losses(model, chunk, cut.first)
        value, error = mean_loss(losses)
        of = cut.count, len(cut.ids)
        yield Perplexity(value, error, len(losses), done, cut.size, *of, cut.whole)


def _losses(model: LoadedModel, chunk: np.ndarray, first: int) -> list[float]:
    """The negative log-probability of each token after `chunk[first]`."""
    losses: list[float] = []
    upcoming = iter(chunk[first + 1 :].tolist())

    def take(rows: np.ndarray) -> None:
        pairs = zip(rows, upcoming, strict=False)  # no token follows the last row
        losses.extend(-log_probability(row, token) for row, token in pairs)

    Scoring(model.engine).each_logits(chunk, take, first)
    return losses


def mean_loss(losses: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """exp of the mean loss, and its standard error.

    Raises:
        ComputeError: a loss is NaN or infinite.
    """
    mean = float(np.mean(losses))
    if not math.isfinite(mean):
        raise ComputeError("the model's logits are NaN, or give a token of the text no probability")
    value = math.exp(min(mean, 700.0))  # more is beyond a float
    return value, value * float(np.std(losses)) / math.sqrt(max(1, len(losses) - 1))


def importance(
    model: LoadedModel,
    text: str,
    context: int | None = None,
    *,
    chunks: int | None = None,
    output: bool = False,
    dataset: str = "",
) -> Iterator[tuple[float, ImportanceMatrix]]:
    """The importance after each chunk of a text, with the share of the text that is done.

    The text is cut into chunks of `context` tokens, a shorter rest is left out. The first token of
    a chunk is replaced by BOS if the vocabulary adds one. Names of special tokens are plain text.

    Args:
        context: None is the model's context or its batch, whichever is less.
        chunks: the most that are read; None reads all.
        output: the model's output counts, too.
        dataset: the name of the text, for those who read the file.

    Raises:
        ConfigError: the context is longer than a batch or the model's, or there are no chunks.
        TokenizerError: the model has no vocabulary.
        PromptError: the text has fewer tokens than a chunk.
        ComputeError: an input of a weight is NaN or infinite.
    """
    most = min(model.context_length, model.engine.batch_size)
    context = most if context is None else context
    if not 1 <= context <= most:
        raise ConfigError(
            f"chunks of {context} tokens, and the model is loaded with a context of "
            f"{model.context_length} and batches of {model.engine.batch_size}; a chunk must fit "
            "both"
        )
    if chunks is not None and chunks < 1:
        raise ConfigError(f"{chunks} chunks; there must be at least 1")
    ids = read_tokens(model, text)
    if len(ids) < context:
        raise PromptError(
            f"the text has {len(ids)} tokens, less than a chunk of {context}; give a longer text, "
            "better of hundreds of chunks, or a smaller context"
        )
    count = min(len(ids) // context, chunks or len(ids))
    collector = _Collector(output)
    for done, chunk in enumerate(split_chunks(model, ids, context, count), start=1):
        watch_text(model, chunk, collector.watch)
        entries = dict(sorted(collector.entries()))
        datasets = [dataset] if dataset else []
        yield done / count, ImportanceMatrix(entries, "", datasets, done, context)


class _Collector:
    """Sums of squares of the inputs of products with weights."""

    def __init__(self, output: bool):
        self._output = output
        # Name of a weight → float64 [matrices, width] sums, int64 [matrices] counts.
        self._found: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def entries(self) -> Iterator[tuple[str, Importance]]:
        for name, (sums, counts) in self._found.items():
            yield name, Importance(sums.astype(np.float32), counts)

    def watch(self, recording: Recording) -> See:
        """Follows the computation of one graph."""
        products = [node for node in recording.graph.schedule if self._counts(node)]
        uses = Counter(s.uid for node in products for s in node.sources[1:] if s is not None)
        values: dict[int, np.ndarray] = {}

        def see(node: Node, value: np.ndarray) -> None:
            if node.uid in uses:
                values[node.uid] = value.copy()
            if self._counts(node):
                self._add(node, values)
                for source in node.sources[1:]:
                    assert source is not None
                    uses[source.uid] -= 1
                    if not uses[source.uid]:
                        del values[source.uid]

        return see

    def _counts(self, node: Node) -> bool:
        """Whether a node is a product with a weight of a layer, or of the output."""
        if node.op is None or node.op.name not in ("mulmat", "mulmat_id"):
            return False
        weight = node.sources[0]
        if weight is None or not isinstance(weight.storage, Weight):
            return False
        name = weight.storage.info.name
        return name.startswith("blk.") or (self._output and name == "output.weight")

    def _add(self, node: Node, values: dict[int, np.ndarray]) -> None:
        weight, x, *ids = node.sources
        assert weight is not None and x is not None and isinstance(weight.storage, Weight)
        name, width = weight.storage.info.name, weight.ne[0]
        squares = np.square(values[x.uid].reshape(-1, width), dtype=np.float64)
        if not np.isfinite(squares).all():
            raise ComputeError(f"an input of {name} is NaN or infinite; the model is broken")
        matrices = weight.ne[2] if ids else 1
        sums, counts = self._found.setdefault(
            name, (np.zeros((matrices, width)), np.zeros(matrices, np.int64))
        )
        if not ids:
            sums[0] += squares.sum(0)
            counts[0] += len(squares)
            return
        assert ids[0] is not None  # x is [width, used or 1, n], ids are [used, n]
        chosen = values[ids[0].uid].reshape(x.ne[2], -1)
        inputs = squares.reshape(x.ne[2], -1, width)
        for expert in np.unique(chosen):
            token, used = np.nonzero(chosen == expert)
            sums[expert] += inputs[token, used % inputs.shape[1]].sum(0)
            counts[expert] += len(token)
