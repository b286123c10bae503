"""Weights of eight and of four bits, beside the scales of their blocks, in checkpoints whose
config.json says `"quant_method": "fp8"`: DeepSeek V3's and V4's, for instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Unsupported
from ..gguf_file.buffer import quote
from ..model.operations import MXFP4Blocks

if TYPE_CHECKING:
    from .checkpoint import FileTensor

FP8, FP4 = "F8_E4M3", "I8"  # safetensors' types; FP4 are two numbers a byte, the first in low bits
_GROUP = 32  # numbers of an MXFP4 block
_SCALES = {"F32": "<f4", "BF16": "<u2", "F8_E8M0": "u1", "U8": "u1"}  # bytes are exponents plus 127
# Activations are computed here without rounding them.
_ACTIVATION_SCALES = ("activation_scale", ".qscale_act", ".input_scale")
_PIECE = 1 << 18  # numbers that are multiplied at once


def is_mxfp4(t: FileTensor) -> bool:
    """Whether numbers and scales are those of MXFP4 blocks."""
    exponents = t.scales is not None and _SCALES[t.scales.dtype] == "u1"
    return exponents and t.dtype == FP4 and t.block == (1, _GROUP)


def check_quantisation(config: Mapping[str, Any], folder: Any) -> None:
    """Raises Unsupported for packed tensors that cannot be unpacked, by the key that says so."""
    scheme = config.get("quantization_config")
    scheme = scheme if isinstance(scheme, Mapping) else {}
    method = scheme.get("quant_method")
    if method not in (None, "mxfp4", "fp8"):
        raise Unsupported(
            f"{folder} is quantised with {method!r:.40}, which cannot be read; take the model's "
            "checkpoint in BF16, F16 or F32 and let --type quantise it"
        )
    supported = {"fmt": ("e4m3",), "scale_fmt": ("float", "ue8m0"), "expert_dtype": ("fp8", "fp4")}
    for key, values in supported.items() if method == "fp8" else ():
        name, value = f"quantization_config.{key}", scheme.get(key)
        if value is None and key == "expert_dtype":  # DeepSeek V4 has it outside
            name, value = key, config.get(key)
        if value not in (None, *values):
            raise Unsupported(
                f"{folder}: {name} is {value!r:.40}; supported: {', '.join(values)}. Take the "
                "model's checkpoint in BF16, F16 or F32"
            )


def with_scales(config: Mapping[str, Any], tensors: dict[str, FileTensor]) -> dict[str, FileTensor]:
    """The tensors of a checkpoint, where weights have their scales and those are none of them.

    Raises:
        Unsupported: scales do not fit their weight.
    """
    scheme = config.get("quantization_config")
    if not isinstance(scheme, Mapping) or scheme.get("quant_method") != "fp8":
        return tensors
    match scheme.get("weight_block_size"):
        case [int(rows), int(columns)] if min(rows, columns) > 0:
            block_size = rows, columns
        case _:
            block_size = None
    weights: dict[str, FileTensor] = {}
    scales: set[str] = set()
    for name, t in tensors.items():
        names = _names_of_scales(name) if t.dtype in (FP8, FP4) else ()
        scale_tensor = next((tensors[n] for n in names if n in tensors), None)
        if scale_tensor is not None:
            scales.add(scale_tensor.name)
            weights[name] = _scaled(t, scale_tensor, block_size)
    others = (n for n in tensors if n not in scales and not n.endswith(_ACTIVATION_SCALES))
    return {n: tensors[n] for n in others} | weights


def _names_of_scales(name: str) -> Iterator[str]:
    """The names that the scales of a weight may have: DeepSeek V3's, AutoFP8's, DeepSeek V4's,
    Mistral's."""
    yield f"{name}_scale_inv"
    if name.endswith(".weight"):
        yield f"{name}_scale"
        yield name.removesuffix("weight") + "scale"
        yield name.removesuffix("weight") + "qscale_weight"


