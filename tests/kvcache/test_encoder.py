"""The encoder cache: who sees which objects, whatever happens to sequences and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggmodel.errors import ConfigError, Error, KvCacheFull, TensorError, Unsupported
from ggmodel.kvcache import Causal, Cross, EncoderCache, new_cache
from ggmodel.kvcache.cells import Window
from ggmodel.ml import Backend, DType
from ggmodel.model import Span
from tests.kvcache.conftest import small_backend
from tests.kvcache.history import BOUND
from tests.kvcache.objects import (
    HEADS,
    Rows,
    Sequence,
    Thing,
    attend,
    attended,
    encoder_of,
    next_sees,
    query,
    seen_things,
    snapshot,
    step_of,
)

MakeCache = Callable[..., EncoderCache]

WIDTH, VALUES, LONG = 8, 6, 32  # elements of a head; LONG where keys and values come in blocks
SEQUENCES, MOST, MAX_BATCH = 3, 4, 8
LAYERS = [Cross(MOST, 2), Cross(MOST, 2)]

# From transformers' get_cross_attention_token_mask: "." is text, "I" an image; of each position the
# images it sees, by number.
SEEN = {
    "...": ["", "", ""],
    "I..": ["0", "0", "0"],
    "..I": ["", "", "0"],
    ".I.": ["", "0", "0"],
    "I.I.": ["0", "0", "1", "1"],
    ".II.": ["", "0", "01", "01"],
    "II": ["0", "01"],
    "III.": ["0", "01", "012", "012"],
    "II.I.": ["0", "01", "01", "2", "2"],
    "I.II.": ["0", "0", "1", "12", "12"],
    ".I..II.III": ["", "0", "0", "0", "1", "12", "12", "3", "34", "345"],
}


class Run:
    """A cache, and sequences to which the same is done."""

    def __init__(self, cache: EncoderCache, dtype: DType = DType.F32, long: bool = False):
        self.cache, self.bound = cache, BOUND[dtype]
        self.d, self.dv = (LONG, LONG) if long else (WIDTH, VALUES)
        self.sequences: list[Sequence] = [[] for _ in cache.objects]
        self.made = 0
        self.replaced: set[Thing] = set()  # these may have been given up

    def thing(self, rows: int) -> Thing:
        self.made += 1
        return Thing(self.made, rows, unused=self.made % 3)

    def put(self, *pieces: tuple[int, list[int]], apart: bool = False) -> None:
        """Appends to sequences: objects of so many rows, text where that is 0; one batch."""
        rows: Rows = []
        kept = [s.copy() for s in self.sequences]
        for sequence, sizes in pieces:
            for n in sizes[: MAX_BATCH - len(rows)]:
                thing = self.thing(n) if n else None
                rows.append((sequence, len(self.sequences[sequence]), thing))
                self.sequences[sequence].append(thing)
        if apart:  # rows of sequences among each other
            rows = rows[::2] + rows[1::2]
        step, before = step_of(rows), snapshot(self.cache)
        new = [thing for *_, thing in rows if thing is not None]
        needed = set()  # by the first row of the batch, else by what comes next
        for old, sequence in zip(kept, self.sequences, strict=True):
            needed |= set(seen_things([*sequence, None])[len(old)]) - set(new)
        if new and sum(thing.rows for thing in [*needed, *new]) > self.cache.rows:
            with pytest.raises(KvCacheFull, match="larger parallel, or show it fewer"):
                self.cache.start_forward(step)
            assert snapshot(self.cache) == before and not step.placed
            self.sequences = kept
            return
        self.cache.start_forward(step)
        self.cache.undo(step)
        assert snapshot(self.cache) == before and not step.placed
        self.cache.start_forward(step)
        if new:
            self.replaced |= {t for s in kept for t in s if t is not None} - needed
        seen = [[bool(seen_things(self.sequences[s])[p])] for s, p, _ in rows]
        np.testing.assert_array_equal(step.placed[self.cache].seen, seen)
        self.compare(rows, attend(self.cache, rows, step, self.d, self.dv))

    def compare(self, rows: Rows, got: dict[int, np.ndarray]) -> None:
        seen = [seen_things(self.sequences[s])[p] for s, p, _ in rows]
        assert bool(got) == any(seen)
        for layer, outs in got.items():
            queries = [query(s, p, layer, self.d) for s, p, _ in rows]
            want = np.stack(
                [attended(q, t, layer, self.dv) for q, t in zip(queries, seen, strict=True)]
            )
            assert ((outs - want) ** 2).sum() <= self.bound * (want**2).sum()
            assert not any(out.any() for out, things in zip(outs, seen, strict=True) if not things)

    def end(self, sequence: int, begin: int) -> None:
        self.cache.remove(sequence, begin, None)
        del self.sequences[sequence][begin:]

    def middle(self, sequence: int, begin: int, n: int) -> None:
        self.cache.remove(sequence, begin, begin + n)
        del self.sequences[sequence][begin : begin + n]

    def copy(self, source: int, target: int, n: int) -> None:
        self.cache.copy_prefix(source, target, n)
        self.sequences[target] = self.sequences[source][:n]

    def wipe(self, sequence: int) -> None:
        self.cache.wipe(sequence)
        self.sequences[sequence] = []

    def resume(self) -> None:
        """Cuts sequences to where they can go on."""
        for s, sequence in enumerate(self.sequences):
            assert self.cache.length(s) == len(sequence)
            for position in range(len(sequence) + 2):
                point = self.cache.resume_point(s, position)
                assert self.cache.can_resume(s, position) == (point == position)
                assert point <= min(position, len(sequence)) and self.cache.can_resume(s, point)
                if not self.replaced & set(next_sees(sequence[:position])):
                    assert point == min(position, len(sequence))
            self.end(s, self.cache.resume_point(s, len(sequence)))


@pytest.fixture
def run(make_cache: MakeCache) -> Run:
    return Run(make_cache(SEQUENCES, 100, LAYERS, max_batch=MAX_BATCH))


def images(pattern: str, rows: int = 1) -> list[int]:
    return [rows * (c == "I") for c in pattern]


@pytest.mark.parametrize("pattern", SEEN)
def test_the_rule_of_the_reference(pattern: str):
    numbers = iter(range(10))
    sequence = [Thing(next(numbers), 1) if c == "I" else None for c in pattern]
    seen = ["".join(str(thing.number) for thing in row) for row in seen_things(sequence)]
    assert seen == SEEN[pattern]


@pytest.mark.parametrize("pattern", SEEN)
def test_in_one_batch_and_token_by_token(make_cache: MakeCache, pattern: str):
    for sizes in ([images(pattern)], [[n] for n in images(pattern)]):
        run = Run(make_cache(1, 20, [Cross(1, 6)], max_batch=MAX_BATCH))
        for piece in sizes:
            run.put((0, piece[:5]))
            if piece[5:]:
                run.put((0, piece[5:]))
        run.put((0, [0]))


def test_sequences_see_only_their_own(run: Run):
    run.put((0, [0, 3, 0]), (1, [2, 0]), (2, [0, 0]), apart=True)
    run.put((2, [0]), (1, [0, 1, 0]), (0, [0]))
    run.put((0, [4]), (1, [1, 2]), (2, [0]), apart=True)
    for s in range(SEQUENCES):
        run.put((s, [0]))


def test_text_alone_skips_the_layers(run: Run):
    run.put((0, [0, 0]), (1, [0]))
    step = step_of([(0, 2, None)])
    run.cache.start_forward(step)
    assert run.cache.shape_key(step) == (Window(0, 0), 0)
    with run.cache.stored.backend.new_context() as ctx:
        layer = run.cache.layers(ctx, step)[1]
        assert layer.skipped
        x = ctx.input().zeros(DType.F32, WIDTH, HEADS, 1)
        for use in (layer.get, lambda: layer.seen, lambda: layer.put(x, x)):
            with pytest.raises(TensorError, match="sees an object in layer 1; leave"):
                use()


def test_what_a_graph_depends_on(run: Run):
    keys = []
    for rows in ([(0, 0, Thing(1, 2))], [(0, 1, None)], [(0, 2, None)], [(0, 3, Thing(2, 2))]):
        step = step_of(rows)
        run.cache.start_forward(step)
        keys.append(run.cache.shape_key(step))
    assert keys[0] != keys[1] == keys[2] != keys[3]
    assert all(key[0].size % 4 == key[0].begin % 4 == 0 for key in keys)


def test_objects_go_with_their_position(run: Run):
    run.put((0, images(".I..I.")))
    run.end(0, 4)
    run.put((0, [0, 0]))  # the first one again
    run.end(0, 1)
    run.put((0, [0]))
    assert not any(run.cache.objects[0].values())


def test_objects_move_with_their_sequence(run: Run):
    run.put((0, images("..I..I.")))
    run.middle(0, 0, 2)
    assert list(run.cache.objects[0]) == [0, 3]
    run.put((0, [0]))
    run.middle(0, 2, 2)  # with the second one
    run.put((0, [0]))
    run.middle(0, 0, 1)
    run.put((0, [0]))
    assert run.cache.objects[0] == {}


def test_objects_that_become_neighbours_are_seen_together(run: Run):
    run.put((0, images("I..I.", 2)))
    run.middle(0, 1, 2)
    run.put((0, [0]))


def test_a_prefix_shares_its_objects(run: Run):
    run.put((0, [0, 4, 0, 4]))
    used = 1 + run.cache.rows - len(run.cache._free())
    run.copy(0, 1, 3)
    run.copy(0, 2, 4)
    assert 1 + run.cache.rows - len(run.cache._free()) == used
    run.middle(1, 0, 1)  # shared cells may be at other positions there
    run.put((0, [0]), (1, [0, 3]), (2, [4, 0]))
    run.end(0, 0)
    run.put((1, [0]), (2, [0]))
    run.copy(2, 2, 1)
    run.put((2, [0, 4]))


def test_what_nobody_sees_makes_room(make_cache: MakeCache):
    run = Run(make_cache(1, 100, [Cross(4, 2)], max_batch=MAX_BATCH))
    run.put((0, [4, 0]))
    run.put((0, [4, 0]))
    assert run.cache.can_resume(0, 2)
    run.put((0, [3, 0]))
    assert [p for p in range(7) if run.cache.can_resume(0, p)] == [0, 3, 4, 5, 6]
    assert run.cache.resume_point(0, 2) == 0
    run.resume()
    run.put((0, [0]))


@pytest.mark.parametrize("begun", [False, True])
def test_what_a_step_has_overwritten_does_not_come_back(make_cache: MakeCache, begun: bool):
    run = Run(make_cache(1, 100, [Cross(4, 2)], max_batch=MAX_BATCH))
    run.put((0, [4, 0]))
    run.put((0, [4, 0]))
    step = step_of([(0, 4, run.thing(3))])
    run.cache.start_forward(step)
    step.begun = begun
    run.cache.undo(step)
    assert run.cache.length(0) == 4 and run.cache.can_resume(0, 4)
    assert run.cache.can_resume(0, 2) == (not begun)
    run.put((0, [0]))


def test_neighbours_are_given_up_together(make_cache: MakeCache):
    run = Run(make_cache(1, 100, [Cross(4, 2)], max_batch=MAX_BATCH))
    run.put((0, [0, 2, 2, 0, 4, 0]))
    run.put((0, [4, 0]))
    assert [run.cache.resume_point(0, p) for p in range(5)] == [0, 1, 1, 1, 1]


def test_a_full_cache_says_what_to_do(make_cache: MakeCache):
    run = Run(make_cache(2, 100, [Cross(4)], max_batch=MAX_BATCH))
    run.put((0, [4, 4]))
    run.put((1, [1]))
    assert run.sequences[1] == []
    run.put((0, [0]), (1, [0]))
    with pytest.raises(KvCacheFull, match=r"^9 rows .*; 8 of 8 are free"):
        run.cache.start_forward(step_of([(0, 0, Thing(9, 9))]), reserve=True)


def test_an_object_comes_whole_and_once(run: Run):
    run.put((0, [2]))
    before = snapshot(run.cache)
    for position, first, count, text in (
        (1, 0, 2, "rows 0 to 2 of an image that uses 3"),
        (1, 1, 2, "rows 1 to 3"),
        (1, 0, 4, "rows 0 to 4"),
        (0, 0, 3, "position 0 of sequence 0 has an object already"),
    ):
        step = step_of([(0, position, None)])
        step.spans = (Span(0, Thing(5, 3, 1).embedding(), first, count),)
        with pytest.raises(Error, match=text):
            run.cache.start_forward(step)
        assert snapshot(run.cache) == before and not step.placed


def test_objects_must_be_put_before_they_are_seen(make_cache: MakeCache):
    cache = make_cache(1, 8, [Cross(2)])
    for rows, text in (([(0, 0, Thing(1, 2))], "get"), ([(0, 1, None)], "put")):
        step = step_of(rows)
        cache.start_forward(step)
        with cache.stored.backend.new_context() as ctx, ctx.trace():
            layer = cache.layers(ctx, step)[0]
            with pytest.raises(TensorError, match=rf"{text}\(\)"):
                layer.get() if text == "get" else layer.put(*[ctx.input().empty(DType.F32, 8)] * 2)


def test_nan_of_one_sequence_stays_there(make_cache: MakeCache, backend: Backend):
    """Rows without objects see none of others', and wiped cells hold none."""
    cache = make_cache(2, 8, [Cross(2)])
    bad = Thing(1, 2)
    step = step_of([(0, 0, bad), (1, 0, None)])
    cache.start_forward(step)
    with backend.new_context() as ctx, ctx.trace():
        layer = cache.layers(ctx, step)[0]
        host = ctx.input()
        layer.put(*(host.from_floats(np.full((2, HEADS, d), np.nan)) for d in (WIDTH, VALUES)))
        q = ctx.input().zeros(DType.F32, WIDTH, HEADS, 2)
        out = q.scaled_dot_product_attention(*layer.get(), scale=1, cache_config_applied=True)
        ctx.forward(out)
        executable = backend.compile(ctx.graph, (out,))
        executable.run(step)
        first, second = executable.value(out)[0]
        executable.close()
    assert np.isnan(first).all()
    assert not backend.flash_attention or not second.any()  # plain attention multiplies by 0
    cache.wipe(0)
    run = Run(cache)
    run.sequences = [[], [None]]
    run.put((1, [1, 0]), (0, [0]))  # the other cell is in range


