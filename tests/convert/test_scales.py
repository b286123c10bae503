"""Checkpoints in FP8 and FP4 beside transformers, which reads them as `make_scales.py` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

import ggmodel
from ggmodel.convert import CheckpointSource
from ggmodel.convert.checkpoint import Checkpoint
from ggmodel.errors import Unsupported
from ggmodel.gguf_file import DType
from ggmodel.workbench.golden import nmse
from tests.convert.folders import Stored, stored, write_model, write_safetensors
from tests.convert.make_scales import CASES, FILE, eight_bits, exponents, folder, prompt, scheme

EXPERTS = "blk.0.ffn_down_exps.weight"


@pytest.fixture(scope="module", params=CASES)
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, folder(tmp_path_factory.mktemp("scales"), request.param)


def test_logits_are_those_of_transformers(made: tuple[str, Path]):
    case, path = made
    with ggmodel.load(path, type="f32", backend="reference", kv_type="f32") as model:
        logits = model.logits(prompt(case))
    assert nmse(logits, np.load(FILE)[case]) < 1e-11


def test_numbers_of_all_bytes(tmp_path: Path):
    numbers = "F8_E4M3", (1, 256), bytes(range(256))
    with opened(tmp_path, {"w": numbers, "w_scale_inv": stored(np.ones(()))}) as checkpoint:
        assert np.array_equal(checkpoint.array("w")[0], np.load(FILE)["e4m3"], equal_nan=True)


@pytest.mark.parametrize("kind", [None, "f32", "q8_0"])
def test_types_of_weights_with_scales(made: tuple[str, Path], kind: str | None):
    case, path = made
    plain = {None: DType.BF16, "f32": DType.F32, "q8_0": DType.Q8_0}[kind]
    with CheckpointSource.open(path, kind) as source:
        experts = DType.MXFP4 if case == "v4" else plain
        assert {t.dtype for n, t in source.tensors.items() if "_exps" in n} == {experts}
        matrices = [n for n in source.tensors if n.endswith(("attn_q_b.weight", "attn_q.weight"))]
        assert {source.info(n).dtype for n in matrices} == {plain}


def test_powers_of_two_are_not_rounded(tmp_path: Path):
    """Blocks of FP4 keep their bits, and FP8 is exact in BF16."""
    with CheckpointSource.open(folder(tmp_path, "v4")) as source:
        name = "blk.0.attn_q_b.weight"
        bits = np.frombuffer(source.data(name), "<u2").astype(np.uint32) << 16
        whole = source.checkpoint.array("layers.0.attn.wq_b.weight")
        assert np.array_equal(bits.view(np.float32).reshape(whole.shape), whole)
        blocks = np.frombuffer(source.data(EXPERTS), np.uint8)
        for i, values in enumerate(
            dequantize(blocks, GGMLQuantizationType.MXFP4).reshape(source.info(EXPERTS).shape[::-1])
        ):
            expert = source.checkpoint.array(f"layers.0.ffn.experts.{i}.w2.weight")
            assert np.array_equal(values, expert)
        assert source.keeps_blocks(EXPERTS) and not source.keeps_blocks(name)


def opened(path: Path, tensors: dict[str, Stored], **changes: Any) -> Checkpoint:
    write_model(path, {"quantization_config": scheme("v3") | changes}, {})
    write_safetensors(path / "model.safetensors", tensors)
    return Checkpoint.open(path)


def seeded() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize(
    ("shape", "grid", "size", "block"),
    [
        ((40, 80), (3, 3), [16, 32], (16, 32)),  # the last blocks are cut off
        ((40, 80), (5, 2), [16, 32], (8, 40)),  # of one size that is not the config's
        ((40, 80), (40, 1), None, (1, 80)),
        ((40, 80), (), None, (40, 80)),
        ((2, 20, 40), (2, 2, 2), [16, 32], (16, 32)),
        ((2, 20, 40), (2,), None, (20, 40)),
    ],
)
@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_each_block_has_its_scale(
    tmp_path: Path, shape: tuple[int, ...], grid: Any, size: Any, block: tuple[int, int], kind: str
):
    numbers = eight_bits(seeded(), shape)
    rows, columns = shape[-2:]
    across, down = -(-columns // block[1]), -(-rows // block[0])
    scales = seeded().integers(1, 9, grid) * np.float32(0.5)
    each = np.kron(scales.reshape(-1, down, across), np.ones(block))[:, :rows, :columns]
    read = {}
    for name, factors in {"ones": np.ones(grid), "scales": scales}.items():
        tensors = {"w": numbers, "w_scale_inv": stored(factors, kind)}
        with opened(tmp_path, tensors, weight_block_size=size) as checkpoint:
            assert list(checkpoint.tensors) == ["w"]
            read[name] = checkpoint.array("w")
            part = checkpoint.rows("w", 7, 33)
            assert np.array_equal(part, read[name].reshape(-1, columns)[7:33])
    assert np.array_equal(read["scales"], read["ones"] * each.reshape(shape))


def test_scales_of_activations_are_left_out(tmp_path: Path):
    tensors = {
        "a.weight": eight_bits(seeded(), (4, 8)),
        "a.weight_scale_inv": stored(np.ones(())),
        "a.activation_scale": stored(np.ones(())),
        "b.weight": eight_bits(seeded(), (4, 8)),
        "b.qscale_weight": stored(np.ones(())),
        "b.qscale_act": stored(np.ones(())),
        "c.scale": stored(np.ones(8)),
    }
    with opened(tmp_path, tensors) as checkpoint:
        assert list(checkpoint.tensors) == ["a.weight", "b.weight", "c.scale"]


def test_scales_may_lie_in_another_file(tmp_path: Path):
    write_model(tmp_path, {"quantization_config": scheme("v3")}, {})
    (tmp_path / "model.safetensors").unlink()
    write_safetensors(tmp_path / "1.safetensors", {"a.weight": eight_bits(seeded(), (4, 8))})
    write_safetensors(tmp_path / "2.safetensors", {"a.scale": exponents(seeded(), (1, 1), 120)})
    index = {"weight_map": {"a.weight": "1.safetensors", "a.scale": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with Checkpoint.open(tmp_path) as checkpoint:
        checkpoint.release("a.weight")
        assert checkpoint.array("a.weight").shape == (4, 8)


@pytest.mark.parametrize(
    ("grid", "kind"), [((3, 1), "F32"), ((1, 2, 1), "F32"), ((5,), "F32"), ((2, 1), "F16")]
)
def test_scales_that_do_not_fit(tmp_path: Path, grid: tuple[int, ...], kind: str):
    tensors = {"a.weight": eight_bits(seeded(), (20, 32)), "a.scale": stored(np.ones(grid), kind)}
    message = rf"'a.scale', {kind} .* cannot be the scales of 'a.weight', \[20, 32\], by blocks of"
    with pytest.raises(Unsupported, match=message):
        opened(tmp_path, tensors)


def test_a_weight_without_its_scales(tmp_path: Path):
    with (
        opened(tmp_path, {"a.weight": eight_bits(seeded(), (4, 8))}) as checkpoint,
        pytest.raises(Unsupported, match=r"a\.weight is F8_E4M3, whose scales are not there"),
    ):
        checkpoint.array("a.weight")


@pytest.mark.parametrize(
    ("key", "value"), [("fmt", "e5m2"), ("scale_fmt", "ue4m3"), ("expert_dtype", "nvfp4")]
)
def test_other_schemes(tmp_path: Path, key: str, value: str):
    path = folder(tmp_path, "v4")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"][key] = value
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=rf"quantization_config\.{key} is '{value}'; supported: "):
        CheckpointSource.open(path)
