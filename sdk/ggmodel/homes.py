"""Public names of a package that are imported when they are first used: a start takes only those
modules that it needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .errors import former_names


def lazily(
    package: str, homes: Mapping[str, str], former: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        homes: module of the package → the names that it has, separated by spaces. None of them may
            be called like a module of the package, which would take its place.
        former: names of earlier versions → what to write now.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    missing = former_names(package, former or {})

    def find(name: str) -> Any:
        if name not in home_of:
            missing(name)
        value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return find, names
