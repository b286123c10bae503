"""Writing files: whole or not at all, with the types that values have."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import CheckpointSource
from ggmodel.convert.export import convert
from ggmodel.convert.write import info, write_gguf
from ggmodel.errors import Error, Unsupported, WriteError
from ggmodel.gguf_file import Array, DType, MemorySource, TensorInfo, open_gguf
from tests.convert.folders import write_golden, write_model, write_tokenizer
from tests.golden.files import load_golden

TENSORS = [info("a", (32, 4), DType.F32), info("b", (64,), DType.Q8_0), info("c", (5,), DType.F16)]


def data(t: TensorInfo) -> memoryview:
    return memoryview(np.arange(t.nbytes, dtype=np.uint8).tobytes())


def write(path: Path, metadata: dict[str, Any] | None = None, **options: Any) -> None:
    keys = {"general.architecture": "x"} if metadata is None else metadata
    arguments: dict[str, Any] = {"data": data, "release": lambda _: None, **options}
    write_gguf(path, keys, TENSORS, **arguments)


def test_what_is_written_can_be_read(tmp_path: Path):
    released, shares = [], []
    write(tmp_path / "a.gguf", release=released.append, progress=shares.append)
    with open_gguf(tmp_path / "a.gguf") as made:
        assert list(made.tensors) == released == ["a", "b", "c"]
        for t in TENSORS:
            assert (made.info(t.name).shape, made.info(t.name).dtype) == (t.shape, t.dtype)
            assert made.data(t.name) == data(t)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]


VALUES: dict[str, tuple[Any, str]] = {
    "bool": (True, "bool"),
    "natural": (7, "u32"),
    "large": (1 << 32, "u64"),
    "negative": (-1, "i32"),
    "very negative": (-(1 << 40), "i64"),
    "float": (0.1, "f32"),
    "string": ("ä\0", "string"),
    "bytes": (b"abc", "string"),
    "numpy": (np.int32(5), "i32"),
    "numpy float": (np.float64(0.1), "f64"),
    "numpy bool": (np.bool_(True), "bool"),
    "u8": (np.uint8(5), "u8"),
}
ARRAYS: dict[str, tuple[Any, str]] = {
    "strings": (["a", "ü"], "string"),
    "raw strings": (["a", b"\xff"], "string"),
    "bools": ([True, False], "bool"),
    "ints": ([1, -2], "i32"),
    "large ints": ([1 << 31], "i64"),
    "larger ints": ([1 << 63], "u64"),
    "floats": ([0.5, 1], "f32"),
    "numpy": (np.array([1, 2], np.uint16), "u16"),
    "numpy floats": (np.array([0.5]), "f64"),
}


def test_values_have_their_types(tmp_path: Path):
    write(tmp_path / "a.gguf", {k: v for k, (v, _) in VALUES.items()})
    with open_gguf(tmp_path / "a.gguf") as made:
        for key, (value, kind) in VALUES.items():
            want = value.decode() if isinstance(value, bytes) else value
            assert made.metadata_types[key] == kind  # type: ignore[attr-defined]
            assert made.metadata[key] == (np.float32(want) if kind == "f32" else want), key


def test_arrays_have_their_types(tmp_path: Path):
    again = MemorySource({k: v for k, (v, _) in ARRAYS.items()}, {}).metadata
    write(tmp_path / "a.gguf", {k: v for k, (v, _) in ARRAYS.items()} | {"none": []})
    write(tmp_path / "b.gguf", dict(again))
    with open_gguf(tmp_path / "a.gguf") as a, open_gguf(tmp_path / "b.gguf") as b:
        for key, (value, kind) in ARRAYS.items():
            found = a.metadata[key]
            assert isinstance(found, Array) and found.dtype == kind, key
            assert len(found) == len(value)
            assert b.metadata[key] == again[key] == found
            assert b.metadata[key].dtype == again[key].dtype
        assert "none" not in a.metadata


@pytest.mark.parametrize("value", [None, {"a": 1}, [None], [[1]], 1 << 64, ["a", 1], object()])
def test_what_gguf_has_no_type_for(tmp_path: Path, value: Any):
    with pytest.raises(Unsupported, match="metadata 'key'"):
        write(tmp_path / "a.gguf", {"key": value})
    assert list(tmp_path.iterdir()) == []


# whole or not at all


def test_a_file_that_exists_is_only_replaced_when_that_is_meant(tmp_path: Path):
    path = tmp_path / "a.gguf"
    path.write_text("precious")
    with pytest.raises(WriteError, match=r"a.gguf exists; --force \(force=True\) replaces it"):
        write(path)
    assert path.read_text() == "precious"
    write(path, force=True)
    assert path.read_bytes()[:4] == b"GGUF"


class Stopped(Exception):
    pass


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(3), SystemExit),
        (Unsupported("that"), Unsupported),
        (Stopped(), Stopped),
        (OSError(errno.ENOSPC, "No space left on device"), WriteError),
        (OSError("8 requested and 3 written"), WriteError),
    ],
)
@pytest.mark.parametrize("existing", [True, False])
def test_nothing_is_left_of_a_file_that_was_not_finished(
    tmp_path: Path, raised: Any, caught: type[BaseException], existing: bool
):
    path = tmp_path / "a.gguf"
    if existing:
        path.write_text("precious")

    def fails(t: TensorInfo) -> memoryview:
        if t.name == "c":
            assert len(list(tmp_path.iterdir())) == 1 + existing
            raise raised
        return data(t)

    with pytest.raises(caught) as error:
        write(path, data=fails, force=True)
    if caught is WriteError:
        reason = "No space left on device" if raised.errno else "8 .* written .is the disk full.."
        assert re.search(f"cannot write .*: {reason}; nothing was left", str(error.value))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["precious"] * existing


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left on device"):
        write(tmp_path / "a.gguf")
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 999, 999))
    with pytest.raises(WriteError, match=r"takes [\d,]+ bytes, but only 999 are free there"):
        write(tmp_path / "a.gguf", data=lambda t: pytest.fail("read"))
    assert list(tmp_path.iterdir()) == []


def test_targets_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(WriteError, match="is a folder; give the path of the file to write"):
        write(tmp_path)
    with pytest.raises(WriteError, match="no does not exist; create it first"):
        write(tmp_path / "no" / "a.gguf")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(WriteError, match="cannot be written to; check its permissions"):
        write(tmp_path / "a.gguf")


def test_a_device_is_not_replaced(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for force in (True, False):
        with pytest.raises(
            WriteError, match="pipe: it is a device or a pipe; give the path of a file"
        ):
            write(tmp_path / "pipe", force=force)
    assert (tmp_path / "pipe").is_fifo()


def test_what_a_link_points_to_is_written(tmp_path: Path):
    (tmp_path / "there").mkdir()
    link, real = tmp_path / "a.gguf", tmp_path / "there" / "b.gguf"
    link.symlink_to(real)
    for force in (False, True):  # first the target is missing, then it is replaced
        write(link, force=force)
        assert link.is_symlink() and real.read_bytes()[:4] == b"GGUF"
        assert [p.name for p in real.parent.iterdir()] == ["b.gguf"]
        real.write_text("old")


def test_data_of_another_size_are_a_bug_that_is_seen(tmp_path: Path):
    with pytest.raises(Error, match="b came as 3 bytes, not 68"):
        write(tmp_path / "a.gguf", data=lambda t: data(t) if t.name == "a" else memoryview(b"abc"))
    assert list(tmp_path.iterdir()) == []


# folders


def test_a_vision_model_becomes_one_file_or_two(tmp_path: Path):
    folder, _ = write_golden(tmp_path / "gemma3", "gemma3", "images")
    shares: list[float] = []
    convert(folder, tmp_path / "one.gguf")
    convert(
        folder, tmp_path / "text.gguf", "q8_0", mmproj=tmp_path / "mm.gguf", progress=shares.append
    )
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1)
    with open_gguf(tmp_path / "one.gguf") as one, open_gguf(tmp_path / "text.gguf") as text:
        assert "gemma3.vision.block_count" in one.metadata
        assert "v.blk.0.attn_output.weight" in one.tensors
        assert not any("vision" in key or ".mm." in key for key in text.metadata)
        assert set(text.tensors) < set(one.tensors)
        assert text.info("blk.0.ffn_up.weight").dtype is DType.Q8_0
    with open_gguf(tmp_path / "mm.gguf") as mmproj:
        assert mmproj.metadata["general.architecture"] == "clip"
        assert "tokenizer.ggml.model" not in mmproj.metadata
        assert mmproj.info("v.blk.0.attn_out.weight").dtype is DType.F32


def test_of_two_files_neither_is_written_if_one_cannot_be(tmp_path: Path, monkeypatch: Any):
    folder, _ = write_golden(tmp_path / "gemma3", "gemma3", "images")
    out = tmp_path / "out"
    out.mkdir()
    (out / "text.gguf").write_text("precious")
    release = CheckpointSource.release

    def full(source: CheckpointSource, name: str) -> None:
        if name.startswith("v."):
            raise OSError(errno.ENOSPC, "No space left on device")
        release(source, name)

    monkeypatch.setattr(CheckpointSource, "release", full)
    with pytest.raises(WriteError, match=r"cannot write .*mm\.gguf: No space left on device"):
        convert(folder, out / "text.gguf", mmproj=out / "mm.gguf", force=True)
    assert [(p.name, p.read_text()) for p in out.iterdir()] == [("text.gguf", "precious")]


@pytest.mark.parametrize(
    ("activation", "flags"),
    [
        ("gelu_pytorch_tanh", {"clip.use_gelu": True}),
        ("gelu", {"clip.use_gelu": True, "clip.vision.hidden_activation": "gelu"}),
        (
            "silu",
            {
                "clip.use_gelu": False,
                "clip.use_silu": True,
                "clip.vision.hidden_activation": "silu",
            },
        ),
        ("quick_gelu", {"clip.use_gelu": False, "clip.vision.hidden_activation": "quick_gelu"}),
    ],
)
def test_the_activation_of_a_tower(tmp_path: Path, activation: str, flags: dict[str, Any]):
    golden = load_golden("gemma3", "images")
    tower = golden.config["vision_config"] | {"hidden_act": activation}
    config = golden.config | {"vision_config": tower}
    folder = write_model(tmp_path / "model", config, golden.weights())
    write_tokenizer(folder, golden.config["text_config"]["vocab_size"])
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(folder, text, mmproj=mmproj)
    with open_gguf(mmproj) as file:
        found = {k: v for k, v in file.metadata.items() if "use_" in k or "activation" in k}
    assert found == flags
    for source in (folder, open_gguf(text, mmproj)):
        with ggmodel.load(source) as model:
            assert model.model.config.vit_activation == activation


@pytest.mark.parametrize(
    ("arch", "case", "message"),
    [
        ("mllama", "images", "mllama has no layout with a file of its own for towers"),
        ("gemma3", "every_6th", "has no vision tensors; leave out --mmproj"),
        ("llama", "tied", "has no vision tensors"),
    ],
)
def test_two_files_are_for_models_that_have_them(
    tmp_path: Path, arch: str, case: str, message: str
):
    folder, _ = write_golden(tmp_path / "folder", arch, case)
    with pytest.raises(Unsupported, match=message):
        convert(folder, tmp_path / "a.gguf", mmproj=tmp_path / "b.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_two_files_have_two_names(tmp_path: Path):
    with pytest.raises(WriteError, match="cannot be both files"):
        convert(tmp_path, tmp_path / "a.gguf", mmproj=tmp_path / "a.gguf")
    (tmp_path / "no").mkdir()
    with pytest.raises(WriteError, match="cannot be both files"):
        convert(tmp_path, tmp_path / "a.gguf", mmproj=tmp_path / "no" / ".." / "a.gguf")
