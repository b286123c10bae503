"""Sequences: a request as the engine sees it, and its sequence with cells, tokens and drafts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

from ...errors import Error

if TYPE_CHECKING:
    import numpy as np

    from ...kvcache import Cache
    from ...model import Step
    from .inputs import Histories, InputTable

# Acceptance rate after 2 to 7, 8, 16 and 32 equal tokens, measured on stories, programs,
# documents and edited versions of them. Each request starts from these and learns.
_RATES = (0.0, 0.0, 0.3, 0.5, 0.6, 0.65, 0.7, 0.75, 0.85, 0.9, 0.97)
_ALIKE = 8  # inputs in which two ends of a prompt may agree
_WEIGHT = 8  # draft tokens that a prior rate counts as


class Lookup:
    """Drafts the tokens that followed the latest earlier occurrence of the last two tokens.

    Trigrams match too rarely, single tokens too loosely. A match is followed as long as the text
    agrees with it: that drafts 95 of 100 tokens of edited texts right, a new search after each 83.

    Args:
        tokens: the text so far; negative ones stand for images and are never drafted.

    Attributes:
        alike: how many tokens before the end equal those before the draft; 0 without a draft.
    """

    def __init__(self, tokens: list[int]):
        self._tokens = list(tokens[:-1])
        pairs = zip(self._tokens, self._tokens[1:], strict=False)
        self._ends = dict(zip(pairs, range(2, len(tokens)), strict=False))  # the latest of each
        self._rates = list(_RATES)
        self._source, self.alike = 0, 0
        self.push(tokens[-1])

    def push(self, token: int) -> None:
        """Notes how the text went on."""
        tokens = self._tokens
        if self.alike:
            self._learn(tokens[self._source] == token)
        tokens.append(token)
        end, pair = len(tokens), (tokens[-2] if len(tokens) > 1 else -1, token)
        if self.alike:
            self._source, self.alike = self._source + 1, self.alike + 1
        elif pair in self._ends:
            self._source, self.alike = self._ends[pair], 2
        self._ends[pair] = end

    def _learn(self, right: bool) -> None:
        at = _bucket(self.alike)
        self._rates[at] += (right - self._rates[at]) / _WEIGHT
        if not right:
            self.alike = 0

    def chances(self) -> Iterator[float]:
        """For each further draft token: the chance of acceptance if those before are accepted."""
        alike = self.alike
        while True:
            yield self._rates[_bucket(alike)]
            alike += 1

    def draft(self, n: int) -> list[int]:
        """Draft tokens for the next n; fewer before an image, none without a match."""
        if not self.alike:
            return []
        period = len(self._tokens) - self._source  # the repetition may reach into the draft
        draft = [self._tokens[self._source + i % period] for i in range(n)]
        return draft[: next((i for i, token in enumerate(draft) if token < 0), n)]


def _bucket(alike: int) -> int:
    return alike if alike < 8 else min(4 + alike.bit_length(), len(_RATES) - 1)


class Request(Protocol):
    """A sequence of tokens that grows by what its owner chooses from logits.

    The engine's thread calls the methods and writes `seated`, `reused`, `drafted` and `accepted`.
    Another thread may set `cancelled` at any time, and wakes the engine afterwards.

    Attributes:
        prompt: int32 [n], numbered by the engine's `InputTable`.
        context_shift: when the context is full, its older half is dropped.
        num_keep: inputs at the beginning that are never dropped.
        consumer: the thread or task that takes the results, or None.
        cancelled: no more is wanted.
        done: nothing more will come. failed: because of an error.
        lookup: drafts tokens; None without prompt lookup.
        seated: when it got a sequence, by `time.perf_counter`; 0 before.
        reused: inputs of the prompt that a sequence already held.
        drafted, accepted: draft tokens computed, and those that were accepted.
        watches_prefill: `prefilled` is called until all of the prompt is computed.
    """

    prompt: np.ndarray
    context_shift: bool
    num_keep: int
    consumer: object
    cancelled: bool
    lookup: Lookup | None
    seated: float
    reused: int
    drafted: int
    accepted: int
    watches_prefill: bool

    @property
    def done(self) -> bool: ...

    @property
    def failed(self) -> bool: ...

    @property
    def wants_more(self) -> bool:
        """Whether another token is welcome now."""
        ...

    @property
    def left(self) -> float:
        """How many tokens may still come."""
        ...

    def prefilled(self, inputs: int, /) -> None:
        """Is told how many inputs of the prompt are computed."""
        ...

    def accept(self, logits: np.ndarray, /) -> int | None:
        """Takes the logits float32 [vocabulary] after the latest token; the next step overwrites
        them. Returns the chosen token, or None at the end."""
        ...

    def finish(self, reason: Literal["stop", "length"], /) -> None:
        """Ends the request."""
        ...

    def fail(self, error: BaseException, /) -> None:
        """Ends the request with an error."""
        ...

    def release(self) -> None:
        """The request is done and has no sequence: its owner may be told."""
        ...


class Sequence:
    """One sequence of the cache: what it holds, computes next, and takes back.

    Args:
        number: of its slot in the cache.
        siblings: all sequences of the cache.

    Attributes:
        tokens: the inputs in the cache, by position, numbered by the `InputTable`. They stay when
            a request ends.
        exact: number of leading tokens that a new computation would reproduce. Later ones remain
            from a context shift: their states have seen forgotten tokens.
        pending: inputs to compute next.
        request: the request it serves. owner: the thread that uses it without a request.
        prompted: length of the prompt that it was last taken for.
        stable: how much of that the next prompt will probably begin with: all but as many inputs as
            the latest one left out of the one before, such as a reminder; 0 where it left out none.
        worth: what giving it up would lose, then when it was last taken. The former is the length
            of its prompt, and what was lost before it was taken: what nobody takes is given up.
    """

    def __init__(self, number: int, siblings: Sequences):
        self.number, self._siblings = number, siblings
        self.tokens, self.pending = list[int](), list[int]()
        self.exact: float = math.inf
        self.request: Request | None = None
        self.owner: object = None
        self.prompted, self.stable, self.worth = 0, 0, (0, 0)

    @property
    def free(self) -> bool:
        """Whether it can be given to a request."""
        return self.request is None and self.owner is None

    @property
    def holder(self) -> object:
        """The thread or task that has to act before it becomes free; None if it is free."""
        return self.owner if self.request is None else self.request.consumer

    # steps

    def commit(self, n: int) -> None:
        """Notes that the first n pending inputs are computed."""
        self.tokens += self.pending[:n]
        del self.pending[:n]

    def take(self, result: np.ndarray | Exception | None, drafts: Iterable[int]) -> bool:
        """Passes its request the logits after its latest token, then those after each draft token,
        as long as the request samples that token. Other draft tokens are rolled back.

        Each token is thus sampled from its own logits, with draft tokens or without.

        Args:
            result: float32 [1 + drafts, vocabulary], or the error; None during prefill.

        Returns:
            Whether the request has ended.
        """
        request = self.request
        assert request is not None
        if request.watches_prefill:
            request.prefilled(len(self.tokens))
        if isinstance(result, Exception):
            request.fail(result)
        elif result is not None:
            computed = len(self.tokens) + len(result) - 1
            try:
                self._verify(request, result, drafts)
            except BaseException as error:  # of a sampler that is not ours, say
                request.fail(error)
            finally:
                if len(self.tokens) < computed:
                    self.rewind(len(self.tokens))
        return request.done or request.cancelled

    def _verify(self, request: Request, rows: np.ndarray, drafts: Iterable[int]) -> None:
        request.drafted += len(rows) - 1
        for logits, draft in zip(rows, (*drafts, None), strict=True):
            token = request.accept(logits)
            if token is None:
                return
            if token != draft:
                self.pending = [token]
                return
            self.tokens.append(token)
            request.accepted += 1

    def rewind(self, length: int) -> None:
        """`cut`, but the forgotten tokens are pending again."""
        with self._siblings.change() as cache:
            at = self._cut_at(cache, length)
            self.tokens, self.pending = self.tokens[:at], self.tokens[at:] + self.pending
            self.cut(at)

    # other changes

    def allocate(self, length: int) -> None:
        """Allocates cells for so many positions in all: see `Cache.allocate`."""
        with self._siblings.change() as cache:
            cache.allocate(self.number, length)

    def cut(self, length: int) -> None:
        """Forgets all positions from `length` on, and earlier ones as far as going on requires."""
        with self._siblings.change() as cache:
            length = self._cut_at(cache, length)
            cache.remove(self.number, length, None)
            del self.tokens[length:]
            if length <= self.exact:
                self.exact = math.inf

    def _cut_at(self, cache: Cache, length: int) -> int:
        return self._resumed(cache, length) if length < cache.length(self.number) else length

    def forget(self, begin: int, end: int) -> None:
        """Forgets the positions from begin to end; later ones move down. If they cannot, or too
        little is left to go on from, all of them are pending again."""
        rest, histories = self.tokens[:begin] + self.tokens[end:], self._siblings.histories
        self.exact = min(self.exact, begin)
        with self._siblings.change() as cache:
            made = moves = None
            if histories is not None:
                made, moves = histories.shifted(self.number, begin, end, self.tokens[end:])
            try:
                # Caches of other packages may know no positions but places.
                cache.remove(self.number, begin, end, *(() if moves is None else (moves,)))
                if cache.can_resume(self.number, len(rest)):
                    self.tokens = rest
                    if histories is not None and made is not None:
                        histories.place(self.number, begin, made)
                    return
            except Error:
                pass  # the cells are shared, or the cache cannot move them
            self._start_over(rest + self.pending)
            cache.remove(self.number, 0, None)

    def wipe(self, pending: list[int] | None = None) -> None:
        """Forgets everything, and overwrites its cells: see `Cache.wipe`."""
        with self._siblings.change() as cache:
            self._start_over(pending or [])
            cache.wipe(self.number)

    def _start_over(self, pending: list[int]) -> None:
        """Notes that the cache holds nothing of it."""
        self.tokens, self.pending, self.exact = [], pending, math.inf

    def release(self) -> None:
        """Frees it; its tokens stay for a request that begins alike."""
        self.request, self.owner, self.pending = None, None, []
        self.allocate(0)

    # prefix caching

    def cached(self, cache: Cache, prompt: list[int]) -> int:
        """The length of a prompt's prefix that it has."""
        n = min(common_prefix(self.tokens, prompt), self.exact)
        return self._resumed(cache, int(n))

    def _resumed(self, cache: Cache, length: int) -> int:
        """The latest position up to `length` from which it can continue otherwise."""
        return cache.resume_point(self.number, self._siblings.inputs.before(self.tokens, length))

    def begin(self, prompt: list[int], source: Sequence, n: int) -> None:
        """Begins anew with the first n inputs of a prompt, which `source` has; the rest is pending.
        Another sequence shares their cells."""
        with self._siblings.change() as cache:
            if source is self:
                self.cut(n)
            else:
                self._start_over([])
                cache.copy_prefix(source.number, self.number, n)
                self.tokens = source.tokens[:n]
                if self._siblings.histories is not None:
                    self._siblings.histories.copy(source.number, self.number, n)
        self.pending = prompt[len(self.tokens) :]


