"""Imports at first use: lazy public names, and the optional packages (extras) to install."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        homes: module, relative to the package → the names that it has, separated by spaces. None
            of them may be called like a module of the package, which would take its place.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{home_of[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        module = vars(sys.modules[package])
        return sorted(module.get("__all__") or {*module, *home_of})

    return find, names


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