def test_beside_a_causal_cache(make_cache: MakeCache):
    cache = make_cache(1, 4, [Causal(), Cross(2), Causal(), Cross(2)], max_batch=4)
    assert list(encoder_of(cache).stored.ropes) == [1, 3]
    rows: Rows = [(0, 0, None), (0, 1, Thing(1, 2)), (0, 2, None), (0, 3, None)]
    step = step_of(rows)
    cache.start_forward(step)
    assert cache.shape_key(step) == (Window(0, 4), (Window(0, 4), 2))
    got = attend(cache, rows, step, WIDTH, VALUES)
    assert list(got) == [1, 3] and not got[1][0].any() and got[1][1:].all()
    before, full = snapshot(cache), step_of([(0, 4, Thing(2, 1))])
    with pytest.raises(KvCacheFull, match="1 tokens"):
        cache.start_forward(full)
    assert snapshot(cache) == before and not full.placed
    cache.remove(0, 0, 1)
    assert list(encoder_of(cache).objects[0]) == [0] and cache.length(0) == 3
    cache.remove(0, 0, None)
    assert cache.length(0) == 0 and cache.can_resume(0, 0)


@pytest.mark.parametrize(("rows", "objects"), [(0, 1), (4, 0)])
def test_room_for_nothing(rows: int, objects: int):
    with pytest.raises(ConfigError, match="at least 1"):
        Cross(rows, objects)


