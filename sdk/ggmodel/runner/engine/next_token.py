"""Drafts by a model's own head for multi-token prediction."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import Error
from ...kvcache import new_cache, several
from ...ml import Backend, Context, DType, Tensor
from ...model import Batch, Model
from .drafting import Costs, Rated
from .graphs import Graphs
from .memory_plan import HeadStep, MemoryPlan
from .sequences import Request, Sequence

_MOST_ROWS = 32  # of a sequence that are kept for the head


@dataclass
class _Text:
    """The part of a request's text that the head knows.

    Attributes:
        length: positions in its cache that are certain.
        tokens, states: those to compute next, [n] and float32 [n, width]: a token and the hidden
            state that it was chosen by.
    """

    request: Request | None = None
    length: int = 0
    tokens: list[int] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)


class NextTokenHead(Rated):
    """Drafts by the model's field `mtp`: a layer that goes on from the model's hidden states.

    Its layer has a KV cache of its own, which begins where the answer does: the hidden states of a
    prompt's tokens are not computed to the end.

    Args:
        sequences, context_length: of the model's cache.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        kv_type: DType,
        sequences: int,
        context_length: int,
    ):
        super().__init__(sequences)
        self._model: Any = model
        layers: Any = model.caches()
        specs = [s for entry in layers for s in several(entry) if s.can_rewind]
        self._cache = new_cache(
            backend,
            specs[-1:],
            dtype=kv_type,
            sequences=sequences,
            capacity=context_length,
            max_batch=_MOST_ROWS * sequences,
        )
        self._graphs = Graphs(self.forward, backend, self._cache, keeps_states=True)
        self._texts = [_Text() for _ in range(sequences)]
        self._costs = Costs()
        self._context_length, self._width = context_length, 0
        self._most, self._plain = 1, self._costs.of

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """Logits F32 [vocabulary, outputs] of the states that the step brings along."""
        states = ctx.feed(
            lambda step: step.states, DType.F32, self._width, batch.size, name="states"
        )
        mtp, embedded = self._model.mtp, self._model.embedded(batch)
        batch.states = mtp(embedded, states, batch, batch.cache[0]).rows(batch.outputs)
        return self._model(ctx, batch)

    def trace(self, plan: MemoryPlan) -> None:
        """Traces the largest batch."""
        self._width, rows = plan.states_width, self._cache.max_batch
        states = np.zeros((rows, self._width), np.float32)
        outputs, components = len(self._texts), self._model.own_components()
        step = HeadStep.blank(rows, outputs, components, states=states)
        plan.trace_step(self._cache, step, self.forward)

    def begin(self, most: int, plain: Callable[[int], float]) -> None:
        """Is used from now on.

        Args:
            most: draft tokens of a sequence at once.
            plain: seconds of the model's batch of so many tokens.
        """
        self._most, self._plain = most, plain

    def observe(self, sequence: Sequence, states: np.ndarray) -> None:
        """Notes the hidden states float32 [1 + drafted, width] of a batch's outputs, after the
        request has taken its tokens."""
        text = self._texts[sequence.number]
        if text.request is not sequence.request:
            text = self._texts[sequence.number] = _Text(sequence.request)
        n = sequence.accepted + 1
        text.tokens += (sequence.tokens + sequence.pending)[-n:]
        text.states += list(states[:n])
        if len(text.tokens) > _MOST_ROWS:  # nothing was drafted for long
            text.length, text.tokens, text.states = 0, text.tokens[-1:], text.states[-1:]

    def _room(self, sequence: Sequence) -> int:
        text = self._texts[sequence.number]
        if text.request is not sequence.request or not text.tokens:
            return 0
        left = self._context_length - text.length - len(text.tokens)
        return self._most if left > 2 * self._most else 0

    def _round(self, size: int) -> float:
        """A layer and the head, of many layers: the first guess."""
        return self._costs.of(size) if self._costs.largest else self._plain(size) / 8

    def seconds(self, lengths: Collection[int]) -> float:
        rounds = (sum(n > i for n in lengths) for i in range(max(lengths, default=0)))
        return sum(self._round(size) for size in rounds)

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        try:
            return self._draft(lengths)
        except Error:
            return {}  # a device is lost, say

    def _draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        drafts: dict[Sequence, list[int]] = {}
        choose = {one: one.request.foresee() for one in lengths if one.request is not None}
        rows: dict[Sequence, tuple[int, list[int], list[np.ndarray]]] = {}
        for one in choose:
            text = self._texts[one.number]
            self._cache.remove(one.number, text.length, None)
            rows[one] = text.length, text.tokens, text.states
            text.length, text.tokens, text.states = text.length + len(text.tokens), [], []
        while rows:
            began, recorded = time.perf_counter(), self._graphs.recorded
            logits, states = self._run(rows)
            if recorded == self._graphs.recorded and all(len(t) == 1 for _, t, _ in rows.values()):
                self._costs.note(len(rows), time.perf_counter() - began)
            going = {}
            for i, (one, (start, tokens, _)) in enumerate(rows.items()):
                try:
                    token = choose[one](logits[i])
                except Error:  # NaN, or a grammar without a way on
                    continue
                if token is None:
                    continue
                drafts.setdefault(one, []).append(token)
                if len(drafts[one]) < lengths[one]:
                    going[one] = start + len(tokens), [token], [states[i]]
            rows = going
        return drafts

    def _run(
        self, rows: Mapping[Sequence, tuple[int, list[int], list[np.ndarray]]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 [sequences, vocabulary] and states float32 [sequences, width] after the
        last token of each."""
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        outputs: list[int] = []
        for one, (start, new, _) in rows.items():
            tokens += new
            positions += range(start, start + len(new))
            sequences += [one.number] * len(new)
            outputs.append(len(tokens) - 1)
        states = np.array([state for _, _, many in rows.values() for state in many], np.float32)
        t, p, s, o = (np.array(x, np.int32) for x in (tokens, positions, sequences, outputs))
        step = HeadStep(t, p, s, o, states=states)
        if k := self._model.own_components():
            step.components = np.repeat(p[None], k, axis=0)
        self._cache.start_forward(step)
        logits = self._graphs.run(step)
        assert self._graphs.states is not None
        return logits, self._graphs.states.copy()

    def close(self) -> None:
        self._graphs.close()
        self._cache.close()
