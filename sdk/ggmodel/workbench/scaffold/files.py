"""The files of a new architecture while they are extended."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ... import nn
from ...ml import Tensor
from ...model import Module, Stack
from ...model.source_code import declared
from .fit import Fit
from .names import annotation, declaration
from .source import (
    bound,
    camel,
    field_text,
    fields_in,
    usable,
    with_class,
    with_field,
    with_imports,
)
from .translate import Declared

READ = "From the checkpoint:"
UNREAD = "From the checkpoint; nothing reads it yet:"
CALLED = "Called otherwise than in the template:"
OTHERWISE = "The template's hf= cannot read this config.json:"


@dataclass
class Files:
    """The files of a new architecture while they are extended.

    Attributes:
        sources: path → text.
        fit: of the template.
        left: what could not be added, with the reason.
        own: the name of the model's class.
    """

    sources: dict[str, str]
    fit: Fit
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = next(iter(self.sources)).split("/")[0]
        self.own = camel(first.removesuffix(".py"))

    def file_of(self, cls: str) -> str | None:
        """The file with a class, if any."""
        there = re.compile(rf"^class {cls}\b", re.M)
        return next((p for p, text in self.sources.items() if there.search(text)), None)

    def called(self, cls: type[Module]) -> str:
        """The name of a class of the template here."""
        return self.own if cls is self.fit.cls else cls.__name__

    def taken(self, cls: type[Module]) -> set[str]:
        """Names that a class has, also in the new file."""
        path = self.file_of(self.called(cls))
        own = fields_in(self.sources[path], self.called(cls)) if path else set[str]()
        return ({*declared(cls), *dir(cls)} - slots_of(cls)) | own

    def declare(self, cls: str, field: str, line: str, comment: str) -> None:
        """Adds or replaces a field of a class, and imports the names of its line."""
        path = self.file_of(cls)
        assert path is not None
        text = with_field(self.sources[path], cls, field, line, comment)
        words = set(re.findall(r"(?<![\w.])\w+", line.partition("=")[0].partition(":")[2]))
        kinds = words & {*vars(nn), Tensor.__name__} - bound(text)
        self.sources[path] = with_imports(text, {**imports_of(kinds), "gguf": "ggmodel"})

    def subclass(self, cls: type[Module], holder: Declared | None, said: str) -> str | None:
        """Writes a subclass in place of a class that other architectures share.

        Args:
            holder: the field that has it.
            said: the docstring.

        Returns:
            its name; None if the class is none of `ggmodel.nn`, or no field of the files has it.
        """
        outer = self.called(holder.owner) if holder else ""
        path = self.file_of(outer) if holder else None
        if holder is None or path is None or cls.__name__ not in vars(nn):
            return None
        shared, own = f"nn.{cls.__name__}", usable(cls.__name__, bound(self.sources[path]))
        text = f'class {own}({shared}):\n    """{said}"""\n'
        self.sources[path] = with_class(self.sources[path], text, outer)
        kind, line = field_text(self.sources[path], outer, holder.name)
        kind = (kind or annotation(self.sources[path], holder)).replace(shared, own)
        tag = (line or declaration(holder, kind)).partition("=")[2]
        self.declare(outer, holder.name, f"{holder.name}: {kind} ={tag}", CALLED)
        return own

    def as_package(self) -> str:
        """The folder of the architecture; a single file becomes one."""
        first = next(iter(self.sources))
        package = first.split("/")[0].removesuffix(".py")
        if "/" not in first:
            text = f'"""{self.own}."""\n\nfrom .model import {self.own} as {self.own}\n'
            self.sources[f"{package}/__init__.py"] = text
            self.sources[f"{package}/model.py"] = self.sources.pop(first)
        return package


def slots_of(cls: type[Module]) -> set[str]:
    """Names that a class reads where a subclass declares them, as `nn.Attention` does `q_norm`."""
    here = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    return {name for name in declared(cls) if name in here and here[name] is None}


def imports_of(kinds: Iterable[str]) -> dict[str, str]:
    """The names of modules, each with the package that it is imported from."""
    packages = {Tensor.__name__: "ggmodel", Stack.__name__: "ggmodel.model"}
    return {k: packages.get(k, "ggmodel.nn") for k in sorted(kinds)}
