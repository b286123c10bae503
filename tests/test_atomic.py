"""Files appear when they are complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ggmodel.atomic import atomic_write, check_target
from ggmodel.errors import WriteError


def test_a_file_appears_at_the_end(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    with atomic_write(path) as partial:
        partial.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_nothing_behind(tmp_path: Path):
    def fill(path: Path) -> None:
        with atomic_write(path) as partial:
            partial.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(WriteError, match=r"cannot write .*a\.txt: No space"):
        fill(tmp_path / "a.txt")
    assert not list(tmp_path.iterdir())


def test_looking_ahead_changes_nothing(tmp_path: Path):
    path = tmp_path / "a.txt"
    check_target(path)
    assert not list(tmp_path.iterdir())
    path.write_text("before")
    check_target(path)
    assert path.read_text() == "before"
    for wrong in (tmp_path, tmp_path / "nowhere" / "a", path / "a"):
        with pytest.raises(WriteError, match="cannot write"):
            check_target(wrong)


def test_devices_and_links_stay_what_they_are(tmp_path: Path):
    with atomic_write(os.devnull) as same:
        same.write_text("text")
    assert not Path(os.devnull).is_file()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    with atomic_write(link) as partial:
        partial.write_text("text")
    assert link.is_symlink() and (tmp_path / "file").read_text() == "text"
