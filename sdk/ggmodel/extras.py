"""Packages that parts of ggmodel need beyond its own, the extras of pyproject.toml."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra. It names them one by one, since ggmodel
    itself comes from a clone or a wheel, and from no index."""
    from importlib import metadata  # slow

    try:
        packages = _packages(extra, metadata.requires("ggmodel") or ())
        return f"pip install {' '.join(map(shlex.quote, packages))}"
    except metadata.PackageNotFoundError:
        return f"pip install '.[{extra}]' in a clone of ggmodel"


def _packages(extra: str, requirements: Sequence[str]) -> Iterator[str]:
    for line in requirements:
        requirement, _, condition = line.partition(";")
        if not re.search(rf"extra == [\"']{extra}[\"']", condition):
            continue
        if own := re.fullmatch(r"ggmodel\[(\w+)\]", requirement.strip()):
            yield from _packages(own[1], requirements)
        else:
            yield requirement.strip()
