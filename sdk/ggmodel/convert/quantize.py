"""Quantisation of tensors, by ggml's own functions, and of whole files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, TensorError, Unsupported
from ..gguf_file import DType, TensorInfo, TensorSource
from ..ml.system import available_cores
from ..storage import check_target
from .imatrix import ImportanceMatrix
from .metadata import QUANTIZATION_VERSION
from .tensor_types import Candidate, choose, recipe_of
from .write import Progress, info, write_gguf

_PIECE = 1 << 18  # numbers that one thread takes at a time


def encode(
    values: np.ndarray,
    dtype: DType,
    name: str = "the tensor",
    importance: np.ndarray | None = None,
) -> np.ndarray:
    """Rounds float32 numbers to a type.

    Args:
        values: float32 in numpy's order, contiguous; its rows are rows of the tensor.
        importance: float32 [matrices, width], contiguous: how much each number of a row matters.
            The rows are divided among the matrices.

    Returns:
        The bytes, uint8.

    Raises:
        TensorError: a row is no multiple of the type's block, or, of quantised types, a number is
            not finite.
        Unsupported: ggml cannot quantise to this type, or not without importance.
    """
    from ..native import ffi, lib

    if dtype is DType.F32:
        return values.reshape(-1).view(np.uint8)
    if dtype not in _ENCODED:
        raise Unsupported(f"{name} cannot be quantised to {dtype}; choose another type")
    if importance is None and lib.ggml_quantize_requires_imatrix(int(dtype)):
        raise Unsupported(
            f"{name} cannot be quantised to {dtype} without an importance matrix; give one"
        )
    width = values.shape[-1] if values.ndim else 1
    rows = values.size // max(width, 1)
    result = np.empty(dtype.row_size(width) * rows, np.uint8)
    lib.ggml_quantize_init(int(dtype))
    source, target = ffi.from_buffer("float[]", values), ffi.from_buffer(result)

    matrices = [ffi.NULL]
    if importance is not None:
        matrices = [ffi.from_buffer("float[]", w) for w in importance]
    each = rows // len(matrices)

    def work(weights: Any, start: int, rows: int) -> None:
        piece = values.reshape(-1, width)[start : start + rows]
        if dtype.is_quantized and not np.isfinite(piece).all():
            raise TensorError(f"{name} holds NaN or infinity, which {dtype} cannot; use f16 or f32")
        lib.ggml_quantize_chunk(int(dtype), source, target, start * width, rows, width, weights)

    for i, weights in enumerate(matrices):
        _in_pieces(i * each, each, width, partial(work, weights))
    return result


def decode(data: bytes | memoryview | np.ndarray, dtype: DType, count: int) -> np.ndarray:
    """The float32 [count] numbers of a tensor's bytes; for F32 a view of the same memory.

    Raises:
        Unsupported: ggml cannot decode the type.
    """
    from ..native import ffi, lib

    raw = np.frombuffer(data, np.uint8)
    if dtype is DType.F32:
        return raw.view("<f4")
    traits = lib.ggml_get_type_traits(int(dtype))
    if not (dtype.is_quantized or dtype.is_float) or dtype is DType.F64 or not traits.to_float:
        raise Unsupported(f"{dtype} cannot be converted; only floating-point and quantised types")
    block, size = dtype.block_size, dtype.type_size
    result = np.empty(count, np.float32)
    source, target = ffi.from_buffer(raw), ffi.from_buffer("float[]", result)

    def work(start: int, blocks: int) -> None:
        traits.to_float(source + start * size, target + start * block, blocks * block)

    _in_pieces(0, count // block, block, work)
    return result


# Types that ggml_quantize_chunk supports.
_ENCODED = frozenset(
    DType[name]
    for name in "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS "
    "IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4".split()
)


def _in_pieces(first: int, rows: int, width: int, work: Callable[[int, int], None]) -> None:
    """Calls `work` with the first row and the number of rows of each piece, from threads."""
    step = max(1, _PIECE // max(width, 1))
    starts = range(first, first + rows, step)
    if len(starts) <= 1:
        work(first, rows)
        return
    with ThreadPoolExecutor(available_cores(), "ggmodel-quantize") as pool:
        for done in [pool.submit(work, at, min(step, first + rows - at)) for at in starts]:
            done.result()


def quantize(
    source: TensorSource,
    path: str | Path,
    type: str,
    *,
    imatrix: str | Path | None = None,
    allow_requantize: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes a file with other types, as llama-quantize would: the same tensors, order and bytes.

    Args:
        source: a GGUF file, split or not.
        type: the name of a recipe.
        imatrix: the file of an importance matrix.
        allow_requantize: quantised tensors may be quantised again, which costs quality.

    Raises:
        ConfigError: there is no such type, or the file is quantised already.
        FormatError: the importance matrix cannot be read.
        TensorError, Unsupported: a tensor cannot be of that type, or not without importance.
        WriteError: the file cannot be written.
    """
    recipe = recipe_of(type)
    check_target(path, force=force, device=False)
    candidates = [Candidate(t.name, t.shape, t.dtype) for t in source.tensors.values()]
    matrix = None if imatrix is None else ImportanceMatrix.read(imatrix)
    chosen = choose(recipe, source.metadata, candidates, matrix and matrix.entries)
    check_requantized(source, chosen, allow_requantize)
    made_by = {"general.file_type": recipe.file_type}
    write_quantized(source, path, chosen, matrix, made_by, force=force, progress=progress)