def test_other_dtypes_are_not_there(make_cache: MakeCache):
    with pytest.raises(Unsupported, match="bf16"):
        make_cache(1, 4, [Cross(2)], DType.BF16)


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
def test_a_dry_run_lays_out_the_largest_object(flash: bool):
    with small_backend(flash, alloc_memory=False) as backend:
        size = {"sequences": 2, "capacity": 16, "max_batch": 4}
        cache = encoder_of(new_cache(backend, [Cross(20, 3)], dtype=DType.F16, **size))
        text, image = step_of([(0, 0, None)] * 4), step_of([(0, 0, Thing(1, 20)), (0, 0, None)])
        for step in (text, image, text):
            cache.start_forward(step, reserve=True)
            with backend.new_context() as ctx:
                with ctx.trace():
                    layer = cache.layers(ctx, step)[0]
                    if step.spans:
                        k = ctx.input().zeros(DType.F32, 32, 2, 20)
                        layer.put(k, k)
                    assert layer.skipped == (not cache.stored.keys)
                    if layer.skipped:
                        continue
                    q = ctx.input().zeros(DType.F32, 32, 4, len(step.positions))
                    out = q.scaled_dot_product_attention(
                        *layer.get(), scale=1.0, cache_config_applied=True
                    )
                    ctx.forward(out)
                backend.allocate(ctx.graph)
                backend.reserve(ctx.graph)
        assert cache.cells == 124  # 2 sequences, 3 objects of 20 rows; one cell; padding
        wanted = 2 * DType.F16.row_size(64) * cache.cells
        assert backend.backend_memory().cpu.cache[0] == pytest.approx(wanted, rel=0.05)
        cache.close()


