"""Rows in another order than the reference's."""

from __future__ import annotations

import numpy as np

from ggmodel.workbench.diff import Orders

BOUND = 1e-8
RANDOM = np.random.default_rng(5)
ROWS = RANDOM.normal(size=(12, 6)).astype(np.float32)
ORDER = RANDOM.permutation(12)


def test_an_order_is_found_where_all_rows_agree():
    assert np.array_equal(Orders().turned(ROWS[ORDER], ROWS, BOUND), ROWS[ORDER])


def test_equal_rows_may_stand_for_one_another():
    rows = ROWS.copy()
    rows[[2, 5, 7]] = 0
    assert np.array_equal(Orders().turned(rows[ORDER], rows, BOUND), rows[ORDER])


def test_no_order_is_made_up_for_other_rows():
    wrong = ROWS[ORDER].copy()
    wrong[3] += 0.01
    assert Orders().turned(wrong, ROWS, BOUND) is ROWS


def test_the_first_order_is_kept():
    orders = Orders()
    orders.turned(ROWS[ORDER], ROWS, BOUND)
    later = RANDOM.normal(size=(12, 3)).astype(np.float32)
    # Even if another would fit: the rows of a fault may be anywhere.
    assert np.array_equal(orders.turned(later, later, BOUND), later[ORDER])


def test_other_shapes_are_left_alone():
    orders = Orders()
    for shape in ((12,), (2, 6, 6)):
        a, b = np.ones(shape, np.float32), np.zeros(shape, np.float32)
        assert orders.turned(a, b, BOUND) is b
    assert orders.turned(ROWS, ROWS[:5], BOUND).shape == (5, 6)