def check_requantized(source: TensorSource, types: Mapping[str, DType], allowed: bool) -> None:
    """Raises `ConfigError` if a tensor that is quantised would be quantised again, unless that is
    allowed."""
    for name, dtype in types.items():
        old = source.tensors[name].dtype
        if old.is_quantized and old is not dtype and not allowed:
            raise ConfigError(
                f"{source.name}: {name} is {old} already; quantise the F16, BF16 or F32 file, or "
                "accept the loss with --allow-requantize (allow_requantize=True)"
            )


def write_quantized(
    source: TensorSource,
    path: str | Path,
    types: Mapping[str, DType],
    matrix: ImportanceMatrix | None,
    made_by: Mapping[str, Any],
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes a file with other types.

    Args:
        types: tensor → type, for all tensors, in the order of the file.
        matrix: importance of the tensors' inputs, if known.
        made_by: metadata on how the file was made.

    Raises:
        TensorError, Unsupported: a tensor cannot be of that type, or not without importance.
        WriteError: the file cannot be written.
    """

    def data(t: TensorInfo) -> memoryview:
        old = source.tensors[t.name]
        if old.dtype is t.dtype:
            return source.data(t.name)
        values = decode(source.data(t.name), old.dtype, old.n_elements)
        importance = None if matrix is None else matrix.of(t.name, old.shape)
        return encode(values.reshape(-1, old.shape[0]), t.dtype, t.name, importance).data

    metadata = {k: v for k, v in typed(source).items() if not k.startswith(_REPLACED)}
    metadata["general.quantization_version"] = QUANTIZATION_VERSION
    metadata |= made_by
    if matrix is not None:
        metadata |= matrix.metadata()
    infos = [info(name, source.tensors[name].shape, dtype) for name, dtype in types.items()]
    write_gguf(path, metadata, infos, data, source.release, force=force, progress=progress)


_REPLACED = (
    "general.quantization_version",
    "general.file_type",
    "split.no",
    "split.count",
    "split.tensors.count",
    "ggmodel.mixture.",  # of another file
)


def typed(source: TensorSource) -> dict[str, Any]:
    """The metadata of a file, its numbers in the types that they are stored in."""
    kinds = getattr(source, "metadata_types", {})
    metadata: dict[str, Any] = {}
    for key, value in source.metadata.items():
        kind = kinds.get(key, "")
        if kind[:1] in ("u", "i", "f") and kind[1:].isdigit():
            value = np.dtype(f"{kind[0]}{int(kind[1:]) // 8}").type(value)
        metadata[key] = value
    return metadata