class Sequences:
    """All sequences of a cache. Others than its steps change it through `change` alone.

    Args:
        histories: of the sequences; None for models without positions of their own.

    Attributes:
        cache: to be read, and for steps.
        all: by number.
        prepared: a step that is placed ahead of its turn, while the one before it is computed.
    """

    def __init__(
        self, cache: Cache, inputs: InputTable, count: int, histories: Histories | None = None
    ):
        self.cache, self.inputs, self.histories = cache, inputs, histories
        self.all = [Sequence(n, self) for n in range(count)]
        self.prepared: Step | None = None
        self._clock = self._lost = 0

    @contextmanager
    def change(self) -> Iterator[Cache]:
        """The cache, to be changed: a step that is placed ahead is taken back before."""
        if self.prepared is not None:
            self.cache.undo(self.prepared)
            self.prepared = None
        yield self.cache

    def prepare(self, step: Step) -> None:
        """Places a step ahead of its turn; it is taken back by any `change`.

        Raises:
            KvCacheFull: there is no room.
        """
        self.cache.start_forward(step)
        self.prepared = step

    @property
    def working(self) -> list[Sequence]:
        """The sequences that serve a request."""
        return [one for one in self.all if one.request is not None]

    def take(self, prompt: Iterable[int] = ()) -> Sequence | None:
        """A free sequence with as much of the prompt as possible; None if all are in use. The rest
        of the prompt is `pending`: at least one token, for there must be an output.

        The longest common prefix decides. The sequence that has it is kept if it had a prompt more
        than twice as long, for unrelated prompts may begin alike: then the free one of the least
        `worth` is given up, and the prefix is shared if it is half of the prompt. A longer one of a
        busy sequence is always shared.
        """
        free, prompt = [one for one in self.all if one.free], list(prompt)
        if not free:
            return None
        with self.change() as cache:
            cached = {one: one.cached(cache, prompt[:-1]) for one in self.all}
            best = min(free, key=lambda one: (-cached[one], one.worth))
            source = max(self.all, key=lambda one: cached[one])
            source = source if cached[source] > cached[best] else best
            taken = best
            if source is not best or 2 * cached[best] < best.prompted:
                taken = min(free, key=lambda one: one.worth)
                self._lost = max(self._lost, taken.worth[0])
            if source is best and 2 * cached[best] < len(prompt):
                source = taken
            kept = common_prefix(taken.tokens, prompt)
            goes_on = taken is best and 0 < kept < taken.prompted
            rest = taken.prompted - kept + _ALIKE
            taken.stable = max(0, len(prompt) - rest) if goes_on else 0
            taken.begin(prompt, source, cached[source])
        self._clock += 1
        taken.prompted = len(prompt)
        taken.worth = (self._lost + len(prompt), self._clock)
        return taken


def common_prefix(a: list[int], b: list[int]) -> int:
    """The length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
