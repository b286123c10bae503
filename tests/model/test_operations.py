"""Operations between checkpoint and GGUF: each undoes itself."""

from inspect import isabstract
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel import DType
from ggmodel.errors import ConfigError
from ggmodel.model import (
    AddConstant,
    Chain,
    Computed,
    Concat,
    HeadPart,
    HeadRows,
    Indices,
    Interleaved,
    LastRows,
    MXFP4Blocks,
    NegatedExp,
    Operation,
    Part,
    PartsOfHeads,
    PermuteRope,
    Reshape,
    Sources,
    Stack,
    Transpose,
)
from ggmodel.model.operations import value_of

CONFIG = SimpleNamespace(heads=4, experts=3, q_rows=5, k_rows=2, bad="x", zero=0)


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def every(base: type) -> set[type]:
    """The classes of the module that are one and can be made."""
    below = {c for c in base.__subclasses__() if c.__module__ == base.__module__}
    below |= {c for outer in below for c in every(outer)}
    return {c for c in below if not isabstract(c)}


def test_these_tests_know_all_operations():
    assert every(Operation) == {
        PermuteRope,
        PartsOfHeads,
        AddConstant,
        Transpose,
        Reshape,
        LastRows,
        Chain,
        NegatedExp,
        Indices,
    }
    sources = {Stack, Part, Interleaved, MXFP4Blocks, Computed, Concat, HeadPart, HeadRows}
    assert every(Sources) == sources


def test_indices_are_integers_of_the_width_of_each_side():
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    written = Indices().to_gguf(x, CONFIG)
    assert written.dtype == np.int32
    assert np.array_equal(written, x)
    assert Indices().to_hf(written, CONFIG).dtype == np.int64
    assert np.array_equal(Indices().to_hf(written, CONFIG), x)


def test_a_chain_is_undone_from_its_end():
    op, x = Chain(NegatedExp(), AddConstant(2.0), Transpose()), array(3, 4)
    assert np.allclose(op.to_gguf(x, CONFIG), (2 - np.exp(x)).T)
    assert np.allclose(op.to_hf(op.to_gguf(x, CONFIG), CONFIG), x, atol=1e-6)
    assert op.shape((3, 4), CONFIG) == (4, 3)


def test_parts_of_heads_of_a_fused_tensor():
    """Four heads, each of 5 rows and 2: one part as matrices, and parts one after another."""
    x = array(4 * 7, 3)
    heads = x.reshape(4, 7, 3)
    one = HeadPart("kv", 1, ("q_rows", "k_rows"), "heads")
    assert np.array_equal(one.join([x], CONFIG), heads[:, 5:])
    assert one.shape([(28, 3)], CONFIG) == (4, 2, 3)
    both = HeadRows("kv", (1, 0), ("q_rows", "k_rows"), "heads")
    want = np.concatenate([heads[:, 5:].reshape(-1, 3), heads[:, :5].reshape(-1, 3)])
    assert np.array_equal(both.join([x], CONFIG), want)
    assert both.shape([(28, 3)], CONFIG) == want.shape
    for source, result in ((one, heads[:, 5:]), (both, want)):
        places, values = source.split(result, CONFIG)["kv"]
        assert np.array_equal(x[places], values)
        with pytest.raises(ConfigError, match="heads"):
            source.shape([(27, 3)], CONFIG)


def test_tensors_one_after_another():
    parts = [array(5, 3), array(2, 3, seed=1)]
    op = Concat(("q", "k"), ("q_rows", "k_rows"))
    whole = op.join(parts, CONFIG)
    assert op.shape([(5, 3), (2, 3)], CONFIG) == whole.shape == (7, 3)
    for name, part in zip("qk", parts, strict=True):
        assert np.array_equal(op.split(whole, CONFIG)[name], part)
    with pytest.raises(ConfigError, match="7 rows in all"):
        op.shape([(5, 3), (3, 3)], CONFIG)


SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=2)


