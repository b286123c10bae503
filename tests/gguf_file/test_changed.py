"""Files that change while they are open: metadata raise, tensors read as zeros and are reported."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ggmodel.errors import FormatError
from ggmodel.gguf_file import GGUF, open_gguf

_CHANGED = "has changed on disk while it was loaded.*load it again"
_TOKENS = [f"token {i}" for i in range(40_000)]
_DATA = 200_000


@pytest.fixture
def path(save, packer) -> Path:
    tensor = packer.tensor("w", (_DATA // 4,), 0, 0)
    pairs = [("tokens", packer.array("string", _TOKENS)), ("n", packer.array("u32", [7] * 40_000))]
    return aged(save(packer.file(pairs, [tensor], b"\1" * _DATA)))


def aged(path: Path) -> Path:
    """A file that was not written just now: the clock of file systems has steps."""
    os.utime(path, ns=(10**18, 10**18))
    return path


def truncate_to(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"other")


@pytest.mark.parametrize(
    "change", [truncate_to(0), truncate_to(0.1), truncate_to(0.6), truncate_to(0.99), overwrite]
)
def test_everything_that_is_read_afterwards_raises(path: Path, change: Callable[[Path], None]):
    with GGUF(path) as source:
        source.check_unchanged()
        data = source.data("w")
        change(path)
        tokens, numbers = source.metadata["tokens"], source.metadata["n"]
        for read in (
            tokens.tolist,
            tokens.raw,
            lambda: tokens[20_000],
            numbers.numpy,
            numbers.tolist,
            source.check_unchanged,
            lambda: source.release("w"),
        ):
            with pytest.raises(FormatError, match=_CHANGED):
                read()
        assert set(bytes(data)) <= {0, 1}
        source.close()
        with pytest.raises(FormatError, match=_CHANGED):
            source.check_unchanged()
        del data
        source.check_unchanged()  # nobody can have read anything wrong


def test_tensors_mapped_too_late(path: Path):
    with GGUF(path) as source:
        overwrite(path)
        with pytest.raises(FormatError, match=_CHANGED):
            source.data("w")


def test_an_error_stays_when_the_file_is_restored(path: Path):
    raw, times = path.read_bytes(), path.stat()
    with GGUF(path) as source:
        data = source.data("w")
        os.truncate(path, 4096)
        assert bytes(data[-10:]) == bytes(10)
        path.write_bytes(raw)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(FormatError, match=_CHANGED):
            source.check_unchanged()


@pytest.mark.parametrize("again", [os.utime, lambda path: path.write_bytes(path.read_bytes())])
def test_the_same_content_at_another_time_is_no_change(
    path: Path, again: Callable[[Path], None], caplog: pytest.LogCaptureFixture
):
    with GGUF(path) as source:
        data = source.data("w")
        for _ in range(3):
            again(path)
            source.check_unchanged()
            source.release("w")
            assert source.metadata["tokens"].tolist() == _TOKENS
            assert bytes(data) == b"\1" * _DATA
        assert [r.getMessage().split(" has ")[0] for r in caplog.records] == [str(path)]
        overwrite(path)
        with pytest.raises(FormatError, match=_CHANGED):
            source.check_unchanged()


def test_a_file_that_its_server_has_removed(path: Path, monkeypatch: pytest.MonkeyPatch):
    def stale(fd: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with GGUF(path) as source:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", stale)
            for read in (source.check_unchanged, source.metadata["tokens"].tolist):
                with pytest.raises(FormatError, match=_CHANGED):
                    read()
        with pytest.raises(FormatError, match=_CHANGED):
            source.data("w")


def test_replacing_a_file_leaves_the_open_one(path: Path, tmp_path: Path):
    with GGUF(path) as source:
        (tmp_path / "new").write_bytes(b"other")
        os.replace(tmp_path / "new", path)
        assert source.metadata["tokens"].tolist() == _TOKENS
        assert source.data("w")[0] == 1
        source.check_unchanged()


def test_the_file_that_changed_is_named(save, packer):
    def part(no: int) -> bytes:
        pairs = [
            ("split.no", packer.scalar("u16", no)),
            ("split.count", packer.scalar("u16", 2)),
            ("split.tensors.count", packer.scalar("i32", 2)),
        ]
        return packer.file(pairs, [packer.tensor(f"t{no}", (4,), 0, 0)], b"x" * 16)

    paths = [aged(save(part(i), f"m-{i + 1:05}-of-00002.gguf")) for i in range(2)]
    vision = packer.file([], [packer.tensor("v", (4,), 0, 0)], b"x" * 16)
    vision = aged(save(vision, "mmproj.gguf"))
    with open_gguf(paths[0], vision) as source:
        data = [source.data(name) for name in ("t0", "t1", "v")]
        overwrite(paths[1])
        source.check_unchanged((0, 2))
        for files in (None, (1,)):
            with pytest.raises(FormatError, match=r"m-00002-of-00002\.gguf has changed"):
                source.check_unchanged(files)
        overwrite(vision)
        with pytest.raises(FormatError, match=r"mmproj\.gguf has changed"):
            source.check_unchanged((2,))
        del data
