"""A quantised file as an original whose numbers lie on no type's grid.

`python benchmarks/off_grid.py FILE.gguf ORIGINAL.gguf` moves each number of a quantised tensor by
at most half a step of its type's grid, evenly distributed, and writes F16; other tensors stay as
they are. Unlike FILE's own numbers, those of ORIGINAL lose by rounding to the types of FILE.
Tensors may be Q4_K, Q5_0, Q6_K and Q8_0.
"""

from __future__ import annotations

import argparse

import numpy as np

from ggmodel.convert.quantize import decode, write_quantized
from ggmodel.gguf_file import DType, MemorySource, TensorSource, open_gguf
from ggmodel.workbench.compare.modules import SwappedSource


def steps(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """The distance of two neighbours on the grid of each number, float32 [n].

    Args:
        raw: a tensor's bytes, in blocks of ggml's layout.
    """
    blocks = raw.reshape(-1, dtype.type_size)
    if dtype in (DType.Q5_0, DType.Q8_0):
        return np.repeat(_halves(blocks[:, :2]), 32)
    if dtype is DType.Q6_K:
        return np.repeat(np.abs(_halves(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8)), 16)
    if dtype is not DType.Q4_K:
        raise SystemExit(f"the grid of {dtype} is unknown here")
    scales = blocks[:, 4:16]
    first = scales[:, :4] & 63
    last = scales[:, 8:] & 15 | scales[:, :4] >> 6 << 4
    return np.repeat(_halves(blocks[:, :2]) * np.concatenate([first, last], axis=1), 32)


def _halves(raw: np.ndarray) -> np.ndarray:
    """Two bytes of each block as a number without its sign, float32 [blocks, 1]."""
    return np.abs(np.ascontiguousarray(raw).view(np.float16).astype(np.float32))


def drawn(raw: np.ndarray, dtype: DType, count: int, chance: np.random.Generator) -> np.ndarray:
    """The numbers of a tensor, each moved by at most half a step, float32 [count]."""
    moved = chance.uniform(-0.5, 0.5, count).astype(np.float32)
    return decode(raw, dtype, count).reshape(-1) + moved * steps(raw, dtype)


def write(source: TensorSource, path: str) -> None:
    """Writes the original of a file."""
    chance = np.random.default_rng(1)
    types = {name: t.dtype for name, t in source.tensors.items()}
    tensors = {}
    for name, t in source.tensors.items():
        if t.dtype.is_quantized:
            values = drawn(
                np.frombuffer(source.data(name), np.uint8), t.dtype, t.n_elements, chance
            )
            tensors[name] = DType.F16, t.shape, values.astype(np.float16).tobytes()
            types[name] = DType.F16
    original = SwappedSource(source, MemorySource({}, tensors), tensors)
    write_quantized(original, path, types, None, {}, force=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("original")
    paths = parser.parse_args()
    with open_gguf(paths.file) as opened:
        write(opened, paths.original)
