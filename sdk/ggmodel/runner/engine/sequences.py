"""Sequences: a request as the engine sees it, and its sequence with cells, tokens and drafts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from ...errors import Error, KvCacheFull
from .saved import SavedPrefix, SavedPrefixes, common_prefix

if TYPE_CHECKING:
    from ...kvcache import Cache
    from ...model import Step
    from .adapters import Strengths
    from .inputs import Histories, InputTable
    from .lookup import Lookup
    from .probes import Probe

_MOST_REPLAYED = 32  # as many as a batch with draft tokens may have
_ALIKE = 8  # inputs in which two ends of a prompt may agree


class Request(Protocol):
    """A sequence of tokens that grows by what its owner chooses from logits.

    The engine's thread calls the methods and writes `seated`, `reused`, `drafted` and `accepted`.
    Another thread may set `cancelled` at any time, and wakes the engine afterwards.

    Attributes:
        prompt: int32 [n], numbered by the engine's `InputTable`.
        context_shift: when the context is full, its older half is dropped.
        num_keep: inputs at the beginning that are never dropped.
        consumer: the thread or task that takes the results, or None.
        slot: the number of the sequence that it wants; None for any.
        cancelled: no more is wanted.
        done: nothing more will come. failed: because of an error.
        lookup: drafts tokens; None without prompt lookup.
        probe: what it captures and changes in the model; None for nothing.
        adapters: those that it is computed with.
        seated: when it got a sequence, by `time.perf_counter`; 0 before.
        reused: inputs of the prompt that a sequence already held.
        drafts: steps with draft tokens. drafted, accepted: draft tokens computed, and those that
            were accepted.
        watches_prefill: `prefilled` is called until all of the prompt is computed.
    """

    prompt: np.ndarray
    context_shift: bool
    num_keep: int
    consumer: object
    slot: int | None
    cancelled: bool
    lookup: Lookup | None
    probe: Probe | None
    adapters: Strengths
    seated: float
    reused: int
    drafts: int
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

    def foresee(self) -> Callable[[np.ndarray], int | None]:
        """A function that chooses from logits as `accept` will from equal ones, token by token, and
        changes nothing of the request; None where the answer ends."""
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
        accepted: draft tokens of the latest batch that the request accepted.
        replayed: how many of the pending inputs were computed, and are computed again because
            draft tokens behind them were rejected and the cache could not take back these alone.
        adapters: those that its inputs are computed with.
        request: the request it serves. owner: the thread that uses it without a request.
        variant: the patches and adapters that its tokens were computed with, see `variant_of`.
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
        self.accepted = self.replayed = 0
        self.adapters: Strengths = ()
        self.request: Request | None = None
        self.owner: object = None
        self.variant: Hashable = None
        self.prompted, self.stable, self.worth = 0, 0, (0, 0)

    @property
    def free(self) -> bool:
        """Whether it can be given to a request."""
        return self.request is None and self.owner is None

    @property
    def probe(self) -> Probe | None:
        """That of its request."""
        return None if self.request is None else self.request.probe

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
                if request.probe is not None:  # before some are to be computed again
                    request.probe.captured.cut(len(self.tokens))
                if len(self.tokens) < computed:
                    self.rewind(len(self.tokens))
                again = len(self.pending) - 1
                self.replayed = again if 0 < again <= _MOST_REPLAYED else 0
        return request.done or request.cancelled

    def _verify(self, request: Request, rows: np.ndarray, drafts: Iterable[int]) -> None:
        request.drafts += len(rows) > 1
        request.drafted += len(rows) - 1
        self.accepted = 0
        for logits, draft in zip(rows, (*drafts, None), strict=True):
            token = request.accept(logits)
            if token is None:
                return
            if token != draft:
                self.pending = [token]
                return
            self.tokens.append(token)
            request.accepted += 1
            self.accepted += 1

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
        with self._siblings.change() as cache:
            if not self._siblings.moves:
                self._start_over(rest + self.pending)
                cache.remove(self.number, 0, None)
                return
            self.exact = min(self.exact, begin)
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

    def cached(self, cache: Cache, prompt: list[int], variant: Hashable = None) -> int:
        """The length of a prompt's prefix that it has, computed as this variant."""
        if self.variant != variant:
            return 0
        n = min(common_prefix(self.tokens, prompt), self.exact)
        return self._resumed(cache, int(n))

    def _resumed(self, cache: Cache, length: int) -> int:
        """The latest position up to `length` from which it can continue otherwise."""
        return cache.resume_point(self.number, self._siblings.inputs.before(self.tokens, length))

    def save(self, rest: int = 0) -> None:
        """Keeps a copy of what it holds, before all but `rest` of its tokens are forgotten."""
        saved, tokens = self._siblings.saved, self.tokens
        if self.exact < len(tokens) or not saved.wants(tokens, rest, self.variant):
            return
        with self._siblings.change() as cache:
            state, histories = cache.save(self.number), self._siblings.histories
        if state is not None and state.complete:
            components = None if histories is None else histories.known(self.number, len(tokens))
            saved.add(SavedPrefix(list(tokens), state, components, self.prompted, self.variant))

    def restore(self, saved: SavedPrefix) -> None:
        """Holds what was saved instead, or nothing if the cache has no room for it."""
        with self._siblings.change() as cache:
            self._start_over([])
            try:
                cache.restore(self.number, saved.state)
            except (KvCacheFull, ValueError):  # a file that others made may have other shapes
                return
            self.tokens, self.prompted = list(saved.tokens), saved.prompted
            self.variant, histories = saved.variant, self._siblings.histories
            if histories is not None and saved.components is not None:
                histories.place(self.number, 0, saved.components)
            elif histories is not None:
                tokens = np.array(saved.tokens, np.int32)
                places = np.arange(len(tokens), dtype=np.int32)
                histories.components(tokens, places, np.full_like(tokens, self.number))

    def begin(self, prompt: list[int], source: Sequence, n: int) -> None:
        """Begins anew with the first n inputs of a prompt, which `source` has; the rest is pending.
        Another sequence shares their cells."""
        self.save(n if source is self else 0)
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


