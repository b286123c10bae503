"""Importance of each input of a model's weights, over a text, as llama-imatrix computes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ..convert.imatrix import Entry, ImportanceMatrix
from ..errors import ComputeError, ConfigError, PromptError
from ..ml.node import Node
from ..ml.storage import Weight
from ..runner import LoadedModel
from .chunks import chunks as cut
from .chunks import read_tokens
from .observe import Recording, See, watch_text


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
    for done, chunk in enumerate(cut(model, ids, context, count), start=1):
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

    def entries(self) -> Iterator[tuple[str, Entry]]:
        for name, (sums, counts) in self._found.items():
            yield name, Entry(sums.astype(np.float32), counts)

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
