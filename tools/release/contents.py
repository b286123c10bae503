"""The files that an sdist and a wheel may have."""

from __future__ import annotations

import fnmatch
import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from . import Refused

BUNDLED = {
    "ggmodel/native/_ggml_*": ("ggmodel", "ggmodel-*.dist-info/licenses/LICENSE"),
    "ggmodel/native/ggml/*": ("ggml", "ggmodel/native/ggml/LICENSE"),
    "ggmodel/serve/page/markdown-it.js": ("markdown-it", "ggmodel/serve/page/markdown-it.txt"),
    "ggmodel/serve/page/katex/*": ("katex", "ggmodel/serve/page/katex/katex.txt"),
    "ggmodel/serve/page/highlight/*": (
        "highlight.js",
        "ggmodel/serve/page/highlight/highlight.txt",
    ),
}
"""Files of others, and binaries, that wheels may bring → their part, and where its licence is."""

_BINARY = re.compile(r"\.(so|dll|dylib|pyd|a|lib|exe)(\.[\d.]+)?$")
_STRAY = re.compile(r"(^|/)(__pycache__|\.git|\.cache|\.venv|\.DS_Store)(/|$)|\.py[co]$|~$|\.orig$")
_NEEDED = ("sdk/ggmodel/__init__.py", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml")
_MOST = 40 << 20  # bytes of a wheel


def check(path: Path, version: str) -> set[str]:
    """The parts that a file brings beside ggmodel.

    Raises:
        Refused: a file that does not belong there, a binary without a licence, another version.
    """
    if not path.name.startswith(f"ggmodel-{version}"):
        raise Refused(f"{path.name} is not of version {version}; is __version__ the only place?")
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
        _check_names(path, names)
        if path.stat().st_size > _MOST:
            raise Refused(f"{path.name} has {path.stat().st_size:,} bytes; {_MOST:,} at most")
        return _parts(path, names)
    with tarfile.open(path) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    _check_names(path, names)
    if missing := [name for name in _NEEDED if name not in names]:
        raise Refused(f"{path.name} lacks {', '.join(missing)}; see MANIFEST.in")
    if binaries := [name for name in names if _BINARY.search(name)]:
        raise Refused(f"{path.name} has binaries: {', '.join(binaries)}; see MANIFEST.in")
    return set()


def texts(wheel: Path, parts: Iterable[str]) -> dict[str, str]:
    """The licences of parts that a wheel brings, by part."""
    licences = {}
    with zipfile.ZipFile(wheel) as packed:
        for part, licence in BUNDLED.values():
            if part in parts:
                [name] = fnmatch.filter(packed.namelist(), licence)
                licences[part] = packed.read(name).decode("utf-8")
    return licences


def _check_names(path: Path, names: list[str]) -> None:
    if stray := [name for name in names if _STRAY.search(name)]:
        raise Refused(f"{path.name} has files that do not belong there: {', '.join(stray)}")


def _parts(path: Path, names: list[str]) -> set[str]:
    parts = set()
    for name in names:
        owners = [part for pattern, part in BUNDLED.items() if fnmatch.fnmatch(name, pattern)]
        if not owners and not _BINARY.search(name):
            continue
        if not owners:
            raise Refused(
                f"{path.name} brings {name}: say in tools/release/contents.py what it is part of, "
                "and where its licence is"
            )
        part, licence = owners[0]
        if not fnmatch.filter(names, licence):
            raise Refused(f"{path.name} brings {name} without the licence of {part}, {licence}")
        parts.add(part)
    return parts - {"ggmodel"}
