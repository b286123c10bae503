from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from ggmodel.errors import ArgumentError, Error
from ggmodel.gguf_file import DType


@pytest.mark.parametrize("dtype", list(DType))
def test_layout_equals_the_gguf_package(dtype: DType):
    if dtype == DType.Q8_1:
        # The package counts two F32 scales (40 bytes); ggml's block_q8_1 has two F16.
        assert (dtype.block_size, dtype.type_size) == (32, 36)
    elif dtype == DType.Q2_0:
        # Not in the package: block_q2_0 is an F16 scale and 64 numbers of 2 bits.
        assert (dtype.block_size, dtype.type_size) == (64, 2 + 64 * 2 // 8)
    else:
        other = gguf.GGMLQuantizationType[dtype.name]
        assert int(other) == int(dtype)
        assert gguf.GGML_QUANT_SIZES[other] == (dtype.block_size, dtype.type_size)


def test_every_type_of_the_gguf_package_is_here():
    assert {t.name for t in gguf.GGMLQuantizationType} <= set(DType.__members__)


def test_kinds():
    plain = {"F32", "F16", "F64", "BF16", "I8", "I16", "I32", "I64"}
    assert {t.name for t in DType if not t.is_quantized} == plain
    assert {t.name for t in DType if t.is_float} == {"F32", "F16", "F64", "BF16"}
    assert {t.name for t in DType if t.is_integer} == {"I8", "I16", "I32", "I64"}


@pytest.mark.parametrize("dtype", list(DType))
def test_numpy_has_the_same_size(dtype: DType):
    if dtype.is_quantized or dtype == DType.BF16:
        assert dtype.numpy is None
    else:
        found = dtype.numpy
        assert found is not None
        assert found.itemsize == dtype.type_size
        assert (found.kind == "f") == dtype.is_float
        assert found == np.dtype(dtype.name.lower().replace("f", "float").replace("i", "int"))


def test_row_size():
    assert DType.F16.row_size(7) == 14
    assert DType.Q4_K.row_size(512) == 288
    assert DType.Q4_K.row_size(0) == 0
    for n in (255, -256):
        with pytest.raises(ValueError, match=r"Q4_K: it takes a multiple of 256") as e:
            DType.Q4_K.row_size(n)
        assert isinstance(e.value, Error)


@pytest.mark.parametrize("dtype", list(DType))
def test_parse_any_case_and_print(dtype: DType):
    for name in (dtype.name, dtype.name.lower(), dtype.name.title()):
        assert DType.parse(name) is dtype
    assert str(dtype) == f"{dtype}" == dtype.name
    assert f"{dtype:>8}" == dtype.name.rjust(8)


def test_parse_unknown_lists_the_names():
    with pytest.raises(Error, match=r"'q4_k_m'; choose one of F32, F16, Q4_0"):
        DType.parse("q4_k_m")


@pytest.mark.parametrize("wrong", [None, 1.5, b"f32", [], {}, DType.F32, object()])
def test_parse_takes_texts(wrong: Any):
    with pytest.raises(ArgumentError, match=r"parse\(name\)"):
        DType.parse(wrong)


@pytest.mark.parametrize("wrong", [None, 1.5, "32", [], {}, object()])
def test_row_size_takes_integers(wrong: Any):
    with pytest.raises(ArgumentError, match=r"row_size\(n\)"):
        DType.F32.row_size(wrong)
    three: Any = np.int64(3)
    assert DType.F32.row_size(three) == 12
