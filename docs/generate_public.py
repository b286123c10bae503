"""Writes docs/public.txt: every public name, option of a command and variable, a line each.

    python docs/generate_public.py    after a change of what is public

A release names each difference from the list of the release before it, in backquotes, in the top
section of CHANGELOG.md (tools/release/state.py).
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ForwardRef

import ggmodel

PATH = Path(__file__).with_name("public.txt")

PACKAGES = (
    "audio", "chat", "convert", "errors", "gguf_file", "image", "kvcache", "ml", "model", "names",
    "nn", "tokenizer", "video",
)  # fmt: skip
"""Packages below ggmodel whose `__all__` is public; of a module without one, what it defines."""

_OURS = "ggmodel"
_VARIABLE = re.compile(r"""["'](GGMODEL_[A-Z][A-Z_]*[A-Z])["']""")
_PLAIN = (type(None), bool, int, float, str, bytes)


def listing() -> dict[str, str]:
    """Each public name → the rest of its line, in order of names."""
    found: dict[str, str] = {}
    modules = [ggmodel, *(importlib.import_module(f"{_OURS}.{name}") for name in PACKAGES)]
    named = [(f"{m.__name__}.{name}", getattr(m, name)) for m in modules for name in _names(m)]
    first: dict[int, str] = {}
    for name, value in sorted(named, key=lambda one: (one[0].count("."), one[0])):
        if (_is_class(value) or isinstance(value, FunctionType)) and first.setdefault(
            id(value), name
        ) != name:
            found[name] = f"is {first[id(value)]}"
    classes = {value for _, value in named if _is_class(value)}
    for name, value in named:
        if name not in found:
            found |= _item(name, value, classes)
    found |= _commands()
    found |= dict.fromkeys(_variables(), "a variable of the environment")
    return dict(sorted(found.items()))


def _names(module: ModuleType) -> list[str]:
    every = getattr(module, "__all__", None)
    if every is None:
        own = {n: v for n, v in vars(module).items() if not n.startswith("_")}
        every = [n for n, v in own.items() if getattr(v, "__module__", "") == module.__name__]
    return sorted(every)


def _item(name: str, value: Any, classes: set[type]) -> dict[str, str]:
    if _is_class(value):
        return _class(name, value, classes)
    if isinstance(value, ModuleType):
        return {name: "a package"}
    if callable(value) and not hasattr(value, "__origin__"):
        return _function(name, value)
    return {name: f"a value, {_plain(value)}"}


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and not hasattr(value, "__origin__")  # as list[int] has


def _class(name: str, cls: type, classes: set[type]) -> dict[str, str]:
    """The class and its members. Those of a base that is public itself are left to that."""
    bases = [c.__name__ for c in cls.__bases__ if c in classes or not _is_ours(c)]
    found = {name: f"a class of {', '.join(bases)}" if bases != ["object"] else "a class"}
    if issubclass(cls, enum.Enum):
        return found | {f"{name}.{member}": "a member" for member in cls.__members__}
    fields = {f.name: f for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    for owner in reversed(
        [c for c in cls.__mro__ if _is_ours(c) and (c is cls or c not in classes)]
    ):
        for member, value in _members(owner):
            found |= _member(f"{name}.{member}", value)
        for field, annotation in inspect.get_annotations(owner).items():
            if not field.startswith("_"):
                default = fields[field].default if field in fields else dataclasses.MISSING
                found[f"{name}.{field}"] = _typed(annotation, default, dataclasses.MISSING)
        made = owner.__dict__.get("__init__")
        if isinstance(made, FunctionType) and made.__module__.startswith(_OURS) and not fields:
            found |= _parameters(name, made)
    return found


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == _OURS


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        kinds = (FunctionType, property, classmethod, staticmethod)
        cached = type(value).__name__ == "cached_property"
        if not name.startswith("_") and (isinstance(value, kinds) or cached):
            yield name, value


def _member(name: str, value: Any) -> dict[str, str]:
    if isinstance(value, (classmethod, staticmethod)):
        return _function(name, value.__func__)
    if isinstance(value, FunctionType):
        return _function(name, value)
    getter = getattr(value, "fget", None) or getattr(value, "func", None)
    return {name: f"a property{_returned(getter)}"}


def _function(name: str, function: Any) -> dict[str, str]:
    return {name: f"a function{_returned(function)}"} | _parameters(name, function)


def _parameters(name: str, function: Any) -> dict[str, str]:
    found = {}
    for p in inspect.signature(function).parameters.values():
        if p.name not in ("self", "cls"):
            stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
            text = _typed(p.annotation, p.default, p.empty)
            only = {p.KEYWORD_ONLY: ", by name", p.POSITIONAL_ONLY: ", by place"}.get(p.kind, "")
            found[f"{name}({stars}{p.name})"] = text + only
    return found


def _returned(function: Any) -> str:
    annotation = getattr(inspect.unwrap(function), "__annotations__", {}).get("return")
    return "" if annotation is None else f" -> {_annotation(annotation)}"


def _typed(annotation: Any, default: Any, none: Any) -> str:
    said = "any" if annotation is none or annotation is inspect.Parameter.empty else ""
    said = said or _annotation(annotation)
    return said if default is none else f"{said} = {_plain(default)}"


def _annotation(annotation: Any) -> str:
    """The text of an annotation; ours are kept as they are written, whatever the Python."""
    if isinstance(annotation, str):
        return " ".join(annotation.split())
    if isinstance(annotation, ForwardRef):
        return " ".join(annotation.__forward_arg__.split())
    return getattr(annotation, "__name__", None) or type(annotation).__name__


def _plain(value: Any) -> str:
    """A default; only of values whose text is the same in every Python and process."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))})"
    return f"of {type(value).__name__}"


def _commands() -> dict[str, str]:
    import typer.main

    from ggmodel.cli import COMMANDS, app

    group: Any = typer.main.get_command(app)
    found = {}
    for name in COMMANDS:
        command = group.get_command(None, name)
        found[f"{_OURS} {name}"] = "a command"
        for p in command.params:
            spelled = " ".join([*p.opts, *p.secondary_opts])
            if p.param_type_name != "option":
                spelled = str(p.metavar or p.name).upper()
            required = "needed" if p.required else f"{p.type.name} = {_plain(p.default)}"
            found[f"{_OURS} {name} {spelled}"] = required
    return found


def _variables() -> Iterator[str]:
    """Names in the source, and those of limits."""
    root = Path(ggmodel.__file__).parent
    for path in sorted(root.glob("**/*.py")):
        yield from _VARIABLE.findall(path.read_text("utf-8"))
    for field in dataclasses.fields(type(ggmodel.limits)):
        yield f"GGMODEL_LIMIT_{field.name.upper()}"


def text(found: Mapping[str, str], version: str) -> str:
    """The file of a list."""
    lines = [f"{name}: {rest}" for name, rest in found.items()]
    return "\n".join([f"# Public in ggmodel {version}; by docs/generate_public.py", *lines, ""])


def read(text: str) -> tuple[dict[str, str], str]:
    """The list of a file's text, and its version."""
    head, *lines = text.splitlines()
    version = head.split()[4].rstrip(";")
    return {name: rest for name, _, rest in (line.partition(": ") for line in lines)}, version


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Names that came, went, or have another line → "new", "gone" or "changed"."""
    found = {name: "gone" for name in before if name not in now}
    for name, rest in now.items():
        if name not in before:
            found[name] = "new"
        elif before[name] != rest:
            found[name] = "changed"
    return found


def top_section(changelog: str) -> str:
    """The changelog's newest section, its title included."""
    _, *sections = re.split(r"^(?=## )", changelog, flags=re.M)
    if not sections:
        raise ValueError("CHANGELOG.md has no section; begin one: ## VERSION (unreleased)")
    return sections[0]


def unnamed(changed: Mapping[str, str], section: str) -> list[str]:
    """Changes that a section of the changelog does not name in backquotes. A thing that came or
    went stands for all that belongs to it."""
    words = {w for span in re.findall(r"`([^`]+)`", section) for w in re.findall(r"[\w-]+", span)}
    missing = []
    for name in changed:
        covered = _word(name) in words
        owner = _owner(name)
        while owner and not covered:
            covered = changed.get(owner) in ("new", "gone") and _word(owner) in words
            owner = _owner(owner)
        if not covered:
            missing.append(name)
    return missing


def _word(name: str) -> str:
    """The word that names it: of an option its longest spelling."""
    options = re.findall(r"--[\w-]+", name)
    return max(options, key=len) if options else re.findall(r"[\w-]+", name)[-1]


def _owner(name: str) -> str:
    """ "ggmodel.load" of "ggmodel.load(source)", "ggmodel run" of "ggmodel run --echo"."""
    if " " in name:
        words = name.split(" ")
        return " ".join(words[:2]) if len(words) > 2 else ""
    return name.rpartition("(" if "(" in name else ".")[0]


if __name__ == "__main__":
    PATH.write_text(text(listing(), ggmodel.__version__), "utf-8")
