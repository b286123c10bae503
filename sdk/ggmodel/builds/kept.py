"""Builds of ggml in the user's data folder, each in a folder "ggml/NAME"."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

from .. import atomic, folders
from ..errors import ConfigError, NativeError
from ..platforms import files
from . import builder
from .choice import INSTALLED, choose, is_chosen

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def folder() -> Path:
    """The folder of builds."""
    return folders.data() / "ggml"


def path_of(name: str) -> Path:
    """The folder of the build of that name, which need not exist.

    Raises:
        NativeError: it is no name.
    """
    reserved = name == INSTALLED or name.endswith(builder.BUILDING)
    if not _NAME.fullmatch(name) or reserved:
        raise NativeError(
            f"{name!r:.80} cannot be the name of a build; give up to 64 letters, digits, '.', '_' "
            f"and '-', a letter or digit first, and not {INSTALLED!r}"
        )
    return folder() / name


def names() -> list[str]:
    """The builds that are complete."""
    return [path.name for path in _entries() if any(path.glob("built-*"))]


def unfinished() -> list[str]:
    """The builds that were interrupted or failed, or are under way."""
    suffix = builder.BUILDING
    return [p.name.removesuffix(suffix) for p in _entries() if p.name.endswith(suffix)]


def remove(name: str) -> int:
    """Removes a build, also an unfinished one; returns its bytes. A default that is removed makes
    way for the installed one.

    Raises:
        NativeError: there is no such build, or it is under way; then all stays as it was.
        WriteError: it cannot be removed.
    """
    path = path_of(name)
    work = path.with_name(f"{path.name}{builder.BUILDING}")
    found = [p for p in (path, work) if p.is_dir() and not p.is_symlink()]
    if not found:
        known = ", ".join([*names(), *unfinished()]) or "none"
        raise NativeError(f"no build is called {name!r}; there are: {known}")
    if path in found:
        builder.refuse_others(path)
    freed = 0
    with ExitStack() as held:
        if work in found:
            with atomic.naming(work):
                held.enter_context(builder.alone(work))
        if is_chosen(path):
            choose(None)
        for at in found:
            with atomic.naming(at, after="it may be there in part"):
                freed += sum(p.lstat().st_size for p in at.rglob("*") if not p.is_dir())
                if at == work:
                    shutil.rmtree(work, ignore_errors=files.PINNED)
                else:
                    with atomic.private_folder(at) as aside:  # half a build must not look whole
                        at.rename(aside / at.name)
    return freed


def _entries() -> list[Path]:
    try:
        found = sorted(folder().iterdir())
    except (OSError, ConfigError):  # none was made, or the user has no home folder
        return []
    return [p for p in found if p.is_dir() and not p.name.startswith(".")]
