"""Files appear when they are complete."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ggmodel.errors import WriteError
from ggmodel.storage import atomic_write, check_target, private_folder, remove_leftovers, write_text


def test_a_file_appears_at_the_end(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    with atomic_write(path) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_nothing_behind(tmp_path: Path):
    def fill(path: Path) -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(WriteError, match=r"cannot write .*a\.txt: No space"):
        fill(tmp_path / "a.txt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.txt", os.devnull])
def test_errors_of_other_files_stay_what_they_are(tmp_path: Path, name: str):
    with pytest.raises(FileNotFoundError) as caught, atomic_write(tmp_path / name):
        (tmp_path / "no source").read_text()
    assert caught.value.filename == str(tmp_path / "no source")
    assert not isinstance(caught.value, WriteError)
    assert not list(tmp_path.iterdir())


def test_a_device_may_have_got_a_part():
    with (
        pytest.raises(WriteError, match=r"cannot write /dev/full: No space.*may have got a part"),
        atomic_write("/dev/full") as file,
    ):
        file.write(b"text")


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
        same.write(b"text")
    assert not Path(os.devnull).is_file()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    write_text(link, "text")
    assert link.is_symlink() and (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("name", ["x" * 5000, "a" * 255, "loop", "file/below", "\udcff"])
def test_names_that_file_systems_refuse(tmp_path: Path, name: str):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    if name in ("a" * 255, "\udcff"):  # the longest, and bytes that are not UTF-8
        write_text(tmp_path / name, "text")
        assert (tmp_path / name).read_text() == "text"
        return
    with pytest.raises(WriteError, match="cannot write"):
        write_text(tmp_path / name, "text")


def test_a_link_under_the_temporary_name_is_never_followed(tmp_path: Path, monkeypatch: Any):
    """As if somebody had guessed the random name."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    names = iter([b"\0" * 8, b"\1" * 8])
    monkeypatch.setattr(os, "urandom", lambda n: next(names))
    (tmp_path / f".a.txt.{bytes(8).hex()}.part").symlink_to(precious)
    with pytest.raises(WriteError, match="File exists"):
        write_text(tmp_path / "a.txt", "text")
    assert precious.read_text() == "precious"
    assert not (tmp_path / "a.txt").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions(tmp_path: Path, umask: int):
    path = tmp_path / "a.txt"
    before = os.umask(umask)
    try:
        with atomic_write(path) as file:
            file.write(b"secret")
            assert mode_of(next(tmp_path.iterdir())) == 0o600
        assert mode_of(path) == 0o666 & ~umask
        path.chmod(0o640)
        write_text(path, "text")
        assert mode_of(path) == 0o640
    finally:
        os.umask(before)


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path):
    path = tmp_path / "a.txt"
    leave_behind(path)
    assert len(list(tmp_path.iterdir())) == 2  # the file, and the folder with a file
    other = tmp_path / f".b.txt.{'0' * 16}.part"  # another target's
    other.touch()
    write_text(path, "text")
    assert sorted(tmp_path.iterdir()) == [other, path]


def test_what_is_still_written_stays(tmp_path: Path):
    path = tmp_path / "a.txt"
    with atomic_write(path) as file:
        file.write(b"first")
        with private_folder(path) as folder:
            (folder / "made").touch()
            write_text(path, "second")
            assert (folder / "made").exists()
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: Any):
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    path = tmp_path / "a.txt"
    leave_behind(path)
    left = set(tmp_path.iterdir())
    monkeypatch.setattr(fcntl, "flock", unsupported)
    write_text(path, "text")
    assert set(tmp_path.iterdir()) == left | {path}


def test_a_file_taken_for_a_leftover_is_made_again(tmp_path: Path, monkeypatch: Any):
    """Another writer finds it between its creation and its lock."""
    path, real = tmp_path / "a.txt", fcntl.flock

    def robbed(number: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        remove_leftovers(path)
        real(number, how)

    monkeypatch.setattr(fcntl, "flock", robbed)
    write_text(path, "text")
    assert path.read_text() == "text"
    assert list(tmp_path.iterdir()) == [path]


def test_many_writers_of_one_file(tmp_path: Path):
    """Each removes leftovers all the time; none takes another's file for one."""
    path = tmp_path / "a.txt"
    code = (
        "import sys\n"
        "from ggmodel.storage import write_text\n"
        "for i in range(100): write_text(sys.argv[1], sys.argv[2] * 1000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, str(n)]) for n in range(4)]
    try:
        assert [writer.wait(timeout=60) for writer in writers] == [0] * 4
    finally:
        for writer in writers:
            writer.kill()
    assert path.read_text() in [str(n) * 1000 for n in range(4)]
    assert list(tmp_path.iterdir()) == [path]


def leave_behind(path: Path) -> None:
    """Starts writing a file and making a folder, and dies."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from ggmodel.storage import atomic_write, private_folder\n"
        "path = Path(sys.argv[1])\n"
        "with atomic_write(path) as file, private_folder(path) as folder:\n"
        "    file.write(b'half'); file.flush()\n"
        "    (folder / 'half').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
