from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import pytest

from ggmodel.errors import Error, LoadError, Unsupported
from ggmodel.gguf_file import GGUF, Array, DType, open_gguf
from tests.children import import_path

SCALARS = {
    "u8": 255,
    "i8": -128,
    "u16": 65535,
    "i16": -32768,
    "u32": 2**32 - 1,
    "i32": -(2**31),
    "f32": 0.5,
    "bool": True,
    "u64": 2**64 - 1,
    "i64": -(2**63),
    "f64": 0.1,
}
NUMPY = {
    "u8": "u1",
    "i8": "i1",
    "u16": "<u2",
    "i16": "<i2",
    "u32": "<u4",
    "i32": "<i4",
    "f32": "<f4",
    "bool": "?",
    "u64": "<u8",
    "i64": "<i8",
    "f64": "<f8",
}


@pytest.fixture
def sample(save, packer):
    with GGUF(save(packer.sample())) as source:
        yield source


def test_files_of_the_gguf_package(tmp_path: Path):
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.eps", 0.25)
    writer.add_bool("flag", False)
    writer.add_string("text", "größer")
    writer.add_array("tokens", ["<s>", "▁a", ""])
    writer.add_array("scores", [0.5, -1.0])
    writer.add_custom_alignment(64)
    rng = np.random.default_rng(0)
    weights = {
        "a": rng.random((2, 3, 4), np.float32),
        "b": rng.random(5).astype(np.float16),
        "c": np.arange(6, dtype=np.int64).reshape(3, 2),
    }
    for name, w in weights.items():
        writer.add_tensor(name, w)
    floats = rng.random((4, 64), np.float32)
    blocks = gguf.quants.quantize(floats, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with open_gguf(path) as source:
        assert isinstance(source, GGUF)
        assert (source.version, source.alignment, source.files) == (3, 64, (path,))
        assert len(source.parts) == 1
        assert dict(source.metadata) == {
            "general.architecture": "llama",
            "llama.block_count": 3,
            "llama.eps": 0.25,
            "flag": False,
            "text": "größer",
            "tokens": ["<s>", "▁a", ""],
            "scores": [0.5, -1.0],
            "general.alignment": 64,
        }
        assert source.metadata_types["llama.block_count"] == "u32"
        assert source.metadata_types["tokens"] == "array"
        assert list(source.tensors) == ["a", "b", "c", "q"]
        for name, w in weights.items():
            t = source.tensors[name]
            assert t.shape == w.shape[::-1]
            assert t.n_elements == w.size
            assert t.dtype.numpy == w.dtype
            assert source.data(name) == w.tobytes()
            assert t.offset % 64 == 0
        q = source.tensors["q"]
        assert (q.shape, q.dtype, q.nbytes) == ((64, 4), DType.Q8_0, 4 * 68)
        assert source.data("q") == blocks.tobytes()
        whole = source.mapped(0)
        assert whole is not None
        assert whole == path.read_bytes()
        assert whole[q.offset : q.offset + q.nbytes] == source.data("q")


@pytest.mark.parametrize("version", [2, 3])
def test_versions(save, packer, version: int):
    with GGUF(save(packer.file([("k", packer.scalar("u8", 7))], version=version))) as source:
        assert source.version == version
        assert dict(source.metadata) == {"k": 7}
        assert dict(source.tensors) == {}


@pytest.mark.parametrize("kind", SCALARS)
def test_scalars(save, packer, kind: str):
    with GGUF(save(packer.file([("k", packer.scalar(kind, SCALARS[kind]))]))) as source:
        value = source.metadata["k"]
        assert value == SCALARS[kind]
        assert type(value) is type(SCALARS[kind])
        assert source.metadata_types["k"] == kind


@pytest.mark.parametrize("kind", SCALARS)
@pytest.mark.parametrize("shift", range(8))
def test_number_arrays_at_every_alignment(save, packer, kind: str, shift: int):
    values = [SCALARS[kind], 0, 1]
    raw = packer.file([("k" * (shift + 1), packer.array(kind, values))])
    with GGUF(save(raw)) as source:
        array = source.metadata["k" * (shift + 1)]
        assert isinstance(array, Array)
        assert array.dtype == kind
        assert array.tolist() == list(array) == values
        assert [type(v) for v in array] == [type(SCALARS[kind])] * 3
        assert [array[i] for i in (0, 1, -1)] == values
        numbers = array.numpy()
        assert numbers.dtype == np.dtype(NUMPY[kind])
        assert numbers.tolist() == values
        assert numbers.flags.aligned
        assert not numbers.flags.writeable


def test_sequence_behaviour(sample: GGUF):
    array = sample.metadata["a.u8"]
    assert len(array) == 3
    assert array[:2] == [1, 0]
    assert array[::-2] == [1, 1]
    assert array == [1, 0, 1]
    assert array == (1, 0, 1)
    assert array == sample.metadata["a.i64"]
    assert array != [1, 0]
    assert array != [1, 0, 2]
    assert array != "101"
    assert 0 in array
    assert array.index(0) == 1
    assert repr(array) == "Array(u8, 3 items)"
    for i in (3, -4):
        with pytest.raises(IndexError, match="of an array of 3"):
            array[i]
    with pytest.raises(TypeError):
        hash(array)
    with pytest.raises(TypeError):
        array[0] = 1  # type: ignore[index]


def test_strings_that_are_not_utf8(sample: GGUF):
    array = sample.metadata["a.string"]
    expected = [b"a", b"\xff\xfe", b"", "größer".encode()]
    assert array.raw() == expected
    assert [array.bytes_at(i) for i in range(-4, 0)] == expected
    assert array.tolist() == list(array) == [array[i] for i in range(4)]
    assert array[3] == "größer"
    assert [s.encode("utf-8", "surrogateescape") for s in array] == expected
    with pytest.raises(IndexError):
        array.bytes_at(4)
    with pytest.raises(Unsupported, match="no numpy form"):
        array.numpy()
    with pytest.raises(Unsupported, match="no strings"):
        sample.metadata["a.u8"].raw()
    with pytest.raises(Unsupported, match="no strings"):
        sample.metadata["a.u8"].bytes_at(0)


@pytest.mark.parametrize(
    "strings",
    [
        [],
        [b""],
        [b"", b"", b""],
        [b"\0"],
        [b"a\0b", b"c"],
        [b"\0\0", b"", b"\xe2\x82"],
        [b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x98\x80 \xff"],  # what follows must not join
        [b"x" * 300, b"y" * 70_000, "größer\n".encode()],
    ],
)
def test_strings_are_parted_where_they_end(save, packer, strings: list[bytes]):
    with GGUF(save(packer.file([("k", packer.array("string", strings))]))) as source:
        array = source.metadata["k"]
        expected = [s.decode("utf-8", "surrogateescape") for s in strings]
        assert array.raw() == strings
        assert array.tolist() == list(array) == [array[i] for i in range(len(strings))] == expected


@pytest.mark.parametrize("odd", [None, b"", bytes(9), b"\5" + bytes(7) + b"lie", b"z" * 256])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_many_strings_are_parted_where_they_end(save, packer, odd: bytes | None, count: int):
    random = Random(count)
    strings = [b"\0a", *(b"t" * random.randint(1, 40) for _ in range(9000))]  # several reads
    for _ in range(count if odd is not None else 0):
        strings.insert(random.randrange(len(strings)), odd or b"")
    with GGUF(
        save(packer.file([("k", packer.array("string", strings)), ("n", packer.scalar("u8", 7))]))
    ) as source:
        assert source.metadata["k"].raw() == strings
        assert source.metadata["n"] == 7


def test_scalar_string_that_is_not_utf8(save, packer):
    with GGUF(save(packer.file([("k", packer.scalar("string", b"\x80x"))]))) as source:
        assert source.metadata["k"].encode("utf-8", "surrogateescape") == b"\x80x"


def test_nested_arrays(save, packer):
    inner = packer.nested(packer.items("u16", [1, 2]), packer.items("string", ["x", "yz"]))
    empty = packer.items("f32", [])
    raw = packer.file([("n", packer.nested(inner[4:], empty)), ("z", packer.scalar("u8", 9))])
    with GGUF(save(raw)) as source:
        array = source.metadata["n"]
        assert array.dtype == "array"
        assert [a.dtype for a in array] == ["array", "f32"]
        assert array[0][1].raw() == [b"x", b"yz"]
        assert array.tolist() == [[[1, 2], ["x", "yz"]], []]
        assert array == [[[1, 2], ["x", "yz"]], []]
        assert array[0][0].numpy().tolist() == [1, 2]
        assert source.metadata["z"] == 9


def test_empty_arrays(save, packer):
    pairs = [(k, packer.array(k, [])) for k in (*SCALARS, "string")]
    with GGUF(save(packer.file([*pairs, ("n", packer.nested())]))) as source:
        assert all(v == [] and v.tolist() == [] for v in source.metadata.values())
        assert source.metadata["string"].raw() == []
        assert source.metadata["bool"].numpy().shape == (0,)


def test_scalar_tensor_has_one_dimension(save, packer):
    raw = packer.file([], [packer.tensor("s", (), 0, 0)], struct.pack("<f", 2.0))
    with GGUF(save(raw)) as source:
        assert source.tensors["s"].shape == (1,)
        assert source.data("s").cast("f")[0] == 2.0


def test_shapes_keep_trailing_ones(sample: GGUF):
    assert [t.shape for t in sample.tensors.values()] == [(4, 2), (32,), (3, 1, 1, 1)]
    assert sample.data("c.weight") == bytes(range(96, 102))


def test_data_may_have_gaps_and_any_order(save, packer):
    tensors = [packer.tensor("late", (4,), 24, 64), packer.tensor("early", (4,), 24, 0)]
    with GGUF(save(packer.file([], tensors, bytes(range(68))))) as source:
        assert list(source.tensors) == ["late", "early"]
        assert source.data("late") == bytes([64, 65, 66, 67])
        assert source.data("early") == bytes([0, 1, 2, 3])


def test_unknown_tensor_names_the_nearest(sample: GGUF):
    with pytest.raises(LoadError, match=r"no tensor 'a.wieght'; the nearest names are a.weight"):
        sample.data("a.wieght")
    with pytest.raises(LoadError, match=r"no name is similar"):
        sample.info("0000")


def test_nothing_can_be_modified(sample: GGUF):
    index: Any
    for index in (sample.metadata, sample.tensors, sample.metadata_types, sample.parts[0].metadata):
        with pytest.raises(TypeError):
            index["k"] = 1
    with pytest.raises(AttributeError):
        sample.tensors["a.weight"].shape = (1,)  # type: ignore[misc]
    assert sample.data("a.weight").readonly
    assert sample.mapped(0).readonly


def test_views_outlive_close(save, packer):
    source = GGUF(save(packer.sample()))
    data = source.data("a.weight")
    numbers = np.frombuffer(data, np.uint8)
    scores = source.metadata["a.u8"].numpy()
    tokens = source.metadata["a.string"]
    source.close()
    source.close()
    del source
    gc.collect()
    assert data == bytes(range(32))
    assert numbers.tolist() == list(range(32))
    assert scores.tolist() == [1, 0, 1]
    with pytest.raises(Error, match="is closed"):
        tokens.tolist()


def test_after_close(save, packer):
    with GGUF(save(packer.sample())) as source:
        array = source.metadata["a.f32"]
    assert source.metadata["general.architecture"] == "test"
    assert source.tensors["a.weight"].shape == (4, 2)
    assert repr(array) == "Array(f32, 3 items)"
    for read in (
        lambda: source.data("a.weight"),
        lambda: source.mapped(0),
        array.tolist,
        array.numpy,
        lambda: array[0],
        lambda: source.metadata["a.string"][0],
    ):
        with pytest.raises(Error, match=r"model.gguf is closed; open it again"):
            read()


def _open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.slow
def test_thousand_openings_leak_nothing(save, packer):
    path = save(packer.sample())

    def cycle(n: int) -> None:
        for i in range(n):
            source = GGUF(path)
            held = source.data("a.weight") if i % 2 else None
            source.metadata["a.string"].tolist()
            source.close()
            assert held is None or held[0] == 0

    cycle(10)
    gc.collect()
    before = _open_descriptors()
    tracemalloc.start()
    cycle(10)
    start = tracemalloc.get_traced_memory()[0]
    cycle(1000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert _open_descriptors() == before
    assert grown < 64 * 1024


def test_failed_openings_leak_nothing(save, packer):
    path = save(packer.sample()[:-1])
    before = _open_descriptors()
    for _ in range(50):
        with pytest.raises(Error):
            GGUF(path)
    gc.collect()
    assert _open_descriptors() == before


# Runs in a new process, whose peak memory is that of the reader alone.
_MEASURE = """
import sys
import numpy
from ggmodel.gguf_file import GGUF

def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

before = peak()
source = GGUF(sys.argv[1])
print(peak() - before)
m = source.metadata
assert m["scores"].numpy()[-1] == 262143 and m["types"].numpy()[-1] == 1
assert m["tokens"][262143] == "token 262143"
print(peak() - before)
assert len(m["tokens"].tolist()) == 262144
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_memory_of_a_large_vocabulary(save, packer):
    n = 262_144
    path = save(
        packer.file(
            [
                ("tokens", packer.array("string", [f"token {i}" for i in range(n)])),
                ("scores", packer.array("f32", range(n))),
                ("types", packer.array("i32", [1] * n)),
            ]
        )
    )
    result = subprocess.run(
        [sys.executable, "-c", _MEASURE, path],
        env={**os.environ, "PYTHONPATH": import_path()},
        check=True,
        capture_output=True,
        text=True,
    )
    opened, numbers, decoded = map(int, result.stdout.split())
    assert 0 < opened < 40e6
    assert numbers < 50e6
    assert decoded < 100e6