def _scaled(t: FileTensor, scales: FileTensor, block_size: tuple[int, int] | None) -> FileTensor:
    """A weight and its scales: one for each block of `block_size`, the last of which may be cut
    off, or as many blocks of one size as there are scales."""
    shape = (*t.shape[:-1], 2 * t.shape[-1]) if t.dtype == FP4 and t.shape else t.shape
    grid = scales.shape if len(scales.shape) > 1 else (*shape[:-2], *(1,) * 2)
    rows, columns = shape[-2:] if len(shape) > 1 else (0, 0)
    fits = scales.dtype in _SCALES and np.prod(grid) == np.prod(scales.shape)
    if fits and len(shape) > 1 and len(grid) == len(shape) and grid[:-2] == shape[:-2]:
        if block_size and grid[-2:] == (-(-rows // block_size[0]), -(-columns // block_size[1])):
            return replace(t, shape=shape, scales=scales, block=block_size)
        if min(grid[-2:]) > 0 and not (rows % grid[-2] or columns % grid[-1]):
            block = rows // grid[-2], columns // grid[-1]
            return replace(t, shape=shape, scales=scales, block=block)
    raise Unsupported(
        f"{quote(scales.name)}, {scales.dtype} {list(scales.shape)}, cannot be the scales of "
        f"{quote(t.name)}, {list(shape)}, by blocks of quantization_config.weight_block_size or of "
        "one size; take the model's checkpoint in BF16, F16 or F32"
    )


def _eight_bits() -> np.ndarray:
    """Byte → the number that it is in E4M3, which has no infinities (OFP8, revision 1.0)."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, (byte & 7) / 8
    values = np.ldexp(mantissa + (exponent > 0), np.maximum(exponent, 1) - 7)
    values[byte & 127 == 127] = np.nan
    return np.where(byte > 127, -values, values).astype(np.float32)


_E4M3 = _eight_bits()
_E2M1_POSITIVE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate([_E2M1_POSITIVE, -_E2M1_POSITIVE])
# Byte → power of two; the last is NaN (OCP's Microscaling Formats, version 1.0).
_E8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))


def rows_of(t: FileTensor, raw: Any, scales: Any, start: int, stop: int) -> np.ndarray:
    """Numbers times their scales, float32 [stop - start, columns].

    Args:
        raw, scales: the bytes of both tensors.
        start, stop: rows, counted over all matrices.
    """
    assert t.scales is not None
    (rows, columns), (height, width) = t.shape[-2:], t.block
    stored = np.frombuffer(raw, np.uint8).reshape(-1, columns // (2 if t.dtype == FP4 else 1))
    table = _E2M1 if t.dtype == FP4 else _E4M3
    grid = np.frombuffer(scales, _SCALES[t.scales.dtype]).reshape(-1, -(-columns // width))
    stored = stored[start:stop]
    numbers, step = np.empty((len(stored), columns), np.float32), max(1, _PIECE // columns)
    for begin in range(0, len(stored), step):
        values, piece = stored[begin : begin + step], numbers[begin : begin + step]
        if t.dtype == FP4:
            values = np.stack([values & 15, values >> 4], -1).reshape(piece.shape)
        at = np.arange(start + begin, start + begin + len(piece))
        factors = grid[at // rows * -(-rows // height) + at % rows // height]
        if t.scales.dtype == "BF16":
            factors = (factors.astype(np.uint32) << 16).view(np.float32)
        elif factors.dtype == np.uint8:
            factors = _E8M0[factors]
        each = np.repeat(factors, width, axis=1)[:, :columns]
        np.multiply(table[values], each, out=piece)
    return numbers


def mxfp4_of(t: FileTensor, raw: Any, scales: Any) -> np.ndarray:
    """The bytes of ggml's MXFP4 blocks, uint8 [.., rows, 17/32 of the columns], with the same
    bits."""
    groups = (*t.shape[:-1], t.shape[-1] // _GROUP)
    blocks = np.frombuffer(raw, np.uint8).reshape(*groups, _GROUP // 2)
    exponents = np.frombuffer(scales, np.uint8).reshape(groups)
    return MXFP4Blocks(t.name).join([blocks, exponents], None)
