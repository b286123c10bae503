"""Files of every type run: logits of ggml beside those of the reference backend, which decodes the
blocks with the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.imatrix import Importance, ImportanceMatrix
from ggmodel.convert.quantize import quantize
from ggmodel.convert.tensor_types import RECIPES
from ggmodel.gguf_file import MemorySource, open_gguf

WIDTH = 256  # the least that all blocks divide
PROMPT = list(range(3, 19))


@pytest.fixture(scope="module")
def source() -> MemorySource:
    sizes = {"attention.head_count": 4, "attention.head_count_kv": 2, "block_count": 1}
    widths = {"embedding_length": WIDTH, "feed_forward_length": WIDTH, "context_length": 64}
    rest: dict[str, Any] = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 64}
    keys = {f"llama.{k}": v for k, v in (sizes | widths | rest).items()}
    shapes = {
        **dict.fromkeys(("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), WIDTH),
        **dict.fromkeys(("attn_k", "attn_v"), WIDTH // 2),
    }
    rng = np.random.default_rng(1)

    def matrix(rows: int) -> np.ndarray:
        return (rng.standard_normal((rows, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)

    tensors = {f"blk.0.{name}.weight": matrix(rows) for name, rows in shapes.items()}
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        tensors[f"{name}.weight"] = np.ones(WIDTH, np.float32)
    tensors |= {"token_embd.weight": matrix(40), "output.weight": matrix(40)}
    return MemorySource({"general.architecture": "llama", **keys}, tensors)


def uniform(source: MemorySource, path: Path) -> Path:
    entries = {
        t.name: Importance(np.ones((1, t.shape[0]), np.float32), np.array([1]))
        for t in source.tensors.values()
        if len(t.shape) > 1
    }
    ImportanceMatrix(entries, str(path)).write(path)
    return path


# MXFP4 is for experts, which this model lacks.
KINDS = [r.name for r in RECIPES.values() if r.dtype.is_quantized and r.name != "mxfp4"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_runs_as_the_reference_says(source: MemorySource, tmp_path: Path, kind: str):
    path = tmp_path / "a.gguf"
    quantize(source, path, kind, imatrix=uniform(source, tmp_path / "m.gguf"))
    with open_gguf(path) as made:
        types = {t.dtype for t in made.tensors.values()}
    assert RECIPES[kind.lower()].dtype in types
    found = {}
    for backend in ("ggml", "reference"):
        with ggmodel.load(path, backend=backend, threads=1, kv_type="f32") as model:
            found[backend] = model.logits(PROMPT).astype(np.float64)
    error = np.square(found["ggml"] - found["reference"]).sum()
    # ggml rounds the inputs of a product to eight bits: of a block of 256 normal numbers, whose
    # largest is about 2.9, the error's variance is (2.9 / 127)² / 12 = 4.3e-5. Eight products lie
    # on the way, 3.5e-4; a block that is decoded wrongly gives more than 1e-2.
    assert error < 1e-3 * np.square(found["reference"]).sum()
