"""The tensor types of the pinned ggml, with their block layout."""

from __future__ import annotations

from enum import IntEnum
from operator import index
from typing import TYPE_CHECKING

from ..errors import ArgumentError, ConfigError, TensorError

if TYPE_CHECKING:
    import numpy as np


LARGEST = float.fromhex("0x1.fffffep127")
"""The largest number of F32."""


class DType(IntEnum):
    """Type of a tensor's elements; the value is the number of ggml's `enum ggml_type`.

    A row (the elements along dimension 0) is stored as blocks. Plain numbers have blocks of one
    element.

    Attributes:
        block_size: elements in one block.
        type_size: bytes of one block.
    """

    _value_: int
    block_size: int
    type_size: int
    _numpy: str

    def __new__(cls, number: int, block_size: int, type_size: int, code: str = "") -> DType:
        self = int.__new__(cls, number)
        self._value_, self._numpy = number, code
        self.block_size, self.type_size = block_size, type_size
        return self

    # Number, block_size, type_size, numpy's code. The sizes are GGML_QUANT_SIZES of the `gguf`
    # package, except for Q8_1 (two F16 scales and 32 bytes: 36 in ggml, 40 in the package) and
    # Q2_0, which the package lacks.
    F32 = 0, 1, 4, "<f4"
    F16 = 1, 1, 2, "<f2"
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 36
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1, "i1"
    I16 = 25, 1, 2, "<i2"
    I32 = 26, 1, 4, "<i4"
    I64 = 27, 1, 8, "<i8"
    F64 = 28, 1, 8, "<f8"
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18
    Q2_0 = 42, 64, 18

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
        if not self._numpy:
            return None
        import numpy as np

        return np.dtype(self._numpy)

    def row_size(self, n: int) -> int:
        """Bytes of a row of `n` elements.

        Raises:
            TensorError: (a ValueError) `n` is negative or not a multiple of `block_size`.
            ArgumentError: `n` is no integer.
        """
        try:
            n = index(n)
        except TypeError:
            raise ArgumentError(f"row_size(n) takes an integer, not {n!r:.80}") from None
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
            ArgumentError: (a ConfigError) it is no text.
        """
        if not isinstance(name, str):
            raise ArgumentError(f"parse(name) takes the name of a type, not {name!r:.80}")
        dtype = cls.__members__.get(name.strip().upper())
        if dtype is None:
            raise ConfigError(
                f"no tensor type {name!r}; choose one of {', '.join(cls.__members__)}"
            )
        return dtype

    # IntEnum prints and formats as its number; messages want the name.
    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)