@given(st.integers(1, 4), st.integers(1, 5), SHAPES, st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_permute_rope_is_invertible(heads: int, pairs: int, more: list[int], seed: int):
    x = array(heads * pairs * 2, *more, seed=seed)
    op = PermuteRope(heads)
    assert np.array_equal(op.to_hf(op.to_gguf(x, None), None), x)
    assert np.array_equal(op.to_gguf(op.to_hf(x, None), None), x)
    assert op.to_gguf(x, None).shape == x.shape


def test_parts_of_heads_are_gathered():
    op = PartsOfHeads("heads", 3)
    x = array(4 * 3 * 2, 5)
    want = np.concatenate([x.reshape(4, 3, 2, 5)[:, part].reshape(8, 5) for part in range(3)])
    assert np.array_equal(op.to_gguf(x, CONFIG), want)
    assert np.array_equal(op.to_hf(want, CONFIG), x)
    assert np.array_equal(op.to_gguf(x[:, 0], CONFIG), want[:, 0])
    assert np.array_equal(op.results(x.T, CONFIG), want.T)
    for bad in (PartsOfHeads("zero"), PartsOfHeads(4, 5)):
        with pytest.raises(ConfigError, match="rows are not"):
            bad.to_gguf(x, CONFIG)


@pytest.mark.parametrize(
    ("op", "checkpoint", "file"),
    [
        (Reshape((1, -1, 1, 1), (-1,)), (5,), (1, 5, 1, 1)),
        (Reshape((1,), ()), (), (1,)),
        (Reshape((0, -1), (0, 1, -1)), (5, 1, 3), (5, 3)),
        (Reshape((0, 1), (0,)), (5,), (5, 1)),
    ],
)
def test_reshape_keeps_the_numbers(op: Reshape, checkpoint: Any, file: Any):
    x = array(*checkpoint) if checkpoint else np.array(3, np.float32)
    assert op.shape(checkpoint, None) == op.to_gguf(x, None).shape == file
    assert np.array_equal(op.to_gguf(x, None).ravel(), x.ravel())
    assert np.array_equal(op.to_hf(op.to_gguf(x, None), None), x)
    assert op.to_hf(op.to_gguf(x, None), None).shape == checkpoint


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_transpose_is_invertible(shape: list[int], seed: int):
    x, op = array(*shape, seed=seed), Transpose()
    assert np.array_equal(op.to_hf(op.to_gguf(x, None), None), x)


@pytest.mark.parametrize(
    ("shape", "want"), [((5,), (5,)), ((2, 3), (3, 2)), ((4, 2, 3), (4, 3, 2))]
)
def test_transpose_swaps_the_last_two_dims(shape: tuple[int, ...], want: tuple[int, ...]):
    assert Transpose().to_gguf(array(*shape), None).shape == want


@given(st.integers(-512, 512), st.integers(-4, 4))
@settings(max_examples=50, deadline=None)
def test_plus_is_invertible_where_the_sum_is_exact(value: int, amount: int):
    x, op = np.array([value / 64], np.float32), AddConstant(amount)
    assert op.to_gguf(x, None)[0] == value / 64 + amount
    assert np.array_equal(op.to_hf(op.to_gguf(x, None), None), x)


@pytest.mark.parametrize("others", [0, 1, 3])
def test_last_rows_leave_out_those_before(others: int):
    x, op = array(others + 5, 3), LastRows(5, others)
    kept = op.to_gguf(x, None)
    assert kept.shape == op.shape(x.shape, None) == (5, 3)
    assert np.array_equal(kept, x[others:])
    back = op.to_hf(kept, None)
    assert back.shape == x.shape
    assert not back[:others].any()
    assert np.array_equal(op.to_gguf(back, None), kept)


def test_a_table_of_fewer_rows_is_kept_whole():
    x, op = array(3, 2), LastRows(5)
    assert op.shape(x.shape, None) == (3, 2)
    assert np.array_equal(op.to_gguf(x, None), x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_operations_keep_the_type(dtype: Any):
    x = array(8, 4).astype(dtype)
    for op in (PermuteRope(2), AddConstant(1.0), Transpose()):
        assert op.to_gguf(x, None).dtype == op.to_hf(x, None).dtype == dtype


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 50), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_permute_rope_turns_halves_into_neighbours(heads: int, pairs: int, at: int, seed: int):
    """Rotating halves and then permuting is permuting and then rotating neighbours."""
    dims = 2 * pairs
    x = array(heads * dims, seed=seed).astype(np.float64)
    angles = at / 10000 ** (np.arange(pairs) / pairs)
    cos, sin = np.cos(angles), np.sin(angles)

    def halves(v: np.ndarray) -> np.ndarray:
        a, b = v.reshape(heads, 2, pairs).swapaxes(0, 1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1).reshape(-1)

    def neighbours(v: np.ndarray) -> np.ndarray:
        a, b = v.reshape(heads, pairs, 2)[..., 0], v.reshape(heads, pairs, 2)[..., 1]
        return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(-1)

    op = PermuteRope(heads)
    assert np.allclose(op.to_gguf(halves(x), None), neighbours(op.to_gguf(x, None)), atol=1e-12)


def test_permute_rope_takes_the_number_of_heads_from_the_config():
    x = array(16, 3)
    assert np.array_equal(
        PermuteRope("heads").to_gguf(x, CONFIG), PermuteRope(4).to_gguf(x, CONFIG)
    )


@given(st.integers(1, 5), SHAPES, st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_stack_splits_into_what_it_was_made_of(n: int, shape: list[int], seed: int):
    stack = Stack("experts.{}.w1", n)
    names = stack.names(None)
    assert names == [f"experts.{i}.w1" for i in range(n)]
    parts = [array(*shape, seed=seed + i) for i in range(n)]
    joined = stack.join(parts, None)
    assert joined.shape == (n, *shape)
    split = stack.split(joined, None)
    assert list(split) == names
    assert all(np.array_equal(a, b) for a, b in zip(split.values(), parts, strict=True))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), SHAPES, st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_all_parts_together_are_the_fused_tensor(rows: list[int], more: list[int], seed: int):
    fused = array(sum(rows), *more, seed=seed)
    again = np.full_like(fused, np.nan)
    for i in range(len(rows)):
        part = Part("qkv_proj", i, tuple(rows))
        assert part.names(None) == ["qkv_proj"]
        piece = part.join([fused], None)
        assert piece.shape == (rows[i], *more)
        ((name, (where, values)),) = part.split(piece, None).items()
        assert name == "qkv_proj"
        assert np.isnan(again[where]).all()  # no row is given twice
        again[where] = values
    assert np.array_equal(again, fused)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_parts_along_any_axis(axis: int):
    fused = array(6, 6, 6, seed=1)
    again = np.full_like(fused, np.nan)
    for i, want in enumerate(np.split(fused, [2], axis)):
        part = Part("gate_up", i, (2, 4), axis=axis)
        piece = part.join([fused], None)
        np.testing.assert_array_equal(piece, want)
        ((where, values),) = part.split(piece, None).values()
        assert np.isnan(again[where]).all()
        again[where] = values
    np.testing.assert_array_equal(again, fused)


def test_sizes_of_parts_and_stacks_may_be_attributes_of_the_config():
    part = Part("qkv", 1, ("q_rows", "k_rows", 2))
    assert np.array_equal(part.join([np.arange(9)], CONFIG), [5, 6])
    assert Stack("{}", "experts").names(CONFIG) == ["0", "1", "2"]


def test_a_computed_tensor_has_no_sources():
    computed = Computed(lambda hf, h: None)
    assert computed.names(CONFIG) == []
    assert computed.split(array(2), CONFIG) == {}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PermuteRope("heads").to_gguf(array(12, 2), CONFIG), "12 rows are not 4 heads"),
        (lambda: PermuteRope("zero").to_gguf(array(12, 2), CONFIG), "12 rows are not 0 heads"),
        (lambda: Part("qkv", 0, (5, 2)).join([array(8, 2)], CONFIG), "qkv: 8 rows, not 7"),
        (lambda: Part("qkv", 0, (5, 2)).split(array(2, 2), CONFIG), "qkv: 2 rows, not 5"),
        (lambda: Part("qkv", 0, (1, 1), axis=2).join([array(2, 2)], CONFIG), "qkv: 0 rows, not 2"),
        (lambda: Stack("e{}", 3).split(array(2, 2), CONFIG), "2 tensors are stacked, not 3"),
        (lambda: value_of(CONFIG, "nothing"), "SimpleNamespace.nothing has no value"),
        (lambda: value_of(CONFIG, "bad"), "SimpleNamespace.bad is 'x', not an integer"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(("axis", "n"), [(-1, 2), (0, 3), (1, 2)])
def test_interleaved_tensors_together_are_the_whole(axis: int, n: int):
    whole = array(6, 4, 6, seed=2)
    again = np.full_like(whole, np.nan)
    for i in range(n):
        every = Interleaved("gate_up", i, n, axis)
        piece = every.join([whole], None)
        assert np.array_equal(piece, np.take(whole, range(i, whole.shape[axis], n), axis))
        assert every.shape([whole.shape], None) == piece.shape
        ((where, values),) = every.split(piece, None).values()
        assert np.isnan(again[where]).all()
        again[where] = values
    assert np.array_equal(again, whole)
    results = Interleaved("gate_up", 1, 2).results(array(3, 8), None)
    assert np.array_equal(results, array(3, 8)[:, 1::2])


def in_blocks(*shape: int) -> list[np.ndarray]:
    """Blocks and scales of numbers of this shape."""
    rng = np.random.default_rng(5)
    halves = (*shape[:-1], shape[-1] // 32, 16)
    return [
        rng.integers(0, 256, halves).astype(np.uint8),
        rng.integers(118, 132, halves[:-1]).astype(np.uint8),
    ]


@pytest.mark.parametrize(("index", "n"), [(0, 1), (0, 2), (1, 2)])
def test_blocks_of_four_bits_become_ggmls(index: int, n: int):
    from gguf import GGMLQuantizationType, dequantize

    blocks, scales = in_blocks(3, 4, 96)
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    # The lower bits of a byte are the first of two neighbours.
    values = np.stack([numbers[blocks & 15], numbers[blocks >> 4]], -1).reshape(3, 4, 3, 32)
    want = (values * 2.0 ** (scales.astype(int) - 127)[..., None]).reshape(3, 4, 96)[:, index::n]
    packed = MXFP4Blocks("down_proj", index, n)
    assert packed.names(None) == ["down_proj_blocks", "down_proj_scales"]
    assert packed.dtype is DType.MXFP4
    joined = packed.join([blocks, scales], None)
    assert packed.shape([blocks.shape, scales.shape], None) == want.shape
    got = dequantize(joined, GGMLQuantizationType.MXFP4).reshape(want.shape)
    assert np.array_equal(got, want)
    again = {"down_proj_blocks": np.zeros_like(blocks), "down_proj_scales": np.zeros_like(scales)}
    for name, (where, part) in packed.split(joined, None).items():
        again[name][where] = part
    assert np.array_equal(again["down_proj_blocks"][:, index::n], blocks[:, index::n])
    assert np.array_equal(again["down_proj_scales"][:, index::n], scales[:, index::n])


@pytest.mark.parametrize(
    "call",
    [
        lambda b, s: Interleaved("gate_up", 0, 5).join([s], None),
        lambda b, s: Interleaved("gate_up", 0, 2).join([np.array(1.0)], None),
        lambda b, s: MXFP4Blocks("gate_up").join([b[..., :8], s], None),
        lambda b, s: MXFP4Blocks("gate_up").join([b.astype(np.float32), s], None),
        lambda b, s: MXFP4Blocks("gate_up", 0, 3).join([b, s], None),
        lambda b, s: MXFP4Blocks("gate_up").shape([(16,), ()], None),
    ],
)
def test_what_is_not_interleaved_or_no_blocks_is_refused(call: Any):
    with pytest.raises(ConfigError, match="gate_up: "):
        call(*in_blocks(2, 4, 64))
