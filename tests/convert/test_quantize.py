"""Quantising files: types and bytes are those of llama.cpp's quantiser."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.convert.quantize import decode, encode, quantize, typed
from ggmodel.convert.tensor_types import RECIPES, Candidate, choose, recipe_of
from ggmodel.convert.write import write_gguf
from ggmodel.errors import ConfigError, TensorError, Unsupported, WriteError
from ggmodel.gguf_file import DType, MemorySource, open_gguf
from ggmodel.ml.tensor import to_float32
from tests.convert import quantized
from tests.convert.folders import bfloat16

REFERENCE = quantized.reference()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {n: quantized.write(folder / f"{i}.gguf", n) for i, n in enumerate(quantized.MODELS)}


def test_every_type_is_compared():
    assert {r.name for r in RECIPES.values()} == {quantized.type_of(k) for k in quantized.KINDS}
    assert all(set(REFERENCE[name]) == set(quantized.KINDS) for name in quantized.MODELS)


@pytest.mark.parametrize("kind", quantized.KINDS)
@pytest.mark.parametrize("name", quantized.MODELS)
def test_a_file_is_what_llama_cpp_makes_of_it(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
):
    want = REFERENCE[name][kind]
    out = tmp_path / "out.gguf"
    matrix = None
    if quantized.is_weighted(kind):
        monkeypatch.chdir(tmp_path)  # the name of the matrix stands in the file
        matrix = quantized.IMATRIX
        quantized.importance(models[name]).write(matrix)
    with open_gguf(models[name]) as source:
        quantize(source, out, quantized.type_of(kind), imatrix=matrix)
    with open_gguf(out) as made:
        got = quantized.summary(made)
    assert got["types"] == want["types"]
    assert got["bytes"] == want["bytes"]
    assert hashlib.sha256(out.read_bytes()).hexdigest()[:32] == want["file"]


# values


def values(rows: int = 5, width: int = 512) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((rows, width)).astype(np.float32)


def test_f16_and_bf16_are_rounded_to_the_nearest():
    x = values()
    assert np.array_equal(encode(x, DType.F16).view(np.float16), x.astype(np.float16).ravel())
    assert np.array_equal(encode(x, DType.BF16).view(np.uint16), bfloat16(x).ravel())
    assert np.array_equal(
        decode(encode(x, DType.F16), DType.F16, x.size), x.astype(np.float16).ravel()
    )


@pytest.mark.parametrize("kind", sorted({r.dtype for r in RECIPES.values()}))
def test_what_is_encoded_comes_back_as_the_gguf_package_decodes_it(kind: DType):
    x = values()
    raw = encode(x, kind, importance=np.ones((1, x.shape[1]), np.float32))
    got = decode(raw, kind, x.size)
    want = to_float32(raw if kind.numpy is None else raw.view(kind.numpy), kind, x.shape[::-1])
    np.testing.assert_allclose(got.reshape(x.shape), want, rtol=1e-6, atol=1e-7)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch):
    x = values(64, 256)
    want = encode(x, DType.Q4_K).tobytes(), decode(encode(x, DType.Q4_K), DType.Q4_K, x.size)
    module = sys.modules["ggmodel.convert.quantize"]
    monkeypatch.setattr(module, "_PIECE", 1000)
    monkeypatch.setattr(module, "available_cores", lambda: 3)
    assert encode(x, DType.Q4_K).tobytes() == want[0]
    assert np.array_equal(decode(encode(x, DType.Q4_K), DType.Q4_K, x.size), want[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused(bad: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["ggmodel.convert.quantize"], "_PIECE", 512)  # of one row
    x = values()
    x[3, 7] = bad
    with pytest.raises(TensorError, match="w holds NaN or infinity, which Q4_0 cannot; use f16"):
        encode(x, DType.Q4_0, "w")
    assert encode(x, DType.F16).nbytes == x.size * 2


def test_types_that_need_more_than_weights_are_refused():
    for kind in (DType.IQ2_XXS, DType.Q8_K, DType.I32):
        with pytest.raises(Unsupported, match=f"cannot be quantised to {kind}"):
            encode(values(), kind)
    for kind in (DType.I32, DType.F64):
        with pytest.raises(Unsupported, match=f"{kind} cannot be converted"):
            decode(bytes(64), kind, 8)
    with pytest.raises(TensorError, match="multiple of 256"):
        encode(values(width=100), DType.Q4_K)


# files


def test_an_unknown_type_lists_those_there_are():
    assert recipe_of(" Q4_K ").name == "q4_K_M"
    with pytest.raises(ConfigError, match=r"no type 'q4_k_n'; did you mean q4_K_.\? Types are f32"):
        recipe_of("q4_k_n")


def test_a_split_file_becomes_one(models: dict[str, Path], tmp_path: Path):
    with open_gguf(models["grouped"]) as whole:
        names = list(whole.tensors)
        for i, part in enumerate((names[:40], names[40:])):
            keys: dict[str, Any] = {"split.no": np.uint16(i), "split.count": np.uint16(2)}
            keys["split.tensors.count"] = np.int32(len(names))
            write_gguf(
                tmp_path / f"a-{i + 1:05}-of-00002.gguf",
                {**typed(whole), **keys} if i == 0 else keys,
                [whole.tensors[n] for n in part],
                lambda t: whole.data(t.name),
                whole.release,
            )
    with open_gguf(tmp_path / "a-00001-of-00002.gguf") as source:
        quantize(source, tmp_path / "out.gguf", "q4_K_M")
    digest = hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest()[:32]
    assert digest == REFERENCE["grouped"]["q4_K_M"]["file"]


def test_what_is_quantised_stays_unless_that_is_meant(models: dict[str, Path], tmp_path: Path):
    with open_gguf(models["tied"]) as source:
        quantize(source, tmp_path / "q8.gguf", "q8_0")
    with open_gguf(tmp_path / "q8.gguf") as source:
        with pytest.raises(ConfigError, match=r"is Q8_0 already; .*--allow-requantize"):
            quantize(source, tmp_path / "q4.gguf", "q4_0")
        assert not (tmp_path / "q4.gguf").exists()
        quantize(source, tmp_path / "again.gguf", "q8_0")
        quantize(source, tmp_path / "q4.gguf", "q4_0", allow_requantize=True)
        with open_gguf(tmp_path / "q4.gguf") as made:
            name = "blk.0.ffn_up.weight"
            assert made.info(name).dtype is DType.Q4_0
            values = decode(source.data(name), DType.Q8_0, source.info(name).n_elements)
            assert made.data(name) == encode(values.reshape(-1, 256), DType.Q4_0).tobytes()
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "q8.gguf").read_bytes()


def test_what_a_model_sees_with_keeps_its_type():
    seen = {"v.blk.0.attn_v.weight", "mm.0.weight"}
    both = [Candidate(n, (256, 4), DType.F16) for n in (*seen, "blk.0.attn_v.weight")]
    metadata = {"general.architecture": "mllama", "mllama.block_count": 1}
    chosen = choose(recipe_of("q8_0"), metadata, both)
    assert {n for n, kind in chosen.items() if kind is DType.F16} == seen
    alone = choose(recipe_of("q8_0"), {"general.architecture": "clip"}, both)
    assert set(alone.values()) == {DType.Q8_0}


def test_a_file_whose_tensors_hold_nan_is_not_quantised(tmp_path: Path):
    x = values()
    x[0, 0] = np.nan
    source = MemorySource({"general.architecture": "llama"}, {"output.weight": x})
    with pytest.raises(TensorError, match=r"output.weight holds NaN"):
        quantize(source, tmp_path / "a.gguf", "q4_0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("heads", [5, [4, 8], []])
def test_odd_metadata_is_no_obstacle(tmp_path: Path, heads: Any):
    keys = {"general.architecture": "llama", "llama.attention.head_count": heads}
    source = MemorySource({k: v for k, v in keys.items() if v != []}, {"output.weight": values()})
    quantize(source, tmp_path / "a.gguf", "q3_K_M")
    with open_gguf(tmp_path / "a.gguf") as made:
        assert made.info("output.weight").dtype is DType.Q6_K


@pytest.mark.parametrize("layers", [1.5, "x", ["x"]])
def test_numbers_that_are_none_are_named(tmp_path: Path, layers: Any):
    keys = {"general.architecture": "llama", "llama.block_count": layers}
    source = MemorySource(keys, {"blk.0.attn_v.weight": np.zeros((4, 256), np.float32)})
    with pytest.raises(ConfigError, match=r"'llama.block_count' must be an integer"):
        quantize(source, tmp_path / "a.gguf", "q4_K_M")


def test_a_target_that_cannot_be_is_refused_before_any_work(
    models: dict[str, Path], tmp_path: Path
):
    with (
        open_gguf(models["tied"]) as source,
        pytest.raises(WriteError, match=r"the folder .* does not exist"),
    ):
        quantize(source, tmp_path / "no" / "a.gguf", "q4_0")
