"""The tensor types of the pinned ggml, with their block layout."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from ..errors import ConfigError, TensorError

if TYPE_CHECKING:
    import numpy as np


class DType(IntEnum):
    """Type of a tensor's elements; the value is the number of ggml's `enum ggml_type`.

    A row (the elements along dimension 0) is stored as blocks. Plain numbers have blocks of one
    element.

    Attributes:
        block_size: elements in one block.
        type_size: bytes of one block.
    """

    block_size: int
    type_size: int

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42

    @property
    def is_quantized(self) -> bool:
        """True for block formats, that is for all but plain numbers."""
        return self.block_size > 1

    @property
    def is_float(self) -> bool:
        """True for F64, F32, F16 and BF16."""
        return self in (DType.F32, DType.F16, DType.F64, DType.BF16)

    @property
    def is_integer(self) -> bool:
        """True for I8, I16, I32 and I64."""
        return DType.I8 <= self <= DType.I64

    @property
    def numpy(self) -> np.dtype | None:
        """The little-endian numpy dtype of the same bytes; None for BF16 and block formats."""
        code = _NUMPY.get(self)
        if code is None:
            return None
        import numpy as np

        return np.dtype(code)

    def row_size(self, n: int) -> int:
        """Bytes of a row of `n` elements.

        Raises:
            TensorError: (a ValueError) `n` is negative or not a multiple of `block_size`.
        """
        block = self.block_size
        if n < 0 or n % block:
            raise TensorError(
                f"a row of {n} elements cannot be {self.name}: "
                f"it takes a multiple of {block}; choose another type for this tensor"
            )
        return n // block * self.type_size

    @classmethod
    def parse(cls, name: str) -> DType:
        """The type called `name`, in any case: "f32", "Q8_0", "q4_K".

        Raises:
            ConfigError: the name is unknown; lists the types.
        """
        found = cls.__members__.get(name.strip().upper())
        if found is None:
            raise ConfigError(
                f"no tensor type {name!r}; choose one of {', '.join(cls.__members__)}"
            )
        return found

    # IntEnum prints and formats as its number; messages want the name.
    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


# (elements, bytes) of a block: GGML_QUANT_SIZES of the `gguf` package, except that Q8_1 is two
# F16 scales and 32 bytes (the package says 40, ggml says 36), and Q2_0, which the package lacks.
_LAYOUT: dict[DType, tuple[int, int]] = {
    DType.F32: (1, 4),
    DType.F16: (1, 2),
    DType.Q4_0: (32, 18),
    DType.Q4_1: (32, 20),
    DType.Q5_0: (32, 22),
    DType.Q5_1: (32, 24),
    DType.Q8_0: (32, 34),
    DType.Q8_1: (32, 36),
    DType.Q2_K: (256, 84),
    DType.Q3_K: (256, 110),
    DType.Q4_K: (256, 144),
    DType.Q5_K: (256, 176),
    DType.Q6_K: (256, 210),
    DType.Q8_K: (256, 292),
    DType.IQ2_XXS: (256, 66),
    DType.IQ2_XS: (256, 74),
    DType.IQ3_XXS: (256, 98),
    DType.IQ1_S: (256, 50),
    DType.IQ4_NL: (32, 18),
    DType.IQ3_S: (256, 110),
    DType.IQ2_S: (256, 82),
    DType.IQ4_XS: (256, 136),
    DType.I8: (1, 1),
    DType.I16: (1, 2),
    DType.I32: (1, 4),
    DType.I64: (1, 8),
    DType.F64: (1, 8),
    DType.IQ1_M: (256, 56),
    DType.BF16: (1, 2),
    DType.TQ1_0: (256, 54),
    DType.TQ2_0: (256, 66),
    DType.MXFP4: (32, 17),
    DType.NVFP4: (64, 36),
    DType.Q1_0: (128, 18),
    DType.Q2_0: (64, 18),
}

for _dtype, _layout in _LAYOUT.items():
    _dtype.block_size, _dtype.type_size = _layout

_NUMPY: dict[int, str] = {
    DType.F32: "<f4",
    DType.F16: "<f2",
    DType.F64: "<f8",
    DType.I8: "i1",
    DType.I16: "<i2",
    DType.I32: "<i4",
    DType.I64: "<i8",
}
