"""Hugging Face folders: what is read, and that hostile ones end in an error."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.convert.checkpoint import Checkpoint, read_json
from ggmodel.errors import FormatError, LoadError, Unsupported
from tests.convert.folders import bfloat16, stored, write_model, write_safetensors

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}
INDEX = "model.safetensors.index.json"


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    return {f"w.{i}": values(3, i + 1, seed=i) for i in range(7)}


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_what_was_saved(tmp_path: Path, weights: dict[str, np.ndarray], shards: int):
    with Checkpoint.open(write_model(tmp_path, CONFIG, weights, shards=shards)) as checkpoint:
        assert checkpoint.config == CONFIG
        assert list(checkpoint.tensors) == list(weights)
        assert len(checkpoint.files) == shards
        for name, want in weights.items():
            assert checkpoint.tensors[name].shape == want.shape
            assert np.array_equal(checkpoint.array(name), want)
            assert checkpoint.raw(name) == want.tobytes()


def test_nothing_is_copied(tmp_path: Path):
    write_model(tmp_path, CONFIG, {"w": values(1 << 10, 1 << 10)})
    with Checkpoint.open(tmp_path) as checkpoint:
        checkpoint.raw("w")  # loads the binding
        tracemalloc.start()
        array = checkpoint.array("w")
        raw = checkpoint.raw("w")
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
        tracemalloc.stop()
        assert not array.flags.writeable and raw.readonly
        checkpoint.release("w")
        assert array[5, 5] == values(1 << 10, 1 << 10)[5, 5]


@pytest.mark.parametrize("keep", [0, 5000, None])
def test_a_file_that_changes_while_it_is_open(tmp_path: Path, keep: int | None):
    folder = write_model(tmp_path, CONFIG, {"w": values(1 << 10, 64), "v": values(8)})
    path = folder / "model.safetensors"
    os.utime(path, ns=(10**18, 10**18))
    with Checkpoint.open(folder) as checkpoint:
        array = checkpoint.array("w")
        if keep is None:
            with open(path, "r+b") as file:
                file.write(b"\0")
        else:
            os.truncate(path, keep)
        assert np.isfinite(array).all()  # lost pages are zeros
        changed = "model.safetensors has changed on disk"
        for read in (lambda: checkpoint.release("w"), checkpoint.check_unchanged):
            with pytest.raises(FormatError, match=changed):
                read()


def test_bfloat16_becomes_float32_exactly(tmp_path: Path):
    x = values(5, 7)
    write_model(tmp_path, CONFIG, {"w": x}, "BF16")
    with Checkpoint.open(tmp_path) as checkpoint:
        got = checkpoint.array("w")
        assert got.dtype == np.float32
        assert np.array_equal(bfloat16(got), bfloat16(x))
        assert checkpoint.raw("w") == bfloat16(x).tobytes()


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "U8"])
def test_other_types_are_as_they_lie(tmp_path: Path, dtype: str):
    x = np.arange(6).reshape(2, 3)
    write_model(tmp_path, CONFIG, {})
    write_safetensors(tmp_path / "model.safetensors", {"w": stored(x, dtype), "n": stored(x[0, 0])})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert np.array_equal(checkpoint.array("w"), x)
        assert checkpoint.array("n").shape == ()


SIZES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8},
    **{"U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1},
}


@pytest.mark.parametrize("dtype", SIZES)
def test_every_type_has_its_size(tmp_path: Path, dtype: str):
    data = bytes(range(1, 6 * SIZES[dtype] + 1))
    write_model(tmp_path, CONFIG, {})
    write_safetensors(tmp_path / "model.safetensors", {"w": (dtype, (2, 3), data)})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.raw("w") == data
        assert checkpoint.stored("w").shape == (2, 3)


def test_eight_bit_floats_are_refused_by_name(tmp_path: Path):
    write_model(tmp_path, CONFIG, {})
    tensors = {"scaled": ("F8_E4M3", (4,), b"abcd")}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.raw("scaled") == b"abcd"
        with pytest.raises(Unsupported, match=r"scaled is F8_E4M3.* BF16, F16 or F32"):
            checkpoint.array("scaled")


def test_a_tensor_that_is_not_there(tmp_path: Path, weights: dict[str, np.ndarray]):
    with (
        Checkpoint.open(write_model(tmp_path, CONFIG, weights)) as checkpoint,
        pytest.raises(LoadError, match="has no tensor 'nothing'"),
    ):
        checkpoint.array("nothing")


def test_dense_modules_have_the_name_of_their_folder(tmp_path: Path):
    write_model(tmp_path, CONFIG, {"w": values(2)})
    write_model(tmp_path / "2_Dense", {}, {"linear.weight": values(3)})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["w"]
    (tmp_path / "modules.json").write_text("[]")
    with Checkpoint.open(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["2_Dense.linear.weight", "w"]


# what is missing or does not belong there

Spoil = Callable[[Path], Any]


def unlink(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def replace(name: str, text: str | bytes) -> Spoil:
    data = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / name).write_bytes(data)


def rename(name: str, other: str) -> Spoil:
    return lambda folder: (folder / name).rename(folder / other)


def index(**entries: Any) -> Spoil:
    def change(folder: Path) -> None:
        content = json.loads((folder / INDEX).read_text())
        content["weight_map"] |= entries
        (folder / INDEX).write_text(json.dumps(content))

    return change


LAST = "model-00003-of-00003.safetensors"
BROKEN_FOLDERS: dict[str, tuple[int, Spoil, str]] = {
    "no config": (
        1,
        unlink("config.json"),
        r"without config.json, so no Hugging Face model; download",
    ),
    "config is a list": (1, replace("config.json", "[]"), "should hold a JSON object"),
    "config is no JSON": (1, replace("config.json", "{"), "no valid JSON"),
    "config is deep": (1, replace("config.json", "[" * 100_000), "nested too deeply"),
    "config is no text": (1, replace("config.json", b"\xff\xfe{}"), "no UTF-8"),
    "a long number": (1, replace("config.json", '{"a": ' + "1" * 9999 + "}"), "no valid JSON"),
    "no tensors": (1, unlink("model.safetensors"), "has no model.safetensors; download"),
    "pickles": (1, rename("model.safetensors", "pytorch_model.bin"), "as pickles.*save_pretrained"),
    "another name": (1, rename("model.safetensors", "x.safetensors"), "files named otherwise"),
    "the names of Mistral": (
        1,
        rename("model.safetensors", "consolidated.safetensors"),
        "tensors in Mistral's own form",
    ),
    "the form of Mistral": (
        1,
        lambda folder: (
            (folder / "config.json").rename(folder / "params.json"),
            (folder / "model.safetensors").rename(folder / "consolidated.safetensors"),
        ),
        "is in Mistral's own form.*get config.json and model",
    ),
    "no index": (3, unlink(INDEX), "download the index too"),
    "no shard": (
        3,
        unlink(LAST),
        r"does not exist, but model.safetensors.index.json names it; download all",
    ),
    "empty index": (3, replace(INDEX, "{}"), "has no weight_map"),
    "a tensor too many": (3, index(more=LAST), "'more' is in .*, but it is not there"),
    "another shard": (3, index(**{"w.0": LAST}), r"'w.0' is in .*, but it is in .*00001-of"),
    "a way out": (3, index(a="../x.safetensors"), r"names the file '\.\./x.safetensors'; only"),
    "an absolute path": (3, index(a="/etc/x.safetensors"), "names the file '/etc/x.safetensors'"),
    "no safetensors": (3, index(a="config.json"), "only names of .safetensors"),
    "no name": (3, index(a=7), "names the file '7'"),
}


@pytest.mark.parametrize("name", BROKEN_FOLDERS)
def test_a_broken_folder_says_what_is_wrong(
    tmp_path: Path, weights: dict[str, np.ndarray], name: str
):
    shards, spoil, message = BROKEN_FOLDERS[name]
    spoil(write_model(tmp_path, CONFIG, weights, shards=shards))
    with pytest.raises(FormatError, match=message):
        Checkpoint.open(tmp_path)


def test_a_folder_of_files_says_so(tmp_path: Path):
    (tmp_path / "a.gguf").touch()
    with pytest.raises(
        FormatError, match=r"so no Hugging Face model; give a file in it, such .*a.gguf"
    ):
        Checkpoint.open(tmp_path)


def test_what_is_no_folder(tmp_path: Path):
    with pytest.raises(FormatError, match="is no folder"):
        Checkpoint.open(tmp_path / "nothing")


def test_a_pipe_is_no_config(tmp_path: Path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(FormatError, match="is not a regular file"):
        Checkpoint.open(tmp_path)


def test_two_shards_with_the_same_tensor(tmp_path: Path, weights: dict[str, np.ndarray]):
    write_model(tmp_path, CONFIG, weights, shards=3)
    write_safetensors(tmp_path / LAST, {n: stored(weights[n]) for n in ("w.0", "w.5", "w.6")})
    with pytest.raises(FormatError, match=r"tensor 'w.0' is also in .*00001-of"):
        Checkpoint.open(tmp_path)


# headers

W = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN_HEADERS: dict[str, tuple[Any, str]] = {
    "an offset behind the end": (W | {"shape": [3], "data_offsets": [0, 12]}, "has 8 left"),
    "an offset far behind it": (W | {"data_offsets": [1 << 40, (1 << 40) + 8]}, "needs 8 bytes"),
    "a negative offset": (W | {"data_offsets": [-8, 0]}, "describes the tensor 'w' wrongly"),
    "ends before it begins": (W | {"data_offsets": [8, 0]}, "takes 8 bytes, not -8"),
    "another size": (W | {"shape": [3]}, r"\[3\] of F32 takes 12 bytes, not 8"),
    "a huge shape": (W | {"shape": [1 << 47, 1 << 47]}, "bytes, not 8"),
    "a shape that overflows": (W | {"shape": [1 << 64]}, "wrongly"),
    "too many dims": (W | {"shape": [1] * 9}, "wrongly"),
    "a size of words": (W | {"shape": ["2"]}, "wrongly"),
    "a size that is true": (W | {"shape": [True, 2]}, "wrongly"),
    "a fraction": (W | {"shape": [2.0]}, "wrongly"),
    "no shape": ({"dtype": "F32", "data_offsets": [0, 8]}, "wrongly"),
    "no entry": (5, "wrongly"),
    "no type": (W | {"dtype": None}, "wrongly"),
    "an unknown type": (W | {"dtype": "F4"}, "unknown type 'F4'; known are F64"),
}


def file_with(folder: Path, header: bytes, length: int | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    size = (len(header) if length is None else length).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(size + header + bytes(8))
    return folder


@pytest.mark.parametrize("name", BROKEN_HEADERS)
def test_a_lying_header_is_an_error_with_the_file(tmp_path: Path, name: str):
    entry, message = BROKEN_HEADERS[name]
    with pytest.raises(FormatError, match=message) as caught:
        Checkpoint.open(file_with(tmp_path, json.dumps({"w": entry}).encode()))
    behind = name.startswith("an offset")  # the place where the data should be
    assert ("model.safetensors: at byte 8: " in str(caught.value)) is not behind
    assert "model.safetensors: at byte " in str(caught.value)


@pytest.mark.parametrize(
    ("header", "length", "message"),
    [
        (b"", (1 << 64) - 1, "the header needs 18446744073709551615 bytes"),
        (b"{}", 1 << 30, "the header needs"),
        (b"{}", 0, "no valid JSON"),
        (b"[" * 99_999, None, "nested too deeply"),
        (b'{"w":' * 99_999, None, "nested too deeply"),
        (b'{"a": NaN', None, "no valid JSON"),
        (b"\xff" * 9, None, "no UTF-8"),
    ],
)
def test_a_broken_header_is_an_error(
    tmp_path: Path, header: bytes, length: int | None, message: str
):
    with pytest.raises(FormatError, match=message):
        Checkpoint.open(file_with(tmp_path, header, length))


V = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
BROKEN_LAYOUTS: dict[str, dict[str, Any]] = {
    "bytes that no tensor has": {"w": W | {"shape": [1], "data_offsets": [0, 4]}},
    "a gap before the first": {"w": V},
    "two that overlap": {"w": W, "v": V},
    "two in the same place": {"w": W, "v": W},
    "metadata of numbers": {"w": W, "__metadata__": {"format": 1}},
}


@pytest.mark.parametrize("name", BROKEN_LAYOUTS)
def test_what_safetensors_refuses_is_refused(tmp_path: Path, name: str):
    folder = file_with(tmp_path, json.dumps(BROKEN_LAYOUTS[name]).encode())
    with pytest.raises(
        FormatError, match=r"model\.safetensors: at byte 8: no valid safetensors \("
    ):
        Checkpoint.open(folder)


def test_a_header_larger_than_any_model_needs_is_not_parsed(tmp_path: Path):
    path = file_with(tmp_path, b"{}") / "model.safetensors"
    with open(path, "r+b") as file:  # sparse
        file.write((64 << 20).to_bytes(8, "little"))
        file.truncate(65 << 20)
    tracemalloc.start()
    with pytest.raises(
        FormatError,
        match=r"header has 67,108,864 bytes, but the limit is 33,554,432.*text_file_bytes",
    ):
        Checkpoint.open(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_truncated_file(tmp_path: Path, weights: dict[str, np.ndarray]):
    path = write_model(tmp_path, CONFIG, weights) / "model.safetensors"
    whole = path.read_bytes()
    for end in (4, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(FormatError, match="truncated or damaged"):
            Checkpoint.open(tmp_path)


def test_damaged_files_are_read_or_refused(tmp_path: Path, weights: dict[str, np.ndarray]):
    path = write_model(tmp_path, CONFIG, weights) / "model.safetensors"
    whole, draw = path.read_bytes(), random.Random(7)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(600)] = draw.choice([0, 9, 34, 44, 48, 57, 91, 125, 255])
        path.write_bytes(data)
        try:
            with Checkpoint.open(tmp_path) as checkpoint:
                for name in checkpoint.tensors:
                    assert checkpoint.array(name).nbytes <= len(whole)
        except (FormatError, Unsupported):
            refused += 1
    assert 100 < refused < 400


def test_json_that_is_read_by_itself(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, "ä"]}')
    assert read_json(path) == {"a": [1, "ä"]}
