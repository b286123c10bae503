"""Errors are those of numpy, and arrays are only compared in a layout that is certain."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel.workbench.activations import errors, laid_out

ROWS = np.arange(24, dtype=np.float32)
LAYOUTS = {
    "a batch of one": ((1, 4, 6), (4, 6)),
    "tokens and heads side by side": ((1, 4, 2, 3), (4, 6)),
    "heads that are apart": ((1, 4, 6), (4, 2, 3)),
    "one token": ((1, 1, 24), (24,)),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_layouts(kind: str):
    theirs, ours = LAYOUTS[kind]
    found = laid_out(ROWS.reshape(theirs), ours)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, ROWS.reshape(ours))


def test_heads_before_tokens():
    rows = ROWS.reshape(1, 2, 3, 4)
    found = laid_out(rows, (3, 2, 4))
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, rows[0].swapaxes(0, 1))


def test_as_many_heads_as_tokens_are_not_guessed():
    found = laid_out(np.zeros((1, 3, 3, 2)), (3, 3, 2))
    assert found == "dims 1 and 2 are both 3: tokens or heads? take a prompt of another length"


@pytest.mark.parametrize("shape", [(4, 5), (6, 4), (24, 2)])
def test_layouts_that_do_not_fit(shape: tuple[int, ...]):
    assert isinstance(laid_out(ROWS.reshape(1, 4, 6), shape), str)


def test_errors_are_those_of_numpy():
    random = np.random.default_rng(5)
    theirs = random.normal(size=(7, 9)).astype(np.float32)
    ours = theirs + random.normal(0, 1e-3, (7, 9)).astype(np.float32)
    ours[4, 6] += 1
    found = errors(ours, theirs)
    wide = ours.astype(np.float64) - theirs
    assert found.nmse == pytest.approx((wide**2).sum() / (theirs.astype(np.float64) ** 2).sum())
    assert found.largest == pytest.approx(np.abs(wide).max())
    assert found.relative == pytest.approx(np.abs(wide).max() / np.abs(theirs).max())
    assert found.at == (6, 4)
    assert found.ours == ours[4, 3:9].tolist() and found.start == 3
    assert found.theirs == theirs[4, 3:9].tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_infinitely_wrong(value: float):
    theirs = np.ones((2, 3), np.float32)
    ours = theirs.copy()
    ours[1, 2] = value
    found = errors(ours, theirs)
    assert (found.nmse, found.largest, found.at) == (np.inf, np.inf, (2, 1))


def test_a_reference_of_zeros():
    zeros = np.zeros(3, np.float32)
    assert errors(zeros, zeros).nmse == 0
    assert errors(zeros + 1, zeros).nmse == np.inf
