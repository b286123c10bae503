"""Statistics are those of numpy, and what is not finite is found where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import ggmodel
from ggmodel import DType
from ggmodel.errors import ConfigError, PromptError, WriteError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import Pixels
from ggmodel.runner import LoadedModel
from ggmodel.workbench.trace import Trace, save, statistics_of, trace
from tests.workbench.saved import CASES, source_of

IDS = [1, 9, 30, 17, 40]


def traced(source: MemorySource, ids: list[int] = IDS, **options: Any) -> Trace:
    with ggmodel.load(source, **{"kv_type": "f32", **options}) as model:
        return trace(model, ids)


def changed(vary: Any, name: str, change: Any, dtype: DType = DType.F32) -> MemorySource:
    """The llama with one of its tensors changed, and matrices in another type."""

    def store(tensor: str, values: np.ndarray):
        values = values.astype(np.float32)
        if tensor == name:
            values = values.copy()
            change(values)
        if dtype is DType.F16 and values.ndim > 1:
            return DType.F16, values.shape[::-1], values.astype(np.float16).tobytes()
        return values

    return source_of("llama", store)


@pytest.mark.parametrize("flash_attention", ["off", "on"])
@pytest.mark.parametrize("name", CASES)
def test_healthy_models_are_finite_though_masks_are_not(name: str, flash_attention: str):
    case = CASES[name]
    ids = [t for t in case.ids if t < 48]
    found = traced(source_of(name), ids, flash_attention=flash_attention)
    assert found.ok and found.first is None
    assert found.tokens == len(ids)
    assert len(found.values) > 20


def test_values_of_an_image(monkeypatch: pytest.MonkeyPatch):
    case = CASES["gemma3"]
    assert case.picture is not None
    with ggmodel.load(source_of("gemma3")) as model:
        monkeypatch.setattr(
            model.prompts, "with_items", lambda prompt, given: [*given["images"], 1, 9]
        )
        monkeypatch.setattr(model.model, "token_id", lambda text, default: 3)
        found = trace(model, "x", item=("image", Pixels(case.picture.pixels, {})), keep=True)
    parts = [value.part for value in found.values]
    assert parts == sorted(parts) and set(parts) == {"image", "text"}
    assert found.kept["image.vision.norm"].shape == (4, 32)
    assert found.kept["image.projector"].shape == (32,)
    assert found.ok


def test_statistics_are_numpys():
    rows = np.random.default_rng(3).normal(2, 5, (7, 11, 13)).astype(np.float32)
    found = statistics_of(rows.transpose(2, 0, 1))
    wide = rows.astype(np.float64)
    assert (found.min, found.max) == (wide.min(), wide.max())
    assert found.mean == pytest.approx(wide.mean(), rel=1e-12)
    assert found.rms == pytest.approx(np.sqrt((wide**2).mean()), rel=1e-12)
    rows[0, 0, :3] = np.nan, np.inf, -np.inf
    found = statistics_of(rows)
    assert (found.nan, found.inf) == (1, 2)
    assert found.mean == pytest.approx(rows[np.isfinite(rows)].mean(), rel=1e-5)
    assert np.isnan(statistics_of(np.full(3, np.nan, np.float32)).mean)


def test_every_named_result_is_there_with_its_line():
    found = traced(source_of("llama"))
    rows = {value.name: value for value in found.values}
    assert rows["blk.1.ffn.gate"].shape == (64, 5)
    assert (rows["blk.1.ffn.gate"].op, rows["blk.1.ffn.gate"].dtype) == ("mulmat", "F32")
    assert "nn/decoder.py:" in rows["blk.1.ffn.gate"].line
    assert "nn/decoder.py:" in rows["blk.1.attn.q"].line
    assert rows["blk.0.attn.rope"].shape == (8, 2, 5)
    assert rows["blk.0.attn.rope#2"].shape == (8, 4, 5)
    assert not any(value.op in ("reshape", "view", "permute") for value in found.values)


@pytest.mark.parametrize("backend", ["ggml", "reference"])
def test_nan_in_a_weight(vary: Any, backend: str):
    def spoil(values: np.ndarray) -> None:
        values[3, 4] = np.nan

    found = traced(changed(vary, "blk.1.ffn_up.weight", spoil), backend=backend)
    assert not found.ok and found.first is not None
    assert (found.first.name, found.first.op) == ("blk.1.ffn.up", "mulmat")
    assert found.first.statistics.nan == 5  # in each row of the prompt one
    assert "nn/decoder.py:" in found.first.line
    weight, read = found.operands
    assert (weight.kind, weight.name) == ("weight", "blk.1.ffn_up.weight")
    assert weight.statistics is not None and weight.statistics.nan == 1
    assert read.name == "blk.1.ffn_norm"
    assert read.statistics is not None and read.statistics.finite


def test_infinity_in_a_weight(vary: Any):
    def spoil(values: np.ndarray) -> None:
        values[2] = np.inf

    found = traced(changed(vary, "output_norm.weight", spoil))
    assert found.first is not None
    assert (found.first.name, found.first.op) == ("norm", "mul")
    assert found.first.statistics.inf == 5
    weight = next(o for o in found.operands if o.kind == "weight")
    assert weight.statistics is not None and weight.statistics.inf == 1


def test_keys_too_large_for_a_cache_in_f16(vary: Any):
    def grow(values: np.ndarray) -> None:
        values *= 1e6

    source = changed(vary, "blk.0.attn_k.weight", grow)
    found = traced(source, kv_type="f16", flash_attention="off")
    assert found.first is not None
    assert (found.first.name, found.first.op) == ("blk.0.attn.set_rows", "set_rows")
    assert found.first.dtype == "F16"
    assert max(o.statistics.max for o in found.operands if o.statistics) > 65504
    assert traced(source, kv_type="f32", flash_attention="off").ok


def test_activations_too_large_for_a_product_in_f16(vary: Any):
    def grow(values: np.ndarray) -> None:
        values *= 1e6

    name = "blk.0.ffn_norm.weight"
    found = traced(changed(vary, name, grow, DType.F16))
    assert found.first is not None
    assert found.first.name in ("blk.0.ffn.gate", "blk.0.ffn.up")
    weight, read = found.operands
    assert (weight.dtype, read.name) == ("F16", "blk.0.ffn_norm")
    assert read.statistics is not None and read.statistics.max > 65504
    assert traced(changed(vary, name, grow)).ok


@pytest.fixture
def model():
    with ggmodel.load(source_of("llama"), kv_type="f32") as loaded:
        yield loaded


def test_values_are_saved(model: LoadedModel, tmp_path: Path):
    found = trace(model, IDS, names="blk.0.*", keep=True)
    assert {v.name for v in found.values} == set(found.kept)
    assert all(name.startswith("blk.0.") for name in found.kept)
    save(tmp_path / "a.npz", found.kept)
    save(tmp_path / "a.safetensors", found.kept)
    tensors = load_file(tmp_path / "a.safetensors")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert set(arrays) == set(tensors) == set(found.kept)
        for name, value in found.kept.items():
            np.testing.assert_array_equal(arrays[name], value)
            np.testing.assert_array_equal(tensors[name], value)
    rows = {v.name: v.statistics for v in found.values}
    gate = found.kept["blk.0.ffn.gate"]
    assert gate.shape == (5, 64)
    assert rows["blk.0.ffn.gate"].max == gate.max()


def test_a_file_of_another_kind(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"\.npz or \.safetensors"):
        save(tmp_path / "a.bin", {})
    with pytest.raises(WriteError, match="nowhere does not exist; create it first"):
        save(tmp_path / "nowhere" / "a.npz", {})


def test_ids_out_of_range(model: LoadedModel):
    with pytest.raises(PromptError, match="token id 48 is not in the vocabulary of 48"):
        trace(model, [1, 48])
