"""Weights of eight and of four bits, beside the scales of their blocks, in checkpoints whose
config.json says `"quant_method": "fp8"`: DeepSeek V3's and V4's, for instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import Unsupported
from ..gguf_file.buffer import quote
from ..model.operations import MXFP4Blocks

FP8, FP4 = "F8_E4M3", "I8"  # safetensors' types; FP4 are two numbers a byte, the first in low bits
_GROUP = 32  # numbers of an MXFP4 block
_SCALES = {"F32": "<f4", "BF16": "<u2", "F8_E8M0": "u1", "U8": "u1"}  # bytes are exponents plus 127
# Scales of activations, which are computed here without rounding them.
_LEFT_OUT = ("activation_scale", ".qscale_act")


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a checkpoint.

    Attributes:
        shape: in numpy's order; () for a single number. It counts numbers, where two are a byte.
        dtype: in safetensors' names: "BF16", "F32", "U8".
        file: index into `files` of the checkpoint.
        offset: byte in that file where its data starts.
        scales: the tensor by whose numbers these are multiplied, if there is one.
        block: rows and columns that have one scale.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: int
    offset: int
    nbytes: int
    scales: FileTensor | None = None
    block: tuple[int, int] = (1, 1)

    @property
    def is_mxfp4(self) -> bool:
        """Whether numbers and scales are those of MXFP4 blocks."""
        scales = self.scales
        exponents = scales is not None and _SCALES[scales.dtype] == "u1"
        return exponents and self.dtype == FP4 and self.block == (1, _GROUP)


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
        if (value := scheme.get(key)) not in (None, *values):
            raise Unsupported(
                f"{folder}: quantization_config.{key} is {value!r:.40}; supported: "
                f"{', '.join(values)}. Take the model's checkpoint in BF16, F16 or F32"
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
            size = rows, columns
        case _:
            size = None
    weights, scales = dict[str, FileTensor](), set[str]()
    for name, t in tensors.items():
        beside = (tensors.get(n) for n in _names_of_scales(name) if t.dtype in (FP8, FP4))
        one = next((s for s in beside if s is not None), None)
        if one is not None:
            scales.add(one.name)
            weights[name] = _scaled(t, one, size)
    left = {n: t for n, t in tensors.items() if n not in scales and not n.endswith(_LEFT_OUT)}
    return left | weights


def _names_of_scales(name: str) -> Iterator[str]:
    """The names that the scales of a weight may have: DeepSeek V3's, V4's, Mistral's."""
    yield f"{name}_scale_inv"
    if name.endswith(".weight"):
        yield name.removesuffix("weight") + "scale"
        yield name.removesuffix("weight") + "qscale_weight"


def _scaled(t: FileTensor, scales: FileTensor, size: tuple[int, int] | None) -> FileTensor:
    """A weight and its scales: one for each block of `size`, the last of which may be cut off, or
    as many blocks of one size as there are scales."""
    shape = (*t.shape[:-1], 2 * t.shape[-1]) if t.dtype == FP4 and t.shape else t.shape
    grid = scales.shape if len(scales.shape) > 1 else (*shape[:-2], *(1,) * 2)
    rows, columns = shape[-2:] if len(shape) > 1 else (0, 0)
    fits = scales.dtype in _SCALES and np.prod(grid) == np.prod(scales.shape)
    if fits and len(shape) > 1 and len(grid) == len(shape) and grid[:-2] == shape[:-2]:
        if size and grid[-2:] == (-(-rows // size[0]), -(-columns // size[1])):
            return replace(t, shape=shape, scales=scales, block=size)
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
    exponent, part = byte >> 3 & 15, (byte & 7) / 8
    values = np.ldexp(part + (exponent > 0), np.maximum(exponent, 1) - 7)
    values[byte & 127 == 127] = np.nan
    return np.where(byte > 127, -values, values).astype(np.float32)


_E4M3 = _eight_bits()
_HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate([_HALF, -_HALF])


def rows_of(t: FileTensor, raw: Any, scales: Any, start: int, stop: int) -> np.ndarray:
    """Numbers times their scales, float32 [stop - start, columns].

    Args:
        raw, scales: the bytes of both tensors.
        start, stop: rows, counted over all matrices.
    """
    assert t.scales is not None
    (rows, columns), (height, width) = t.shape[-2:], t.block
    stored = np.frombuffer(raw, np.uint8).reshape(-1, columns // (2 if t.dtype == FP4 else 1))
    values = stored[start:stop]
    if t.dtype == FP4:
        values = np.stack([values & 15, values >> 4], -1).reshape(len(values), columns)
    table = _E2M1 if t.dtype == FP4 else _E4M3
    factors = np.frombuffer(scales, _SCALES[t.scales.dtype]).reshape(-1, -(-columns // width))
    at = np.arange(start, start + len(values))
    factors = factors[at // rows * -(-rows // height) + at % rows // height]
    if t.scales.dtype == "BF16":
        factors = (factors.astype(np.uint32) << 16).view(np.float32)
    elif factors.dtype == np.uint8:
        factors = np.ldexp(np.float32(1), factors.astype(np.int32) - 127)
    return table[values] * np.repeat(factors, width, axis=1)[:, :columns]


def mxfp4_of(t: FileTensor, raw: Any, scales: Any) -> np.ndarray:
    """The bytes of ggml's MXFP4 blocks, uint8 [.., rows, 17/32 of the columns], with the same
    bits."""
    groups = (*t.shape[:-1], t.shape[-1] // _GROUP)
    blocks = np.frombuffer(raw, np.uint8).reshape(*groups, _GROUP // 2)
    exponents = np.frombuffer(scales, np.uint8).reshape(groups)
    return MXFP4Blocks(t.name).join([blocks, exponents], None)
