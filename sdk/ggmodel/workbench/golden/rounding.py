"""Types of a checkpoint's tensors in F16, BF16 and Q8_0 files, and rounding to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ...convert.declaration import Entry, plan
from ...convert.from_hf import normalize, read_config
from ...convert.recipes import recipe_of
from ...convert.tensor_types import Candidate, choose
from ...errors import Error
from ...gguf_file import DType
from ...model import Model
from ...model.operations import Computed

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
    found: Types = {}
    for name, shape in tensors.items():
        dtype = filled.get(name)
        if dtype is None:
            dtype = DType.Q8_0 if 2 <= len(shape) <= 3 else DType.F32
        if dtype is not DType.F32:
            fits = dtype is DType.Q8_0 and shape[-1] % DType.Q8_0.block_size == 0
            found[name] = DType.Q8_0 if fits else DType.F16
    return found


def _filled(architecture: type[Model], hf: Mapping[str, Any], tensors: Shapes) -> Types:
    """Tensor → the type of what is made of it, as far as the declaration fits."""
    try:
        metadata, config = read_config(architecture, normalize(hf))
        made = [
            (entry, Candidate(entry.name, _shape(entry, config, tensors), DType.F32))
            for entry in plan(architecture, config, tensors).entries
            if not isinstance(entry.join, Computed)
        ]
    except Error:  # an architecture that is being written; checking it says what is wrong
        return {}
    numbers = [c for entry, c in made if entry.join is None or entry.join.dtype is None]
    chosen = choose(_Q8_0, metadata, numbers)
    found: Types = {}
    for entry, _ in made:
        for source in entry.sources:
            found.setdefault(source, chosen.get(entry.name, DType.F32))
    return found


def _shape(entry: Entry, config: Any, tensors: Shapes) -> tuple[int, ...]:
    """The shape of an entry's tensor, in ggml's order."""
    shapes = [tensors[s] for s in entry.sources]
    shape = shapes[0] if entry.join is None else entry.join.shape(shapes, config)
    return (shape if entry.op is None else entry.op.shape(shape, config))[::-1]


def stored_as(
    architecture: type[Model], hf: Mapping[str, Any], tensors: Shapes, types: Types, dtype: DType
) -> dict[str, DType]:
    """GGUF tensor → its type in a file of `dtype`, given the types of a Q8_0 file. A tensor that is
    made of several has the type that all of them have, else F32."""
    _, config = read_config(architecture, normalize(hf))
    found: dict[str, DType] = {}
    for entry in plan(architecture, config, tensors).entries:
        kinds = {narrowed(types.get(source), dtype) for source in entry.sources}
        found[entry.name] = kinds.pop() if len(kinds) == 1 else DType.F32
    return found


def narrowed(in_q8_0: DType | None, dtype: DType) -> DType:
    """The type of a tensor in a file of `dtype`, given its type in a Q8_0 file; None is F32."""
    if in_q8_0 is None:
        return DType.F32
    return in_q8_0 if dtype is DType.Q8_0 else dtype
