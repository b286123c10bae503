"""One prompt computed in other ways: in batches of several sizes, token by token, beside another
sequence with the same beginning, after a context shift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import Error
from ...ml import Context, Tensor
from ...model import Batch, Module
from ...model.walk import instances
from ...runner import LoadedModel
from ...runner.engine.graphs import Forward, Graphs
from ...runner.engine.scoring import Scoring
from ...runner.engine.step import BatchPlanner

SIZES = (1, 2, 3, 7)
TOGETHER = 3  # tokens of each sequence in a batch of two
# Tokens behind a context shift: the first of them does not begin a chunk of chunked attention.
NEXT = 5
LEFT = 3  # the least number of tokens that stay before them


@dataclass(frozen=True)
class Run:
    """A prompt computed in another way than as one batch.

    Attributes:
        name: "batches of 3", "F16".
        nmse: Σ(got − want)² / Σ want² over all values of all rows.
        bound: `nmse` must stay below it.
        note: the reason if this way is none for the model, whose `nmse` is 0 then, or in words what
            differs.
    """

    name: str
    nmse: float
    bound: float
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the error is below its bound."""
        return self.nmse < self.bound

    def __str__(self) -> str:
        return f"{self.name}: {self.note or f'NMSE {self.nmse:.1e} (bound {self.bound:.0e})'}"


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    """Σ(got − want)² / Σ want²; infinite if shapes differ or a value is not finite."""
    if got.shape != want.shape:
        return float("inf")
    got, want = got.astype(np.float64), want.astype(np.float64)
    error = ((got - want) ** 2).sum() / (want**2).sum()
    return float(error) if np.isfinite(error) else float("inf")


