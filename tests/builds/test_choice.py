"""Builds that are kept, and the one that is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmodel import ggml_choice as choice
from ggmodel.builds import builder
from ggmodel.errors import NativeError, WriteError
from ggmodel.platforms import processor


def made(name: str) -> Path:
    """A build that is builder."""
    path = builder.path_of(name)
    path.mkdir(parents=True)
    (path / "library").write_bytes(b"x" * 1000)
    builder.write_stamp(path, options=["-DA=1"])
    return path


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/tmp", "-x", ".x", "x" * 65, "default", "x.building",
     "ä", "a b", "x\n", "a\x1b[31m"],
)  # fmt: skip
def test_names_that_are_none(name: str):
    with pytest.raises(NativeError, match="cannot be the name of a build"):
        builder.path_of(name)


def test_nothing_is_chosen_at_first(data: Path):
    assert choice.chosen() is None
    assert builder.build_names() == builder.unfinished() == []
    assert not data.exists()  # looking leaves nothing behind


def test_a_choice_is_remembered_and_forgotten(data: Path, tmp_path: Path):
    choice.choose(tmp_path / "ä b")
    assert choice.chosen() == tmp_path / "ä b"
    assert choice.is_chosen(tmp_path / "ä b") and not choice.is_chosen(tmp_path)
    assert [path.name for path in data.iterdir()] == ["ggml.json"]
    choice.choose(None)
    choice.choose(None)
    assert choice.chosen() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"path": 3}', "null", "\ud800", '{"path": "'])
def test_a_damaged_choice_says_how_to_go_back(data: Path, text: str):
    data.mkdir(parents=True)
    (data / "ggml.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(NativeError, match="`ggmodel ggml use default` goes back"):
        choice.chosen()
    assert not choice.is_chosen(data)
    choice.choose(None)
    assert choice.chosen() is None


def test_a_choice_that_cannot_be_written(data: Path):
    data.parent.mkdir()
    data.touch()  # a file where the folder should be
    with pytest.raises(WriteError, match="cannot write"):
        choice.choose(Path("/x"))
    assert choice.chosen() is None


def test_a_build_for_another_processor_is_refused(monkeypatch: pytest.MonkeyPatch):
    path = made("native")
    choice.need_processor(path)  # nothing is known of it
    builder.write_stamp(path, options=[], features={"AVX2": "1", "AMX_INT8": "1"})
    monkeypatch.setattr(processor, "kernels", lambda: frozenset({"AVX2"}))
    with pytest.raises(
        NativeError, match=r"another processor: this one has no AMX_INT8\. .*use default"
    ):
        choice.need_processor(path)


def test_lists_tell_finished_builds_from_others(tmp_path: Path):
    made("native")
    work = builder.path_of("cuda").with_name("cuda" + builder.BUILDING)
    work.mkdir()
    (builder.builds_folder() / "letters").mkdir()
    (builder.builds_folder() / "file").touch()
    assert builder.build_names() == ["native"]
    assert builder.unfinished() == ["cuda"]


class TestRemove:
    def test_a_build(self):
        path = made("native")
        choice.choose(path)
        assert builder.remove("native") >= 1000
        assert not path.exists() and choice.chosen() is None
        assert list(builder.builds_folder().iterdir()) == []

    def test_another_choice_stays(self):
        made("native")
        choice.choose(made("cuda"))
        builder.remove("native")
        assert choice.chosen() == builder.path_of("cuda")

    def test_an_unfinished_one(self):
        work = builder.path_of("cuda").with_name("cuda" + builder.BUILDING)
        work.mkdir(parents=True)
        with builder.alone(work), pytest.raises(NativeError, match="another process is building"):
            builder.remove("cuda")
        builder.remove("cuda")
        assert not work.exists()

    def test_one_that_is_built_again_stays_whole(self):
        choice.choose(path := made("cuda"))
        work = path.with_name("cuda" + builder.BUILDING)
        work.mkdir()
        with builder.alone(work), pytest.raises(NativeError, match="another process is building"):
            builder.remove("cuda")
        assert builder.build_names() == ["cuda"] and choice.chosen() == path
        builder.remove("cuda")
        assert builder.build_names() == builder.unfinished() == [] and choice.chosen() is None

    def test_what_no_build_made(self):
        (builder.builds_folder() / "letters").mkdir(parents=True)
        (builder.builds_folder() / "letters" / "mine").touch()
        with pytest.raises(NativeError, match="something else in it"):
            builder.remove("letters")
        assert (builder.builds_folder() / "letters" / "mine").exists()

    def test_a_link(self, tmp_path: Path):
        """It is not followed: its target is someone's."""
        target = made("other").rename(tmp_path / "target")
        (builder.builds_folder() / "link").symlink_to(target)
        with pytest.raises(NativeError, match="no build is called 'link'"):
            builder.remove("link")
        assert (target / "library").exists()

    def test_near_names_are_listed(self):
        made("native")
        with pytest.raises(NativeError, match="no build is called 'nativ'; there are: native"):
            builder.remove("nativ")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"options": 3}', '{"features": 3}'])
def test_a_stamp_that_says_nothing_still_marks_a_build(text: str):
    path = made("native")
    (path / builder.STAMP).write_text(text)
    assert choice.read_stamp(path) == choice.Stamp(builder.STAMP.removeprefix("built-"))


def test_a_build_for_many_processors_is_not_native():
    path = made("native")
    assert choice.is_native(path) and not choice.is_native(path.parent)
    (path / builder.STAMP).write_text(json.dumps({"options": ["-DGGML_NATIVE=OFF"]}))
    assert not choice.is_native(path)
