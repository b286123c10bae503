"""Files of a new architecture, and the classes of modules that its template lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ... import nn
from ...ml import Tensor
from ...model import Module, Stack
from ...model.source_code import declared
from ...nn import ExpertLinear
from ..nodes import folded
from .fit import Fit
from .names import annotation, declaration, dims_of, field_line, kind_of
from .source import (
    bound,
    camel,
    field_text,
    fields_in,
    quoted,
    shown,
    usable,
    with_class,
    with_field,
    with_imports,
)
from .translate import Declared, base_of, gguf_name

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
        own = fields_in(self.sources[path], self.called(cls)) if path else ()
        return {*declared(cls), *dir(cls), *vars(Module())} - slots_of(cls) | {*own}

    def declare(self, cls: str, field: str, line: str, comment: str) -> None:
        """Adds or replaces a field of a class, and imports the names of its line."""
        path = self.file_of(cls)
        assert path is not None
        text = with_field(self.sources[path], cls, field, line, comment)
        words = set(re.findall(r"(?<![\w.])\w+", line.partition("=")[0].partition(":")[2]))
        kinds = words & {*vars(nn), Tensor.__name__} - bound(text)
        self.sources[path] = with_imports(text, {**imports_of(kinds), "gguf": "ggmodel"})

    def subclass(self, cls: type[Module], holder: Declared | None, docstring: str) -> str | None:
        """Writes a subclass in place of a class that other architectures share.

        Args:
            holder: the field that has it.
            docstring: the docstring.

        Returns:
            its name; None if the class is none of `ggmodel.nn`, or no field of the files has it.
        """
        outer = self.called(holder.owner) if holder else ""
        path = self.file_of(outer) if holder else None
        if holder is None or path is None or cls.__name__ not in vars(nn):
            return None
        shared, own = f"nn.{cls.__name__}", usable(cls.__name__, bound(self.sources[path]))
        text = f'class {own}({shared}):\n    """{docstring}"""\n'
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


_DIMS = 4  # of a tensor in ggml
_OPERATION = "too many dims for ggml; needs an op=, see Operations on weights in docs/models.md"


@dataclass
class Tree:
    """A module of a checkpoint.

    Attributes:
        name: its full name.
        shapes: of its own tensors by leaf ("weight", "bias", ""), in ggml's order.
    """

    name: str
    inner: dict[str, Tree] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: str, tensors: Mapping[str, tuple[int, ...]]) -> Tree:
        """The tree of the tensors below a module; shapes are numpy's."""
        tree = cls(root)
        for name, shape in tensors.items():
            base, leaf = base_of(name)
            at = tree
            for part in base.removeprefix(root).strip(".").split("."):
                at = at.inner.setdefault(part, cls(f"{at.name}.{part}")) if part else at
            at.shapes[leaf] = tuple(reversed(shape))
        return tree

    def parts(self) -> Iterator[tuple[str, Tree]]:
        """The modules below this one by their names there; those of one that has tensors itself,
        as "gate.bias_of_choice", beside it."""
        for name, tree in self.inner.items():
            yield name, tree
            if tree.shapes:
                yield from ((f"{name}.{part}", inner) for part, inner in tree.parts())

    @property
    def experts(self) -> Tree | None:
        """The first of numbered experts that are linear maps of the same shapes, which one field
        a map stacks."""
        if "expert" not in self.name.rpartition(".")[2] or not (items := self.items):
            return None
        maps = [list(item.inner.values()) for item in items]
        linear = all(not m.inner and len(m.shapes.get("weight", ())) == 2 for m in maps[0])
        alike = all([m.shapes for m in other] == [m.shapes for m in maps[0]] for other in maps)
        return items[0] if linear and alike and not items[0].shapes else None

    @property
    def items(self) -> list[Tree]:
        """The items, if it is a list of modules of one structure."""
        numbers = [str(i) for i in range(len(self.inner))]
        if self.shapes or list(self.inner) != numbers or not numbers:
            return []
        items = [self.inner[n] for n in numbers]
        return items if len({item._structure() for item in items}) == 1 else []

    def _structure(self) -> tuple[object, ...]:
        inner = tuple((name, tree._structure()) for name, tree in sorted(self.inner.items()))
        return inner, tuple(sorted((n, len(s)) for n, s in self.shapes.items()))