class Prompt:
    """A prompt for a loaded model, and the logits of one batch.

    Args:
        numbers: int32 [n], see `Prompts.read`.
        want: logits of all rows [n, vocabulary], by the reference.
        bound: the NMSE that a model must stay below. Splits only change the order of float32 sums,
            and stay below the bound of one batch.
    """

    def __init__(self, model: LoadedModel, numbers: np.ndarray, want: np.ndarray, bound: float):
        self.model, self.numbers, self.want, self.bound = model, numbers, want, bound
        self.inputs = model.engine.inputs
        self._listed = numbers.tolist()

    def runs(self) -> Iterator[Run]:
        """Every way but a context shift."""
        n = len(self.numbers)
        for size in SIZES:
            yield self._run(f"batches of {size}", lambda size=size: self._split(0, size))
        half = self.inputs.after_image(self._listed, n // 2)
        if half < n:
            yield self._run("token by token", lambda: self._split(half, 1))
            yield self._run("shared prefix", lambda: self._shared(half))

    def _run(self, name: str, compute: Callable[[], tuple[np.ndarray, np.ndarray]]) -> Run:
        return Run(name, nmse(*self.model.engine.call(compute)), self.bound)

    def _split(self, first: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """All rows, the first tokens as one batch."""
        with self._graphs(1) as graphs:
            rows = [self._extend(graphs, self.numbers[:first])] if first else []
            for begin, end in self._pieces(first, size):
                rows.append(self._extend(graphs, self.numbers[begin:end], begin))
        return np.concatenate(rows), self.want

    def _shared(self, half: int) -> tuple[np.ndarray, np.ndarray]:
        """A second sequence takes over the first half and goes on with other tokens, in the same
        batches as the first. Its reference is the same text as one batch."""
        tokens = self.numbers[half:]
        other = np.concatenate([self.numbers[:half], tokens[tokens >= 0][::-1]])
        with self._graphs(2) as graphs:
            want = self._extend(graphs, other)
            graphs.cache.remove(0, 0, None)
            self._extend(graphs, self.numbers[:half])
            graphs.cache.copy_prefix(0, 1, half)
            if graphs.histories is not None:
                graphs.histories.copy(0, 1, half)
            rows: tuple[list[np.ndarray], list[np.ndarray]] = [], []
            start = half
            for begin, end in self._pieces(half, TOGETHER):
                stop = min(len(other), start + end - begin)
                both = self._together(graphs, (begin, end), other[start:stop], start)
                for kept, some in zip(rows, both, strict=True):
                    kept.append(some)
                start = stop
        got = [row for some in rows for row in some]
        return np.concatenate(got), np.concatenate([self.want[half:], want[half:start]])

    def _together(
        self, graphs: Graphs, piece: tuple[int, int], others: np.ndarray, start: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a piece of the first sequence, and of as many tokens of the second."""
        begin, end = piece
        planner = BatchPlanner(self.inputs, end - begin, end - begin, 0, graphs.histories)
        n = end - begin + len(others)
        step = planner.step_of(
            [*self._listed[begin:end], *others.tolist()],
            [*range(begin, end), *range(start, start + len(others))],
            [0] * (end - begin) + [1] * len(others),
            range(n),
        )
        graphs.cache.start_forward(step)
        rows = graphs.run(step).copy()
        return rows[: end - begin], rows[end - begin :]

    def _extend(self, graphs: Graphs, numbers: np.ndarray, start: int = 0) -> np.ndarray:
        """The rows of inputs that the first sequence goes on with."""
        batches = Scoring(self.model.engine).batches(graphs, 0, numbers, start)
        return np.concatenate(list(batches))

    def _pieces(self, begin: int, size: int) -> Iterator[tuple[int, int]]:
        n = len(self.numbers)
        while begin < n:
            end = self.inputs.after(self._listed, min(n, begin + size))
            yield begin, end
            begin = end

    def _graphs(self, sequences: int) -> Any:
        engine = self.model.engine
        group = self.inputs.largest_group(self._listed)
        # Whole images lie in cells of sequences; one batch may need those of several.
        spare = sum(n < 0 for n in self._listed) if self.inputs.whole else 0
        return Scoring(engine).graphs(engine.model, sequences + spare, len(self.numbers), group)


def shifted(model: LoadedModel, tokens: np.ndarray, bound: float) -> Run:
    """A context shift in every layer, against the shortened text computed from the start.

    The keys and values of a layer depend on what the layers before have read, so a shift does not
    equal the shortened text in a deep model. It does in each layer alone: there keys depend on
    token and position. So all layers but one pass their input on, in turn; one that shares the keys
    of another is computed with that.

    Args:
        tokens: int32 [n].
    """
    name, errors = "context shift", list[float]()
    if len(tokens) <= LEFT + NEXT:
        return Run(name, 0.0, bound, f"{len(tokens)} tokens are too few")
    try:
        blocks = model.engine.call(lambda: _blocks(model, tokens))
        if not blocks:
            return Run(name, 0.0, bound, "no module of this model is given the cache of one layer")
        for layer, (_, source) in blocks.items():
            with _passing([b for i, (b, _) in blocks.items() if i not in (layer, source)]):
                errors.append(nmse(*model.engine.call(lambda: _shift(model, tokens))))
    except _Refused as refused:
        return Run(name, 0.0, bound, str(refused))
    return Run(name, max(errors), bound)


class _Refused(Exception):
    """The cache cannot shift; a request computes its text again then."""


def _blocks(model: LoadedModel, tokens: np.ndarray) -> dict[int, tuple[Module, int | None]]:
    """The outermost module that gets the memory of each layer, and the layer whose keys it shares;
    empty if one serves several."""
    engine, net = model.engine, model.model
    modules = {id(instance.module): instance.module for instance in instances(net)}
    blocks: dict[int, tuple[Module, int | None]] = {}

    def forward(ctx: Context, batch: Batch) -> Tensor:
        ctx.graph.calls = []
        result = net(ctx, batch)
        for call, args, _ in ctx.graph.calls:  # inner modules come before outer ones
            module = modules.get(id(getattr(call, "__self__", None)))
            layers = [i for i, memory in enumerate(batch.cache) if any(a is memory for a in args)]
            if module is not None and len(layers) == 1:
                blocks[layers[0]] = module, getattr(batch.cache[layers[0]], "shares", None)
        return result

    with Scoring(engine).graphs(forward, 1, len(tokens)) as graphs:
        list(Scoring(engine).batches(graphs, 0, tokens, 0, len(tokens) - 1))
    return blocks if len({id(b) for b, _ in blocks.values()}) == len(blocks) else {}


@contextmanager
def _passing(modules: Sequence[Module]) -> Iterator[None]:
    """While the block runs, these modules return their input."""
    for module in modules:
        vars(module)["forward"] = lambda x, *_, **__: x
    try:
        yield
    finally:
        for module in modules:
            del vars(module)["forward"]


def _shift(model: LoadedModel, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows behind a shift, and the same of the shortened text."""
    engine, net = model.engine, model.model
    text, after = tokens[:-NEXT], tokens[-NEXT:]
    # A power of two: chunks of chunked attention then begin at the same tokens as before.
    removed = 1 << (len(text) - LEFT).bit_length() - 1
    left = text[removed:]

    def continued(graphs: Graphs, start: int) -> np.ndarray:
        return np.concatenate([*Scoring(engine).batches(graphs, 0, after, start)])

    forward: Forward = net
    with Scoring(engine).graphs(forward, 1, len(tokens)) as graphs:
        cache = graphs.cache
        list(Scoring(engine).batches(graphs, 0, text, 0))
        try:
            cache.check_remove(0, 0, removed)
        except Error:
            raise _Refused("its state cannot shift: a request computes the text again") from None
        cache.remove(0, 0, removed)
        if not cache.can_resume(0, len(left)):
            raise _Refused("its window ends elsewhere then: a request computes the text again")
        got = continued(graphs, len(left))
        cache.remove(0, 0, None)
        list(Scoring(engine).batches(graphs, 0, left, 0))
        return got, continued(graphs, len(left))
