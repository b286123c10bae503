"""Hidden states of texts outside of the scheduler: pooled into rows, or of each token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ComputeError, ConfigError, PromptError
from ...ml import Context, Tensor
from ...model import Step
from ..engine.adapters import Changes, Strengths
from ..engine.engine import Engine
from ..engine.probes import Probe, Probed, Tap
from ..engine.scoring import Scoring
from .prompts import Prompts
from .readout import BY_NUMBER

if TYPE_CHECKING:
    from ..engine.graphs import Graphs

# The sum of a text's rows, the weight of each by its position; the divisor by the weights' sum.
_WEIGHTS = {
    "mean": (np.ones_like, lambda total: total),
    "mean_sqrt_len_tokens": (np.ones_like, np.sqrt),
    "weightedmean": (lambda positions: positions + 1, lambda total: total),
}


def read_texts(prompts: Prompts, texts: Iterable[str | Sequence[int]]) -> list[np.ndarray]:
    """The token ids of texts, int32 [n] each.

    Raises:
        PromptError: no list of texts, no texts, or one is empty, too long, or holds an image.
    """
    if isinstance(texts, str):
        raise PromptError("texts is one string; give a list: embed([text])")
    if not isinstance(texts, Iterable):
        raise PromptError(f"texts is a list of texts, not {type(texts).__name__}")
    ids: list[np.ndarray] = []
    for i, text in enumerate(texts):
        try:
            ids.append(prompts.read(text))
            if (ids[-1] < 0).any():
                raise PromptError("it holds an image; only texts are embedded")
        except PromptError as error:
            raise PromptError(f"text {i}: {error}") from None
    if not ids:
        raise PromptError("there are no texts; give at least one")
    return ids


def embed(
    engine: Engine,
    texts: Sequence[np.ndarray],
    poolings: Sequence[str],
    segments: Sequence[np.ndarray] | None = None,
    skip: int = 0,
    probes: Sequence[Probe] = (),
    adapters: Strengths | None = None,
) -> np.ndarray:
    """One row a text, float32 [texts, width]: those of all ways of pooling, joined; [texts, labels]
    of the head's scores for "rank".

    Texts of similar length share a step, as many as the batch size has room for; a longer text
    takes several. Between two of them requests go on, in another cache but for encoders.

    Args:
        texts: token ids, int32 [n] each, that `Prompts.read` gave.
        segments: of pairs, the text that each token belongs to, as `Step.segments`.
        skip: tokens at the beginning of each text that are not pooled; of a text that has no more,
            the last is.
        probes: one for each text, or one for all.
        adapters: those to compute with; None takes those of requests that do not choose.

    Raises:
        Unsupported: the architecture has no embeddings.
        ConfigError: an adapter was removed meanwhile.
        PromptError: a text has to be computed at once and does not fit the batch size.
        ComputeError: the model's hidden states are not finite.
    """
    ranks = tuple(poolings) == ("rank",)
    if ranks:
        poolings = (BY_NUMBER[getattr(engine.model.config, "head_pools", 2)],)
    last = engine.model.class_scores if ranks else engine.model.embeddings
    _behind(probes if ranks else ())

    def work(chosen: Mapping[int, np.ndarray], pairs: Sequence[np.ndarray] | None) -> list:
        pooled = _Pooled(list(chosen.values()), poolings, skip)
        every = _states(engine, chosen, pairs, pooled.reads, probes, adapters)
        for states, sequences, positions in every:
            pooled.add(states, sequences, positions)
        rows, texts = pooled.rows(), np.arange(len(chosen), dtype=np.int32)
        if not (ranks or engine.model.projects):
            return [*rows]
        probed = _probed(chosen, probes, texts, texts)
        step = Step(0 * texts, 0 * texts, texts, texts).adapt(_strengths(engine, adapters))
        return [*_project(engine, rows, last, step, probed)]

    return np.stack(_together(engine, texts, segments, work))


def token_rows(
    engine: Engine,
    texts: Sequence[np.ndarray],
    last: Callable[[Context, Tensor], Tensor] | None = None,
    probes: Sequence[Probe] = (),
    adapters: Strengths | None = None,
) -> list[np.ndarray]:
    """The hidden states of all tokens of each text, float32 [n, width], or what `last` makes of
    them, [n, labels]. Probes, adapters and errors are those of `embed`."""
    _behind(probes if last is not None else ())

    def work(chosen: Mapping[int, np.ndarray], pairs: Sequence[np.ndarray] | None) -> list:
        parts: list[list[np.ndarray]] = [[] for _ in chosen]
        every = _states(engine, chosen, pairs, lambda at, of: at >= 0, probes, adapters)
        for states, sequences, positions in every:
            rows = states.copy()
            if last is not None:
                outputs = np.arange(len(rows), dtype=np.int32)
                step = Step(0 * outputs, positions, sequences, outputs)
                probed = _probed(chosen, probes, sequences, outputs)
                step.adapt(_strengths(engine, adapters))
                rows = _project(engine, states, last, step, probed)
            for i, part in enumerate(parts):
                part.append(rows[sequences == i])
        return [np.concatenate(part) for part in parts]

    return _together(engine, texts, None, work)


def _behind(probes: Sequence[Probe]) -> None:
    """Says that the head, which stands behind the states, will be called."""
    for probe in probes:
        probe.elsewhere |= dict.fromkeys(probe.within("classifier"), 0)


def _together(
    engine: Engine,
    texts: Sequence[np.ndarray],
    segments: Sequence[np.ndarray] | None,
    work: Callable[[Mapping[int, np.ndarray], Sequence[np.ndarray] | None], list],
) -> list[np.ndarray]:
    """Results of `work` in the order of the texts; it gets those that share a step, by number, and
    their segments, in the engine's thread."""
    if engine.single_step:
        for i, text in enumerate(texts):
            if len(text) > engine.batch_size:
                raise PromptError(
                    f"text {i} has {len(text)} tokens, the batch {engine.batch_size}; this model "
                    "reads a text at once: load it with a larger batch_size, or shorten the text"
                )
    results: dict[int, np.ndarray] = {}
    rest = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
    while rest:
        count = max(1, engine.batch_size // len(texts[rest[0]]))
        together, rest = rest[:count], rest[count:]
        pairs = None if segments is None else [segments[i] for i in together]
        made = engine.call(partial(work, {i: texts[i] for i in together}, pairs))
        results |= dict(zip(together, made, strict=True))
    return [results[i] for i in range(len(texts))]


def _strengths(engine: Engine, adapters: Strengths | None) -> Strengths:
    return engine.adapters if adapters is None else adapters


Selected = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _states(
    engine: Engine,
    texts: Mapping[int, np.ndarray],
    segments: Sequence[np.ndarray] | None,
    selected: Selected,
    probes: Sequence[Probe],
    adapters: Strengths | None,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Step by step the hidden states of some tokens, float32 [rows, width], the text that each row
    belongs to, rising, and its position. Several texts fit a step together.

    Args:
        texts: token ids by number.
        selected: says for positions and the texts that they belong to whether their rows count.
        probes, adapters: see `embed`.
    """
    if any(adapter.closed for adapter, _ in adapters or ()):
        raise ConfigError("an adapter of the texts was removed before they were computed")
    ids = list(texts.values())
    longest = max(map(len, ids))
    own = Scoring(engine).graphs(engine.model.states, len(ids), longest)
    with nullcontext(engine.graphs) if engine.only_embeds else own as graphs:
        # Others may be chosen between two steps.
        strengths = _strengths(engine, adapters)
        for start in range(0, longest, engine.batch_size):
            pieces = [text[start : start + engine.batch_size] for text in ids]
            sequences = np.repeat(np.arange(len(ids), dtype=np.int32), [len(p) for p in pieces])
            positions = np.concatenate([np.arange(len(p), dtype=np.int32) for p in pieces]) + start
            outputs = np.flatnonzero(selected(positions, sequences)).astype(np.int32)
            step = Step(np.concatenate(pieces), positions, sequences, outputs)
            if segments is not None:
                parts = [s[start : start + engine.batch_size] for s in segments]
                step.segments = np.concatenate(parts)
            step.probes = _probed(texts, probes, sequences, outputs)
            states = _run(graphs, step.adapt(strengths))
            engine.count_step(sum(len(piece) > 0 for piece in pieces))
            finite = np.isfinite(states).all(axis=1)
            if not finite.all():
                text = list(texts)[sequences[outputs[np.argmin(finite)]]]
                raise ComputeError(f"the model's hidden states of text {text} are not finite")
            yield states, sequences[outputs], positions[outputs]


def _probed(
    texts: Mapping[int, np.ndarray],
    probes: Sequence[Probe],
    sequences: np.ndarray,
    outputs: np.ndarray,
) -> tuple[Probed, ...]:
    """The probes of a step, each with its rows.

    Args:
        texts, probes: see `_states`.
        sequences, outputs: those of the step.
    """
    if not probes[1:]:
        rows = np.arange(len(sequences)), np.arange(len(outputs))
        return tuple(Probed(one, *rows) for one in probes)
    of_text = [probes[number] for number in texts]
    there = np.unique(sequences).tolist()
    rows = {i: np.flatnonzero(sequences == i).astype(np.int32) for i in there}
    of_outputs = {i: np.flatnonzero(sequences[outputs] == i).astype(np.int32) for i in there}
    return tuple(Probed(of_text[i], rows[i], of_outputs[i]) for i in there)


def _run(graphs: Graphs, step: Step) -> np.ndarray:
    if graphs.histories is not None:
        step.components = graphs.histories.components(step.tokens, step.positions, step.sequences)
    graphs.cache.start_forward(step)
    return graphs.run(step)


class _Pooled:
    """Pools hidden states that come step by step.

    Args:
        texts: token ids.
        ways: of pooling.
        skip: tokens at the beginning that do not count.
    """

    def __init__(self, texts: Sequence[np.ndarray], ways: Sequence[str], skip: int):
        self._last = np.array([len(text) - 1 for text in texts])
        self._first = np.minimum(skip, self._last)
        self._sums = {way: np.zeros((len(texts), 1)) for way in ways if way in _WEIGHTS}
        self._weights = {way: np.zeros((len(texts), 1)) for way in self._sums}
        self._picked: dict[str, np.ndarray] = {}
        self._ways = ways

    def reads(self, positions: np.ndarray, sequences: np.ndarray) -> np.ndarray:
        """Whether the rows at these positions count, bool."""
        if {*self._ways} <= {"cls", "last"}:
            ends = {"cls": self._first, "last": self._last}
            return np.any([positions == ends[way][sequences] for way in self._ways], axis=0)
        return positions >= self._first[sequences]

    def add(self, states: np.ndarray, sequences: np.ndarray, positions: np.ndarray) -> None:
        """Adds rows [n, width] of texts, each one's together."""
        if not len(sequences):
            return
        starts = np.concatenate([[0], np.flatnonzero(np.diff(sequences)) + 1])
        texts = sequences[starts]
        for way, sums in self._sums.items():
            weights = _WEIGHTS[way][0](positions)[:, None].astype(np.float64)
            if sums.shape[1] != states.shape[1]:
                self._sums[way] = sums = np.zeros((len(sums), states.shape[1]))
            sums[texts] += np.add.reduceat(states * weights, starts)
            self._weights[way][texts] += np.add.reduceat(weights, starts)
        if "max" in self._ways:
            best = self._of("max", states)
            best[texts] = np.maximum(best[texts], np.maximum.reduceat(states, starts))
        for way, end in (("cls", self._first), ("last", self._last)):
            if way in self._ways:
                at = positions == end[sequences]
                self._of(way, states)[sequences[at]] = states[at]

    def _of(self, way: str, states: np.ndarray) -> np.ndarray:
        if way not in self._picked:
            shape = len(self._last), states.shape[1]
            self._picked[way] = np.full(shape, -np.inf, np.float32)
        return self._picked[way]

    def rows(self) -> np.ndarray:
        """The rows of all ways, joined, float32 [texts, ways · width]."""
        parts = []
        for way in self._ways:
            if way in self._sums:
                divisor = _WEIGHTS[way][1](self._weights[way])
                parts.append((self._sums[way] / divisor).astype(np.float32))
            else:
                parts.append(self._picked[way])
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _project(
    engine: Engine,
    pooled: np.ndarray,
    last: Callable[[Context, Tensor], Tensor],
    step: Step,
    probed: tuple[Probed, ...],
) -> np.ndarray:
    """Pooled rows after the architecture's last layers, float32 [texts, width].

    Args:
        step: whose inputs the rows are, with its adapters.
    """
    step.probes = probed
    with engine.backend.new_context() as ctx, ctx.trace():
        before = ctx.input().from_floats(pooled)
        tap = Tap(ctx, step, partial=True)
        ctx.graph.tap = tap if probed else None
        ctx.graph.changed = Changes(ctx, step) if step.adapted else None
        after = last(ctx, before)
        ctx.forward(after)
        kept = (after, *tap.finish())
        executable = engine.backend.compile(ctx.graph, kept)
        executable.keep_only(kept)
        try:
            tap.run(executable, step)
            return np.array(executable.value(after).reshape(len(pooled), -1), np.float32)
        finally:
            executable.close()


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Scores of labels [n, labels] as probabilities, float32: a softmax, or a sigmoid of one."""
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        return probabilities(scores)[:, 1:]
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