NUMBERS = st.integers(0, SEQUENCES - 1)
POSITIONS = st.integers(0, 12)
SIZES = st.lists(st.sampled_from([0, 0, 0, 1, 3, MOST]), min_size=1, max_size=5)
PIECES = st.lists(st.tuples(NUMBERS, SIZES), min_size=1, max_size=4)
PUT = st.tuples(st.just("put"), PIECES, st.booleans())
ACTIONS = st.lists(
    st.one_of(
        PUT,
        PUT,
        PUT,
        st.tuples(st.just("end"), NUMBERS, POSITIONS),
        st.tuples(st.just("middle"), NUMBERS, POSITIONS, st.integers(1, 4)),
        st.tuples(st.just("copy"), NUMBERS, NUMBERS, POSITIONS),
        st.tuples(st.just("wipe"), NUMBERS),
    ),
    min_size=4,
    max_size=14,
)


def examples(n: int) -> settings:
    return settings(
        derandomize=True,
        deadline=None,
        max_examples=n,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],  # a new cache each example
    )


def play(make_cache: MakeCache, dtype: DType, actions: list, long: bool = False) -> None:
    cache = make_cache(SEQUENCES, 100, LAYERS, dtype, MAX_BATCH)
    run = Run(cache, dtype, long)
    for name, *args in actions:
        if name == "put":
            run.put(*args[0], apart=args[1])
        else:
            getattr(run, name)(*args)
        run.resume()
    cache.close()


@pytest.mark.slow
@given(actions=ACTIONS)
@examples(60)
def test_any_history(make_cache: MakeCache, actions: list):
    play(make_cache, DType.F32, actions)


@given(actions=ACTIONS)
@examples(15)
def test_any_history_in_halves(make_cache: MakeCache, actions: list):
    play(make_cache, DType.F16, actions)


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0], ids=str)
@given(actions=ACTIONS)
@examples(15)
def test_any_history_in_blocks(
    make_cache: MakeCache, backend: Backend, dtype: DType, actions: list
):
    if backend.flash_attention:
        play(make_cache, dtype, actions, long=True)


def splits(sizes: list[int]) -> Iterator[list[list[int]]]:
    for at in range(1, len(sizes)):
        yield [sizes[:at], sizes[at:]]


def test_however_a_prompt_is_split(make_cache: MakeCache):
    for split in splits([0, 2, 1, 0, 0, 3, 0, 0]):
        run = Run(make_cache(2, 100, [Cross(3, 3)], max_batch=MAX_BATCH))
        for piece in split:
            run.put((1, piece), (0, piece[:1]))
