"""Files: flags, locks, permissions and names.

Windows neither replaces nor removes a file that a program has open or mapped, unless that program
allows it, which Python's do not. Scanners of new files open them, too, for a moment.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

# Flags of `os.open`, 0 where a system has none.
NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)
NO_WAITING: int = getattr(os, "O_NONBLOCK", 0)  # for the writer of a pipe
BINARY: int = getattr(os, "O_BINARY", 0)  # else Windows changes ends of lines
FOLDERS: int = getattr(os, "O_DIRECTORY", 0)

PINNED = sys.platform == "win32"
"""Open files can be neither replaced nor removed, and folders not be opened."""

IN_USE = (
    "a program has it open, perhaps with a model that it has loaded: end that program or close the "
    "model, or choose another name"
)
"""The reason why Windows refuses to replace or remove a file."""

_TIMEOUT = 2.0  # seconds in which a scanner has looked at a file
_FIRST_WAIT = 0.01  # seconds, doubled each time
_LOCKED = 0x7FFF_FFF0  # the byte that a lock of Windows takes, since others cannot read it
_LEFT_FOR_GOOD = 3600.0  # seconds
_VIOLATIONS = (5, 32, 33)  # ERROR_ACCESS_DENIED, _SHARING_VIOLATION, _LOCK_VIOLATION
# By "Naming Files, Paths, and Namespaces" in Microsoft's documentation.
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|(COM|LPT)[1-9¹²³])(\..*)?", re.IGNORECASE | re.DOTALL)
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')

_place = threading.Lock()


def _seek_and_read(number: int, n: int, at: int) -> bytes:
    """`os.pread` for systems without it. Other readers of the descriptor come here, too."""
    with _place:
        os.lseek(number, at, os.SEEK_SET)
        return os.read(number, n)


pread: Callable[[int, int, int], bytes] = (
    os.pread if sys.platform != "win32" else _seek_and_read  #
)
"""Up to n bytes of a file: (descriptor, n, offset)."""


def handle(number: int) -> int:
    """The system's own name of a descriptor, for libraries: each may have its own C library, and on
    Windows each of these has its own numbers."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.get_osfhandle(number)
    return number


def set_mode(number: int, mode: int) -> None:
    """Sets an open file's permissions; Windows has other ones, which a file takes from its folder.

    Raises:
        OSError: the file system has none.
    """
    if sys.platform != "win32":
        os.fchmod(number, mode)


def lock(number: int) -> bool | None:
    """Whether a lock was taken, which lasts until the descriptor is closed or the process ends;
    None where the file system has none."""
    try:
        if sys.platform == "win32":
            return _lock_byte(number)
        import fcntl

        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _lock_byte(number: int) -> bool:
    """A lock of Windows, on a byte that may lie beyond the end; the position stays."""
    import msvcrt

    before = os.lseek(number, 0, os.SEEK_CUR)
    os.lseek(number, _LOCKED, os.SEEK_SET)
    try:
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    finally:
        os.lseek(number, before, os.SEEK_SET)
    return True


def replace(source: Path, target: Path) -> None:
    """`os.replace`. Windows refuses it while a program has one of the two open: it is tried again
    for two seconds.

    Raises:
        PermissionError: with `IN_USE` as the reason, if that is it.
    """
    if sys.platform != "win32":
        os.replace(source, target)
        return
    deadline, wait = time.monotonic() + _TIMEOUT, _FIRST_WAIT
    while True:
        try:
            return os.replace(source, target)
        except PermissionError as error:
            if time.monotonic() + wait > deadline:
                if getattr(error, "winerror", None) not in _VIOLATIONS:
                    raise
                raise PermissionError(error.errno, IN_USE, str(target)) from None
        time.sleep(wait)
        wait *= 2


def is_pinned(path: Path) -> bool:
    """Whether a file that exists cannot be replaced now, since a program has it open. Asked before
    the work whose result would replace it; always False where open files can be replaced."""
    if sys.platform == "win32":
        try:
            os.rename(path, path)  # the least that needs what replacing needs
        except PermissionError:
            return True
        except OSError:
            return False
    return False


def to_disk(path: Path) -> None:
    """Waits until the contents of a file, or the names in a folder, are on the disk. Windows has no
    such thing for folders, and takes descriptors that may write only."""
    if sys.platform == "win32" and path.is_dir():
        return
    number = os.open(path, os.O_RDONLY if sys.platform != "win32" else os.O_RDWR | BINARY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def is_left(status: os.stat_result) -> bool:
    """Whether a temporary file or folder that nobody has locked is left over. Windows lets go of a
    file before it is renamed, and locks no folders: there it also must be an hour old."""
    return sys.platform != "win32" or time.time() - status.st_mtime > _LEFT_FOR_GOOD


def unfit(name: str) -> str:
    """The reason why the system has no file of this name, or ""."""
    if sys.platform != "win32":
        return ""
    if _DEVICE.fullmatch(name):
        return f"{name} is a device of Windows"
    if (forbidden := _FORBIDDEN.search(name)) is not None:
        return f"no name of Windows has {forbidden[0]!r}"
    return "no name of Windows ends with a dot or a space" if name[-1:] in (".", " ") else ""
