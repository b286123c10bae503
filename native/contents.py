"""The list of files of a ggml for every processor, and why one of them may not fit.

Such a ggml has a library of the CPU's functions for each level of instructions, of which it loads
the best one that this processor has. The file contents.json in its prefix lists the sizes of all
files, because damage would not be noticed otherwise: ggml takes the next best library where one
cannot be loaded, and one that was cut short may end the process. It also lists the instructions
that each library needs, for messages. tools/wheel.py writes it.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import NativeError

NAME = "contents.json"


def check(prefix: Path) -> None:
    """Refuse a prefix that lacks a file of its list, or has one of another size."""
    files, _ = _read(prefix)
    for name, size in files.items():
        try:
            actual = (prefix / name).stat().st_size
        except OSError as error:
            raise NativeError(f"{prefix / name} cannot be read: {error.strerror}") from error
        if actual != size:
            raise NativeError(f"{prefix / name} has {actual} bytes instead of {size}")


def why_none_fits(prefix: Path, libraries: Sequence[Path]) -> str:
    """Why ggml took none of these libraries of the CPU's functions."""
    try:
        _, needed = _read(prefix)
    except NativeError:  # only the ggml of a wheel must have a list
        needed = {}
    reasons: list[str] = []
    for path in libraries:
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            reasons.append(f"{path.name} cannot be loaded ({error})")
        else:
            names = ", ".join(needed.get(path.name, ())) or "instructions that it does not list"
            reasons.append(f"{path.name} needs {names}")
    return "; ".join(reasons)


def _read(prefix: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    """The files with their sizes, and the libraries with their instructions."""
    path = prefix / NAME
    try:
        listed = json.loads(path.read_text("utf-8"))
        return dict(listed["files"]), dict(listed["instructions"])
    except OSError as error:
        raise NativeError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise NativeError(f"{path} is no list of files") from error