@dataclass
class NewModules:
    """Writes classes for a tree.

    Attributes:
        architecture: the new one, for llama.cpp's names.
        prefix: of the names of classes.
        below: the names in files that enclose those of the tree, "blk.*" in a layer.
        fallback: begins the names in files that llama.cpp lacks.
        widths: hyperparameters that name dims, with their values.
        classes: that were written, inner ones first.
        kinds: of the fields.
        left: tensors that no field can take, with the reason.
    """

    architecture: str
    prefix: str
    below: str
    fallback: str
    widths: Mapping[str, int]
    classes: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    _used: set[tuple[str, str]] = field(default_factory=set)

    def write(self, tree: Tree, name: str = "") -> str:
        """The class of a module, whose name is returned."""
        return self._class(tree, name or self.prefix, self.below, self.fallback)

    def _class(self, tree: Tree, name: str, below: str, path: str) -> str:
        """Writes the class of a module; "" if it has no fields."""
        taken: set[str] = {"config", "forward", "dims", "scope"}
        lines: list[str] = []
        experts = tree.experts
        for part, inner in (experts or tree).parts():
            at = f"{path}.{part}" if path else part
            field = usable(_word(part, tree.name), taken)
            if experts:
                line = self._stacked(field, part, tree, inner, below, at)
            else:
                line = self._field(field, part, inner, name, below, at)
            taken.add(line.partition(":")[0])
            lines.append(f"    {line}")
        if all(line.startswith("    #") for line in lines):
            return ""
        doc = f'    """{shown(folded(tree.name))}: nothing computes with it yet."""'
        self.classes.append("\n".join([f"class {name}(Module):", doc, "", *lines]))
        return name

    def _field(self, field: str, part: str, tree: Tree, cls: str, below: str, path: str) -> str:
        if tree.shapes:
            return self._leaf(field, part, tree, below, path)
        own = f"{cls}{camel(field)}"
        if (items := tree.items) and not tree.experts:
            inside = self._prefix(items[0]) or path
            item = self._class(items[0], f"{own.removesuffix('s')}", inside, "")
            at = inside.removesuffix(".*")
            names = quoted(at[len(below) + 1 :] if below and at.startswith(f"{below}.") else at)
            n = next(
                (quoted(k) for k, v in self.widths.items() if v == len(items) and _counts(k)), ""
            )
            return f"{field}: list[{item}] = gguf({names}, hf={quoted(part)}, n={n or len(items)})"
        inner = self._class(tree, own, below, path)
        return (
            f"{field}: {inner} = gguf(hf={quoted(part)})" if inner else f"# {field}: {_OPERATION}"
        )

    def _leaf(self, field: str, part: str, tree: Tree, below: str, path: str) -> str:
        leaves = sorted(tree.shapes, reverse=True)  # the weight first
        shape = tree.shapes[leaves[0]]
        if len(shape) > _DIMS:
            self.left.append(f"{tree.name} {list(shape)}: {_OPERATION}")
            return f"# {field}: {_OPERATION}"
        kind = kind_of(part, leaves, shape)
        self.kinds.add(kind)
        theirs, more = self._in_files(tree.name, part, below, path)
        return field_line(field, kind, theirs, part, leaves, shape, self.widths, more)

    def _stacked(
        self, field: str, part: str, tree: Tree, first: Tree, below: str, path: str
    ) -> str:
        """The field of one linear map of all experts.

        Args:
            tree: of all experts. first: the map of the first of them.
        """
        n = len(tree.inner)
        counts = [name for name, v in self.widths.items() if v == n and name.endswith("experts")]
        number = quoted(counts[0]) if counts else str(n)
        self.kinds |= {ExpertLinear.__name__, Stack.__name__}
        theirs, more = self._in_files(f"{tree.name}.{part}", part, below, path)
        template = quoted("{}." + part.replace("{", "{{").replace("}", "}}"))
        dims = ", ".join([*dims_of(first.shapes["weight"], self.widths), number])
        return (
            f"{field}: {ExpertLinear.__name__} = gguf({quoted(theirs)}, "
            f"hf=Stack({template}, {number}){more}, shape=({dims}))"
        )

    def _in_files(self, module: str, part: str, below: str, path: str) -> tuple[str, str]:
        """The name of a module's tensors in files, below those that enclose it, and further
        arguments of its field."""
        theirs, more = gguf_name(folded(module), self.architecture) or "", ""
        if theirs and below and theirs.startswith(f"{below}."):
            theirs = theirs[len(below) + 1 :]
        elif theirs and below and "*" not in theirs:
            more = ", root=True"
        elif below and theirs:
            theirs = ""
        number = re.search(r"\d+$", part)
        theirs = theirs.replace("*", number[0]) if number else theirs
        if not theirs or "*" in theirs or (below, theirs) in self._used:
            theirs, more = path, ""
        self._used.add((below, theirs))
        return theirs, more

    def _prefix(self, item: Tree) -> str:
        """llama.cpp's name of the items of a list, "v.blk.*", by the first tensor that has one."""
        for base in _bases(item):
            name = gguf_name(folded(base), self.architecture)
            if name and "*" in name:
                return name[: name.index("*") + 1]
        return ""


def _bases(tree: Tree) -> Iterator[str]:
    if tree.shapes:
        yield tree.name
    for inner in tree.inner.values():
        yield from _bases(inner)


def _counts(name: str) -> bool:
    return any(word in name for word in ("depth", "layers", "block"))


def _word(part: str, parent: str) -> str:
    """A name for a field: that of the module, for a number with that of the module around it."""
    above = f"{parent.rpartition('.')[2]}_" if part.isdigit() else ""
    return re.sub(r"\W", "_", f"{above}{part}")
