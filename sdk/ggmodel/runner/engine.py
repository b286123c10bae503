"""One loaded model serving requests: sequences in a cache, batches through graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ..errors import Busy, PromptError, TensorError
from ..kvcache import Causal, CausalCache
from ..ml import Backend, DType
from ..ml.indices import fewest_rows
from ..ml.storage import Weight
from ..model import Model, Step
from .graphs import Graphs, Trace, trace

Ids = Sequence[int]


class Engine:
    """Computes sequences of tokens.

    Args:
        context_length: positions a sequence may have.
        batch_size: the most tokens computed at once.
        parallel: how many sequences there may be at a time.

    Attributes:
        vocabulary: token ids are below this.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        *,
        kv_type: DType,
        context_length: int,
        batch_size: int,
        parallel: int,
    ):
        self.model, self.backend, self.kv_type = model, backend, kv_type
        self.context_length, self.batch_size = context_length, batch_size
        self.cache = self._new_cache(parallel, context_length)
        self.graphs = Graphs(model, backend, self.cache)
        self.vocabulary = 0
        self._worst: list[Trace] = []
        self._free = list(range(parallel))[::-1]
        self._parallel = parallel
        self._lock = threading.RLock()

    def _new_cache(self, sequences: int, capacity: int) -> CausalCache:
        return CausalCache(
            self.backend,
            self._declared_caches(),
            dtype=self.kv_type,
            sequences=sequences,
            capacity=capacity,
        )

    def _declared_caches(self) -> list[Causal]:
        layers = self.model.caches()
        if not isinstance(layers, list):
            raise TensorError(
                f"{type(self.model).__name__}.caches() returned {type(layers).__name__}; it must "
                "return a list with one entry a layer"
            )
        return layers

    # preparation

    def dry_trace(self) -> None:
        """Traces the batches that need most memory, the largest first; nothing is allocated.

        Raises:
            TensorError: an op refuses its operands, or output and input do not fit each other.
        """
        largest = min(self.batch_size, self.cache.cells)
        sizes = dict.fromkeys(self.backend.batches_to_reserve(largest))
        self._worst = [self._trace_reserved(n) for n in sizes]
        width = self._worst[0].output.dim(0)
        tables = [fewest_rows(t.ctx.graph, t.inputs) for t in self._worst]
        self.vocabulary = min((n for n in tables if n is not None), default=width)
        if width > self.vocabulary:
            raise TensorError(
                f"the model gives logits for {width} tokens but takes only {self.vocabulary}: its "
                "output and its token embedding do not belong together"
            )

    def weights_read(self) -> set[str]:
        """Names of the weights that the traced forwards read; between `dry_trace` and `reserve`."""
        return {
            source.name
            for t in self._worst
            for op in t.ctx.graph.schedule
            for source in op.sources
            if source is not None and isinstance(source.storage, Weight)
        }

    def allocate(self) -> None:
        """Allocates weights and cache, placed by the ops that read them."""
        self.backend.allocate(*(t.ctx.graph for t in self._worst))

    def reserve(self) -> None:
        """Allocates the compute buffers that these batches need."""
        for t in self._worst:
            self.backend.reserve(t.ctx.graph)
            t.close()
        self._worst = []

    def _trace_reserved(self, n: int) -> Trace:
        zeros = np.zeros(n, np.int32)
        step = Step(zeros, zeros, zeros, zeros[: min(n, self._parallel)])
        self.cache.start_forward(step, reserve=True)
        return trace(self.model, self.backend, self.cache, step)

    # requests

    def check_prompt(self, ids: Ids) -> np.ndarray:
        """The prompt as int32 [n].

        Raises:
            PromptError: empty, an id out of range, or no room for it.
        """
        if not len(ids):
            raise PromptError("the prompt is empty; give at least one token")
        array = np.asarray(ids)
        if array.min() < 0 or array.max() >= self.vocabulary:
            bad = next(i for i in ids if not 0 <= i < self.vocabulary)
            raise PromptError(f"token id {bad} is not in the vocabulary of {self.vocabulary}")
        if len(array) > self.context_length:
            raise PromptError(
                f"the prompt has {len(array)} tokens, the context {self.context_length}; "
                "load the model with a larger context_length, or shorten the prompt"
            )
        return array.astype(np.int32)

    @contextmanager
    def slot(self) -> Iterator[int]:
        """A sequence of one's own for the length of the block; it is emptied at the end.

        Raises:
            Busy: all are in use.
        """
        with self._lock:
            if not self._free:
                raise Busy(
                    f"all {self._parallel} sequences are in use; finish or close a stream, or "
                    "load the model with a larger parallel"
                )
            sequence = self._free.pop()
        try:
            yield sequence
        finally:
            with self._lock:
                self.cache.remove(sequence, 0, None)
                self._free.append(sequence)

    def extend(self, sequence: int, tokens: np.ndarray, start: int) -> np.ndarray:
        """Appends tokens int32 [n] at positions start, start + 1, … to a sequence.

        Returns:
            The logits after the last token, float32 [vocabulary]; a copy.
        """
        with self._lock:
            logits = self._batches(self.graphs, sequence, tokens, start, every=False)[-1][0]
            # The fused attention skips masked cells; the plain one multiplies them by zero, and
            # zero times NaN would reach the other sequences, and those that use the cells next.
            if not (self.backend.flash_attention or np.isfinite(logits).all()):
                self.cache.wipe(sequence)
            return logits

    def all_logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits after every token, float32 [n, vocabulary], in a cache of their own."""
        with self._lock:
            cache = self._new_cache(1, len(tokens))
            graphs = Graphs(self.model, self.backend, cache)
            try:
                return np.concatenate(self._batches(graphs, 0, tokens, 0, every=True))
            finally:
                graphs.close()
                cache.close()

    def _batches(
        self, graphs: Graphs, sequence: int, tokens: np.ndarray, start: int, every: bool
    ) -> list[np.ndarray]:
        rows = []
        for lo in range(0, len(tokens), self.batch_size):
            piece = tokens[lo : lo + self.batch_size]
            n = len(piece)
            last = lo + n == len(tokens)
            wanted = np.arange(n) if every else np.arange(n - 1, n) if last else np.arange(0)
            step = Step(
                piece,
                np.arange(start + lo, start + lo + n, dtype=np.int32),
                np.full(n, sequence, np.int32),
                wanted.astype(np.int32),
            )
            graphs.cache.start_forward(step)
            rows.append(graphs.run(step))
        return rows

    def close(self) -> None:
        """Frees graphs and cache, after a step under way has ended; idempotent."""
        with self._lock:
            self.graphs.close()
            self.cache.close()
