"""Weights of tiny test models: derived from the tensor's name alone, and rounded.

`weight(name, shape)` computes a golden model's checkpoint; no weights are committed. The name is
the one in a Hugging Face checkpoint on disk: `model.layers.0.self_attn.q_proj.weight`.

The rule, the same on every platform and in every version of numpy:

1. SHAKE-256 of the UTF-8 name gives four bytes a value, read as little-endian uint32 in C order.
2. The top 23 bits k of each give u = (2k + 1 - 2**23) / 2**23: exact in float32, symmetric,
   |u| < 1, never zero. Its standard deviation is 1 / sqrt(3).
3. One or two correctly rounded float32 operations scale it:

   | tensor                                                    | value                      |
   | `*.bias`                                                  | 0.1 u                      |
   | `*norm*.weight` (a module whose name contains "norm")     | 1 + 0.2 u                  |
   | `*embed*.weight` with two axes                            | u                          |
   | any other with two or more axes                           | sqrt(3 / fan_in) u         |
   | any other with one axis or none (gates, class embeddings) | u                          |

   fan_in is the product of all axes but the first, so matrices have std 1 / sqrt(fan_in):
   activations and logits stay O(1), attention scores have std about 1 (positions and masks matter),
   and F16 weights stay within an NMSE of 1e-6 (which matrices sqrt(2) times as large exceed).

Goldens depend on every digit of this rule. Extend it only for kinds of tensors that no golden has
yet (a test holds a digest).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ...convert.declaration import PlannedTensor, plan
from ...convert.from_hf import normalize, read_config
from ...convert.tensor_types import Candidate, choose, recipe_of
from ...errors import Error
from ...gguf_file import DType
from ...model import Model
from ...model.operations import Computed


def uniform(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Float32 values in (-1, 1) from SHAKE-256 of `name`."""
    count = math.prod(shape)
    bits = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), dtype="<u4")
    odd = 2 * (bits >> np.uint32(9)).astype(np.int32) + 1 - (1 << 23)
    values = odd.astype(np.float32).reshape(shape)
    values /= np.float32(1 << 23)
    return values


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The weight of the Hugging Face tensor `name`; see the module's docstring for the rule."""
    u = uniform(name, shape)
    module, _, kind = name.rpartition(".")
    module = module.rpartition(".")[2]
    if kind == "bias":
        return np.float32(0.1) * u
    if kind == "weight" and "norm" in module:
        return np.float32(1.0) + np.float32(0.2) * u
    if kind == "weight" and "embed" in module and len(shape) == 2:
        return u
    if len(shape) >= 2:
        return np.float32(math.sqrt(3 / math.prod(shape[1:]))) * u
    return u


Array = NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]
Types = dict[str, DType]

_Q8_0 = recipe_of("q8_0")


def rounded(values: Array, dtype: DType) -> Array:
    """The values after a way through a type, by the `gguf` package; its rows are the last axis."""
    if dtype is DType.F32:
        return values
    kind = gguf.GGMLQuantizationType(dtype.value)
    return gguf.dequantize(gguf.quantize(values, kind), kind).astype(np.float32)


def types_of(architecture: type[Model] | None, hf: Mapping[str, Any], tensors: Shapes) -> Types:
    """The tensors of a checkpoint that a Q8_0 file rounds, and the type of each: Q8_0, or F16 where
    blocks of 32 do not fill a row.

    The field that a tensor fills decides, as in `ggmodel convert --type q8_0`: norms, routers and
    everything of a vision tower stay F32. A tensor that no field reads, as in an architecture that
    is being written, goes by its shape: matrices are rounded, kernels of four dims and more are
    not.

    Args:
        architecture: None if there is none yet.
        tensors: name → shape in numpy's order.
    """
    filled = {} if architecture is None else _filled(architecture, hf, tensors)
    types: Types = {}
    for name, shape in tensors.items():
        dtype = filled.get(name)
        if dtype is None:
            dtype = DType.Q8_0 if 2 <= len(shape) <= 3 else DType.F32
        if dtype is not DType.F32:
            fits = dtype is DType.Q8_0 and shape[-1] % DType.Q8_0.block_size == 0
            types[name] = DType.Q8_0 if fits else DType.F16
    return types


def _filled(architecture: type[Model], hf: Mapping[str, Any], tensors: Shapes) -> Types:
    """Tensor → the type of what is made of it, as far as the declaration fits."""
    try:
        metadata, config = read_config(architecture, _shaped(hf, tensors))
        made = [
            (entry, Candidate(entry.name, _shape(entry, config, tensors), DType.F32))
            for entry in plan(architecture, config, tensors).entries
            if not isinstance(entry.join, Computed)
        ]
    except Error:  # an architecture that is being written; checking it says what is wrong
        return {}
    numbers = [c for entry, c in made if entry.join is None or entry.join.dtype is None]
    chosen = choose(_Q8_0, metadata, numbers)
    types: Types = {}
    for entry, _ in made:
        for source in entry.sources:
            types.setdefault(source, chosen.get(entry.name, DType.F32))
    return types


def _shaped(hf: Mapping[str, Any], tensors: Shapes) -> dict[str, Any]:
    """A normalized config, with tensors of these shapes whose values do not count."""
    zeros = {name: np.broadcast_to(np.float32(0), shape) for name, shape in tensors.items()}
    return {**normalize(hf), "tensors:": zeros}


def _shape(entry: PlannedTensor, config: Any, tensors: Shapes) -> tuple[int, ...]:
    """The shape of an entry's tensor, in ggml's order."""
    shapes = [tensors[s] for s in entry.sources]
    shape = shapes[0] if entry.join is None else entry.join.shape(shapes, config)
    return (shape if entry.op is None else entry.op.shape(shape, config))[::-1]


def stored_as(
    architecture: type[Model], hf: Mapping[str, Any], tensors: Shapes, types: Types, dtype: DType
) -> dict[str, DType]:
    """GGUF tensor → its type in a file of `dtype`, given the types of a Q8_0 file. A tensor that is
    made of several has the type that all of them have, else F32."""
    _, config = read_config(architecture, _shaped(hf, tensors))
    stored: dict[str, DType] = {}
    for entry in plan(architecture, config, tensors).entries:
        kinds = {narrowed(types.get(source), dtype) for source in entry.sources}
        stored[entry.name] = kinds.pop() if len(kinds) == 1 else DType.F32
    return stored


def narrowed(in_q8_0: DType | None, dtype: DType) -> DType:
    """The type of a tensor in a file of `dtype`, given its type in a Q8_0 file; None is F32."""
    if in_q8_0 is None:
        return DType.F32
    return in_q8_0 if dtype is DType.Q8_0 else dtype
