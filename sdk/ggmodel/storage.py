"""Storage on disk: the user's folders, and files and folders that appear whole or not at all.

The latter are written under a name that nobody can guess, beside their target, and renamed once
they are on the disk. A lock is held meanwhile: a name without one is left over from a process
that was killed, and the next writer of the same target removes it. File systems without locks
keep theirs.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .errors import ConfigError, Error, WriteError
from .platforms import files


def data_folder() -> Path:
    """The folder for what is to stay, such as builds of ggml and models made here: "ggmodel" in
    $XDG_DATA_HOME, ~/.local/share or, on Windows, %LOCALAPPDATA%.

    Raises:
        ConfigError: the user has no home folder.
    """
    return _below("XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """The folder for what can be made again: "ggmodel" in $XDG_CACHE_HOME, ~/.cache, on macOS
    ~/Library/Caches and on Windows %LOCALAPPDATA%.

    Raises:
        ConfigError: the user has no home folder.
    """
    return _below("XDG_CACHE_HOME", "Library/Caches" if sys.platform == "darwin" else ".cache")


def _below(variable: str, in_home: str) -> Path:
    if root := os.environ.get(variable):
        return Path(root) / "ggmodel"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "ggmodel"
    try:
        return Path.home() / in_home / "ggmodel"
    except RuntimeError as error:
        raise ConfigError(f"this user has no home folder; set {variable}") from error


_LONGEST = 200  # bytes of the target's name within the temporary one; file systems hold 255
_TRIES = 100
_IN_PART = "it may have got a part of it"
_LOCK_SECONDS = 60.0  # what is done under a lock takes milliseconds
_LOCK_POLL = 0.01  # seconds
_LOCK = os.O_RDWR | os.O_CREAT | files.NO_LINKS | files.BINARY
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | files.NO_LINKS | files.BINARY
_FOLDER = os.O_RDONLY | files.FOLDERS | files.NO_LINKS


def check_target(path: str | Path, *, force: bool = True, device: bool = True) -> Path:
    """The file that is to be written, links followed; called before any work is done.

    Args:
        force: an existing file may be replaced.
        device: the target may be a device or a pipe.

    Raises:
        WriteError: it cannot be written there.
    """
    with naming(path):
        with suppress(FileNotFoundError):
            # Linux may refuse another user's link in a folder that all may write to.
            os.stat(path)
        target = Path(os.path.realpath(path))
    if target.is_dir():
        raise WriteError(f"cannot write {path}: it is a folder; give the path of the file to write")
    if target.exists() and not target.is_file():
        if device:
            return target
        raise WriteError(f"cannot write {path}: it is a device or a pipe; give the path of a file")
    if not target.parent.is_dir():
        raise WriteError(
            f"cannot write {path}: the folder {target.parent} does not exist; create it first"
        )
    if not os.access(target.parent, os.W_OK):
        raise WriteError(
            f"cannot write {path}: {target.parent} cannot be written to; check its permissions"
        )
    if reason := files.unfit(target.name):
        raise WriteError(f"cannot write {path}: {reason}; choose another name")
    if target.exists() and not force:
        raise WriteError(f"{path} exists; --force (force=True) replaces it")
    if target.exists() and files.is_pinned(target):
        raise WriteError(f"cannot write {path}: {files.IN_USE}")
    return target


@contextmanager
def naming(
    path: str | Path, target: Path | None = None, after: str = "nothing was left behind"
) -> Iterator[None]:
    """Turns any `OSError` into a `WriteError` that names the file.

    Args:
        target: given where other files may be used meanwhile: errors of these stay what they are.
        after: the end of the message.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, Error) or (target is not None and not _is_about(error, target)):
            raise
        # numpy tells only how much it wrote.
        reason = error.strerror or f"{error} (is the disk full?)"
        raise WriteError(f"cannot write {path}: {reason}; {after}") from error


def _is_about(error: OSError, target: Path) -> bool:
    """Whether it names the target, its temporary name, or no file, as those of writing."""
    name = str(error.filename)
    temporary = str(target.with_name(_begin(target)))
    return error.filename is None or name == str(target) or name.startswith(temporary)


@contextmanager
def atomic_write(
    path: str | Path, *, force: bool = True, device: bool = True
) -> Iterator[BinaryIO]:
    """A file, open for writing, that becomes `path` at the end, once it is on the disk; after an
    error, or Ctrl-C, it is gone. The target of a link is replaced, the link stays; a device is
    written itself. A new file has the permissions of any new file, another one keeps those of the
    file that it replaces. Arguments as for `check_target`.

    Raises:
        WriteError: it cannot be written. Errors of other files that the caller uses meanwhile stay
            what they are.
    """
    target = check_target(path, force=force, device=device)
    if target.exists() and not target.is_file():
        with naming(path, target, _IN_PART), open(target, "wb") as file:
            yield file
        return
    with naming(path, target):
        old = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        permissions = 0o666 if old is None else 0o600  # the umask takes its share
        with _temporary(target, lambda name: os.open(name, _NEW, permissions)) as (partial, held):
            number = held.number
            mode = stat.S_IMODE(os.fstat(number).st_mode) if old is None else old
            with suppress(OSError):  # some file systems have no permissions
                files.set_mode(number, 0o600)
            with open(os.dup(number), "wb") as file:
                yield file
            os.fsync(number)
            with suppress(OSError):
                files.set_mode(number, mode)
            if files.PINNED:
                held.close()
            _rename(partial, target)


