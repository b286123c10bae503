"""Writes docs/public.txt: what a version promises to keep, a line for each name.

    python docs/generate_public.py    after a change of what is public

Promised are

- `ggmodel.__all__`, and `__all__` of the packages in `WHOLE`;
- of the packages in `USED`, which authors of models import, the names that a page, an example or a
  model file uses, and the classes that the lines above mention;
- members of classes: all fields, and what a page, an example or a model file uses; of a class that
  a package in `USED` defines only what one of these uses beside the class;
- commands, options, and variables of the environment.

The line of a function has its parameters, that of a command its own arguments and options; the line
of an option of several commands has their names, that of a name its other homes. A member that a
class overrides with the same parameters, or a field of the same type, is left to its base. The line
of an enumeration has its members.

A release names each difference from the list of the release before it, in backquotes, in the top
section of CHANGELOG.md (tools/release/state.py).
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ForwardRef

import ggmodel

PATH = Path(__file__).with_name("public.txt")

WHOLE = ("chat", "errors", "tokenizer")
USED = ("audio", "convert", "gguf_file", "image", "kvcache", "ml", "model", "names", "nn", "video")
"""Packages below ggmodel; of one without `__all__`, what it defines."""

_OURS = "ggmodel"
_VARIABLE = re.compile(r"""["'](GGMODEL_[A-Z][A-Z_]*[A-Z])["']""")
_PLAIN = (type(None), bool, int, float, str, bytes)
_BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.S | re.M)
_SPAN = re.compile(r"`([^`\n]+)`")
_ALSO = "also as"


def listing() -> dict[str, str]:
    """Each promised name, parameter and option → what is said of it, in order of names."""
    everything = offered()
    pages = list(uses())
    anywhere = set[str]().union(*pages)
    found: dict[str, str] = {}
    mentioned: set[str] = set()
    for name, lines in everything.items():
        package, _, last = name.removeprefix(f"{_OURS}.").rpartition(".")
        if package in USED and last not in anywhere:
            continue
        if _home(name) in USED:
            beside = set[str]().union(*(page for page in pages if last in page))
            found |= (promised := _promised(name, lines, beside))
        else:
            found |= (promised := _promised(name, lines, anywhere, fields=True))
        if package not in USED:
            mentioned |= {word for text in promised.values() for word in re.findall(r"\w+", text)}
    for name, lines in everything.items():
        if name.rpartition(".")[2] in mentioned and lines[name].startswith("a class"):
            found |= _promised(name, lines, anywhere, fields=True)
    found |= _commands() | dict.fromkeys(_variables(), "a variable of the environment")
    return dict(sorted(found.items(), key=lambda item: item[0].partition("(")[0]))


def _promised(
    name: str, lines: Mapping[str, str], used: set[str], fields: bool = False
) -> dict[str, str]:
    """The lines of a name: its own, and those of members that are used, maybe of all fields."""
    found: dict[str, str] = {}
    for key, text in lines.items():
        member = key.partition("(")[0].removeprefix(name).removeprefix(".")
        is_field = "(" not in key and not text.startswith(("a function", "a property"))
        if not member or member in used or (is_field and (fields or text == "a member")):
            found[key] = text
    return found


def offered() -> dict[str, dict[str, str]]:
    """All that the packages export, promised or not: name → what is said of it, its parameters and
    its members."""
    found: dict[str, dict[str, str]] = {}
    modules = [ggmodel, *(importlib.import_module(f"{_OURS}.{name}") for name in WHOLE + USED)]
    named = [(f"{m.__name__}.{name}", getattr(m, name)) for m in modules for name in _names(m)]
    first: dict[int, str] = {}
    classes = {value for _, value in named if _is_class(value)}
    for name, value in sorted(named, key=lambda one: (one[0].count("."), one[0])):
        found[name] = _item(name, value, classes)
        if (_is_class(value) or isinstance(value, FunctionType)) and first.setdefault(
            id(value), name
        ) != name:
            found[name] = {name: f"is {first[id(value)]}"}
    return found


