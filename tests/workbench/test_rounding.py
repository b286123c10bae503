"""The rounding of a reference: by type, by module, by row."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ggmodel.errors import LoadError
from ggmodel.gguf_file import DType
from ggmodel.workbench.activations import EXACT, Activations
from ggmodel.workbench.rounding import FACTOR, apart, rounded

ROUNDED = [DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0]
VALUES = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)


def reference(**rounding: list[float]) -> Activations:
    """A reference whose module "x" moves so far with each type."""
    found = {name: {"x": moved} for name, moved in rounding.items()}
    return Activations({}, {}, {}, {}, rounding=found)


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_numbers_are_rounded_as_the_gguf_package_rounds_them(dtype: DType):
    kind = gguf.GGMLQuantizationType(dtype.value)
    expected = gguf.dequantize(gguf.quantize(VALUES, kind), kind)
    np.testing.assert_array_equal(rounded(VALUES, dtype), expected)


@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.IQ2_XXS], ids=str)
def test_types_of_large_blocks_and_those_that_need_an_importance(dtype: DType):
    values = np.tile(VALUES, (1, 4))
    moved = np.square(rounded(values, dtype) - values).mean() / np.square(values).mean()
    assert 1e-4 < moved < 0.5


def test_rows_that_blocks_do_not_fill_become_f16():
    odd = VALUES[:, :33]
    np.testing.assert_array_equal(rounded(odd, DType.Q8_0), odd.astype(np.float16))


def test_the_whole_and_its_worst_row():
    exact = np.array([[3.0, 4.0], [0.0, 1.0]], np.float32)
    moved = np.array([[3.0, 4.0], [0.0, 1.1]], np.float32)
    assert apart(moved, exact) == pytest.approx([0.01 / 26, 0.01], rel=0.01)
    assert apart(moved, np.zeros_like(exact)) == [1.0, 1.0]
    assert apart(exact, exact) == [0.0, 0.0]
    one = np.ones(1, np.float32)
    assert apart(1.1 * one, one) == pytest.approx([0.01, 0.01], rel=0.01)


def test_a_module_may_be_off_by_what_its_widest_rounding_moves():
    found = reference(F32=[0.0, 0.0], F16=[1e-7, 3e-7], Q8_0=[1e-4, 2e-4])
    assert found.bound("x", [DType.F32]) == EXACT
    assert found.bound("x", [DType.F32, DType.F16]) == pytest.approx(EXACT + FACTOR * 1e-7)
    assert found.bound("x", [DType.F16, DType.Q8_0]) == pytest.approx(EXACT + FACTOR * 1e-4)
    assert found.bound("x", [DType.Q8_0], row=True) == pytest.approx(EXACT + FACTOR * 2e-4)
    assert found.bound("another", [DType.Q8_0]) == EXACT


def test_another_quantised_type_follows_from_the_nearest():
    found = reference(F16=[1e-7, 1e-7], Q8_0=[1e-6, 1e-6], Q4_0=[1e-3, 1e-3])
    four = found.bound("x", [DType.Q4_K])  # 4.5 bits, as Q4_0
    assert four == pytest.approx(EXACT + FACTOR * 1e-3)
    assert found.bound("x", [DType.Q5_0]) == pytest.approx(EXACT + FACTOR * 1e-3 / 4)
    assert found.bound("x", [DType.IQ1_S]) <= EXACT + FACTOR  # no more than all of it


@pytest.mark.parametrize("dtype", [DType.BF16, DType.Q4_K], ids=str)
def test_a_type_that_the_reference_was_not_run_with(dtype: DType):
    with pytest.raises(LoadError, match=f"weights in {dtype}; run it again.*--save-reference"):
        reference(F32=[0.0, 0.0], F16=[1e-7, 1e-7]).bound("x", [dtype])