@contextmanager
def locked(path: Path, purpose: str, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """Holds a lock against other threads and processes; the system releases it when the process
    ends, however that is. File systems without locks have none.

    Args:
        path: the file of the lock, which stays and names the last holder where the disk has room.
        purpose: what the lock is held for, named in the errors of other processes.
        seconds: how long to wait for another holder.

    Raises:
        WriteError: another one holds it too long (named), or the file cannot be opened.
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, _LOCK, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while files.lock(number) is False:
            if time.monotonic() >= deadline:
                holder = os.read(number, _LONGEST).decode("utf-8", "replace") or "a process"
                raise WriteError(
                    f"{path.parent} is locked by {holder}; wait for its end, or end it"
                )
            time.sleep(_LOCK_POLL)
        with suppress(OSError):  # a full disk must not keep anybody from removing files
            os.ftruncate(number, 0)
            os.write(number, f"process {os.getpid()}, {purpose}".encode("utf-8", "replace"))
        yield
    finally:
        os.close(number)


def need_unused(paths: Iterable[Path]) -> None:
    """Called before files are removed.

    Raises:
        WriteError: one of them cannot be, since a program has it open (on Windows).
    """
    for path in paths:
        if files.is_pinned(path):
            raise WriteError(f"cannot remove {path}: {files.IN_USE}")


def write_text(path: str | Path, text: str) -> None:
    """Writes a text as `atomic_write` does, in UTF-8; lone surrogates become question marks."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "replace"))


@contextmanager
def private_folder(target: Path) -> Iterator[Path]:
    """A folder of mode 0700 beside `target`, to make it in; it is gone at the end."""
    with _temporary(target, _make_folder) as (folder, _):
        yield folder


def replace(source: Path, target: Path) -> None:
    """Renames a file that is complete, which may replace another one, so that a power cut leaves
    the old one or the new one."""
    files.to_disk(source)
    _rename(source, target)


def _rename(source: Path, target: Path) -> None:
    files.replace(source, target)
    # The new name is all that may be lost now, and only with the power.
    with suppress(OSError):
        files.to_disk(target.parent)


class _Held:
    """A descriptor; -1 is none.

    Attributes:
        number: -1 once it is closed.
    """

    def __init__(self, number: int):
        self.number = number

    def close(self) -> None:
        """Idempotent."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


def _make_folder(name: Path) -> int:
    os.mkdir(name, 0o700)
    return -1 if files.PINNED else os.open(name, _FOLDER)


@contextmanager
def _temporary(target: Path, make: Callable[[Path], int]) -> Iterator[tuple[Path, _Held]]:
    """A new name beside the target, and the descriptor that holds its lock; it is removed at the
    end if it still exists."""
    remove_leftovers(target)
    for _ in range(_TRIES):
        name, held = target.with_name(f"{_begin(target)}{os.urandom(8).hex()}.part"), _Held(-1)
        try:
            # Another writer may take it for a leftover before it is locked.
            try:
                held = _Held(make(name))
            except FileNotFoundError:
                if not target.parent.is_dir():
                    raise
                continue
            if held.number < 0 or (
                files.lock(held.number) is not False and is_at(name, held.number)
            ):
                yield name, held
                return
        finally:
            if files.PINNED:
                held.close()
            try:
                _remove(name)
            except BaseException:  # Ctrl-C, which comes once
                _remove(name)
                raise
            held.close()
    raise WriteError(f"cannot write {target}: other processes remove its temporary files")


def remove_leftovers(target: Path, finish: Callable[[Path], None] = lambda leftover: None) -> None:
    """Removes the temporary files and folders of a target whose writers were killed.

    Args:
        finish: called with each folder, before it is removed.
    """
    pattern = re.compile(re.escape(_begin(target)) + "[0-9a-f]{16}[.]part")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if not pattern.fullmatch(entry.name):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder or entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    if files.is_left(entry.stat(follow_symlinks=False)):
                        _remove_leftover(Path(entry.path), is_folder, finish)


def _remove_leftover(path: Path, is_folder: bool, finish: Callable[[Path], None]) -> None:
    if files.PINNED:  # removing fails where a writer has it open
        if is_folder:
            finish(path)
        _remove(path)
        return
    # NFS locks only what is open for writing.
    flags = os.O_RDWR | files.NO_LINKS | files.NO_WAITING
    number = os.open(path, _FOLDER if is_folder else flags)
    try:
        if files.lock(number):
            if is_folder:
                finish(path)
            _remove(path)
    finally:
        os.close(number)


def _begin(target: Path) -> str:
    """How temporary names of a target begin."""
    return f".{os.fsdecode(os.fsencode(target.name)[:_LONGEST])}."


def is_at(name: Path, number: int) -> bool:
    """Whether the name still is that of the open file."""
    try:
        return os.path.samestat(os.lstat(name), os.fstat(number))
    except FileNotFoundError:
        return False


def _remove(name: Path) -> None:
    if name.is_dir() and not name.is_symlink():
        shutil.rmtree(name, ignore_errors=True)
        return
    with suppress(OSError):
        name.unlink()
