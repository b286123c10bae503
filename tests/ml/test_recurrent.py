"""Operands that the ops of recurrent layers and volumes refuse."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel.errors import ComputeError, TensorError
from ggmodel.ml import Context, DType, Tensor
from tests.ml.harness import tensor

# state 8, width 4, 2 heads, 3 slots, 5 tokens of 2 sequences
SCAN: dict[str, tuple[int, ...]] = {
    "s": (8, 4, 2, 3),
    "x": (4, 2, 5, 2),
    "dt": (2, 5, 2),
    "A": (1, 2),
    "B": (8, 1, 5, 2),
    "C": (8, 1, 5, 2),
}


def zeros(ctx: Context, *shape: int, dtype: DType = DType.F32) -> Tensor:
    return ctx.input().zeros(dtype, *shape)


def scan(ctx: Context, ids: object, shapes: dict[str, tuple[int, ...]]) -> Tensor:
    s, x, dt, A, B, C = (zeros(ctx, *shape) for shape in (SCAN | shapes).values())
    return s.ssm_scan(x, dt, A, B, C, tensor(ctx, np.array(ids, np.int32)))


def test_a_scan_gives_y_and_the_states(ctx: Context):
    assert scan(ctx, [2, 0], {}).shape == (4 * 2 * 5 * 2 + 8 * 4 * 2 * 2,)


@pytest.mark.parametrize(
    "other",
    [
        {"s": (8, 3, 2, 3)},
        {"x": (4, 3, 5, 2)},
        {"x": (4, 2, 4, 2)},
        {"dt": (2, 4, 2)},
        {"A": (2, 2)},
        {"A": (1, 3)},
        {"B": (8, 2, 5, 2)},
        {"B": (8, 3, 5, 2), "C": (8, 3, 5, 2)},
        {"B": (8, 0, 5, 2), "C": (8, 0, 5, 2)},
        {"B": (7, 1, 5, 2), "C": (7, 1, 5, 2)},
        {"x": (4, 2, 0, 2), "dt": (2, 0, 2), "B": (8, 1, 0, 2), "C": (8, 1, 0, 2)},
    ],
    ids=str,
)
def test_a_scan_takes_operands_that_fit(ctx: Context, other: dict[str, tuple[int, ...]]):
    with pytest.raises(TensorError, match="ssm_scan"):
        scan(ctx, [2, 0], other)


@pytest.mark.parametrize("ids", [[0], [0, 1, 2], [[0, 1], [1, 2]]])
def test_a_scan_has_a_slot_for_each_sequence(ctx: Context, ids: list):
    with pytest.raises(TensorError, match="one state a sequence"):
        scan(ctx, ids, {})


@pytest.mark.parametrize("ids", [[0, 3], [-1, 0]])
def test_a_scan_begins_at_slots_that_exist(ctx: Context, ids: list[int]):
    out = scan(ctx, ids, {})
    with pytest.raises(ComputeError, match="of 3"):
        ctx.forward(out).compute(out)


# width 4, 2 groups, 6 heads, 5 tokens of 3 sequences
DELTA: dict[str, tuple[int, ...]] = {
    "q": (4, 2, 5, 3),
    "k": (4, 2, 5, 3),
    "v": (4, 6, 5, 3),
    "decay": (1, 6, 5, 3),
    "beta": (1, 6, 5, 3),
    "states": (4, 4, 6, 3),
}


def delta(ctx: Context, shapes: dict[str, tuple[int, ...]]) -> Tensor:
    q, *others = (zeros(ctx, *shape) for shape in (DELTA | shapes).values())
    return q.gated_delta_net(*others)


def test_a_delta_rule_gives_rows_of_results_and_of_states(ctx: Context):
    assert delta(ctx, {}).shape == (24, 15 + 12)


@pytest.mark.parametrize(
    "other",
    [
        {"q": (4, 1, 5, 3)},
        {"q": (3, 2, 5, 3), "k": (3, 2, 5, 3)},
        {"q": (4, 2, 1, 3), "k": (4, 2, 1, 3)},
        {"q": (4, 2, 5, 1), "k": (4, 2, 5, 1)},
        {"q": (4, 4, 5, 3), "k": (4, 4, 5, 3)},
        {"q": (4, 0, 5, 3), "k": (4, 0, 5, 3)},
        {"decay": (2, 6, 5, 3)},
        {"decay": (1, 2, 5, 3)},
        {"beta": (4, 6, 5, 3)},
        {"beta": (1, 6, 1, 3)},
        {"states": (4, 4, 2, 3)},
        {"states": (4, 3, 6, 3)},
        {"states": (4, 4, 6, 1)},
    ],
    ids=str,
)
def test_a_delta_rule_takes_operands_that_fit(ctx: Context, other: dict[str, tuple[int, ...]]):
    with pytest.raises(TensorError, match="gated_delta_net"):
        delta(ctx, other)


def test_a_delta_rule_needs_a_token(ctx: Context):
    none = {name: (*DELTA[name][:2], 0, 3) for name in ("q", "k", "v", "decay", "beta")}
    with pytest.raises(TensorError, match="v has elements"):
        delta(ctx, none)


# heads of 64, 2 of them, 5 tokens of 3 sequences
WKV: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("r", "decay", "k", "v", "a", "b"), (64, 2, 5, 3)),
    "states": (64, 64, 2, 3),
}


def wkv(ctx: Context, shapes: dict[str, tuple[int, ...]]) -> Tensor:
    r, *others = (zeros(ctx, *shape) for shape in (WKV | shapes).values())
    return r.rwkv_wkv7(*others)


def test_the_rule_of_rwkv_gives_rows_of_results_and_of_states(ctx: Context):
    assert wkv(ctx, {}).shape == (128, 15 + 192)


@pytest.mark.parametrize(
    "other",
    [
        *({name: (64, 2, 4, 3)} for name in ("decay", "k", "v", "a", "b")),
        {"states": (64, 64, 1, 3)},
        {"states": (64, 64, 2, 1)},
        {name: (32, 2, 5, 3) for name in WKV if name != "states"} | {"states": (32, 32, 2, 3)},
        {name: (192, 2, 5, 3) for name in WKV if name != "states"} | {"states": (192, 192, 2, 3)},
        {name: (64, 2, 0, 3) for name in WKV if name != "states"},
    ],
    ids=str,
)
def test_the_rule_of_rwkv_takes_operands_that_fit(ctx: Context, other: dict[str, tuple[int, ...]]):
    with pytest.raises(TensorError, match="rwkv_wkv7"):
        wkv(ctx, other)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda c: zeros(c, 3, 6).ssm_conv(zeros(c, 4, 6)),  # no token
        lambda c: zeros(c, 9, 6).ssm_conv(zeros(c, 4, 5)),
        lambda c: zeros(c, 9, 6).ssm_conv(zeros(c, 0, 6)),
        lambda c: zeros(c, 9, 6, 1, 2).ssm_conv(zeros(c, 4, 6)),
        lambda c: zeros(c, 9, 6).ssm_conv(zeros(c, 4, 6, 2)),
        lambda c: zeros(c, 2, 2, 2, 4).conv_3d(zeros(c, 5, 5, 5, 2), 3),
        lambda c: zeros(c, 2, 2, 2, 4).conv_3d(zeros(c, 5, 5, 5, 3), 2),
        lambda c: zeros(c, 2, 2, 2, 4).conv_3d(zeros(c, 5, 5, 5, 2), 0),
        lambda c: zeros(c, 2, 2, 2, 4).conv_3d(zeros(c, 5, 5, 1, 2), 2),  # not deep enough
        lambda c: zeros(c, 2, 2, 2, 4).conv_3d(zeros(c, 5, 5, 5, 2), 2, s2=0),
        lambda c: zeros(c, 2, 2, 2, 4).conv_3d(zeros(c, 5, 5, 5, 2), 2, p1=-1),
        lambda c: zeros(c, 2, 2, 2, 4).conv_3d(zeros(c, 5, 5, 5, 2), 2, s0=1 << 31),
    ],
)
def test_convolutions_take_operands_that_fit(ctx: Context, wrong):
    with pytest.raises(TensorError, match="conv"):
        wrong(ctx)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("unit_diag", [True, False])
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (2, 4)), ((3, 3), (4, 4)), ((3, 3), (3, 3, 2)), ((3, 3, 2, 2), (3, 3, 2))],
)
def test_a_triangular_system_is_square_and_fits(
    ctx: Context, a: tuple, b: tuple, lower: bool, left: bool, unit_diag: bool
):
    with pytest.raises(TensorError, match="solve_tri"):
        zeros(ctx, *a).solve_tri(zeros(ctx, *b), lower, left, unit_diag)


def test_a_zero_on_the_diagonal_is_no_crash(ctx: Context):
    x = zeros(ctx, 3, 3).solve_tri(ctx.input().from_floats(np.ones((3, 2))))
    ctx.forward(x).compute(x)
    assert not np.isfinite(x.numpy()).any()
