"""Numbers drawn anew within their rounding cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.off_grid import drawn, write

from ggmodel.convert.quantize import decode, encode
from ggmodel.gguf_file import DType, MemorySource, open_gguf


@pytest.mark.parametrize(
    ("dtype", "group"), [("Q4_K", 32), ("Q5_0", 32), ("Q6_K", 16), ("Q8_0", 32)]
)
def test_numbers_move_by_half_a_step_at_most(dtype: str, group: int):
    """Neighbours that both occur in a group are a step apart, which most groups have."""
    chance, of = np.random.default_rng(3), DType[dtype]
    values = chance.normal(0, 0.05, (64, 1024)).astype(np.float32)
    raw = encode(values, of)
    before = decode(raw, of, values.size).reshape(-1, group)
    moved = np.abs(drawn(raw, of, values.size, chance).reshape(-1, group) - before)
    gaps = np.diff(np.sort(before.astype(np.float64), axis=1), axis=1)
    step = np.where(gaps > 1e-7, gaps, np.inf).min(axis=1)
    assert (moved.max(axis=1) <= 0.501 * step).all()
    assert np.median(moved.mean(axis=1) / step) == pytest.approx(0.25, abs=0.05)


def test_only_quantised_tensors_are_written_anew(tmp_path: Path):
    values = np.random.default_rng(4).normal(0, 0.05, (3, 32)).astype(np.float32)
    kinds = {"a": DType.Q8_0, "b": DType.BF16, "c": DType.F32}
    tensors: Any = {name: (kind, (32, 3), encode(values, kind)) for name, kind in kinds.items()}
    source = MemorySource({"general.architecture": "llama"}, tensors)
    write(source, str(tmp_path / "original.gguf"))
    with open_gguf(tmp_path / "original.gguf") as original:
        written = {name: t.dtype for name, t in original.tensors.items()}
        assert written == {**kinds, "a": DType.F16}
        for name in ("b", "c"):
            assert bytes(original.data(name)) == bytes(source.data(name))
