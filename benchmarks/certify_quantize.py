"""A process that calls llama_model_quantize, which ends the process on an error.

    python certify_quantize.py LIBLLAMA IN.gguf OUT.gguf FILE_TYPE MEANS.npz|"" NAME

ggmodel is not imported: it loads another ggml. MEANS are the importance matrix's mean squares, NAME
is its name in the file.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, ClassVar

import numpy as np


class _Matrix(ctypes.Structure):
    """llama_model_imatrix_data"""

    _fields_: ClassVar[Any] = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("size", ctypes.c_size_t),
    ]


class _Override(ctypes.Structure):
    """llama_model_kv_override: an integer (0) or a text (3)."""

    _fields_ = [
        ("tag", ctypes.c_int),
        ("key", ctypes.c_char * 128),
        ("gap", ctypes.c_char * 4),  # the value may be a number of eight bytes
        ("value", ctypes.c_char * 128),
    ]


class _Parameters(ctypes.Structure):
    """llama_model_quantize_params"""

    _fields_: ClassVar[Any] = [
        ("threads", ctypes.c_int32),
        ("file_type", ctypes.c_int),
        ("output_type", ctypes.c_int),
        ("embedding_type", ctypes.c_int),
        *((name, ctypes.c_bool) for name in ("again", "output", "copy", "pure", "split", "dry")),
        ("imatrix", ctypes.POINTER(_Matrix)),
        ("overrides", ctypes.POINTER(_Override)),
        ("types", ctypes.c_void_p),
        ("prune", ctypes.c_void_p),
        ("buffer", ctypes.c_size_t),
    ]


def _quantize(library: str, file: str, out: str, number: str, matrix: str, name: str) -> int:
    llama = ctypes.CDLL(library)
    llama.llama_model_quantize_default_params.restype = _Parameters
    llama.llama_model_quantize.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.POINTER(_Parameters),
    ]
    parameters = llama.llama_model_quantize_default_params()
    parameters.threads, parameters.file_type = 2, int(number)
    kept: list[Any] = []
    if matrix:
        entries = dict(np.load(matrix))
        pointer = ctypes.POINTER(ctypes.c_float)
        array = (_Matrix * (len(entries) + 1))()
        for slot, (tensor, means) in zip(array, entries.items(), strict=False):
            means = np.ascontiguousarray(means, np.float32)
            kept.append(means)
            slot.name, slot.size = tensor.encode(), means.size
            slot.data = means.ctypes.data_as(pointer)
        parameters.imatrix = array
        overrides = (_Override * 3)()
        overrides[0].tag, overrides[0].key = 3, b"quantize.imatrix.file"
        overrides[0].value = name.encode()
        overrides[1].tag, overrides[1].key = 0, b"quantize.imatrix.entries_count"
        overrides[1].value = len(entries).to_bytes(8, "little").rstrip(b"\0")
        parameters.overrides = overrides
    return llama.llama_model_quantize(file.encode(), out.encode(), ctypes.byref(parameters))


if __name__ == "__main__":
    sys.exit(_quantize(*sys.argv[1:]))
