"""Pages of the Python interface: every name that a package exports, by mkdocstrings."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import ggmodel

# Their names are those of model files, or serve the command line alone.
_LEFT_OUT = ("models", "serve", "cli")


def packages() -> list[str]:
    """The packages whose names are public, the outermost first."""
    found = [
        name
        for _, name, is_package in pkgutil.iter_modules(ggmodel.__path__)
        if is_package and name not in _LEFT_OUT
    ]
    inner = [
        f"{name}.{within}"
        for name in ("nn", "workbench")
        for _, within, is_package in pkgutil.iter_modules(_module(name).__path__)
        if is_package
    ]
    return ["", *(name for name in [*found, *inner] if hasattr(_module(name), "__all__"))]


def _module(name: str) -> Any:
    return importlib.import_module(f"ggmodel.{name}" if name else "ggmodel")


def pages() -> dict[str, str]:
    """Path in the site → Markdown. A name is on the page of the outermost package that has it."""
    homes: dict[tuple[str, int], str] = {}
    for name in packages():
        for public, value in _exported(name):
            homes.setdefault((public, id(value)), f"ggmodel.{name}".rstrip("."))
    known = {id(value) for name in packages() for _, value in _exported(name)}
    found = {}
    for name in packages():
        path = f"ggmodel.{name}".rstrip(".")
        shown, elsewhere = [], []
        for public, value in _exported(name):
            home = homes[public, id(value)]
            if getattr(value, "__name__", "") == f"ggmodel.{public}":
                elsewhere.append(_package(public))
            elif home != path:
                elsewhere.append(f"[`{public}`][{home}.{public}]")
            else:
                shown.append(f"::: {path}.{public}" + _inherited(value, known))
        found[f"api/{path}.md"] = _page(path, _module(name), shown, elsewhere)
    found["api/ggmodel.errors.md"] = _ERRORS
    return found


def _exported(name: str) -> list[tuple[str, Any]]:
    module = _module(name)
    return [(public, getattr(module, public)) for public in module.__all__]


def _inherited(value: Any, known: set[int]) -> str:
    """Options: the members that a class has from classes without a place of their own."""
    bases = inspect.getmro(value)[1:] if inspect.isclass(value) else ()
    hidden = [c for c in bases if c.__module__.startswith("ggmodel.") and id(c) not in known]
    names = sorted({n for c in hidden for n in vars(c) if not n.startswith("_")})
    return f"\n    options:\n      inherited_members: [{', '.join(names)}]" if names else ""


def _package(name: str) -> str:
    page = "../architectures.md" if name == "models" else f"ggmodel.{name}.md"
    return f"[`{name}`]({page})"


def _page(path: str, module: Any, shown: list[str], elsewhere: list[str]) -> str:
    parts = [f"# {path}", inspect.getdoc(module) or ""]
    if elsewhere:
        parts.append(f"On other pages: {', '.join(elsewhere)}.")
    return "\n\n".join([*parts, *shown]) + "\n"


_ERRORS = """# ggmodel.errors

::: ggmodel.errors
    options:
      show_root_heading: false
      show_root_toc_entry: false
"""