def _home(name: str) -> str:
    """The package that defines a name."""
    value = functools.reduce(getattr, name.split(".")[1:], ggmodel)
    return getattr(value, "__module__", "").removeprefix(f"{_OURS}.").partition(".")[0]


def uses() -> Iterator[set[str]]:
    """The words of code in each page, each example, and all model files, which build on another."""
    root = PATH.parents[1]
    yield _words(root.glob("models/*/*.py"))
    for example in root.glob("examples/**/*.py"):
        yield _words([example])
    for page in [*sorted(PATH.parent.glob("*.md")), root / "README.md"]:
        text = page.read_text("utf-8")
        found: set[str] = set()
        for language, block in _BLOCK.findall(text):
            if language in ("", "python"):
                found |= _code_words(textwrap.dedent(block))
        for span in _SPAN.findall(_BLOCK.sub("", text)):
            found |= _code_words(span)
        yield found


def _words(files: Iterable[Path]) -> set[str]:
    return set().union(*(_code_words(path.read_text("utf-8")) for path in files))


def _code_words(code: str) -> set[str]:
    """The names in Python code, without those in texts and comments; all words of other code."""
    try:
        tree = ast.parse(code.strip())
    except SyntaxError:
        return set(re.findall(r"\w+", code))
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                found |= {*name.split(".")}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found


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
        return found | {f"{name}({member})": "a member" for member in cls.__members__}
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
    for base in (c for c in cls.__mro__[1:] if c in classes):
        for member, value in _members(base):
            inherited = _member(f"{name}.{member}", value).keys()
            if inherited == {key for key in found if key.partition("(")[0] == f"{name}.{member}"}:
                found = {key: rest for key, rest in found.items() if key not in inherited}
        for field, annotation in inspect.get_annotations(base).items():
            declared = found.get(f"{name}.{field}", "").partition(" = ")
            if declared[0] == _annotation(annotation) and not declared[1]:
                del found[f"{name}.{field}"]
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
    signature = getattr(function, "as_written", None) or inspect.signature(function)
    for p in signature.parameters.values():
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
    lines: dict[str, str] = {}
    takers: dict[tuple[str, str], list[str]] = {}  # an option and what is said of it → commands
    for name, rest in found.items():
        base, bracket, parameter = name.partition("(")
        if bracket:
            lines[base] += f"; {parameter[:-1]}: {rest}"
        elif rest.startswith("is "):
            continue
        elif command := _owner(name) if name.startswith(f"{_OURS} ") else "":
            option = name.removeprefix(f"{command} ")
            takers.setdefault((option, rest), []).append(command.removeprefix(f"{_OURS} "))
        else:
            lines[name] = rest
    for (option, rest), commands in takers.items():
        if len(commands) == 1:
            lines[f"{_OURS} {commands[0]}"] += f"; {option}: {rest}"
        else:
            lines[f"{_OURS} … {option}: {rest}; of"] = " ".join(commands)
    for name, rest in found.items():
        if rest.startswith("is "):
            lines[rest.removeprefix("is ")] += f"; {_ALSO}: {name}"
    head = f"# Public in ggmodel {version}; by docs/generate_public.py"
    return "\n".join([head, *(f"{name}: {rest}" for name, rest in sorted(lines.items())), ""])


def read(text: str) -> tuple[dict[str, str], str]:
    """The list of a file's text, and its version."""
    head, *lines = text.splitlines()
    found: dict[str, str] = {}
    for line in lines:
        name, _, rest = line.partition(": ")
        option = name.removeprefix(f"{_OURS} … ")
        if option != name:
            rest, _, commands = rest.partition("; of: ")
            found |= {f"{_OURS} {command} {option}": rest for command in commands.split()}
            continue
        found[name], *parts = rest.split("; ")
        for part in parts:
            word, _, said = part.partition(": ")
            if word == _ALSO:
                found[said] = f"is {name}"
            elif name.startswith(f"{_OURS} "):
                found[f"{name} {word}"] = said
            else:
                found[f"{name}({word})"] = said
    return found, head.split()[4].rstrip(";")


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