def variant_of(probe: Probe | None, adapters: Strengths) -> Hashable:
    """Equal for requests whose tokens have the same states: those with others share none."""
    patches = None if probe is None else probe.variant
    return (patches, adapters) if adapters else patches


class Sequences:
    """All sequences of a cache. Others than its steps change it through `change` alone.

    Args:
        histories: of the sequences; None for models without positions of their own.
        moves: whether a context shift moves what is cached; it is computed again otherwise, so that
            nothing depends on what was forgotten.
        saved: prefixes that no sequence holds any more.

    Attributes:
        cache: to be read, and for steps.
        all: by number.
        prepared: a step that is placed ahead of its turn, while the one before it is computed.
    """

    def __init__(
        self,
        cache: Cache,
        inputs: InputTable,
        count: int,
        histories: Histories | None = None,
        moves: bool = True,
        saved: SavedPrefixes | None = None,
    ):
        self.cache, self.inputs, self.histories = cache, inputs, histories
        self.moves, self.saved = moves, saved or SavedPrefixes(0)
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
    def known(self) -> Iterator[list[int]]:
        """The inputs of each sequence, and of each saved prefix."""
        yield from (one.tokens + one.pending for one in self.all)
        yield from (one.tokens for one in self.saved)

    @property
    def working(self) -> list[Sequence]:
        """The sequences that serve a request."""
        return [one for one in self.all if one.request is not None]

    def longest(self, prompt: list[int], variant: Hashable) -> int:
        """The length of the longest prefix of a prompt in memory, computed as this variant."""
        with self.change() as cache:
            held = [one.cached(cache, prompt, variant) for one in self.all]
        saved = (one for one in self.saved if one.variant == variant)
        return max(*held, *(common_prefix(one.tokens, prompt) for one in saved), 0)

    def note_use(self, sequence: Sequence) -> None:
        """Notes that what a sequence holds was given to it now."""
        self._clock += 1
        sequence.worth = (self._lost + len(sequence.tokens), self._clock)

    def _saved(
        self, prompt: list[int], held: int, variant: Hashable, stored: SavedPrefix | None
    ) -> SavedPrefix | None:
        """The prefix, of those in memory and `stored`, that has most of a prompt; None if that is
        not more than `held`."""
        saved = self.saved.find(prompt, held, variant)
        held = held if saved is None else common_prefix(saved.tokens, prompt)
        return stored if stored is not None and len(stored.tokens) > held else saved

    def take(
        self,
        prompt: Iterable[int] = (),
        probe: Probe | None = None,
        adapters: Strengths = (),
        stored: SavedPrefix | None = None,
        slot: int | None = None,
    ) -> Sequence | None:
        """A free sequence with as much of the prompt as possible, computed with these adapters;
        None if all are in use. The rest of the prompt is `pending`: at least one token, for there
        must be an output.

        The longest common prefix decides. The sequence that has it is kept if it had a prompt more
        than twice as long, for unrelated prompts may begin alike: then the free one of the least
        `worth` is given up, and the prefix is shared if it is half of the prompt. A longer one of a
        busy sequence is always shared. Where a saved prefix has more of the prompt, a free sequence
        is given that first.

        Args:
            stored: a prefix of the prompt that was read from a `PrefixStore`.
            slot: the number of the one to take.
        """
        free = [one for one in self.all if one.free and slot in (None, one.number)]
        prompt = list(prompt)
        if not free:
            return None
        variant = variant_of(probe, adapters)
        # A capture needs all of the prompt computed.
        reusable = [] if probe is not None and probe.captures else prompt[:-1]
        with self.change() as cache:
            cached = {one: one.cached(cache, reusable, variant) for one in self.all}
            best = min(free, key=lambda one: (-cached[one], one.worth))
            source = max(self.all, key=lambda one: cached[one])
            source = source if cached[source] > cached[best] else best
            taken = best
            if source is not best or 2 * cached[best] < best.prompted:
                taken = min(free, key=lambda one: one.worth)
                self._lost = max(self._lost, taken.worth[0])
            if source is best and 2 * cached[best] < len(prompt):
                source = taken
            saved = self._saved(reusable, cached[source], variant, stored)
            if saved is not None:
                # One of which nothing is lost, if there is one.
                taken = min(free, key=lambda one: (cached[one] < len(one.tokens), one.worth))
                taken.save(cached[taken])
                taken.restore(saved)
                cached[taken] = taken.cached(cache, reusable, variant)
                best, source = taken, max(source, taken, key=lambda one: cached[one])
            kept = common_prefix(taken.tokens, prompt) if taken.variant == variant else 0
            goes_on = taken is best and 0 < kept < taken.prompted
            rest = taken.prompted - kept + _ALIKE
            taken.stable = max(0, len(prompt) - rest) if goes_on else 0
            taken.begin(prompt, source, cached[source])
            taken.variant, taken.adapters = variant, adapters
        self._clock += 1
        taken.prompted = len(prompt)
        taken.worth = (self._lost + len(prompt), self._clock)
        return taken
