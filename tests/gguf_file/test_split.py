from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from ggmodel.errors import FormatError
from ggmodel.gguf_file import GGUF, MissingFile


def _name(no: int, count: int = 3) -> str:
    return f"model-{no:05}-of-{count:05}.gguf"


def _numbers(packer, no: int | None, count: int | None, tensors: int | None) -> list:
    return [
        (key, packer.scalar(kind, value))
        for key, kind, value in (
            ("split.no", "u16", no),
            ("split.count", "u16", count),
            ("split.tensors.count", "i32", tensors),
        )
        if value is not None
    ]


def _part(packer, no: int | None, count: int | None = 3, tensors: int | None = 3, name="") -> bytes:
    tensor = packer.tensor(name or f"t{no}", (4,), 24, 0)
    return packer.file(_numbers(packer, no, count, tensors), [tensor], b"abc%d" % (no or 0))


@pytest.fixture
def parts(save, packer) -> list[Path]:
    return [save(_part(packer, i), _name(i + 1)) for i in range(3)]


def test_parts_are_joined(parts: list[Path]):
    with GGUF(parts[0]) as source:
        assert source.files == tuple(parts)
        assert [p.path for p in source.parts] == parts
        assert list(source.tensors) == ["t0", "t1", "t2"]
        for i in range(3):
            t = source.tensors[f"t{i}"]
            assert t.file == i
            assert source.data(t.name) == b"abc%d" % i
            assert source.mapped(i) == parts[i].read_bytes()
            assert source.mapped(i)[t.offset : t.offset + t.nbytes] == b"abc%d" % i
        assert source.metadata["split.no"] == 0


def test_parts_whose_names_tell_nothing(parts: list[Path]):
    blobs = [path.rename(path.with_name(f"sha256-{i}")) for i, path in enumerate(parts)]
    with GGUF(blobs[0], blobs) as source:
        assert source.files == tuple(blobs) and source.data("t2") == b"abc2"
    with pytest.raises(FormatError, match=r"split.no must be 1, but the file has 2"):
        GGUF(blobs[0], [blobs[0], blobs[2], blobs[1]])
    with pytest.raises(FormatError, match=r"its 2 parts have 2 tensors"):
        GGUF(blobs[0], blobs[:2])


def test_split_of_the_gguf_package(tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    weights = {f"w{i}": np.full((i + 1, 2), i, np.float32) for i in range(5)}
    for name, w in weights.items():
        writer.add_tensor(name, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUF(tmp_path / "m-00001-of-00003.gguf") as source:
        assert source.metadata["general.architecture"] == "llama"
        assert {n: source.data(n).tobytes() for n in source.tensors} == {
            n: w.tobytes() for n, w in weights.items()
        }


def test_links_are_not_followed(parts: list[Path], tmp_path: Path):
    # As in the cache of huggingface_hub: named links to blobs without meaningful names.
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for i, p in enumerate(parts):
        blob = p.rename(tmp_path / f"blob{i}")
        (folder / p.name).symlink_to(blob)
    with GGUF(folder / parts[0].name) as source:
        assert len(source.tensors) == 3


def test_another_part_names_the_first(parts: list[Path]):
    with pytest.raises(FormatError, match=r"is part 2 of 3 .* open the first one") as e:
        GGUF(parts[1])
    assert str(parts[0]) in str(e.value)


def test_a_missing_part(parts: list[Path]):
    parts[2].unlink()
    with pytest.raises(MissingFile, match="is split into 3 files") as e:
        GGUF(parts[0])
    assert str(e.value).startswith(str(parts[2]))


def test_a_damaged_part_is_named(parts: list[Path]):
    parts[1].write_bytes(parts[1].read_bytes()[:-1])
    with pytest.raises(FormatError, match="truncated") as e:
        GGUF(parts[0])
    assert str(e.value).startswith(f"{parts[1]}: at byte ")


@pytest.mark.parametrize(
    ("part", "numbers", "message"),
    [
        (0, (0, 2, 3), "split.count must be 3, but the file has 2"),
        (0, (0, None, 3), "split.count must be 3, but the file does not have it"),
        (0, (1, 3, 3), "split.no must be 0, but the file has 1"),
        (0, (None, 3, 3), "split.no must be 0, but the file does not have it"),
        (0, (0, 3, 4), "split.tensors.count is 3, but 4 in"),
        (0, (0, 3, None), "split.tensors.count is missing"),
        (1, (2, 3, 3), "split.no must be 1, but the file has 2"),
        (1, (1, 4, 3), "split.count must be 3, but the file has 4"),
        (2, (2, 3, 5), "split.tensors.count is 5, but 3 in"),
    ],
)
def test_inconsistent_numbers(parts, packer, part: int, numbers, message: str):
    parts[part].write_bytes(_part(packer, *numbers, name=f"t{part}"))
    with pytest.raises(FormatError, match=message):
        GGUF(parts[0])


def test_number_of_tensors(parts, packer):
    for i, p in enumerate(parts):
        p.write_bytes(_part(packer, i, tensors=4))
    with pytest.raises(FormatError, match=r"is 4, but its 3 parts have 3 tensors"):
        GGUF(parts[0])


def test_the_same_tensor_in_two_parts(parts, packer):
    parts[2].write_bytes(_part(packer, 2, name="t0"))
    with pytest.raises(FormatError, match=r"tensor 't0' is also in .*00001-of-00003"):
        GGUF(parts[0])


def test_numbers_of_another_type(parts, packer):
    pairs = [("split.count", packer.scalar("string", "3"))]
    parts[0].write_bytes(packer.file(pairs))
    with pytest.raises(FormatError, match=r"split.count must be an integer, not .*'3'"):
        GGUF(parts[0])


def test_a_renamed_part(save, packer):
    with pytest.raises(
        FormatError, match=r"is part 2 of 3 .*rename all parts to NAME-00001-of-00003"
    ):
        GGUF(save(_part(packer, 1), "renamed.gguf"))


def test_one_part_of_one(save, packer):
    for count in (None, 0, 1):
        raw = packer.file(_numbers(packer, 0, count, 0))
        with GGUF(save(raw, _name(1, 1))) as source:
            assert len(source.parts) == 1
    with pytest.raises(FormatError, match=r"split.count must be 1, but the file has 3"):
        GGUF(save(_part(packer, 0), _name(1, 1)))
