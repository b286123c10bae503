from __future__ import annotations

import numpy as np
import pytest

from ggmodel.errors import ConfigError, FormatError, LoadError, TensorError
from ggmodel.gguf_file import GGUF, Array, DType, JoinedSource, MemorySource, open_gguf


def test_memory_tensors():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    source = MemorySource(
        {},
        {
            "a": a,
            "t": a.T,
            "f64": np.ones(2),
            "f16": np.ones((1, 2, 3, 4), np.float16),
            "big": np.arange(3, dtype=">i4"),
            "scalar": np.array(1.5, np.float32),
            "q": (DType.Q8_0, (32, 2), bytes(68)),
        },
        name="tiny",
    )
    shapes = {n: (t.dtype.name, t.shape, t.nbytes) for n, t in source.tensors.items()}
    assert shapes == {
        "a": ("F32", (3, 2), 24),
        "t": ("F32", (2, 3), 24),
        "f64": ("F64", (2,), 16),
        "f16": ("F16", (4, 3, 2, 1), 48),
        "big": ("I32", (3,), 12),
        "scalar": ("F32", (1,), 4),
        "q": ("Q8_0", (32, 2), 68),
    }
    assert source.data("a") == a.tobytes()
    assert source.data("t") == a.T.tobytes()
    assert source.data("big") == np.arange(3, dtype="<i4").tobytes()
    assert source.data("a").readonly
    assert np.shares_memory(np.frombuffer(source.data("a"), np.float32), a)
    assert source.mapped(0) is None
    with pytest.raises(LoadError, match="tiny has no tensor 'b'"):
        source.data("b")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(2, np.complex64), "no type for numpy's complex64"),
        (np.ones(2, bool), "no type for numpy's bool"),
        (np.ones((1, 1, 1, 1, 1), np.float32), "one to four"),
        (np.ones((2, 0), np.float32), "sizes above 0"),
        ((DType.Q8_0, (32,), bytes(33)), r"\[32\] of Q8_0 takes 34 bytes, not 33"),
        ((DType.Q8_0, (33,), bytes(34)), "a multiple of 32"),
        ((DType.F32, (), bytes(4)), "one to four"),
    ],
)
def test_memory_tensors_refused(value, message: str):
    with pytest.raises(TensorError, match=message):
        MemorySource({}, {"x": value})


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([1, -2], "i64", [1, -2]),
        ([2**63], "u64", [2**63]),
        ([0.1, 2], "f64", [0.1, 2.0]),
        ((True, False), "bool", [True, False]),
        ([np.True_], "bool", [True]),
        (["a", b"\xff"], "string", ["a", "\udcff"]),
        ([np.float32(0.5), np.int8(1)], "f64", [0.5, 1.0]),
        (np.array([1, 2], np.uint16), "u16", [1, 2]),
        (np.array([1, 2], ">i4"), "i32", [1, 2]),
        (np.array([0.5], np.float32), "f32", [0.5]),
        (np.array([True]), "bool", [True]),
        (np.arange(4, dtype=np.int32).reshape(2, 2), "array", [[0, 1], [2, 3]]),
        ([[1], ["a"], []], "array", [[1], ["a"], []]),
        ([], "i64", []),
    ],
)
def test_memory_arrays_read_like_those_of_files(value, dtype: str, expected):
    array = MemorySource({"k": value}, {}).metadata["k"]
    assert isinstance(array, Array)
    assert array.dtype == dtype
    assert array == expected
    again = MemorySource({"k": array, "n": [array]}, {}).metadata
    assert again["k"] == expected
    assert again["n"] == [expected]
    assert again["n"][0].dtype == dtype


def test_memory_scalars():
    given = {"b": True, "i": 3, "f": 0.5, "s": "x", "n": np.int32(4), "z": np.array(0.5)}
    source = MemorySource(given, {})
    assert dict(source.metadata) == {"b": True, "i": 3, "f": 0.5, "s": "x", "n": 4, "z": 0.5}
    assert [type(v) for v in source.metadata.values()] == [bool, int, float, str, int, float]
    with pytest.raises(TypeError):
        source.metadata["b"] = False  # type: ignore[index]


def _deep(n: int) -> list:
    return [_deep(n - 1)] if n else [1]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": 1},
        b"x",
        [1, "a"],
        [None],
        [2**64],
        [-1, 2**63],
        np.array([1j]),
        np.array(["a"]),
        _deep(8),
    ],
)
def test_memory_metadata_refused(value):
    with pytest.raises(ConfigError, match="metadata 'k'"):
        MemorySource({"k": value}, {})


def test_join(save, packer):
    model = packer.file(
        [
            ("general.architecture", packer.scalar("string", "gemma3")),
            ("gemma3.block_count", packer.scalar("u32", 2)),
        ],
        [packer.tensor("a", (4,), 24, 0)],
        b"text",
    )
    projector = packer.file(
        [
            ("general.architecture", packer.scalar("string", "clip")),
            ("general.type", packer.scalar("string", "mmproj")),
            ("clip.vision.block_count", packer.scalar("u32", 5)),
        ],
        [packer.tensor("v", (4,), 24, 0)],
        b"view",
    )
    first, second = save(model, "model.gguf"), save(projector, "mmproj.gguf")
    with open_gguf(first, mmproj=second) as source:
        assert isinstance(source, JoinedSource)
        assert dict(source.metadata) == {
            "general.architecture": "gemma3",
            "gemma3.block_count": 2,
            "clip.vision.block_count": 5,
        }
        assert list(source.tensors) == ["a", "v"]
        assert [t.file for t in source.tensors.values()] == [0, 1]
        assert source.files == (first, second)
        assert source.data("a") == b"text"
        assert source.data("v") == b"view"
        for i, raw in enumerate((model, projector)):
            assert source.mapped(i) == raw
        with pytest.raises(LoadError, match=r"model.gguf \+ .*mmproj.gguf has no tensor"):
            source.data("w")
        assert isinstance(source.first, GGUF)
    with pytest.raises(Exception, match="is closed"):
        source.data("a")
    with pytest.raises(Exception, match="is closed"):
        source.data("v")


def test_join_refuses_common_names(save, packer):
    path = save(packer.sample())
    with pytest.raises(FormatError, match=r"both have a tensor 'a.weight' \(3 in common\)"):
        open_gguf(path, mmproj=path)


def test_join_with_a_missing_projector(save, packer, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.gguf does not exist"):
        open_gguf(save(packer.sample()), mmproj=tmp_path / "none.gguf")


def test_join_refused_memory_source():
    a, b = (MemorySource({}, {"w": np.ones(1, np.float32)}, name=n) for n in "ab")
    with pytest.raises(FormatError, match="a and b both have"):
        JoinedSource(a, b)
