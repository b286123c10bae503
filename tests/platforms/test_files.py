"""Files as Windows has them, each difference by itself."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggmodel.errors import WriteError
from ggmodel.platforms import files
from ggmodel.storage import atomic_write, need_unused, remove_leftovers


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module as Windows would have it."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "pread", "fchmod"):
            patch.delattr(os, name)
        patch.setitem(sys.modules, "fcntl", None)
        free = SimpleNamespace(LK_NBLCK=2, locking=lambda number, mode, size: None)
        patch.setitem(sys.modules, "msvcrt", free)
        importlib.reload(files)
        yield patch
    importlib.reload(files)


def violation(number: int = 32) -> PermissionError:
    error = PermissionError(errno.EACCES, "Access is denied")
    error.winerror = number  # type: ignore[attr-defined]
    return error


def refusing(patch: Any, name: str, times: int, error: OSError) -> list[int]:
    """Has a function of `os` fail so often; returns the failures so far."""
    failed: list[int] = []
    real = getattr(os, name)

    def call(*args: Any, **options: Any) -> Any:
        if len(failed) < times:
            failed.append(1)
            raise error
        return real(*args, **options)

    patch.setattr(os, name, call)
    return failed


def test_files_are_read_at_a_place(windows: Any, tmp_path: Path):
    (tmp_path / "a").write_bytes(bytes(range(100)))
    number = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        assert files.pread(number, 3, 40) == bytes([40, 41, 42])
        assert files.pread(number, 3, 99) == bytes([99])
    finally:
        os.close(number)


def test_a_scanner_that_looks_for_a_moment(windows: Any, tmp_path: Path):
    failed = refusing(windows, "replace", 3, violation())
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert len(failed) == 3


def test_a_file_that_stays_open(windows: Any, tmp_path: Path):
    windows.setattr(files, "_TIMEOUT", 0.05)
    (tmp_path / "a").write_bytes(b"old")
    refusing(windows, "replace", 999, violation(5))
    with pytest.raises(WriteError, match=r"a: a program has it open.*nothing was left"):  # noqa: SIM117
        with atomic_write(tmp_path / "a") as file:
            file.write(b"new")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_the_reason_of_another_refusal_stays(windows: Any, tmp_path: Path):
    windows.setattr(files, "_TIMEOUT", 0.02)
    refusing(windows, "replace", 999, PermissionError(errno.EPERM, "a quota"))
    with pytest.raises(PermissionError, match="a quota"):
        files.replace(tmp_path / "a", tmp_path / "b")


def test_an_open_file_is_noticed_before_the_work(windows: Any, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"old")
    refusing(windows, "rename", 99, violation())
    with pytest.raises(WriteError, match=r"cannot write .*a: a program has it open"):  # noqa: SIM117
        with atomic_write(tmp_path / "a"):
            pytest.fail("the work began")
    with pytest.raises(WriteError, match=r"cannot remove .*a: a program has it open"):
        need_unused([tmp_path / "a"])


def test_nothing_is_open_when_it_is_renamed(windows: Any, tmp_path: Path):
    """Windows would refuse."""
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        numbers = (f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd"))
        assert str(source) not in {os.path.realpath(n) for n in numbers}
        real(source, target)

    windows.setattr(os, "replace", replace)
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_is_left_over_is_old(windows: Any, tmp_path: Path):
    young, old = (tmp_path / f".a.{c * 16}.part" for c in "12")
    for path in (young, old):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    remove_leftovers(tmp_path / "a")
    assert [young.exists(), old.exists()] == [True, False]


def test_a_lock_keeps_the_position(windows: Any, tmp_path: Path):
    taken: list[tuple[int, int, int]] = []

    def locking(number: int, mode: int, size: int) -> None:
        taken.append((os.lseek(number, 0, os.SEEK_CUR), mode, size))
        if len(taken) > 1:
            raise PermissionError(errno.EACCES, "locked")

    fake = SimpleNamespace(LK_NBLCK=2, locking=locking)
    windows.setitem(sys.modules, "msvcrt", fake)
    with open(tmp_path / "a", "w+b") as file:
        os.lseek(file.fileno(), 5, os.SEEK_SET)
        assert [files.lock(file.fileno()) for _ in range(2)] == [True, False]
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 5
    assert taken == [(0x7FFFFFF0, 2, 1)] * 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("con", "device"),
        ("Aux.gguf", "device"),
        ("com1.tar.gz", "device"),
        ("a:b.gguf", "':'"),
        ("a?", r"'\?'"),
        ("a\tb", "t'"),
        ("ends.", "dot"),
        ("ends ", "space"),
    ],
)
def test_names_that_windows_lacks(windows: Any, tmp_path: Path, name: str, reason: str):
    with pytest.raises(WriteError, match=f"cannot write .*{reason}.*choose another"):  # noqa: SIM117
        with atomic_write(tmp_path / name):
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["console.gguf", "com10", "a.con", ".hidden", "ä b.gguf"])
def test_names_that_windows_has(windows: Any, tmp_path: Path, name: str):
    with atomic_write(tmp_path / name):
        pass
    assert (tmp_path / name).exists()


def test_linux_has_all_names(tmp_path: Path):
    with atomic_write(tmp_path / "aux:1."):
        pass
    assert (tmp_path / "aux:1.").exists()


def test_folders_are_not_opened(windows: Any, tmp_path: Path):
    refusing(windows, "open", 99, violation())
    files.to_disk(tmp_path)
    with pytest.raises(PermissionError):
        files.to_disk(tmp_path / "a")
