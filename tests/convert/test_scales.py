"""Checkpoints in FP8 and FP4 beside transformers, which reads them as `make_scales.py` says."""

from __future__ import annotations

import json
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

import ggmodel
from ggmodel.convert import CheckpointSource
from ggmodel.convert.checkpoint import Checkpoint
from ggmodel.convert.declaration import PlannedTensor
from ggmodel.convert.from_hf import value_of_entry
from ggmodel.errors import Unsupported
from ggmodel.gguf_file import DType
from ggmodel.model.operations import Stack
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


def test_rows_of_blocks_are_their_numbers(tmp_path: Path):
    with CheckpointSource.open(folder(tmp_path, "v4")) as source:
        width, height, experts = source.info(EXPERTS).shape
        names = [f"layers.0.ffn.experts.{i}.w2.weight" for i in range(experts)]
        whole = np.concatenate([source.checkpoint.array(name) for name in names])
        assert whole.shape == (height * experts, width)
        rows = source.rows(EXPERTS, height - 1, 2 * height + 1)
        assert rows.dtype == np.float32
        assert np.array_equal(rows, whole[height - 1 : 2 * height + 1])


def rewritten(path: Path, tensors: dict[str, Stored]) -> Path:
    """A folder with other tensors of these names."""
    file = path / "model.safetensors"
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    held: dict[str, Stored] = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            begin, end = (start + offset for offset in entry["data_offsets"])
            held[name] = entry["dtype"], tuple(entry["shape"]), raw[begin:end]
    write_safetensors(file, held | tensors)
    return path


def test_experts_of_two_kinds_become_numbers(tmp_path: Path):
    path, stem = folder(tmp_path, "v4"), "layers.0.ffn.experts"
    with Checkpoint.open(path) as checkpoint:
        rows, columns = shape = checkpoint.stored(f"{stem}.1.w2.weight").shape
    other = {
        f"{stem}.1.w2.weight": eight_bits(seeded(), shape),
        f"{stem}.1.w2.scale": exponents(seeded(), (-(-rows // 16), -(-columns // 32)), 112),
    }
    with CheckpointSource.open(rewritten(path, other), "f32") as source:
        assert source.info(EXPERTS).dtype is DType.F32 and not source.keeps_blocks(EXPERTS)
        names = [f"{stem}.{i}.w2.weight" for i in range(source.info(EXPERTS).shape[2])]
        whole = np.stack([source.checkpoint.array(name) for name in names])
        values = np.frombuffer(source.data(EXPERTS), np.float32)
        assert np.array_equal(values, whole.ravel())
        assert np.array_equal(source.rows(EXPERTS, 0, rows), whole[0])


def test_a_tensor_of_blocks_that_is_not_stacked(tmp_path: Path):
    path, stem, name = folder(tmp_path, "v4"), "layers.0.attn.wq_b", "blk.0.attn_q_b.weight"
    with Checkpoint.open(path) as checkpoint:
        rows, columns = checkpoint.stored(f"{stem}.weight").shape
    packed = seeded().integers(0, 256, (rows, columns // 2)).astype(np.uint8)
    other = {
        f"{stem}.weight": ("I8", packed.shape, packed.tobytes()),
        f"{stem}.scale": exponents(seeded(), (rows, columns // 32), 118),
    }
    with CheckpointSource.open(rewritten(path, other)) as source:
        assert source.info(name).dtype is DType.MXFP4 and source.keeps_blocks(name)
        whole = source.checkpoint.array(f"{stem}.weight")
        blocks = np.frombuffer(source.data(name), np.uint8)
        values = dequantize(blocks, GGMLQuantizationType.MXFP4)
        assert np.array_equal(values.reshape(rows, columns), whole)
        assert np.array_equal(source.rows(name, 3, 9), whole[3:9])


def test_parts_of_a_stack_are_read_one_after_the_other():
    read: list[weakref.ref[np.ndarray]] = []

    def part(name: str) -> np.ndarray:
        assert sum(one() is not None for one in read) < 3
        array = np.full((2, 3), float(name), np.float32)
        read.append(weakref.ref(array))
        return array

    entry = PlannedTensor("w", tuple("123456"), Stack("{}", 6))
    whole = value_of_entry(entry, None, {}, part)
    assert whole is not None and whole[:, 1, 2].tolist() == [1, 2, 3, 4, 5, 6]


def test_numbers_and_scales_are_multiplied_in_place(tmp_path: Path):
    size, scales = 2048, np.arange(256, dtype=np.float32).reshape(16, 16)
    ones = "F8_E4M3", (size, size), bytes([0x38]) * size**2
    tensors = {"w": ones, "w_scale_inv": stored(scales)}
    with opened(tmp_path, tensors, weight_block_size=[128, 128]) as checkpoint:
        tracemalloc.start()
        try:
            array = checkpoint.array("w")
            assert tracemalloc.get_traced_memory()[1] < 1.5 * array.nbytes
        finally:
            tracemalloc.stop()
    assert np.array_equal(array, np.kron(scales, np.ones((128, 128))))


def test_exponents_of_all_bytes(tmp_path: Path):
    one = "F8_E4M3", (1, 256), bytes([0x38] * 256)
    scales = "F8_E8M0", (1, 256), bytes(range(256))
    with opened(tmp_path, {"w": one, "w_scale_inv": scales}, weight_block_size=None) as checkpoint:
        values = checkpoint.array("w")[0]
    assert np.array_equal(values, np.load(FILE)["e8m0"], equal_nan=True)


def opened(path: Path, tensors: dict[str, Stored], **changes: Any) -> Checkpoint:
    write_model(path, {"quantization_config": scheme("qwen3") | changes}, {})
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
        "c.weight": eight_bits(seeded(), (4, 8)),
        "c.weight_scale": stored(np.full((), 0.5)),
        "c.input_scale": stored(np.ones(())),
        "d.scale": stored(np.ones(8)),
    }
    with opened(tmp_path, tensors) as checkpoint:
        assert list(checkpoint.tensors) == ["a.weight", "b.weight", "c.weight", "d.scale"]
        assert np.array_equal(checkpoint.array("c.weight"), checkpoint.array("a.weight") / 2)


def test_scales_may_lie_in_another_file(tmp_path: Path):
    write_model(tmp_path, {"quantization_config": scheme("qwen3")}, {})
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
        pytest.raises(
            Unsupported, match=r"a\.weight is F8_E4M3, whose scales are missing or named otherwise"
        ),
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


@pytest.mark.parametrize("kind", ["fp4", "nvfp4"])
def test_the_type_of_experts_outside_of_the_scheme(tmp_path: Path, kind: str):
    """DeepSeek V4's config.json has it there."""
    path = folder(tmp_path, "v4")
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]["expert_dtype"]
    (path / "config.json").write_text(json.dumps({**config, "expert_dtype": kind}))
    if kind == "fp4":
        with CheckpointSource.open(path) as source:
            assert source.info(EXPERTS).dtype is DType.MXFP4
            assert not source.unread_keys
        return
    with pytest.raises(Unsupported, match="expert_dtype is 'nvfp4'; supported: fp8, fp4"):
        CheckpointSource.open(path)
